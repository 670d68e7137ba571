"""Runs as their folders record them: the only source of every table and page.

A run is a folder with ``config.json`` (see ``qll.training.run``). Beside it are read

verdicts*.json      what ``qll verify --json`` writes; verdicts of another network or another
                    property than the run's are refused
counterexamples.npz, witnesses*.npz
                    what ``qll attack --out`` keeps: index, clean, attacked_x, labels, outputs
failure.json        {"reason": "..."}: the run was given up

A finished run may also be one compact file (``qll.reports.compact``), which has all of this but the
network and the counterexamples.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from qll.errors import QllError, RunError
from qll.grid.experiment import experiment
from qll.logics.base import Logic
from qll.metrics import Evaluation, Share, is_vacuous
from qll.reports.compact import SUFFIX, folder_pieces, read_compact
from qll.training.config import TrainConfig, build

METRICS = (
    "PAcc",
    "CAcc",
    "CSec_self",
    "CSec_qll",
    "CSat_half",
    "unknown_half",
    "CSat",
    "unknown",
)
# Of regressions, in place of PAcc: the share of the variance that is explained, in percent, and the
# root of the mean squared error in the units of the target.
REGRESSION = ("R2", "RMSE")
STATUSES = ("verified", "falsified", "unknown")
_MOST_DEPTH = 6  # folders below the one that was given


@dataclass(frozen=True)
class Answer:
    """One query of a verifier."""

    index: int
    status: str
    seconds: float
    vacuous: bool = False


@dataclass(frozen=True)
class Verification:
    """All answers at one epsilon, if the property has one."""

    epsilon: float | None
    answers: tuple[Answer, ...]

    def share(self, status: str) -> Share:
        """Of the regions of which the property says something."""
        counted = [a for a in self.answers if not a.vacuous]
        good = sum(a.status == status for a in counted)
        more = self.vacuous if status == "verified" else 0
        return Share(good, len(counted), more)

    @property
    def vacuous(self) -> int:
        return sum(a.vacuous for a in self.answers)


@dataclass(frozen=True, eq=False)
class Run:
    """One run, as far as its records go."""

    path: Path
    config: TrainConfig
    epochs: tuple[Mapping[str, Any], ...]
    evaluation: Evaluation | None
    verifications: tuple[Verification, ...]
    environment: Mapping[str, Any]
    failure: str | None

    @property
    def name(self) -> str:
        return self.path.name.removesuffix(SUFFIX)

    @property
    def logic(self) -> Logic | None:
        return self.config.record()

    @property
    def epsilon(self) -> float | None:
        """What it is judged at."""
        judged = self.config.parameters if self.config.judged is None else self.config.judged
        return judged.get("epsilon")

    @property
    def state(self) -> str:
        if self.failure is not None:
            return "failed"
        return "finished" if self.evaluation is not None else "unfinished"

    @property
    def seconds(self) -> float:
        """Training time: the sum over the epochs."""
        return sum(float(row.get("seconds") or 0.0) for row in self.epochs)

    @cached_property
    def shares(self) -> Mapping[str, Share | None]:
        """The metrics as they are recorded; None where there is no record."""
        found: dict[str, Share | None] = dict.fromkeys(METRICS)
        if self.evaluation is not None:
            held = self.evaluation
            found["PAcc"] = held.pacc
            found["CAcc"] = held.cacc
            found["CSec_self"] = held.csec_self
            found["CSec_qll"] = held.csec_qll
        half = None if self.epsilon is None else self.epsilon / 2
        for suffix, epsilon in (("", self.epsilon), ("_half", half)):
            if not suffix or epsilon is not None:
                found[f"CSat{suffix}"], found[f"unknown{suffix}"] = self._proved(epsilon)
        return found

    @cached_property
    def figures(self) -> Mapping[str, float | None]:
        """The metrics in percent, of the data points of which the property says something; of a
        regression R2 in percent and RMSE."""
        found = {metric: _percent(share) for metric, share in self.shares.items()}
        held = self.evaluation
        r2, rmse = (None, None) if held is None else (held.r2, held.rmse)
        return {**found, "R2": None if r2 is None else 100 * r2, "RMSE": rmse}

    @cached_property
    def published(self) -> Mapping[str, float | None]:
        """The same as the paper counts: what holds vacuously is satisfied."""
        found = {}
        for metric, share in self.shares.items():
            whole = None if share is None else share.with_vacuous
            if whole is not None and metric.startswith("unknown"):
                proved = self.shares[metric.replace("unknown", "CSat")]
                more = 0 if proved is None else proved.vacuous
                whole = Share(whole.good, whole.total + more)
            found[metric] = _percent(whole)
        return found

    @property
    def chance(self) -> float | None:
        """PAcc of the best constant answer, in percent; None in old records."""
        return None if self.evaluation is None else _percent(self.evaluation.chance)

    def _proved(self, epsilon: float | None) -> tuple[Share | None, Share | None]:
        for verification in self.verifications:
            if same_epsilon(verification.epsilon, epsilon):
                return verification.share("verified"), verification.share("unknown")
        if self.evaluation is not None and epsilon is not None:
            for text, share in self.evaluation.csat.items():
                if same_epsilon(_fraction(text), epsilon):
                    return share, None
        return None, None


@dataclass(frozen=True)
class LeftOut:
    """A folder that is not in the tables, and why."""

    path: Path
    reason: str


@dataclass(frozen=True)
class Records:
    runs: tuple[Run, ...]
    left_out: tuple[LeftOut, ...]


_OF_A_CYCLE = "a round of qll cycle, whose figures are in cycle.json and curve.png beside it"


def read_runs(folders: Sequence[Path]) -> Records:
    """Every run in or below ``folders``. A damaged one is left out by name, and does not stop the
    others; of two runs with one configuration and seed, the later one counts."""
    runs: list[Run] = []
    left_out: list[LeftOut] = []
    for path in run_paths(folders):
        if (path.parent / "cycle.json").is_file():
            left_out.append(LeftOut(path, _OF_A_CYCLE))
            continue
        try:
            runs.append(read_run(path))
        except QllError as error:
            left_out.append(LeftOut(path, str(error).replace("\n", " ")))
    if not runs:
        raise RunError(
            "there is no run to report",
            where=", ".join(str(folder) for folder in folders),
            expected="folders with config.json, as 'qll train --out' makes them, or records",
            found="; ".join(item.reason for item in left_out) or "none",
            fix="give the folder of a run, or the one that holds several",
        )
    kept, doubled = _latest(runs)
    return Records(tuple(kept), (*left_out, *doubled))


def read_run(path: Path) -> Run:
    """A run's folder, or its compact record."""
    pieces = read_compact(path) if path.name.endswith(SUFFIX) else folder_pieces(path)
    try:
        config = build(dict(pieces.config))
        evaluation = None if pieces.evaluation is None else Evaluation.from_json(pieces.evaluation)
    except QllError as error:
        raise error.at(str(path)) from error
    return Run(
        path=path,
        config=config,
        epochs=tuple(pieces.epochs),
        evaluation=evaluation,
        verifications=tuple(
            _verification(path / name, values, pieces.network, config)
            for name, values in pieces.verdicts.items()
        ),
        environment=pieces.environment,
        failure=pieces.failure,
    )


