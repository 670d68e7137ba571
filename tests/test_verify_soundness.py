"""A wrong verifier fails here: tiny networks against exact enumeration, and planted violations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from verify_cases import (
    chain,
    chain_prover,
    graph_prover,
    random_condition,
    random_network,
    worst_value,
)

from qll.bounds.lanes import ChainBounder
from qll.bounds.sparse_graph import SparseGraphBounder
from qll.formula.hard import Max, Min, affine
from qll.verify import clock
from qll.verify.backend import Budget
from qll.verify.backends.bab import BranchAndBound
from qll.verify.boxes import BoxProver
from qll.verify.prover import NeuronProver
from qll.verify.query import Query
from qll.verify.verdict import Status

pytest.importorskip("numba")

PROVERS: dict[str, Callable[[Query], Any]] = {
    "boxes": lambda q: BoxProver(q.form),
    "boxes-duals": lambda q: BoxProver(q.form, alone=0.0),
    "boxes-torch": lambda q: BoxProver(q.form, compiled=False),
    "graph": lambda q: graph_prover(q.form),
    "chain": lambda q: chain_prover(q.form),
    "sparse": lambda q: NeuronProver(SparseGraphBounder(q.form)),
    "programs": lambda q: programs_prover(q),
}


def programs_prover(query: Query) -> NeuronProver:
    """Depth first alone, on the bounds that the query is proved with."""
    chain = takes("chain", query) and len(query.form.layers) > 1
    return NeuronProver((ChainBounder if chain else SparseGraphBounder)(query.form), turn=0.0)


# Within this share of the numbers involved the enumeration's own solver cannot tell.
TIE = 1e-6


def takes(name: str, query: Query) -> bool:
    return name != "chain" or (query.form.is_chain and query.search.inputs is None)


def scale_of(query: Query) -> float:
    return max(1.0, float(np.abs(query.form.forward(query.lower[None])).max()))


def no_search(points: Any, leaves: Any, programmes: bool) -> None:
    return None


def random_query(seed: int) -> Query:
    rng = np.random.default_rng(seed)
    network = random_network(rng, skips=seed % 3 == 0)
    inputs = network.relu_form.input_size
    centre = rng.standard_normal(inputs)
    radius = 10.0 ** rng.uniform(-2, 0.5) * (rng.random(inputs) > 0.1)  # some inputs are fixed
    condition = random_condition(rng, 3, inputs)
    query = Query(network, centre - radius, centre + radius, condition)
    # Half of the conditions are shifted so that the worst value is near 0, where mistakes show.
    if seed % 2:
        worst = worst_value(query)
        if np.isfinite(worst):
            shift = worst + (1 if seed % 4 == 1 else -1) * 0.01 * max(1.0, abs(worst))
            query = Query(network, query.lower, query.upper, _shifted(condition, -shift))
    return query


def _shifted(form: Any, by: float) -> Any:
    match form:
        case Max(parts):
            return Max(tuple(_shifted(p, by) for p in parts))
        case Min(parts):
            return Min(tuple(_shifted(p, by) for p in parts))
    return affine(form.terms, form.constant + by)


@pytest.mark.parametrize(
    "block", [*range(4), *(pytest.param(b, marks=pytest.mark.slow) for b in range(4, 20))]
)
def test_random_networks_against_enumeration(block: int) -> None:
    decided = total = 0
    for seed in range(block * 25, block * 25 + 25):
        query = random_query(seed)
        worst = worst_value(query)
        scale = scale_of(query)
        for name, choose in PROVERS.items():
            if not takes(name, query):
                continue
            verdict = BranchAndBound(choose=choose).decide([query], Budget(seconds=60))[0]
            total += 1
            decided += verdict.decided
            if verdict.status is Status.VERIFIED:
                assert worst <= TIE * scale, (seed, name, worst)
            if verdict.status is Status.FALSIFIED:
                assert worst >= -TIE * scale, (seed, name, worst)
    assert decided >= 0.97 * total


@pytest.mark.parametrize("name", PROVERS)
def test_provers_prove_nothing_that_is_violated(name: str) -> None:
    """Without any attack: only the bounds stand between a violation and 'verified'."""
    proved = tried = 0
    seed = 1000
    while tried < 12:
        seed += 1
        query = random_query(seed)
        if not takes(name, query) or isinstance(query.search.tree, bool):
            continue
        tried += 1
        violated = worst_value(query) > TIE * scale_of(query)
        outcome = PROVERS[name](query).prove(
            query, clock.now() + (0.3 if violated else 60.0), no_search
        )
        assert not (outcome.proved and violated), seed
        proved += outcome.proved
    assert proved >= 2


@pytest.mark.parametrize("name", PROVERS)
@pytest.mark.parametrize("inputs", [2, 5])
@pytest.mark.parametrize("thickness", [1e-2, 1e-4])
def test_violation_in_a_thin_corner(name: str, inputs: int, thickness: float) -> None:
    """relu(sum x - inputs + thickness) > 0 only in one corner of the unit box."""
    network = chain((np.ones((1, inputs)), [thickness - inputs]), ([[1.0], [-1.0]], [0.0, 0.0]))
    query = Query(network, np.zeros(inputs), np.ones(inputs), affine([(("y", 0), 1.0)]))
    outcome = PROVERS[name](query).prove(query, clock.now() + 1, no_search)
    assert not outcome.proved
    verdict = BranchAndBound(choose=PROVERS[name]).decide([query], Budget(seconds=60))[0]
    assert verdict.status is Status.FALSIFIED
    safe = affine([(("y", 0), 1.0)], -1.01 * thickness)
    shifted = Query(network, query.lower, query.upper, safe)
    assert PROVERS[name](shifted).prove(shifted, clock.now() + 60, no_search).proved


@pytest.mark.parametrize("name", PROVERS)
def test_degenerate_regions(name: str) -> None:
    network = chain((np.array([[1.0, -1.0], [2.0, 1.0]]), [0.0, -1.0]), (np.eye(2), [0.0, 0.0]))
    point = np.array([0.3, 0.7])
    y = network.relu_form.forward(point[None])[0]
    for shift, expected in ((1e-3, Status.FALSIFIED), (-1e-3, Status.VERIFIED)):
        condition = affine([(("y", 1), 1.0)], float(-y[1] + shift))
        query = Query(network, point, point, condition)
        verdict = BranchAndBound(choose=PROVERS[name]).decide([query], Budget(seconds=60))[0]
        assert verdict.status is expected
        width = np.array([0.0, 1e-6])
        flat = Query(network, point - width, point + width, condition)
        verdict = BranchAndBound(choose=PROVERS[name]).decide([flat], Budget(seconds=60))[0]
        assert verdict.status is expected


def test_a_tie_violates_only_if_the_query_says_so() -> None:
    network = chain((np.eye(2), [0.0, 0.0]), ([[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0]))
    condition = affine([(("y", 0), 1.0)], -1.0)  # worst value exactly 0, at x0 = 1
    for tie in (False, True):
        query = Query(network, np.zeros(2), np.ones(2), condition, tie_violates=tie)
        verdict = BranchAndBound().decide([query], Budget(seconds=1))[0]
        assert verdict.status is not (Status.VERIFIED if tie else Status.FALSIFIED)


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
@pytest.mark.parametrize("name", PROVERS)
def test_huge_and_tiny_scales(name: str, scale: float) -> None:
    rng = np.random.default_rng(3)
    first = rng.standard_normal((4, 2)) * scale
    network = chain((first, rng.standard_normal(4) * scale), (rng.standard_normal((2, 4)), [0, 0]))
    free = Query(network, -np.ones(2), np.ones(2), affine([(("y", 0), 1.0)]))
    worst = worst_value(free)
    for shift, expected in ((-1e-3, Status.VERIFIED), (1e-3, Status.FALSIFIED)):
        condition = affine([(("y", 0), 1.0)], -worst + shift * abs(worst))
        query = Query(network, free.lower, free.upper, condition)
        seconds = 60 if scale >= 1.0 else 1
        verdict = BranchAndBound(choose=PROVERS[name]).decide([query], Budget(seconds=seconds))[0]
        assert verdict.status in (expected, Status.UNKNOWN)
        if scale >= 1.0:
            assert verdict.status is expected


def test_constraints_cut_the_region() -> None:
    network = chain((np.eye(2), [0.0, 0.0]), ([[1.0, 1.0]], [0.0]))
    condition = affine([(("y", 0), 1.0)], -1.5)
    box = (np.zeros(2), np.ones(2))
    half = affine([(("x", 0), 1.0), (("x", 1), 1.0)], -1.4)  # x0 + x1 <= 1.4
    more = affine([(("x", 0), 1.0), (("x", 1), 1.0)], -1.6)
    decide = BranchAndBound().decide
    assert decide([Query(network, *box, condition)], Budget())[0].status is Status.FALSIFIED
    cut = Query(network, *box, condition, constraints=(half,))
    assert decide([cut], Budget())[0].status is Status.VERIFIED
    loose = decide([Query(network, *box, condition, constraints=(more,))], Budget())[0]
    assert loose.status is Status.FALSIFIED
    assert loose.witness is not None
    assert loose.witness.sum() <= 1.6


@pytest.mark.parametrize("name", ["boxes", "boxes-torch", "boxes-plain"])
def test_boxes_with_infinite_slopes_are_not_cut_away(name: str) -> None:
    """The second input is 0 and its slope overflows near the violation, where x is (1, 0): nothing
    is known there, which is no reason to drop it."""
    network = chain(([[0.5, 1e20]], [-0.5 + 1e-10]), ([[1.0]], [0.0]))
    lower, upper = np.array([-1.0, 0.0]), np.array([1.0, 0.0])
    query = Query(network, lower, upper, affine([(("y", 0), 1e295)], -1e284))
    violation = np.array([1.0, 0.0])
    assert query.compiled.exact_value(network.evaluate_exact(violation), violation) > 0
    prover = PROVERS[name](query) if name in PROVERS else BoxProver.light(query.form, 1 << 20)
    prover.most = 200
    assert not prover.prove(query, np.inf, lambda *_: None).proved
