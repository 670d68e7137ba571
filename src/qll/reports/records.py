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

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qll.errors import QllError, RunError
from qll.grid.experiment import experiment
from qll.metrics import Evaluation
from qll.reports.checks import (
    check_environment,
    check_epochs,
    check_figures,
    check_images,
    check_length,
    check_proved,
    check_settings,
    check_texts,
)
from qll.reports.compact import SUFFIX, Pieces, folder_pieces, read_compact
from qll.reports.differences import differences
from qll.reports.run import METRICS, REGRESSION, Run
from qll.reports.verdicts import Answer, Verification, read_verification
from qll.training.config import build

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

_MOST_DEPTH = 6  # folders below the one that was given


@dataclass(frozen=True)
class LeftOut:
    """A folder that is not in the tables, and why."""

    path: Path
    reason: str

    @classmethod
    def of(cls, path: Path, error: QllError) -> LeftOut:
        """In one line; of the place only what is below ``path``, which is named beside it."""
        below = (error.where or "").removeprefix(str(path)).lstrip("/\\:")
        return cls(path, str(error.at(below)).replace("\n", " "))


@dataclass(frozen=True)
class Records:
    runs: tuple[Run, ...]
    left_out: tuple[LeftOut, ...]


_OF_A_CYCLE = "a round of qll cycle, whose figures are in cycle.json and curve.png beside it"


def read_runs(folders: Sequence[Path]) -> Records:
    """Every run in or below ``folders``. A damaged one is left out by name, and does not stop the
    others; of two runs with one configuration and seed the later one counts, and neither where they
    are equally late and say different things."""
    runs: list[Run] = []
    left_out: list[LeftOut] = []
    for path in run_paths(folders):
        if (path.parent / "cycle.json").is_file():
            left_out.append(LeftOut(path, _OF_A_CYCLE))
            continue
        try:
            runs.append(read_run(path))
        except QllError as error:
            left_out.append(LeftOut.of(path, error))
    kept, doubled = _latest(runs)
    left_out += doubled
    if not kept:
        raise RunError(
            "there is no run to report",
            where=", ".join(str(folder) for folder in folders),
            expected="folders with config.json, as 'qll train --out' makes them, or records",
            found="; ".join(f"{i.path}: {i.reason.removesuffix('.')}" for i in left_out) or "none",
            fix="give the folder of a run, or the one that holds several",
        )
    return Records(tuple(kept), tuple(left_out))


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

    for name, held in _written(pieces).items():
        check_texts(at(name), held)
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


def _written(pieces: Pieces) -> dict[str, Any]:
    """All that can hold words which pages show. Where the data lay is the machine's affair."""
    asked = [{**held, "verdicts": None} for held in pieces.verdicts.values()]
    return {
        "config.json": {k: v for k, v in pieces.config.items() if k != "data_dir"},
        "metrics.jsonl": pieces.epochs,
        "environment.json": pieces.environment,
        "evaluation.json": pieces.evaluation,
        "task.json": pieces.task,
        "failure.json": pieces.failure,
        "verdicts.json": [*pieces.verdicts, *asked],
    }


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
    groups: dict[str, list[Run]] = {}
    for run in runs:
        key = f"{sorted(experiment(run.config).items(), key=str)} {run.config.seed}"
        groups.setdefault(key, []).append(run)
    kept, left_out = [], []
    for group in groups.values():
        found, left = _latest_of(group)
        kept += found
        left_out += left
    return kept, left_out


def _latest_of(group: list[Run]) -> tuple[list[Run], list[LeftOut]]:
    """Of runs with one configuration and seed: the first that is as late as any, if all of these
    say the same. Which of them to believe where they do not is not for a report to choose."""
    latest = max(map(_recency, group))
    first, *others = [run for run in group if _recency(run) == latest]
    reason = f"the same configuration and seed as {first.path}, which is newer or further"
    left_out = [LeftOut(run.path, reason) for run in group if _recency(run) != latest]
    unlike = {run.path: found for run in others if (found := list(differences(first, run)))}
    for run in others:
        said = f"the same configuration, seed and start as {first.path}"
        if run.path in unlike:
            more = "; ".join(unlike[run.path])
            said += f", and not the same figures, so that neither counts: {more}"
            said += " (recorded there, now here); remove the one that is not to count"
        else:
            said += ", and the same figures: it counts once"
        left_out.append(LeftOut(run.path, said))
    if not unlike:
        return [first], left_out
    said = f"the same configuration, seed and start as {next(iter(unlike))}, and not the same "
    left_out.append(LeftOut(first.path, f"{said}figures, so that neither counts: see there"))
    return [], left_out


def _recency(run: Run) -> tuple[bool, int, str]:
    return (run.state == "finished", len(run.epochs), str(run.environment.get("started", "")))
