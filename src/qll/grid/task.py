"""One run of a grid from wherever it stands to its end: trained, evaluated, proved.

Beside the files of a run (``qll.training.run``) a folder gets

verdicts.json, verdicts-half.json   the verifier's answers at epsilon and at half of it
witnesses.npz                       some of the points that falsify, with their images, for reports
task.json                           how much was proved, and how long each part took: written last
failure.json                        why the run was given up; gone once it succeeds
grid.lock                           held by the process that works on it
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from qll.data.base import DataSet
from qll.data.source import load as load_data
from qll.errors import QllError, RunError
from qll.files import Locked, owned, read_json, write_error, write_json
from qll.grid.experiment import difference
from qll.grid.witnesses import keep_witnesses
from qll.metrics import Share, proved_share, tally
from qll.training.config import TrainConfig
from qll.training.events import with_events
from qll.training.loop import train
from qll.training.progress import Reporter, Silent
from qll.training.run import RunFolder

VERDICTS = (("verdicts.json", 1.0), ("verdicts-half.json", 0.5))
_RECORD, _FAILURE = "task.json", "failure.json"
_AGAIN = "remove this file: what is missing is done again"


class State(StrEnum):
    NEW = "not started"
    STARTED = "started"
    TRAINED = "trained"
    FINISHED = "finished"
    FAILED = "failed"
    ELSEWHERE = "being run elsewhere"
    OTHER = "another run in its place"


class _OtherRun(RunError):
    """The folder holds a run that is not this one: nothing in it is ours to change."""


@dataclass(frozen=True)
class Task:
    """What a worker is given. ``count`` regions are proved with ``timeout`` seconds for each; 0 for
    none. ``folder`` must mean the same place on every machine that works on the grid."""

    name: str
    config: TrainConfig
    folder: Path
    count: int = 100
    timeout: float = 30.0


@dataclass(frozen=True)
class Outcome:
    """How a run stands, and how it came there: ``seconds`` of work here and now, 0 for none."""

    name: str
    state: State
    reason: str = ""
    seconds: float = 0.0


def inspect(task: Task) -> Outcome:
    """How far a run is by its records; reads, and changes nothing."""
    folder = RunFolder(task.folder)
    failure = task.folder / _FAILURE
    try:
        _check_same(folder, task)
        if failure.is_file():
            return Outcome(task.name, State.FAILED, _reason(failure))
        if not folder.config_path.is_file():
            return Outcome(task.name, State.NEW)
        epochs = _epochs(folder)
        if epochs < task.config.epochs or folder.evaluation() is None:
            return Outcome(task.name, State.STARTED, f"{epochs} of {task.config.epochs} epochs")
        if not _proved(task):
            return Outcome(task.name, State.TRAINED, "not proved yet" if task.count else "")
    except _OtherRun as error:
        return Outcome(task.name, State.OTHER, str(error))
    except QllError as error:
        return Outcome(task.name, State.FAILED, str(error))
    return Outcome(task.name, State.FINISHED)


def perform(task: Task, reporter: Reporter | None = None) -> Outcome:
    """Whatever is left of a run. Never raises for what goes wrong in it: a grid goes on."""
    begun = time.perf_counter()
    try:
        with _claimed(task.folder), _one_thread():
            if inspect(task).state is State.FINISHED:
                return Outcome(task.name, State.FINISHED)
            _check_same(RunFolder(task.folder), task)
            _complete(task, reporter)
            (task.folder / _FAILURE).unlink(missing_ok=True)
        return Outcome(task.name, State.FINISHED, seconds=time.perf_counter() - begun)
    except Locked as error:
        return Outcome(task.name, State.ELSEWHERE, error.found)
    except _OtherRun as error:
        return Outcome(task.name, State.OTHER, str(error))
    except Exception as error:  # a defect in one run must not stop the other 259
        reason = str(error) if isinstance(error, QllError) else f"{type(error).__name__}: {error}"
        details = None if isinstance(error, QllError) else traceback.format_exc()
        return fail(task, reason, details=details, seconds=time.perf_counter() - begun)


def fail(task: Task, reason: str, *, details: str | None = None, seconds: float = 0.0) -> Outcome:
    """The reason on record, in the run's folder if that can be written."""
    record = {"reason": reason, "when": _now(), "details": details}
    try:
        task.folder.mkdir(parents=True, exist_ok=True)
        write_json(task.folder / _FAILURE, record)
    except (OSError, QllError) as error:
        reason = f"{reason}\n(not on record: {str(error).splitlines()[0]})"
    return Outcome(task.name, State.FAILED, reason, seconds)


# --- how ---


def _complete(task: Task, reporter: Reporter | None) -> None:
    cpu = time.process_time()
    folder = RunFolder(task.folder)
    began = folder.config_path.is_file()
    # The machine's settings may differ from those of the call that began the run.
    config = folder.config() if began else task.config
    data = load_images(task.config)
    known = _epochs(folder)
    evaluating: float | None = None
    if not began or known < config.epochs or folder.evaluation() is None:
        start = time.perf_counter()
        with with_events(reporter or Silent(), task.folder) as told:
            run = train(config, task.folder, resume=began, data=data, reporter=told)
        trained = sum(float(row["seconds"]) for row in run.rows[known:])
        evaluating = time.perf_counter() - start - trained
    proving = _prove(task, folder, data)
    earlier = _record(task.folder) or {}
    write_json(
        task.folder / _RECORD,
        {
            "count": task.count,
            "finished": _now(),
            "seconds": {
                "train": sum(float(row.get("seconds") or 0.0) for row in folder.rows()),
                # beside the epochs: data, compilation, evaluation, export
                "evaluate": evaluating or earlier.get("seconds", {}).get("evaluate"),
                "prove": proving,
            },
            # of the whole run, if one call did it: the same on a busy machine as on a quiet one
            "cpu_seconds": None if began else time.process_time() - cpu,
        },
    )


