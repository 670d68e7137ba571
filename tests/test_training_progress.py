"""Progress that can be believed: what is worked on, how far, and when kernels are compiled."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from qll.cli.main import build_app
from qll.kernels import announce
from qll.kernels.announce import MESSAGE, announced
from qll.training.progress import LiveBar, Watched, time_left


def test_one_verdict_foretells_nothing() -> None:
    """After one of 43 it said 978 s."""
    assert time_left(1, 43, 23.0) is None
    assert time_left(6, 43, 0.5) is None
    assert time_left(10, 20, 30.0) == 30.0
    assert time_left(20, 20, 0.1) == 0.0


def test_lines_where_there_is_no_terminal() -> None:
    out, now = io.StringIO(), [0.0]
    with Watched(Console(file=out, width=100), clock=lambda: now[0]) as watch:
        for done in range(6):
            now[0] = 4.0 * done
            watch("CSat at 0.1", done, 8)
        watch("CSat at 0.05", 0, 8)
    assert out.getvalue().splitlines() == [
        "CSat at 0.1: 8 regions",
        "CSat at 0.1: 3 of 8",
        "CSat at 0.05: 8 regions",
    ]


def test_a_bar_on_a_terminal() -> None:
    out = io.StringIO()
    with Watched(Console(file=out, force_terminal=True, width=100)) as watch:
        watch("CSec (QLL)", 0, 10)
        watch("CSec (QLL)", 10, 10)
    assert "CSec (QLL)" in out.getvalue() and "10/10" in out.getvalue()


def test_the_bar_of_training_fits_a_terminal() -> None:
    """Nothing is cut off on 80 columns: figures and times were, behind a long title."""
    out = io.StringIO()
    bar = LiveBar(Console(file=out, force_terminal=True, width=80))
    row = {"epoch": 100, "pacc": 0.926, "train_csec": 1.0, "lambda": 0.0531, "prediction_loss": 0.4}
    with bar.bars:
        bar.start("not-both on dice-rendered (baseline, seed 0)", 100, 10, 0)
        bar.epoch(row)
    assert "PAcc 92.6  CSec 100.0" in out.getvalue() and "100/100" in out.getvalue()
    assert "…" not in out.getvalue()
    assert "not-both on dice-rendered (baseline, seed 0)" in out.getvalue()


def test_evaluate_says_what_it_works_on(tmp_path: Path) -> None:
    small = ["--set", "data_options.count_train=8", "--set", "data_options.count_test=4"]
    fast = ["--set", "steps=1", "--set", "restarts=0", "--set", "engine=autograd"]
    app, run = build_app(), str(tmp_path / "run")
    call = ["train", "not-both", "--data", "dice-rendered", "--epochs", "1", "--out", run]
    assert CliRunner().invoke(app, [*call, *small, *fast]).exit_code == 0
    found = CliRunner().invoke(app, ["evaluate", run, "--jobs", "1", "--timeout", "2"])
    assert found.exit_code == 0, found.output
    for figure in (
        "CSec (self): 4 regions",
        "CSec (QLL): 4",
        "CSat at 0.0157: 4",
        "CSat at 0.00784",
    ):
        assert figure in found.stderr
    assert "regions" not in found.stdout and "chance" in found.stdout


def test_compilation_is_announced_once_and_only_if_there_is_any() -> None:
    numba = pytest.importorskip("numba")
    said: list[str] = []

    @numba.njit
    def double(x: float) -> float:
        return x * 2

    with announced(said.append):
        assert double(2.0) == 4.0 and double(np.float32(2.0)) == 4.0
    assert said == [MESSAGE]
    with announced(said.append):
        double(3.0)
    assert said == [MESSAGE]


def test_what_runs_between_two_kernels_is_not_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """An epoch of 100 seconds, say."""
    numba = pytest.importorskip("numba")
    now, said = [1.0], list[str]()
    monkeypatch.setattr(announce, "time", SimpleNamespace(monotonic=lambda: now[0]))

    @numba.njit
    def double(x: float) -> float:
        return x * 2

    with announced(said.append):
        double(2.0)
        now[0] += 100.0
        double(np.float32(2.0))
    assert said == [MESSAGE, "compiling kernels: 2 functions in 0 s"]