def _verification(
    path: Path, values: Mapping[str, Any], network: str | None, config: TrainConfig
) -> Verification:
    _check_asked(path, values, network, config)
    try:
        asked = values["parameters"]
        epsilon = asked["epsilon"] if "epsilon" in config.parameters or "epsilon" in asked else None
        answers = tuple(
            Answer(int(v["point"]), str(v["status"]), float(v["seconds"]), is_vacuous(v))
            for v in values["verdicts"]
        )
        if len({a.index for a in answers}) != len(answers):
            raise ValueError("a data point that occurs twice")
        unknown = {a.status for a in answers} - set(STATUSES)
        if unknown or not all(math.isfinite(a.seconds) and a.seconds >= 0 for a in answers):
            raise ValueError(f"statuses {sorted(unknown)}" if unknown else "a time that is none")
        return Verification(None if epsilon is None else float(epsilon), answers)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(
            "these are not the verdicts of a verifier",
            where=str(path),
            expected="parameters with epsilon, and verdicts with point, status and seconds",
            found=f"{type(error).__name__}: {error}",
            fix="run qll verify again, or remove the file",
        ) from error


def _check_asked(
    path: Path, values: Mapping[str, Any], network: str | None, config: TrainConfig
) -> None:
    """A proof counts for the network and the property it was made for, and for no other."""
    expected = {"property": Path(config.property).stem}
    found = {"property": Path(str(values.get("property", ""))).stem}
    if network is not None:
        expected["network"] = network
        found["network"] = str(values.get("network_sha256", ""))
    for name, wanted in expected.items():
        if found[name] != wanted:
            raise RunError(
                f"these verdicts are about another {name}",
                where=str(path),
                expected=wanted,
                found=found[name] or "none named",
                fix="verify the run's own model.onnx again, or remove the file",
            )


def run_paths(folders: Iterable[Path]) -> list[Path]:
    """The folders and compact records of runs in or below ``folders``."""
    found: dict[Path, None] = {}
    for folder in folders:
        if not folder.is_dir():
            raise RunError(
                "there is no such folder",
                where=str(folder),
                expected="the folder of a run, or one that holds several",
                found="a file" if folder.exists() else "nothing",
                fix="check the path",
            )
        for path in _walk(folder, _MOST_DEPTH):
            found.setdefault(path.resolve(), None)
    return list(found)


def _walk(folder: Path, depth: int) -> Iterable[Path]:
    """A run's own folders (checkpoints) are not searched, and links are not followed."""
    if (folder / "config.json").is_file():
        yield folder
    elif depth:
        for child in sorted(folder.iterdir()):
            if child.is_dir() and not child.is_symlink():
                yield from _walk(child, depth - 1)
            elif child.name.endswith(SUFFIX):
                yield child


def _latest(runs: list[Run]) -> tuple[list[Run], list[LeftOut]]:
    held: dict[str, Run] = {}
    left_out = []
    for run in runs:
        key = f"{sorted(experiment(run.config).items(), key=str)} {run.config.seed}"
        other = held.get(key)
        if other is not None:
            old, new = sorted((run, other), key=_recency)
            reason = f"the same configuration and seed as {new.path}, which is newer or further"
            left_out.append(LeftOut(old.path, reason))
            run = new
        held[key] = run
    return list(held.values()), left_out


def _recency(run: Run) -> tuple[bool, int, str]:
    return (run.state == "finished", len(run.epochs), str(run.environment.get("started", "")))


def _percent(share: Share | None) -> float | None:
    return None if share is None or not share.total else 100 * share.value


def same_epsilon(a: float | None, b: float | None) -> bool:
    """Six digits are written of one, as in 0.0156863 for 4/255."""
    if a is None or b is None:
        return a is b
    return math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-12)


def _fraction(text: str) -> float | None:
    top, _, bottom = text.partition("/")
    try:
        return float(top) / float(bottom or 1)
    except (ValueError, ZeroDivisionError):
        return None