def _prove(task: Task, folder: RunFolder, data: DataSet) -> float:
    """CSat at epsilon and at half of it, every proof confirmed by the checker; seconds by the
    clock, those of earlier calls that were killed not counted. A region's own time is the
    processor's: what stays open must not depend on how busy the machine is."""
    from qll.networks import load as load_network
    from qll.verify import clock
    from qll.verify.api import Problem, decide_all
    from qll.verify.journal import Journal, partial_path

    prop = folder.config().judged_property(data.fits)
    if task.count <= 0 or "epsilon" not in {p.name for p in prop.specification.parameters}:
        return 0.0
    network = load_network(folder.onnx_path)
    rows = slice(0, task.count) if data.published is None else data.published[: task.count]
    x, labels = data.test.batch(rows)
    shares: dict[str, Share] = {}
    seconds = 0.0
    with folder.locked(), clock.counting("cpu"):
        for name, part in VERDICTS:
            size = part * prop.value_of("epsilon")
            problem = Problem.of(
                prop.with_parameters(epsilon=size),
                network,
                x,
                labels,
                timeout=task.timeout,
                certified=True,
            )
            path = task.folder / name
            if _answered(path, problem):
                partial_path(path).unlink(missing_ok=True)  # of a kill right after the last verdict
            else:
                with Journal(path, problem) as journal:
                    left = [i for i in range(len(problem)) if i not in journal.known]
                    for index, verdict in decide_all(problem, left):
                        journal.add(index, verdict)
                    journal.finish(tally(journal.known.values()))
            held = _verdicts(path)
            seconds += float(held["total"]["wall_seconds"])
            shares[f"{size:g}"] = proved_share(held["verdicts"])
            if part == 1.0:
                keep_witnesses(task.folder, network, prop, x, labels, held["verdicts"])
        evaluation = folder.evaluation()
        if evaluation is not None:
            folder.save_evaluation(replace(evaluation, csat=shares))
    return seconds


def _answered(path: Path, problem: Any) -> bool:
    """The same question was answered before, wholly."""
    from qll.verify.journal import question

    if not path.is_file():
        return False
    held = _verdicts(path)
    asked = question(problem)
    return {key: held.get(key) for key in asked} == asked


def _proved(task: Task) -> bool:
    record = _record(task.folder)
    if record is None or record["count"] < task.count:
        return False
    declared = task.config.judged or task.config.parameters
    if not task.count or "epsilon" not in declared:
        return True
    paths = [task.folder / name for name, _ in VERDICTS]
    return all(path.is_file() and _as_long(_verdicts(path), task.timeout) for path in paths)


def _as_long(held: dict[str, Any], timeout: float) -> bool:
    """What stayed open is asked again if it now gets more time."""
    return bool(held["timeout"] >= timeout or held["total"]["unknown"] == 0)


def _verdicts(path: Path) -> dict[str, Any]:
    fix = "remove this file: its regions are asked again"
    held = read_json(path, "verdicts", fix=fix)
    kept = isinstance(held.get("total"), dict) and isinstance(held.get("verdicts"), list)
    if not kept or not isinstance(held.get("timeout"), float | int):
        raise RunError(
            "the verdicts of a run cannot be read",
            where=str(path),
            expected="the file that 'qll reproduce' or 'qll verify --json' writes",
            found=", ".join(sorted(held)) or "nothing",
            fix=fix,
        )
    return held


def _check_same(folder: RunFolder, task: Task) -> None:
    if not folder.config_path.is_file():
        return
    other = difference(task.config, folder.config())
    if other is not None:
        name, ours, theirs = other
        raise _OtherRun(
            f"the folder holds a run with another '{name}'",
            where=str(folder.path),
            expected=f"{name} = {ours!r}",
            found=f"{theirs!r}",
            fix="choose another folder with --out: the run there is left as it is",
        )


def _epochs(folder: RunFolder) -> int:
    """By the record, or by the checkpoints where the record was removed."""
    rows = folder.rows()
    return max([int(rows[-1]["epoch"]) if rows else 0, *folder.epochs()])


def _record(folder: Path) -> dict[str, Any] | None:
    path = folder / _RECORD
    if not path.is_file():
        return None
    record = read_json(path, "record", fix=_AGAIN)
    if not isinstance(record.get("count"), int) or not isinstance(record.get("seconds"), dict):
        raise RunError(
            "the record of a finished run cannot be read",
            where=str(path),
            expected="count and seconds, as qll writes them",
            found=str(sorted(record)),
            fix=_AGAIN,
        )
    return record


def _reason(path: Path) -> str:
    try:
        return str(read_json(path, "failure").get("reason", "no reason recorded"))
    except QllError as error:
        return str(error)


def load_images(config: TrainConfig) -> DataSet:
    """The run's data set; the last one is kept, since runs of one data set follow each other."""
    return _loaded(config.model_dump_json(include={"data", "data_dir", "data_options"}))


@lru_cache(maxsize=1)
def _loaded(text: str) -> DataSet:
    values = json.loads(text)
    return load_data(values["data"], values["data_dir"], **values["data_options"])


@contextmanager
def _one_thread() -> Iterator[None]:
    """Runs side by side, one core each: and the same figures whatever the number of cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _claimed(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(folder, error) from error
    with owned(folder, "grid.lock"):
        yield


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
