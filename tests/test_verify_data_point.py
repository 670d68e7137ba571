"""Rules that compare with y0, the outputs at the data point: exact, where the network is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import qll
from qll.networks import Network, load

SAME = "forall x in ball(x0, 0): y[0] {} y0[0]"


@pytest.fixture(scope="module")
def networks() -> list[tuple[Network, np.ndarray]]:
    found = []
    for seed in range(3):
        torch.manual_seed(seed)
        layers = nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 1)
        point = torch.rand(1, 3, dtype=torch.float64).numpy()
        found.append((load(nn.Sequential(*layers), input_shape=(3,)), point))
    return found


@pytest.mark.parametrize("sign", ["<=", ">="])
@pytest.mark.parametrize("certified", [False, True])
def test_a_point_is_no_witness_against_itself(
    networks: list[tuple[Network, np.ndarray]], sign: str, certified: bool
) -> None:
    """y0 rounded to float64 is on one side of what the network computes there."""
    prop = qll.parse(SAME.format(sign), outputs=1)
    for network, point in networks:
        (verdict,) = qll.verify(prop, network, point, certified=certified)
        assert verdict.status != "falsified" and verdict.reason != "refused by the checker"


def test_the_box_of_a_premise_on_y0_is_the_checkers() -> None:
    """An end that no float has is rounded once, from the same number."""
    torch.manual_seed(1)
    network = load(nn.Sequential(nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 1)), input_shape=(1,))
    prop = qll.parse("forall x in box(-9, 9): x[0] >= 3*y0[0] -> y[0] >= -100", outputs=1)
    for value in np.random.default_rng(0).uniform(-1, 1, 4):
        (verdict,) = qll.verify(prop, network, np.array([[value]]), certified=True)
        assert verdict.status == "verified"


def test_without_exact_values_the_checker_is_not_against_it() -> None:
    """Of a sigmoid nothing is exact: the checker cannot be asked, and says no more than that."""
    torch.manual_seed(0)
    network = load(nn.Sequential(nn.Linear(1, 2), nn.Sigmoid(), nn.Linear(2, 1)), input_shape=(1,))
    prop = qll.parse("forall x in ball(x0, 0.5): y[0] >= y0[0] + 5", outputs=1)
    (verdict,) = qll.verify(prop, network, np.zeros((1, 1)), certified=True)
    assert verdict.reason == "not confirmed"
    (verdict,) = qll.verify(prop, network, np.zeros((1, 1)))
    assert verdict.status == "falsified"
    assert any("y0" in note and "float64" in note for note in verdict.notes)
