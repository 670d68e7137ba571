"""Two runs of one experiment and seed, by all that is counted: figures and verdicts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from qll.errors import RunError
from qll.grid.experiment import difference
from qll.metrics import Evaluation, Share
from qll.reports.numbers import read_epsilon, same_epsilon
from qll.reports.run import REGRESSION, Run
from qll.reports.verdicts import Answer, Verification

_SHOWN = 3  # differing verdicts that are named
_DIGITS = 12  # of a network's hash
# Of R2 and RMSE, which are sums in floating point: the last bits are the machine's.
_SAME = 1e-6
# Figures of which records from before they were kept say nothing.
_LATER = ("chance", "missed")


def differences(held: Run, made: Run) -> Iterator[str]:
    """What is counted, in a run that was made again: figures and verdicts. Losses and times are not
    compared: they depend on the machine."""
    other = difference(held.config, made.config)
    if other is not None:
        name, ours, theirs = other
        raise RunError(
            "a record of this name is of another experiment",
            where=str(held.path),
            expected=f"{name} = {ours!r}",
            found=f"{theirs!r} in {made.path}",
            fix="record the run into another folder, or rename its folder",
        )
    if len(held.epochs) != len(made.epochs):
        yield f"epochs: {len(held.epochs)} recorded, {len(made.epochs)} now"
    for metric, before in held.shares.items():
        after = made.shares[metric]
        if before != after:
            yield f"{metric}: {_shown(before)} recorded, {_shown(after)} now"
    for metric in REGRESSION:
        old, new = held.figures[metric], made.figures[metric]
        if not _close(old, new):
            yield f"{metric}: {_figure(old)} recorded, {_figure(new)} now"
    for name in _LATER:
        before, after = _later(held, name), _later(made, name)
        if before is not None and before != after:
            yield f"{name}: {_shown(before)} recorded, {_shown(after)} now"
    yield from _proved(held, made)
    yield from _regions(held, made)


def remarks(held: Run, made: Run) -> Iterator[str]:
    """What is another without being an error. The last bits of a training depend on the machine,
    and with them the network's hash; whether anything follows from it, the figures say."""
    if held.network != made.network:
        yield f"another network: {_hash(made)}, of the record {_hash(held)}"
    for name in _LATER:
        after = _later(made, name)
        if _later(held, name) is None and after is not None:
            yield f"{name}: {_shown(after)} now, of which the record says nothing"
    old, new = _evidence(held), _evidence(made)
    if old != new:
        yield f"what verdicts rest on: {_listed(new)} now, of the record {_listed(old)}"
    yield from _repeated(held, made)


def _evidence(run: Run) -> Counter[str]:
    return Counter(a.evidence for v in run.verifications for a in v.answers if a.evidence)


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {said}" for said, count in sorted(counts.items())) or "not said"


def _proved(held: Run, made: Run) -> Iterator[str]:
    """CSat of the evaluations at an epsilon that is no metric's and has no verdicts."""
    whole = held.epsilon
    metrics = [] if whole is None else [whole, whole / 2]
    for size, line in _other_csat(held, made):
        if not any(same_epsilon(size, other) for other in [*metrics, *_verdicted(held, made)]):
            yield line


def _repeated(held: Run, made: Run) -> Iterator[str]:
    """CSat of the evaluations where verdicts say the same: one of the two may leave it to them."""
    for size, line in _other_csat(held, made):
        if any(same_epsilon(size, other) for other in _verdicted(held, made)):
            yield f"{line} in the evaluation; the verdicts are compared by themselves"


def _verdicted(held: Run, made: Run) -> list[float | None]:
    return [v.epsilon for run in (held, made) for v in run.verifications]


def _other_csat(held: Run, made: Run) -> Iterator[tuple[float, str]]:
    old, new = _csat(held.evaluation), _csat(made.evaluation)
    sizes = [*old, *(e for e in new if not any(same_epsilon(e, other) for other in old))]
    for size in sizes:
        before, after = (
            next((share for e, share in found.items() if same_epsilon(e, size)), None)
            for found in (old, new)
        )
        if before != after:
            yield size, f"CSat at epsilon {size:g}: {_shown(before)} recorded, {_shown(after)} now"


def _csat(evaluation: Evaluation | None) -> dict[float, Share]:
    found = {} if evaluation is None else evaluation.csat
    sizes = {text: read_epsilon(text) for text in found}
    return {size: found[text] for text, size in sizes.items() if size is not None}


def _regions(held: Run, made: Run) -> Iterator[str]:
    left = list(made.verifications)
    for before in held.verifications:
        after = next((v for v in left if same_epsilon(v.epsilon, before.epsilon)), None)
        if after is None:
            yield f"{_at(before)}{len(before.answers)} regions recorded, none now"
            continue
        left.remove(after)
        yield from _changed(before, after)
    for after in left:
        yield f"{_at(after)}no region recorded, {len(after.answers)} now"


def _changed(before: Verification, after: Verification) -> Iterator[str]:
    old, new = ({a.index: _said(a) for a in v.answers} for v in (before, after))
    changed = [
        f"region {index} {old.get(index, 'not asked')}, now {new.get(index, 'not asked')}"
        for index in sorted(old.keys() | new.keys())
        if old.get(index) != new.get(index)
    ]
    if changed:
        more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
        yield f"{_at(before)}{'; '.join(changed[:_SHOWN])}{more}"


def _said(answer: Answer) -> str:
    return f"{answer.status}{' vacuously' if answer.vacuous else ''}"


def _at(verification: Verification) -> str:
    size = verification.epsilon
    return "" if size is None else f"at epsilon {size:g}: "


def _later(run: Run, name: str) -> Share | None:
    return None if run.evaluation is None else getattr(run.evaluation, name)


def _close(a: float | None, b: float | None) -> bool:
    if a is None or b is None:
        return a is b
    return math.isclose(a, b, rel_tol=_SAME) or (math.isnan(a) and math.isnan(b))


def _shown(share: Share | None) -> str:
    if share is None:
        return "nothing"
    more = f" and {share.vacuous} vacuous" if share.vacuous else ""
    return f"{share.good} of {share.total}{more}"


def _figure(value: float | None) -> str:
    return "nothing" if value is None else f"{value:.6g}"


def _hash(run: Run) -> str:
    return "none" if run.network is None else run.network[:_DIGITS]
