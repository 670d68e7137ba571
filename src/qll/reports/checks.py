"""Whether the records of a run can be true together. Whoever changes one figure by hand has to
change the others that say the same."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from qll.errors import RunError
from qll.metrics import Evaluation, Share
from qll.reports.numbers import is_count, is_finite, is_number, read_epsilon, same_epsilon
from qll.reports.verdicts import Verification
from qll.training.config import TrainConfig
from qll.training.methods import METHODS

_SHARES = ("pacc", "cacc", "csec_self", "csec_qll", "chance", "missed")
_AGAIN = "run qll evaluate again"


def check_texts(where: str, value: Any) -> None:
    """Half a character, as JSON's escapes can write one, can be put into no page and no table."""
    left = [value]
    while left:
        held = left.pop()
        if isinstance(held, str) and not _is_whole(held):
            raise _wrong(where, "a text has half a character", "characters of Unicode",
                         ascii(held[:60]), "remove it from the text, or the run")  # fmt: skip
        if isinstance(held, Mapping):
            left += [*held.keys(), *held.values()]
        elif isinstance(held, list | tuple):
            left += held


def _is_whole(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_settings(where: str, config: TrainConfig) -> None:
    """Those that tables and pages look up, beyond what makes a configuration."""
    if not config.is_baseline:
        METHODS[config.method]  # names it, if it is of another version or of a plugin
    for name in ("parameters", "judged", "measured"):
        held = getattr(config, name) or {}
        if not all(map(is_finite, held.values())):
            raise _wrong(where, f"'{name}' are damaged", "numbers", str(held),
                         "train the run again, and record it")  # fmt: skip


def check_environment(where: str, values: Mapping[str, Any]) -> None:
    if not isinstance(values.get("packages", {}), Mapping):
        raise _wrong(
            where,
            "the environment is damaged",
            "packages with their versions",
            repr(values["packages"]),
            "remove it: only versions and machine are lost",
        )


def check_epochs(where: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Plots and sums are made of them: numbers or words, and times that are some."""
    for number, row in enumerate(rows, start=1):
        if row.get("epoch") != number:
            raise _wrong(where, f"line {number} is of another epoch", f"epoch {number}",
                         repr(row.get("epoch")), "train the run again, and record it")  # fmt: skip
        seconds = row.get("seconds")
        bad = {k: v for k, v in row.items() if not (_is_plain(v) or is_number(v))}
        if seconds is not None and not (is_finite(seconds) and seconds >= 0):
            bad["seconds"] = seconds
        for name, value in bad.items():
            raise _wrong(
                where,
                f"'{name}' of epoch {number} is damaged",
                "seconds from 0" if name == "seconds" else "a number or a word",
                repr(value),
                "remove that line: only the figures of one epoch are lost",
            )


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | str)


def check_length(where: str, count: int, epochs: int, *, recorded: bool) -> None:
    """A folder with fewer epochs than asked for is being trained; a record is of a whole run."""
    if count > epochs or (recorded and count < epochs):
        raise _wrong(
            where,
            f"the run has {count} epochs",
            f"{epochs}, as its configuration says",
            str(count),
            "train the run again, and record it",
        )


def check_figures(where: str, values: Mapping[str, Any]) -> None:
    """Before they become an ``Evaluation``, which holds counts alone."""
    csat = values.get("csat")
    proved = {f"csat at {k}": v for k, v in csat.items()} if isinstance(csat, Mapping) else {}
    for name, said in ({key: values.get(key) for key in _SHARES} | proved).items():
        if isinstance(said, Mapping) and not _is_share(said):
            raise _wrong(
                where,
                f"{name} is no share",
                "whole numbers with 0 <= good <= total, and share = good / total",
                str(dict(said)),
                _AGAIN,
            )
    for name, most in (("r2", 1.0), ("rmse", math.inf)):
        said = values.get(name)
        least = -math.inf if name == "r2" else 0.0
        if said is not None and (not is_number(said) or said < least or said > most):
            raise _wrong(where, f"{name} is damaged", f"a number from {least:g} to {most:g}",
                         repr(said), _AGAIN)  # fmt: skip


def _is_share(said: Mapping[str, Any]) -> bool:
    good, total = said.get("good"), said.get("total")
    if not (is_count(good) and is_count(total) and is_count(said.get("vacuous", 0))):
        return False
    value = said.get("share")
    if "share" not in said or not total:  # of nothing there is none
        return good <= total and value is None
    return good <= total and is_finite(value) and math.isclose(value, good / total, rel_tol=1e-9)


def check_images(
    where: str, evaluation: Evaluation, samples: int, outputs: Iterable[int | None] = ()
) -> None:
    """CSec looks at every image once, CAcc at ``samples`` points around each. PAcc and chance count
    images, or all labels of each, which are as many as the ``outputs`` where some rule says it."""
    images = evaluation.csec_qll.with_vacuous.total
    counted = {"cacc": (evaluation.cacc, samples), "csec_self": (evaluation.csec_self, 1)}
    for name, (share, times) in counted.items():
        if share is not None and share.with_vacuous.total != times * images:
            raise _other_images(where, name, f"{times * images} points, of {images} images", share)
    declared = {count for count in outputs if count is not None}
    for name, share in (("pacc", evaluation.pacc), ("chance", evaluation.chance)):
        if share is not None and not _counts(share, images, declared):
            several = min(declared, default=None)
            labels = "a whole number for each image" if several is None else several * images
            wanted = f"{images} images, or of several labels for an image {labels}"
            raise _other_images(where, name, wanted, share)
    pacc, chance, missed = evaluation.pacc, evaluation.chance, evaluation.missed
    if chance is not None and (pacc is None or chance.total != pacc.total):
        wanted = "none, as there is no pacc" if pacc is None else f"{pacc.total}, as of pacc"
        raise _wrong(where, "chance and pacc are of different images", wanted, str(chance.total),
                     _AGAIN)  # fmt: skip
    left = evaluation.csec_qll.total
    if missed is not None and missed.with_vacuous.total > left:
        raise _other_images(where, "missed", f"at most {left} regions, of which csec_qll speaks",
                            missed)  # fmt: skip


def _counts(share: Share, images: int, declared: set[int]) -> bool:
    """Whether each image was counted once, or once for each of its labels."""
    if share.vacuous or not images:  # what is predicted is right or wrong
        return not share.vacuous and not share.total
    times, rest = divmod(share.total, images)
    return not rest and times > 0 and (times == 1 or not declared or times in declared)


def _other_images(where: str, name: str, expected: str, found: Share) -> RunError:
    what = f"{name} and csec_qll are of different images"
    return _wrong(where, what, expected, str(found.with_vacuous.total), _AGAIN)


def check_proved(
    where: str,
    evaluation: Evaluation,
    verifications: Sequence[Verification],
    *,
    recorded: bool,
) -> None:
    """CSat of the evaluation against the verdicts at the same epsilon. In a folder two commands
    wrote them, maybe about other numbers of regions; a record says one thing."""
    sizes = [(text, read_epsilon(text)) for text in evaluation.csat]
    for k, (text, size) in enumerate(sizes):
        if size is not None and any(same_epsilon(size, other) for _, other in sizes[:k]):
            raise _wrong(where, f"CSat at epsilon {text} is there twice", "it once", "it twice",
                         _AGAIN)  # fmt: skip
        own = [v for v in verifications if size is not None and same_epsilon(v.epsilon, size)]
        said = evaluation.csat[text]
        if not own or said == (proved := own[0].share("verified")):
            continue
        if recorded or said.with_vacuous.total == proved.with_vacuous.total:
            raise _wrong(
                where,
                f"evaluation and verdicts at epsilon {text} disagree on what is proved",
                f"{_shown(proved)}, as the verdicts say",
                _shown(said),
                "leave CSat to the verdicts: qll evaluate RUN --prove 0",
            )


def _shown(share: Share) -> str:
    more = f" and {share.vacuous} vacuous" if share.vacuous else ""
    return f"{share.good} of {share.total}{more}"


def _wrong(where: str, what: str, expected: str, found: str, fix: str) -> RunError:
    return RunError(what, where=where, expected=expected, found=found, fix=fix)
