"""Queries restricted to what can move on their box: never another answer."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from verify_cases import chain, random_network, worst_value

import qll
from qll.bounds.sparse_graph import SparseGraphBounder
from qll.formula.hard import Max, Min, affine
from qll.networks import load
from qll.verify import restricted
from qll.verify.backend import Budget
from qll.verify.backends import bab
from qll.verify.backends.bab import BranchAndBound
from qll.verify.query import Query
from qll.verify.restricted import restrict, restrict_by_crown
from qll.verify.verdict import Reason, Status


@pytest.fixture(autouse=True)
def _even_small_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restricted, "LEAST_ENTRIES", 0)
    monkeypatch.setattr(restricted, "SHARE", 1.0)


def a_query(seed: int, above: float = 1.0) -> Query:
    """Half of the inputs cannot move; violated where one of two outputs is large."""
    rng = np.random.default_rng(seed)
    network = random_network(rng, skips=seed % 2 == 0)
    size = network.relu_form.input_size
    lower = rng.standard_normal(size)
    upper = lower + np.where(np.arange(size) % 2 == 0, rng.random(size), 0.0)
    leaves = [affine([(("y", k), 1.0 - 2 * k)], -above) for k in range(2)]
    return Query(network, lower, upper, Max(tuple(leaves)))


@pytest.mark.parametrize("crown", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_a_premise_keeps_to_its_own_input(seed: int, crown: bool) -> None:
    """It is in the box, whose inputs have other numbers in the smaller query."""
    plain = a_query(seed)
    at = int(np.flatnonzero(plain.upper > plain.lower)[-1])
    middle = float((plain.lower[at] + plain.upper[at]) / 2)
    premise = affine([(("x", at), 1.0)], -middle)
    query = Query(plain.network, plain.lower, plain.upper, Min((premise, plain.condition)))
    small = restrict_by_crown(query, lambda: False) if crown else restrict(query)
    assert small is not None
    lower = plain.lower.copy()
    lower[at] = middle
    assert np.array_equal(small.query.lower, lower[small.free])
    assert np.array_equal(small.query.upper, plain.upper[small.free])
    assert worst_value(small.query) >= worst_value(query) - 1e-12


@pytest.mark.parametrize("crown", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_the_smaller_network_is_the_same_up_to_its_error(seed: int, crown: bool) -> None:
    query = a_query(seed)
    small = restrict_by_crown(query, lambda: False) if crown else restrict(query)
    assert small is not None and (small.known is not None) is crown
    assert small.query.form.input_size == (query.upper > query.lower).sum()
    assert small.query.form.relu_count <= query.form.relu_count
    rng = np.random.default_rng(seed)
    points = rng.uniform(small.query.lower, small.query.upper, (200, small.free.size))
    layers = small.query.form.pre_activations(points)[:-1]
    for z, low, high in zip(layers, *small.known, strict=True) if small.known else ():
        assert ((low <= z) & (z <= high)).all()
    whole = small.expand(points)
    assert ((whole >= query.lower) & (whole <= query.upper)).all()
    ours, theirs = small.query.form.forward(points), query.form.forward(whole)
    assert np.allclose(ours, theirs, atol=1e-9)
    # the leaves are raised by more than the two differ
    for each, other in zip(small.query.search.exact, query.search.exact, strict=True):
        raised = float(each.constant - other.constant)
        assert 0 < raised < 1e-6
    assert worst_value(small.query) >= worst_value(query) - 1e-12
    gap = np.abs(ours - theirs).max()
    assert gap <= min(
        float(a.constant - b.constant)
        for a, b in zip(small.query.search.exact, query.search.exact, strict=True)
    )


@pytest.mark.parametrize("few", [0, 10])
@pytest.mark.parametrize("seed", range(8))
def test_verdicts_are_those_of_the_whole_network(
    seed: int, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By splits of neurons, and of boxes."""
    monkeypatch.setattr("qll.verify.backends.bab.FEW_INPUTS", few)
    query = a_query(seed, above=2.0)
    budget = Budget(20.0)
    smaller = BranchAndBound().decide([query], budget)[0]
    for name in ("restrict", "restrict_by_crown"):
        monkeypatch.setattr(f"qll.verify.backends.bab.{name}", lambda *_: None)
    whole = BranchAndBound().decide([query], budget)[0]
    assert smaller.status is whole.status is not Status.UNKNOWN


def test_what_it_cannot_say_it_leaves_alone() -> None:
    query = a_query(0)
    read = affine([(("y", 0), 1.0), (("x", 1), 1.0)], -1.0)
    assert restrict(Query(query.network, query.lower, query.upper, read)) is None
    whole = np.zeros(query.lower.size, dtype=bool)
    lower, upper = np.zeros(query.lower.size), np.ones(query.lower.size)
    counted = Query(query.network, lower, upper, query.condition, integers=~whole)
    assert restrict(counted) is None


def test_a_network_without_a_single_weight() -> None:
    """What is left of one whose neurons are all off, say."""

    class Zero(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList([nn.Linear(12, 4), nn.Linear(4, 4), nn.Linear(4, 2)])
            for weight in self.parameters():
                nn.init.zeros_(weight)

        def forward(self, x: Tensor) -> Tensor:
            first, second, last = self.parts
            h = torch.relu(first(x))
            return last(h + torch.relu(second(h)))  # type: ignore[no-any-return]

    network = load(Zero(), input_shape=(12,))
    prop = qll.parse("forall x in ball(x0, 0.5): y[0] <= y[1] + 1")
    (verdict,) = qll.verify(prop, network, torch.zeros(1, 12), fast=True)
    assert verdict.status == Status.VERIFIED
    assert SparseGraphBounder(network.relu_form).neighbours(np.arange(3)).tolist() == [0, 1, 2]


@pytest.mark.parametrize("network", ["numpy", "compiled"])
def test_a_tie_at_a_single_point_is_no_error(network: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the smaller network nothing is known exactly: the answer is that it is within rounding."""
    monkeypatch.setattr(bab, "LIGHT_PRODUCTS", 0 if network == "compiled" else 1 << 20)
    monkeypatch.setattr(bab, "sys", SimpleNamespace(modules={}))
    one = np.ones((1, 1))
    half = np.full(1, 0.5)
    query = Query(chain((one, [0.0]), (one, [0.0])), half, half, affine([(("y", 0), 1.0)], -0.5))
    (verdict,) = BranchAndBound().decide([query], Budget(seconds=5))
    assert (verdict.status, verdict.reason) == (Status.UNKNOWN, Reason.MARGIN)
