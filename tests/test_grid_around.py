"""Grids around single runs: full disks, names, what a grid costs, memory."""

from __future__ import annotations

import importlib
import json
import os
import time
from pathlib import Path

import pytest
from grid_cases import assert_complete, call, epochs_of, reproduce, task_of, write_grid

from qll.errors import QllError, RunError
from qll.grid.experiment import run_name
from qll.grid.plan import paper_grid
from qll.grid.task import State, perform
from qll.training.config import TrainConfig


def test_a_full_disk_stops_no_other_run_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qll import files

    task = task_of(write_grid(tmp_path, epochs=3), tmp_path / "out")
    real, written = os.fsync, []

    def full(descriptor: int) -> None:
        written.append(descriptor)
        if len(written) > 12:
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(files.os, "fsync", full)
    outcome = perform(task)
    assert outcome.state is State.FAILED
    assert "no space on the disk" in outcome.reason and "not on record" in outcome.reason
    monkeypatch.undo()
    assert len(epochs_of(task.folder)) >= 1
    assert perform(task).state is State.FINISHED
    assert_complete(task.folder, epochs=3)


def test_a_full_disk_while_proving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from qll.verify.journal import Journal

    task = task_of(write_grid(tmp_path), tmp_path / "out")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "_write", full)
        outcome = perform(task)
    assert outcome.state is State.FAILED and "the verdicts cannot be written" in outcome.reason
    assert perform(task).state is State.FINISHED
    assert_complete(task.folder, epochs=1)


def test_missing_data_is_said_before_any_run(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = call(
        "reproduce", "--rows", "exactly-one/dice/dl2", "--out", tmp_path / "out",
        "--data-dir", tmp_path / "empty", "--jobs", "1",
    )  # fmt: skip
    assert isinstance(result.exception, QllError) and "dice" in str(result.exception)
    assert not (tmp_path / "out").exists()


def test_names_are_those_of_qll_train(tmp_path: Path) -> None:
    from qll.cli.train import default_folder

    config = TrainConfig(property="not-both", data="dice", logic="yager:r=2", seed=4)
    assert default_folder(config) == Path("runs") / run_name(config)
    assert run_name(config) == "not-both-dice-yagerr2-4"


def test_errors_come_back_whole_from_other_processes() -> None:
    import pickle

    error = RunError("what", expected="e", found="f", fix="x", where="w")
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert type(copy) is RunError and str(copy) == str(error)


def test_the_cost_of_the_grid_from_one_run_of_each_length(tmp_path: Path) -> None:
    import importlib.util

    path = Path(__file__).parent.parent / "bench" / "grid_cost.py"
    spec = importlib.util.spec_from_file_location("grid_cost", path)
    assert spec is not None and spec.loader is not None
    cost = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(cost)
    assert cost.makespan([3, 3, 2, 2, 2], 2) == 7 and cost.makespan([5, 1], 9) == 5
    # an hour by the clock of which half was ours; a short run that counts four times as long
    for name, epochs, cpu in (
        ("not-both-dice-qll5-0", 100, 1800.0),
        ("exactly-one-dice-dl2-3", 25, None),
    ):
        run = next(run for run in paper_grid().runs(epochs=epochs) if run.name == name)
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(run.config.model_dump_json())
        seconds = {"train": 3000.0, "evaluate": 300.0, "prove": 300.0}
        record = {"count": 100, "seconds": seconds, "cpu_seconds": cpu}
        (folder / "task.json").write_text(json.dumps(record))
    result = cost.compute(tmp_path, [1, 260])
    # the clock on the wall counts only where nothing alike has its processor time on record
    not_both, exactly_one = 0.5, (4 * 3000 + 600) / 3600
    hours = 75 * not_both + 35 * exactly_one + 150 * (not_both + exactly_one) / 2
    assert result["core_hours"] == pytest.approx(hours)
    assert result["cores"][0]["wall_hours"] == pytest.approx(hours)
    assert result["cores"][1]["wall_hours"] == pytest.approx(exactly_one)
    assert result["sources"]["measured"] == result["sources"]["by the clock on the wall"] == 1
    assert "1 measured" in cost.section(result)


def test_the_cost_page_is_what_the_records_say(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).parents[1]
    monkeypatch.syspath_prepend(root / "bench")
    cost = importlib.import_module("grid_cost")
    page = (root / "docs/cost.md").read_text(encoding="utf-8")
    text = cost.section(cost.compute(root / "results/paper", [1, 16, 256]))
    assert text in page, "run python bench/grid_cost.py results/paper --write docs/cost.md"


def test_a_trained_network_is_let_go() -> None:
    """A thousand runs in one process do not keep a thousand networks."""
    import gc
    import weakref

    import torch

    from qll.kernels.forward import training_forward
    from qll.networks.models import create

    model = create(
        "paper-dice", in_channels=3, height=28, width=28, outputs=6, mean=(0.5,) * 3, std=(0.5,) * 3
    )
    x = torch.zeros(2, 3, 28, 28)
    training_forward(model, x)(x)
    held = weakref.ref(model)
    del model
    gc.collect()
    assert held() is None


@pytest.mark.slow
def test_a_thousand_runs_in_flat_memory(tmp_path: Path) -> None:
    import resource

    grid, out = write_grid(tmp_path, logics=("baseline",)), tmp_path / "out"
    peaks, seconds = [], []
    for seeds in ("0-199", "0-999"):
        begun = time.monotonic()
        result = reproduce(grid, out, "--seeds", seeds, "--count", "0", "--jobs", "1")
        assert result.exit_code == 0, result.output[-2000:]
        seconds.append(time.monotonic() - begun)
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    assert "1000 finished" in result.output and "200 finished before, 800 to do" in result.output
    assert len(list(out.iterdir())) == 1000
    print(  # noqa: T201 - with -s, for docs/results.md
        f"\npeak memory {peaks[0]:.0f} MB after 200 runs, {peaks[1]:.0f} MB after 1,000; "
        f"{seconds[0] / 200:.2f} s for each of the first 200, {seconds[1] / 800:.2f} s of the rest"
    )
    # four times as many runs again may not take more than a few megabytes
    assert peaks[1] - peaks[0] < 60, peaks
