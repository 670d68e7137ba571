"""Epsilon in 255ths is told before training, by whichever road one trains."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import qll
from qll.cli.main import build_app
from qll.training.reach import reach, warn_of_reach

SMALL = ["--set", "data_options.count_train=16", "--set", "data_options.count_test=8"]
FAST = ["--set", "steps=1", "--set", "restarts=0", "--set", "engine=autograd"]
TOLD = "if it was meant in 255ths, write 8/255"


def _train(folder: Path, epsilon: str, *more: str) -> str:
    words = ["train", "not-both", "--data", "dice-rendered", "--epochs", "1", "--out", str(folder)]
    words += [*SMALL, *FAST, "--set", f"epsilon={epsilon}", *more]
    result = CliRunner().invoke(build_app(), words)
    assert result.exit_code == 0, result.output
    return result.output


def test_training_tells_an_epsilon_of_255ths(tmp_path: Path) -> None:
    said = _train(tmp_path / "far", "8")
    assert "Warning: with epsilon = 8, 2352 of 2352 inputs move" in said
    assert TOLD in said and said.index(TOLD) < said.index("epoch 1/1")
    assert TOLD not in _train(tmp_path / "near", "8/255")
    assert TOLD not in _train(tmp_path / "baseline", "8", "--logic", "baseline")


def _points(count: int) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Linear(3, 2), torch.rand(count, 3), torch.zeros(count, dtype=torch.long)


def test_ones_own_loop_is_told_once() -> None:
    loss = qll.PropertyLoss(qll.load("classification-robustness", epsilon=8.0), logic="dl2")
    with pytest.warns(UserWarning, match="255ths") as found:
        loss(*_points(16))
        loss(*_points(16))
    assert len(found) == 1
    assert found[0].filename == __file__


@pytest.mark.parametrize(("epsilon", "count"), [(0.1, 16), (8.0, 2)])
def test_nothing_is_said_of_a_usual_radius_or_a_few_points(epsilon: float, count: int) -> None:
    loss = qll.PropertyLoss(qll.load("classification-robustness", epsilon=epsilon), logic="dl2")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss(*_points(count))


def test_a_rule_of_the_whole_region_reaches_all_data_rightly() -> None:
    prop = qll.parse("forall x in box(0, 1):\n  y[0] <= 1\n")
    found = reach(prop, torch.rand(16, 3))
    assert found is not None and not found.across
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_reach(prop, torch.rand(16, 3))
