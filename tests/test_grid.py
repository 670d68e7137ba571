"""Grids: that each run is done once, whatever happens on the way."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from grid_cases import (
    assert_complete,
    contents,
    epochs_of,
    reproduce,
    start,
    task_of,
    write_grid,
)

from qll.files import exclusive
from qll.grid.task import State, inspect, perform
from qll.reports.records import read_runs
from qll.reports.tables import build_table
from qll.reports.witnesses import read_witnesses

# --- each done once ---


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("grid")
    grid, out = write_grid(folder), folder / "out"
    result = reproduce(grid, out, "--jobs", "1")
    assert result.exit_code == 0, result.output
    assert "4 runs: 0 finished before, 4 to do" in result.output
    assert "4 finished" in result.output.splitlines()[-2]
    return grid, out


def test_a_run_is_trained_evaluated_and_proved(finished: tuple[Path, Path]) -> None:
    _, out = finished
    names = {
        f"not-both-dice-rendered-{logic}-{s}" for logic in ("baseline", "qll5") for s in (0, 1)
    }
    assert {path.name for path in out.iterdir()} == names
    for name in names:
        assert_complete(out / name, epochs=1)
    task = json.loads((out / "not-both-dice-rendered-qll5-0" / "task.json").read_text())
    assert all(seconds > 0 for seconds in task["seconds"].values())
    verdicts = json.loads((out / "not-both-dice-rendered-qll5-0" / "verdicts.json").read_text())
    assert verdicts["certified"] is True


def test_what_is_finished_is_not_repeated(finished: tuple[Path, Path]) -> None:
    grid, out = finished
    before = contents(out)
    result = reproduce(grid, out, "--jobs", "1")
    assert result.exit_code == 0 and "4 finished before, 0 to do" in result.output
    assert contents(out) == before
    listed = reproduce(grid, out, "--list")
    assert listed.output.count("2 finished") == 2


def test_more_regions_are_proved_without_training_again(
    finished: tuple[Path, Path], tmp_path: Path
) -> None:
    import shutil

    grid, out = finished
    copy = tmp_path / "out"
    shutil.copytree(out, copy)
    run = copy / "not-both-dice-rendered-qll5-0"
    before = (run / "metrics.jsonl").read_bytes(), (run / "model.onnx").read_bytes()
    task = task_of(grid, copy, count=4)
    assert inspect(task).state is State.TRAINED
    assert perform(task).state is State.FINISHED
    assert_complete(run, epochs=1, count=4)
    assert ((run / "metrics.jsonl").read_bytes(), (run / "model.onnx").read_bytes()) == before


@pytest.mark.parametrize("name", ["verdicts.json", "verdicts-half.json"])
def test_a_kill_right_after_the_last_verdict_leaves_no_journal(
    finished: tuple[Path, Path], tmp_path: Path, name: str
) -> None:
    """The verdicts are written whole, the journal still lies beside them."""
    import shutil

    grid, out = finished
    copy = tmp_path / "out"
    shutil.copytree(out, copy)
    task = task_of(grid, copy)
    (task.folder / "task.json").unlink()
    (task.folder / f"{name}.partial").write_text("{}\n")
    assert perform(task).state is State.FINISHED
    assert_complete(task.folder, epochs=1)


def test_what_a_kill_left_half_written_goes(finished: tuple[Path, Path], tmp_path: Path) -> None:
    import shutil

    grid, out = finished
    copy = tmp_path / "out"
    shutil.copytree(out, copy)
    task = task_of(grid, copy)
    (task.folder / "task.json").unlink()
    for torn in (".task.json.12345.part", "checkpoints/.epoch-1.12345.part"):
        (task.folder / torn).write_text("{")
    assert perform(task).state is State.FINISHED
    assert_complete(task.folder, epochs=1)
    assert not list(task.folder.rglob("*.part"))


def test_reports_read_what_a_grid_writes(finished: tuple[Path, Path]) -> None:
    _, out = finished
    records = read_runs([out])
    assert not records.left_out and len(records.runs) == 4
    rows = build_table(records).rows
    assert [row.seeds for row in rows] == [(0, 1), (0, 1)]
    for row in rows:
        assert row.stat("CSat") is not None and row.stat("CSat_half") is not None
        assert any("short run: 1 epochs instead of 100" in note for note in row.notes)
    for run in records.runs:
        falsified = sum(a.status == "falsified" for a in run.verifications[0].answers)
        shown, total = read_witnesses(run, most=9)
        assert len(shown) == total == falsified
        assert all(w.margin < 0 and w.largest > 0 and w.before is not None for w in shown)


def test_a_short_run_says_so_and_does_not_replace_a_long_one(
    finished: tuple[Path, Path],
) -> None:
    grid, out = finished
    before = contents(out)
    result = reproduce(grid, out, "--epochs", "2", "--jobs", "1")
    assert result.exit_code == 12
    assert "holds a run with another 'epochs'" in result.output
    assert contents(out) == before


def test_a_failure_is_recorded_and_does_not_stop_the_rest(tmp_path: Path) -> None:
    more = (
        '[[rows]]\nproperty = "not-both"\ndata = "dice-rendered"\nlogics = ["qll:5"]\n'
        'label = "wild"\nsettings = { learning_rate = 1e30, epochs = 3 }\n'
    )
    grid, out = write_grid(tmp_path, logics=("baseline",), more=more), tmp_path / "out"
    result = reproduce(grid, out, "--seeds", "0", "--jobs", "1")
    assert result.exit_code == 12, result.output
    assert "1 finished, 1 failed" in result.output
    wild = out / "not-both-dice-rendered-qll5-wild-0"
    reason = json.loads((wild / "failure.json").read_text())["reason"]
    assert "not finite" in reason and reason in result.output.replace("\n  ", "\n")
    assert_complete(out / "not-both-dice-rendered-baseline-0", epochs=1)
    run = next(run for run in read_runs([out]).runs if run.path.name == wild.name)
    assert run.state == "failed" and run.failure == reason


def test_a_defect_is_a_failure_of_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from qll.grid import task as module

    def defect(*_: object, **__: object) -> None:
        raise ZeroDivisionError("somewhere")

    task = task_of(write_grid(tmp_path), tmp_path / "out")
    monkeypatch.setattr(module, "train", defect)
    outcome = perform(task)
    assert outcome.state is State.FAILED and outcome.reason == "ZeroDivisionError: somewhere"
    record = json.loads((task.folder / "failure.json").read_text())
    assert "Traceback" in record["details"]
    monkeypatch.undo()
    assert perform(task).state is State.FINISHED
    assert_complete(task.folder, epochs=1)


def test_a_killed_run_goes_on_and_ends_as_if_nothing_had_been(tmp_path: Path) -> None:
    grid = write_grid(tmp_path, epochs=20, images=32, logics=("qll:5",))
    name = "not-both-dice-rendered-qll5-0"
    options = ("--seeds", "0", "--jobs", "1", "--count", "3")
    process = start("reproduce", "--grid", grid, "--out", tmp_path / "killed", *options)
    metrics = tmp_path / "killed" / name / "metrics.jsonl"
    _wait(lambda: metrics.exists() and metrics.read_text().count("\n") >= 3)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    done = len(epochs_of(metrics.parent))
    assert 3 <= done < 20
    listed = reproduce(grid, tmp_path / "killed", "--list", "--seeds", "0")
    assert "1 started" in listed.output
    for folder in ("killed", "whole"):
        result = reproduce(grid, tmp_path / folder, "--seeds", "0", "--jobs", "1")
        assert result.exit_code == 0, result.output
        assert_complete(tmp_path / folder / name, epochs=20)
    killed, whole = (tmp_path / folder / name for folder in ("killed", "whole"))
    assert (killed / "model.onnx").read_bytes() == (whole / "model.onnx").read_bytes()
    assert (killed / "evaluation.json").read_bytes() == (whole / "evaluation.json").read_bytes()


def _wait(condition, seconds: float = 180.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


# --- bad circumstances ---


def test_a_run_that_another_process_works_on_is_left_to_it(
    finished: tuple[Path, Path], tmp_path: Path
) -> None:
    grid, _ = finished
    out = tmp_path / "out"
    folder = out / "not-both-dice-rendered-baseline-0"
    folder.mkdir(parents=True)
    with exclusive(folder / "grid.lock"):
        result = reproduce(grid, out, "--seeds", "0", "--jobs", "1")
    assert result.exit_code == 13, result.output
    assert f"being run elsewhere: process {os.getpid()}" in result.output
    assert not (folder / "config.json").exists() and not (folder / "failure.json").exists()
    assert_complete(out / "not-both-dice-rendered-qll5-0", epochs=1)
    # a training run in the same folder holds it too
    task = task_of(grid, out)
    (task.folder / "task.json").unlink()
    (task.folder / "verdicts.json").unlink()
    with exclusive(task.folder / "lock"):
        assert perform(task).state is State.ELSEWHERE
    assert perform(task).state is State.FINISHED


def test_two_processes_on_one_folder_do_every_run_once(tmp_path: Path) -> None:
    grid, out = write_grid(tmp_path, epochs=2), tmp_path / "out"
    command = ("reproduce", "--grid", grid, "--out", out, "--count", "3", "--jobs", "1")
    processes = [start(*command), start(*command)]
    for process in processes:
        _, errors = process.communicate(timeout=400)
        assert process.returncode in (0, 13), errors
    runs = sorted(out.iterdir())
    assert len(runs) == 4
    for run in runs:
        assert_complete(run, epochs=2)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", "{"),
        ("config.json", "[]"),
        ("evaluation.json", '{"pacc": 3}'),
        ("task.json", '{"count": "many"}'),
        ("verdicts.json", "not json"),
    ],
)
def test_a_damaged_record_is_named_and_nothing_is_lost(
    name: str, content: str, finished: tuple[Path, Path], tmp_path: Path
) -> None:
    import shutil

    grid, out = finished
    copy = tmp_path / "out"
    shutil.copytree(out, copy)
    task = task_of(grid, copy)
    (task.folder / name).write_text(content)
    if name == "verdicts.json":
        (task.folder / "task.json").unlink()
    before = contents(task.folder)
    outcome = perform(task)
    assert outcome.state is State.FAILED
    assert name in outcome.reason and "Fix:" in outcome.reason
    after = contents(task.folder)
    assert json.loads(after.pop("failure.json"))["reason"] == outcome.reason
    assert after == before
    # the others are as they were
    assert inspect(task_of(grid, copy, number=0)).state is State.FINISHED


@pytest.mark.parametrize(
    ("name", "content", "advice"),
    [
        ("verdicts.json", "not json", "its regions are asked again"),
        ("verdicts-half.json", "{}", "its regions are asked again"),
        ("task.json", "[]", "what is missing is done again"),
    ],
)
def test_a_finished_run_with_a_damaged_record_is_not_called_finished(
    name: str, content: str, advice: str, finished: tuple[Path, Path], tmp_path: Path
) -> None:
    """And what the message advises mends it, without training again."""
    import shutil

    grid, out = finished
    copy = tmp_path / "out"
    shutil.copytree(out, copy)
    task = task_of(grid, copy)
    trained = (task.folder / "model.onnx").read_bytes()
    (task.folder / name).write_text(content)
    assert inspect(task).state is State.FAILED
    assert advice in perform(task).reason
    (task.folder / name).unlink()
    assert perform(task).state is State.FINISHED
    assert_complete(task.folder, epochs=1)
    assert (task.folder / "model.onnx").read_bytes() == trained


def test_a_damaged_line_of_the_metrics_costs_no_other_line(tmp_path: Path) -> None:
    task = task_of(write_grid(tmp_path, epochs=3), tmp_path / "out")
    assert perform(task).state is State.FINISHED
    path = task.folder / "metrics.jsonl"
    lines = path.read_bytes().split(b"\n")
    damaged = b"\n".join([lines[0], lines[1][:9], *lines[2:]])
    path.write_bytes(damaged)
    outcome = perform(task)
    assert outcome.state is State.FAILED and "metrics.jsonl:2" in outcome.reason
    assert path.read_bytes() == damaged
    path.unlink()  # the network is there all the same: nothing is trained again
    assert perform(task).state is State.FINISHED
    assert inspect(task).state is State.FINISHED
    path.write_bytes(b"\n".join([*lines[:-1], lines[1][:9], b""]))  # a torn end is no damage
    assert inspect(task).state is State.FINISHED


def test_more_time_asks_again_what_stayed_open(
    finished: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil
    from dataclasses import replace

    from qll.verify import clock

    grid, out = finished
    copy = tmp_path / "out"
    shutil.copytree(out, copy)
    task = task_of(grid, copy)
    longer = replace(task, timeout=2 * task.timeout)
    assert inspect(longer).state is State.FINISHED, "nothing stayed open"
    path = task.folder / "verdicts.json"
    held = json.loads(path.read_text())
    held["verdicts"][0]["status"] = "unknown"
    held["total"]["unknown"] = 1
    path.write_text(json.dumps(held))
    assert inspect(task).state is State.FINISHED
    assert inspect(longer).state is State.TRAINED
    used: list[str] = []
    monkeypatch.setattr(clock, "use", lambda name, use=clock.use: (used.append(name), use(name)))
    assert perform(longer).state is State.FINISHED
    # Whatever else runs on the machine, a region has its time.
    assert set(used[:-1]) == {"cpu"} and used[-1] == clock.chosen() == "wall"
    again = json.loads(path.read_text())
    assert again["timeout"] == longer.timeout and again["total"]["unknown"] == 0


def test_event_files_where_tensorboard_is_installed(
    finished: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from importlib.util import find_spec

    grid, out = finished
    run = out / "not-both-dice-rendered-qll5-0"
    if find_spec("tensorboard") is None:
        assert not (run / "events").exists()
        pytest.skip("'tensorboard' is not installed: pip install 'qll[tensorboard]' to test it")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "events"))
    events.Reload()
    row = json.loads((run / "metrics.jsonl").read_text())
    for name in ("prediction_loss", "property_loss", "lambda", "pacc", "property_norm"):
        [point] = events.Scalars(name)
        assert point.step == 1 and point.value == pytest.approx(row[name], rel=1e-6)
    # and none, nor an error, where it is not
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    task = task_of(grid, tmp_path / "out", count=0)
    assert perform(task).state is State.FINISHED
    assert not (task.folder / "events").exists()
