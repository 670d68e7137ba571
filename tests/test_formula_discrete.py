"""Comparisons of inputs with gaps between their values: their boundary is a point."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

import qll
from qll.networks import load


def rising() -> nn.Module:
    """y = relu(x0) + relu(x1)."""
    first, last = nn.Linear(2, 2), nn.Linear(2, 1)
    with torch.no_grad():
        first.weight.copy_(torch.eye(2))
        first.bias.zero_()
        last.weight.fill_(1.0)
        last.bias.zero_()
    return nn.Sequential(first, nn.ReLU(), last)


BOX = "forall x in box(0, 4) and "
# The premise as written, and as Python has it.
CASES = [
    ("integer(x)", "x[0] <= 2", lambda a, b: a <= 2),
    ("integer(x)", "x[0] <= 2.5", lambda a, b: a <= 2.5),
    ("integer(x)", "x[0] >= 4", lambda a, b: a >= 4),
    ("integer(x)", "2*x[0] <= 5", lambda a, b: 2 * a <= 5),
    ("integer(x)", "x[0] + x[1] <= 3", lambda a, b: a + b <= 3),
    ("integer(x)", "2*x[0] - 4*x[1] >= 4", lambda a, b: 2 * a - 4 * b >= 4),
    ("integer(x)", "not (x[0] > 2)", lambda a, b: a <= 2),
    ("integer(x)", "x[0] < 2", lambda a, b: a < 2),
    ("integer(x)", "x[0] > 2 and x[0] < 4", lambda a, b: 2 < a < 4),
    ("integer(x)", "not (x[0] < 2 or x[1] > 2)", lambda a, b: not (a < 2 or b > 2)),
    ("integer(x)", "x[0] <= 1 or x[1] <= 1", lambda a, b: a <= 1 or b <= 1),
    ("integer(x)", "1 <= x[0] <= 3 and x[1] <= 0", lambda a, b: 1 <= a <= 3 and b <= 0),
    ("x[0] in {0, 1, 4} and integer(x)", "x[0] <= 1", lambda a, b: a <= 1),
    ("x[0] in {0.5, 2.5} and integer(x[1])", "x[0] <= 0.5", lambda a, b: a <= 0.5),
    ("x[0] in {0.5, 2.5} and integer(x[1])", "x[0] >= 2.5", lambda a, b: a >= 2.5),
]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_premises_as_they_are_written(number: int) -> None:
    """The largest value under the premise is the least bound that holds: by enumeration."""
    region, premise, holds = CASES[number]
    first = {"x[0] in {0, 1, 4} and integer(x)": (0, 1, 4)}.get(region, range(5))
    first = (0.5, 2.5) if "0.5" in region else first
    most = max(a + b for a, b in itertools.product(first, range(5)) if holds(a, b))
    network = load(rising(), input_shape=(2,))
    for bound, expected in ((most, "verified"), (most - 0.25, "falsified")):
        rule = qll.parse(f"{BOX}{region}: {premise} -> y[0] <= {bound + 1e-6}", outputs=1)
        (found,) = qll.verify(rule, network, certified=True)
        assert str(found.status) == expected, (rule, found)
        if found.witness is not None:
            assert holds(*found.witness.tolist())


def test_reals_are_read_as_before() -> None:
    texts = ("x[0] <= 2 -> y[0] <= 6", "x[0] >= 2 or y[0] <= 6")
    one, other = (
        qll.parse(f"forall x in box(0, 4): {text}", outputs=1).hard_form(outputs=1, inputs=(2,))
        for text in texts
    )
    assert one == other


@pytest.mark.parametrize("said", ["integer(x)", "x[0] in {1, 2.5, 18} and integer(x[1])"])
@pytest.mark.parametrize("premise", ["x2[0] <= 18", "not (x2[0] > 18)", "x[0] <= 18"])
def test_an_input_that_equals_another_has_its_values(said: str, premise: str) -> None:
    region = f"x in box(0, 30) and {said}, x2 in box(0, 30) and (forall k in inputs: x2[k] == x[k])"
    rule = qll.parse(f"forall {region}: {premise} -> y2[0] - x[1] <= 17.5", outputs=1)
    (found,) = qll.verify(rule, load(rising(), input_shape=(2,)), certified=True)
    assert str(found.status) == "falsified" and found.witness is not None
    assert 18.0 in found.witness.tolist()
