"""Runs as their folders record them: the only source of every table and page.

A run is a folder with ``config.json`` (see ``qll.training.run``). Beside it are read

verdicts*.json      what ``qll verify --json`` writes; verdicts of another network or another
                    property than the run's are refused (``qll.reports.verdicts``)
counterexamples.npz, witnesses*.npz
                    what ``qll attack --out`` keeps: index, clean, attacked_x, labels, outputs
failure.json        {"reason": "..."}: the run was given up

A finished run may also be one compact file (``qll.reports.compact``), which has all of this but the
network and the counterexamples. What cannot be true together is refused (``qll.reports.checks``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from qll.errors import QllError, RunError
from qll.grid.experiment import experiment
from qll.logics.base import Logic
from qll.metrics import Evaluation, Share
from qll.reports.checks import (
    check_environment,
    check_epochs,
    check_figures,
    check_images,
    check_length,
    check_proved,
    check_settings,
)
from qll.reports.compact import SUFFIX, Pieces, folder_pieces, read_compact
from qll.reports.numbers import read_epsilon, same_epsilon
from qll.reports.verdicts import Answer, Verification, read_verification
from qll.training.config import TrainConfig, build

__all__ = [
    "METRICS",
    "REGRESSION",
    "Answer",
    "LeftOut",
    "Records",
    "Run",
    "Verification",
    "read_run",
    "read_runs",
    "run_of",
    "run_paths",
]

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
_MOST_DEPTH = 6  # folders below the one that was given


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
    network: str | None = None
    """The SHA-256 of its file."""

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
        # 'qll evaluate' writes figures of an interrupted run too: they are not the run's.
        whole = self.evaluation is not None and len(self.epochs) >= self.config.epochs
        return "finished" if whole else "unfinished"

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
                if same_epsilon(read_epsilon(text), epsilon):
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
    recorded = path.name.endswith(SUFFIX)
    pieces = read_compact(path) if recorded else folder_pieces(path)
    return run_of(path, pieces, recorded=recorded)


def run_of(path: Path, pieces: Pieces, *, recorded: bool) -> Run:
    """The records of a run, if they can be true together. ``recorded``: as they stand in a compact
    record, which is of a finished run and says all that was asked."""

    def at(name: str) -> str:
        return str(path) if recorded else str(path / name)

    with _placed(at("config.json")):
        config = build(dict(pieces.config))
        check_settings(at("config.json"), config)
    check_length(at("metrics.jsonl"), len(pieces.epochs), config.epochs, recorded=recorded)
    check_epochs(at("metrics.jsonl"), pieces.epochs)
    check_environment(at("environment.json"), pieces.environment)
    evaluation = None
    if pieces.evaluation is not None:
        check_figures(at("evaluation.json"), pieces.evaluation)
        with _placed(at("evaluation.json")):
            evaluation = Evaluation.from_json(pieces.evaluation)
    elif recorded:
        raise RunError(
            "this record is not of a finished run",
            where=str(path),
            expected="an evaluation",
            found="none",
            fix="finish the run and record it again, or remove the file",
        )
    verifications = tuple(
        read_verification(
            str(path / name), values, config=config, network=pieces.network, recorded=recorded
        )
        for name, values in pieces.verdicts.items()
    )
    if evaluation is not None:
        outputs = [verification.outputs for verification in verifications]
        check_images(at("evaluation.json"), evaluation, config.samples, outputs)
        check_proved(at("evaluation.json"), evaluation, verifications, recorded=recorded)
    return Run(
        path=path,
        config=config,
        epochs=tuple(pieces.epochs),
        evaluation=evaluation,
        verifications=verifications,
        environment=pieces.environment,
        failure=pieces.failure,
        network=pieces.network,
    )


@contextmanager
def _placed(where: str) -> Iterator[None]:
    try:
        yield
    except QllError as error:
        raise error.at(where) from error


def run_paths(folders: Iterable[Path]) -> list[Path]:
    """The folders and compact records of runs in or below ``folders``, or given by name."""
    found: dict[Path, None] = {}
    for folder in folders:
        if folder.is_file() and folder.name.endswith(SUFFIX):
            found.setdefault(folder.resolve(), None)
            continue
        if not folder.is_dir():
            raise RunError(
                "this is no run" if folder.exists() else "there is no such folder",
                where=str(folder),
                expected=f"a folder of a run or of several, or a record (*{SUFFIX})",
                found="another file" if folder.exists() else "nothing",
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
