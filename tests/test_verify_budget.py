"""Budgets: a query ends in time and says what ran out, whatever the network."""

from __future__ import annotations

import itertools
import time
from functools import partial
from typing import Any

import numpy as np
import pytest
from verify_cases import FormNetwork, chain, chain_prover, graph_prover

from qll.bounds import lanes, sparse_graph
from qll.formula.hard import affine
from qll.networks.relu_form import FormLayer, ReluForm
from qll.verify import boxes, clock, depth_first, implications, root
from qll.verify.attack import Plan, SearchNetwork, attack
from qll.verify.backend import Budget
from qll.verify.backends.bab import BranchAndBound
from qll.verify.boxes import BoxProver
from qll.verify.proof import NeuronProof
from qll.verify.query import Query
from qll.verify.verdict import Reason

pytest.importorskip("numba")

# On top of 10 %: where ten processes share two cores and their caches a step is longer by the CPU
# clock too, and some things are imported on first use.
SLACK = 1.5


def wide(inputs: int, *widths: int, skip: bool = False) -> FormNetwork:
    rng = np.random.default_rng(0)
    sizes = [inputs, *widths, 3]
    layers = []
    for k, (below, width) in enumerate(itertools.pairwise(sizes)):
        terms = [(k, rng.standard_normal((width, below)) / np.sqrt(below))]
        if skip and k:
            terms.insert(0, (0, rng.standard_normal((width, inputs)) / np.sqrt(inputs)))
        layers.append(FormLayer(rng.standard_normal(width) * 0.1, tuple(terms)))
    return FormNetwork(ReluForm((inputs,), tuple(layers)))


def hard(network: FormNetwork, radius: float) -> Query:
    """Above every value that an attack reaches, below what bounds can show soon."""
    size = network.relu_form.input_size
    box = np.full(size, -radius), np.full(size, radius)
    free = Query(network, *box, affine([(("y", 0), 1.0)], -1e4))
    best = attack(SearchNetwork(network.relu_form), [free], Plan(starts=16, steps=60))[0]
    top = 1e4 + best.value
    return Query(network, *box, affine([(("y", 0), 1.0)], -1.1 * top))


CASES: dict[str, tuple[Any, Query]] = {
    "chain": (chain_prover, hard(wide(100, 80, 80), 1.0)),
    "wide chain": (chain_prover, hard(wide(300, 400, 400, 400), 1.0)),
    "graph": (graph_prover, hard(wide(60, 60, 60, 60, skip=True), 1.0)),
    "boxes": (BoxProver, hard(wide(9, 60, 60, 60), 4.0)),
    "wide boxes": (BoxProver, hard(wide(9, 400, 400, 400), 4.0)),
}


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("chain", {"lanes"}),
        ("boxes", {"boxes"}),
        ("graph", {"sparse_graph"}),
        (None, {"lanes", "boxes", "sparse_graph", "implications"}),
    ],
)
def test_a_query_is_prepared_by_the_kernels_that_it_needs(
    name: str | None, wanted: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What only a hard one needs is compiled when it is needed."""
    loaded: set[str] = set()
    for module in (lanes, sparse_graph, implications, boxes):
        called = "_load_kernels" if module is boxes else "load_kernels"
        monkeypatch.setattr(module, called, partial(loaded.add, module.__name__.split(".")[-1]))
    BranchAndBound().prepare(None if name is None else CASES[name][1])
    assert loaded == wanted


@pytest.mark.parametrize("which", ["wall", "cpu"])
def test_the_clock_stands_still_while_a_kernel_is_compiled(
    which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from numba.core import event

    from qll.kernels import announce
    from qll.kernels.simd import kernel

    seconds = [5.0]

    class Slow(event.Listener):  # type: ignore[misc]
        def on_start(self, event: Any) -> None:
            seconds[0] += 100.0

        def on_end(self, event: Any) -> None:
            pass

    @kernel
    def twice(x):  # type: ignore[no-untyped-def]
        return 2 * x

    for module in (announce, clock):
        monkeypatch.setattr(module, "_CLOCKS", {which: lambda: seconds[0]})
    monkeypatch.setattr(announce, "_spent", {which: 0.0})
    monkeypatch.setattr(clock, "_chosen", which)
    before = clock.now()
    with event.install_listener("numba:compile", Slow()):
        assert twice(2) == 4
    assert seconds[0] == 105.0
    seconds[0] += 1.0
    assert clock.now() == pytest.approx(before + 1.0)


@pytest.mark.parametrize("name", CASES)
def test_the_budget_holds(name: str) -> None:
    prover, query = CASES[name]
    backend = BranchAndBound(choose=lambda q: prover(q.form))
    backend.prepare()  # compiles
    backend.decide(
        [query], Budget(seconds=0.3, clock="cpu")
    )  # imports what is imported on first use
    start = time.process_time()
    verdict = backend.decide([query], Budget(seconds=1.5, clock="cpu"))[0]
    spent = time.process_time() - start
    assert verdict.reason is Reason.TIME
    # On a slow machine the time may be over before the first bound is known.
    assert verdict.stage != "branch" or (verdict.bound is not None and verdict.nodes > 0)
    assert 1.4 <= verdict.seconds <= 1.65 + SLACK
    assert spent <= 1.65 + SLACK


def test_open_domains_take_a_bounded_amount_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(root, "MOST_BYTES", 1)
    monkeypatch.setattr(depth_first, "fits", lambda form: False)  # which takes none, and goes on
    _, query = CASES["chain"]
    backend = BranchAndBound(choose=lambda q: chain_prover(q.form))
    verdict = backend.decide([query], Budget(seconds=60, clock="cpu"))[0]
    assert verdict.reason is Reason.MEMORY


def test_closed_domains_are_kept_for_certificates_only() -> None:
    network = chain((np.random.default_rng(0).standard_normal((30, 20)), np.zeros(30)),
                    (np.ones((1, 30)) / 30, [0.0]))  # fmt: skip
    top = 0.0
    for sign in (1.0, -1.0):
        point = sign * np.ones((1, 20))
        top = max(top, float(network.relu_form.forward(point).max()))
    query = Query(network, -np.ones(20), np.ones(20), affine([(("y", 0), 1.0)], -3 * top - 1))
    prover = chain_prover(network.relu_form)
    for keeps in (True, False):
        prover.keeps = keeps
        outcome = prover.prove(query, np.inf, lambda *_: None)
        assert outcome.proved
        assert isinstance(outcome.proof, NeuronProof) is keeps
        assert outcome.proof is None or outcome.proof.refuted
        assert 0 < outcome.least < np.inf


def test_the_clock_of_one_call_is_not_that_of_the_next() -> None:
    _, query = CASES["chain"]
    BranchAndBound().decide([query], Budget(seconds=0.01, clock="cpu"))
    assert clock.chosen() == "wall"
