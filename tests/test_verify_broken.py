"""Which part of a rule a witness breaks, in words."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

import qll


def affine(weight: list[list[float]], bias: list[float]) -> nn.Module:
    module = nn.Sequential(nn.Linear(len(weight[0]), len(bias))).eval()
    with torch.no_grad():
        module[0].weight.copy_(torch.tensor(weight))
        module[0].bias.copy_(torch.tensor(bias))
    return module


def said(rule: str, module: nn.Module, inputs: int = 1) -> str:
    (verdict,) = qll.verify(qll.parse(rule), module, np.zeros((1, inputs)), timeout=10)
    assert str(verdict.status) == "falsified"
    return verdict.detail


STILL = "forall x in ball(x0, 0): "
MODULE = affine([[1.0], [0.0], [0.0]], [1.0, 0.25, -0.5])  # y is (1, 0.25, -0.5) at 0


def test_the_worst_comparison_of_a_conjunction_is_named() -> None:
    rule = f"outputs 3\n{STILL} y[1] <= y[2] + 1 and y[1] >= y[0] and y[2] >= y[0]\n"
    assert said(rule, MODULE) == "y[0] exceeds y[2] by 1.5"


def test_all_parts_of_a_disjunction_are_named() -> None:
    rule = f"outputs 3\n{STILL} y[0] <= 0.5 or y[2] >= 0\n"
    assert set(said(rule, MODULE).split(" and ")) == {
        "y[0] exceeds 0.5 by 0.5",
        "0 exceeds y[2] by 0.5",
    }


def test_names_constants_and_combinations() -> None:
    named = f"outputs cat, dog, cow\n{STILL} "
    assert said(named + 'y["dog"] >= y["cat"] + 0.25\n', MODULE) == (
        'y["cat"] exceeds y["dog"] - 0.25 by 1'
    )
    assert said(named + 'y["cat"] + y["dog"] + y["cow"] <= 0.5\n', MODULE) == (
        'y["cat"] + y["dog"] + y["cow"] - 0.5 is 0.25, and should not be above 0'
    )


def test_of_two_points_each_is_named() -> None:
    rule = "outputs 1\nforall x in box(0, 1), x2 in box(0, 1): y2[0] <= y[0]\n"
    assert said(rule, affine([[1.0]], [0.0])).startswith("y2[0] exceeds y[0] by ")
