"""Grids so small that a run takes a second: what the tests of grids and engines share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner, Result

from qll.cli.main import build_app
from qll.grid.plan import read_grid
from qll.grid.task import Task

TINY = """\
name = "tiny"
seeds = [0, 1]

[settings]
epochs = {epochs}
steps = 1
restarts = 0
batch_size = 8
engine = "autograd"
data_options = {{ count_train = {images}, count_test = 4 }}

[[rows]]
property = "not-both"
data = "dice-rendered"
logics = {logics}
"""


def write_grid(
    folder: Path,
    *,
    epochs: int = 1,
    images: int = 8,
    logics: tuple[str, ...] = ("baseline", "qll:5"),
    more: str = "",
) -> Path:
    path = folder / "tiny.toml"
    text = TINY.format(epochs=epochs, images=images, logics=json.dumps(list(logics)))
    path.write_text(text + more)
    return path


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(build_app(), [str(argument) for argument in arguments])


def reproduce(grid: Path, out: Path, *more: str) -> Result:
    return call("reproduce", "--grid", grid, "--out", out, "--count", "3", *more)


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    """The command in a process of its own."""
    command = [sys.executable, "-c", "from qll.cli.main import run; run()", *map(str, arguments)]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )


def contents(folder: Path) -> dict[str, bytes]:
    """Every file but the locks, whose content is the number of the last process."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.endswith("lock")
    }


def epochs_of(run: Path) -> list[int]:
    return [json.loads(line)["epoch"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def assert_complete(run: Path, *, epochs: int, count: int = 3) -> None:
    """Every epoch once, every verdict once, nothing half done."""
    assert epochs_of(run) == list(range(1, epochs + 1))
    for name in ("verdicts.json", "verdicts-half.json"):
        verdicts = json.loads((run / name).read_text())["verdicts"]
        assert [v["point"] for v in verdicts] == list(range(count))
    names = {path.name for path in run.iterdir()}
    assert {"config.json", "evaluation.json", "model.onnx", "task.json"} <= names
    assert not {n for n in names if n.endswith((".partial", ".part", ".tmp"))}
    assert "failure.json" not in names


def task_of(grid: Path, out: Path, *, count: int = 3, number: int = 1) -> Task:
    run = read_grid(grid).runs()[number]
    return Task(run.name, run.config, out / run.name, count, 30.0)
