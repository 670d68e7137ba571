"""What a verifier answered about a run, and whether it was this run that it was asked about."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qll.errors import QllError, RunError
from qll.formula.nodes import Specification
from qll.formula.parse import parse_specification
from qll.formula.question import canonical
from qll.metrics import Share, is_vacuous
from qll.properties import load, names
from qll.property import Property
from qll.reports.numbers import is_count, is_finite
from qll.training.config import TrainConfig

STATUSES = ("verified", "falsified", "unknown")
_AGAIN = "verify the run's own model.onnx again, or remove the file"


@dataclass(frozen=True)
class Answer:
    """One query of a verifier."""

    index: int
    status: str
    seconds: float
    vacuous: bool = False
    evidence: str | None = None
    """What the verdict rests on (`qll.verify.verdict.Evidence`); None where it was not kept."""


@dataclass(frozen=True)
class Verification:
    """All answers at one epsilon, if the property has one."""

    epsilon: float | None
    answers: tuple[Answer, ...]
    outputs: int | None = None
    """Of the network, where the text of the rule says how many."""

    def share(self, status: str) -> Share:
        """Of the regions of which the property says something."""
        counted = [a for a in self.answers if not a.vacuous]
        good = sum(a.status == status for a in counted)
        more = self.vacuous if status == "verified" else 0
        return Share(good, len(counted), more)

    @property
    def vacuous(self) -> int:
        return sum(a.vacuous for a in self.answers)


def read_verification(
    where: str,
    values: Mapping[str, Any],
    *,
    config: TrainConfig,
    network: str | None,
    recorded: bool,
) -> Verification:
    """``network`` is the SHA-256 of the run's own. A ``recorded`` run has no network beside it, so
    that its verdicts have to say everything that was asked."""
    _check_subject(where, values, config, network, recorded=recorded)
    found = _read(where, values, config)
    asked = _check_question(where, values, config, recorded=recorded)
    count = values.get("count", len(found.answers))
    if count != len(found.answers):
        raise RunError(
            f"there are {len(found.answers)} verdicts",
            where=where,
            expected=f"{count}: as many as regions were asked about",
            found=str(len(found.answers)),
            fix=_AGAIN,
        )
    return found if asked is None else replace(found, outputs=asked.outputs)


def _read(where: str, values: Mapping[str, Any], config: TrainConfig) -> Verification:
    try:
        asked = values["parameters"]
        if not all(map(is_finite, asked.values())):
            raise ValueError(f"parameters {dict(asked)}")
        epsilon = asked["epsilon"] if "epsilon" in config.parameters or "epsilon" in asked else None
        answers = tuple(map(_answer, values["verdicts"]))
        if len({a.index for a in answers}) != len(answers):
            raise ValueError("a data point that occurs twice")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(
            "these are not the verdicts of a verifier",
            where=where,
            expected="parameters with epsilon, and verdicts with point, status and seconds",
            found=f"{type(error).__name__}: {error}",
            fix="run qll verify again, or remove the file",
        ) from error
    for answer in answers:
        if answer.vacuous and answer.status != "verified":
            # Else a region that was falsified would leave the share by being called vacuous.
            raise RunError(
                f"region {answer.index} is {answer.status} and vacuous",
                where=where,
                expected="vacuous regions to be verified: they hold whatever the network computes",
                found=f"a vacuous region that is {answer.status}",
                fix=_AGAIN,
            )
    return Verification(None if epsilon is None else float(epsilon), answers)


def _answer(verdict: Mapping[str, Any]) -> Answer:
    point, status, seconds = verdict["point"], verdict["status"], verdict["seconds"]
    if not is_count(point):
        raise ValueError(f"point {point!r}")
    if status not in STATUSES:
        raise ValueError(f"status {status!r}")
    if not is_finite(seconds) or seconds < 0:
        raise ValueError(f"a time of {seconds!r}")
    for name in ("stage", "reason", "evidence"):
        if not isinstance(said := verdict.get(name), str | None):
            raise ValueError(f"a {name} of {said!r}")
    if (nodes := verdict.get("nodes")) is not None and not is_count(nodes):
        raise ValueError(f"nodes {nodes!r}")
    evidence = verdict.get("evidence")
    return Answer(point, status, float(seconds), is_vacuous(verdict), evidence)


# --- whether it was this run ---


def _check_subject(
    where: str,
    values: Mapping[str, Any],
    config: TrainConfig,
    network: str | None,
    *,
    recorded: bool,
) -> None:
    """A proof counts for the network and the property it was made for, and for no other."""
    expected = {"property": Path(config.property).stem}
    found = {"property": Path(str(values.get("property", ""))).stem}
    if network is not None:
        expected["network"] = network
        found["network"] = str(values.get("network_sha256", ""))
    elif recorded:
        raise RunError(
            "it is not said of which network these verdicts are",
            where=where,
            expected="the SHA-256 of the run's model.onnx",
            found="none",
            fix="record a folder that has its model.onnx still",
        )
    for name, wanted in expected.items():
        if found[name] != wanted:
            raise RunError(
                f"these verdicts are about another {name}",
                where=where,
                expected=wanted,
                found=found[name] or "none named",
                fix=_AGAIN,
            )


def _check_question(
    where: str, values: Mapping[str, Any], config: TrainConfig, *, recorded: bool
) -> Specification | None:
    """The rule of the run with the parameters that it is judged at, but for epsilon: verdicts at
    another one are another figure. What was asked is given back, where the text is kept."""
    missing = [name for name in ("text", "count") if name not in values]
    if recorded and missing:
        raise RunError(
            "the verdicts do not say what was asked",
            where=where,
            expected="the text of the rule, and how many regions there were",
            found=f"no {' and no '.join(missing)}",
            fix="verify the run again, and record it",
        )
    judged = config.parameters if config.judged is None else config.judged
    asked: dict[str, float] = dict(values["parameters"])
    spec = None
    if "text" in values:
        spec, own = _asked_rule(where, values, config)
        asked, judged = _values(spec), own | judged
    for name, value in asked.items():
        wanted = judged.get(name, value)
        if name != "epsilon" and not math.isclose(wanted, value, rel_tol=1e-6, abs_tol=1e-12):
            raise RunError(
                "these verdicts are at other parameters than the run is judged at",
                where=where,
                expected=f"{name} = {wanted:g}",
                found=f"{value:g}",
                fix=f"verify with --set {name}={wanted:g}, or remove the file",
            )
    return spec


def _asked_rule(
    where: str, values: Mapping[str, Any], config: TrainConfig
) -> tuple[Specification, dict[str, float]]:
    """The rule of the text, and the parameters of the run's own property, which says the same but
    for them. The latter are none if it cannot be read: a file that has moved since, or names that
    only a table has. Then the text is all there is, and only has to be at its own parameters."""
    text, asked = values["text"], values["parameters"]
    wanted, said = f"the rule '{config.property}'", "a text that cannot be read"
    try:
        spec = parse_specification(text if isinstance(text, str) else "")
        said = canonical(spec)
        prop = _own(config.property, spec)
        wanted = canonical(spec if prop is None else prop.specification, asked)
    except QllError as error:
        raise _another_rule(where, wanted, said) from error
    if said != wanted:
        raise _another_rule(where, wanted, said)
    return spec, {} if prop is None else _values(prop.specification)


def _values(spec: Specification) -> dict[str, float]:
    return {p.name: float(p.default) for p in spec.parameters}


def _own(name: str, spec: Specification) -> Property | None:
    """The property of this name for a network with the outputs and names of ``spec``."""
    declared = {item.kind: item.names for item in spec.names}
    outputs = declared.get("outputs", spec.outputs)
    try:
        return load(name, outputs=outputs, inputs=declared.get("inputs"))
    except QllError:
        if name in names():
            raise
        return None


def _another_rule(where: str, wanted: str, said: str) -> RunError:
    return RunError(
        "these verdicts are about another rule",
        where=where,
        expected=wanted.strip(),
        found=said.strip(),
        fix=_AGAIN,
    )
