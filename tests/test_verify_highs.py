"""HiGHS as a mixed-integer backend: never wrong where it answers, and what its word is worth."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from verify_cases import FormNetwork, chain, random_condition, random_network, worst_value

import qll
from qll.formula.hard import affine
from qll.networks import load
from qll.networks.relu_form import FormLayer, ReluForm
from qll.verify.backend import BACKENDS, Budget
from qll.verify.backends import highs
from qll.verify.query import Query
from qll.verify.verdict import Evidence, Reason, Status, Verdict

pytest.importorskip("highspy")

# Within this share of the numbers involved the enumeration's own solver cannot tell.
TIE = 1e-6


def ask(query: Query, seconds: float = 20.0) -> Verdict:
    return BACKENDS["highs"]().decide([query], Budget(seconds=seconds))[0]


@pytest.mark.parametrize("seed", range(60))
def test_it_agrees_with_exact_enumeration(seed: int) -> None:
    rng = np.random.default_rng(seed)
    network = random_network(rng, skips=seed % 2 == 0)
    inputs = network.relu_form.input_size
    centre, radius = rng.standard_normal(inputs), 10.0 ** rng.uniform(-2, 0.5, inputs)
    query = Query(
        network, centre - radius, centre + radius, random_condition(rng, 3, inputs, 1 + seed % 3)
    )
    verdict = ask(query)
    worst = worst_value(query)
    scale = max(1.0, float(np.abs(query.form.forward(query.lower[None])).max()))
    if verdict.status is Status.VERIFIED:
        assert worst <= TIE * scale
    if verdict.status is Status.FALSIFIED:
        assert worst >= -TIE * scale
    if abs(worst) > 1e-2 * scale:
        assert verdict.decided, (worst, verdict)


def a_pair(seed: int, threshold: float) -> Query:
    """Two networks 7-16-1 at one input: may the first be larger by more than the threshold?"""
    rng = np.random.default_rng(seed)
    first = [rng.standard_normal((16, 7)) / 2 for _ in range(2)]
    second = [rng.standard_normal((1, 16)) / 4 for _ in range(2)]
    layers = (
        FormLayer(rng.standard_normal(32) * 0.3, ((0, np.vstack(first)),)),
        FormLayer(np.zeros(1), ((1, np.hstack([second[0], -second[1]])),)),
    )
    network = FormNetwork(ReluForm((7,), layers))
    return Query(network, -np.ones(7), np.ones(7), affine([(("y", 0), 1.0)], -threshold))


def test_a_pair_of_small_networks() -> None:
    """The largest difference lies between what is falsified and what is verified."""
    verdict = ask(a_pair(0, 1.0))
    assert verdict.status is Status.FALSIFIED
    assert verdict.evidence is Evidence.WITNESS
    proved = ask(a_pair(0, 4.0))
    assert proved.status is Status.VERIFIED
    assert proved.evidence is Evidence.PROVER
    assert highs.NOTE in proved.notes
    assert not BACKENDS["highs"].keeps_proofs


def test_what_it_is_not_given_is_refused_with_the_reason() -> None:
    network = chain((np.ones((1, 1)), np.zeros(1)), (np.ones((1, 1)), np.zeros(1)))
    query = Query(network, np.zeros(1), np.ones(1), affine([(("y", 0), 1.0)], -2.0))
    assert ask(query).status is Status.VERIFIED
    wide = np.ones((400, 400))
    large = chain((wide, np.zeros(400)), (wide, np.zeros(400)))
    refused = ask(Query(large, np.zeros(400), np.ones(400), affine([(("y", 0), 1.0)], -2.0)))
    assert refused.reason is Reason.UNSUPPORTED
    assert "weights" in refused.notes[0]


def test_numbers_that_are_large_against_their_range_are_not_given_to_it() -> None:
    network = chain((np.ones((1, 1)), np.zeros(1)), (np.ones((1, 1)), np.full(1, -1e8)))
    box = np.full(1, 1e8 - 1e-3), np.full(1, 1e8 + 1e-3)
    for threshold in (5e-4, 2e-3):
        verdict = ask(Query(network, *box, affine([(("y", 0), 1.0)], -threshold)))
        assert verdict.reason is Reason.UNSUPPORTED


def test_what_is_left_of_numbers_that_cancel_is_no_range() -> None:
    """Inputs that are fixed: the output is 1, and every sum in float64 says 0."""
    network = chain(([[1.0, 1.0]], [-1e16]))
    fixed = np.array([1e16, 1.0])
    verdict = ask(Query(network, fixed, fixed, affine([(("y", 0), 1.0)], -0.5)))
    assert verdict.status is not Status.VERIFIED


def test_no_time_is_no_answer() -> None:
    assert ask(a_pair(0, 1.9), seconds=0.01).reason in (Reason.TIME, Reason.BACKEND)


def test_cases_without_a_bound_are_joined() -> None:
    """HiGHS names no bound; a region of two cases has two verdicts."""
    torch.manual_seed(0)
    prop = qll.parse("forall x in box(0, 2) and x[0] in {0.5, 1.5}: y[0] <= 100", outputs=1)
    network = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    (verdict,) = qll.verify(prop, load(network, input_shape=(2,)), backend="highs", fast=True)
    assert verdict.status == "verified" and verdict.bound is None
