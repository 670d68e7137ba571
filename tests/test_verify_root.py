"""What intervals prove, the root proves: on networks that were trained on intervals the slopes of
CROWN are far worse, and an ascent from them may end below."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from verify_cases import chain

from qll.bounds.bounder import Bounder
from qll.bounds.graph import GraphBounder
from qll.bounds.lanes import ChainBounder
from qll.bounds.sparse_graph import SparseGraphBounder
from qll.formula.hard import affine
from qll.networks.relu_form import ReluForm
from qll.verify.proof import Effort, Subproblem
from qll.verify.prover import NeuronProver
from qll.verify.query import Query
from qll.verify.root import Root

pytest.importorskip("numba")

# No ascent, so that nothing but the first slopes and those of the intervals is seen.
STILL = Effort(quick=0, quick_tighten=0, tighten=0, round=0, root=0)


def interval_upper(layers: list[tuple[Any, Any]], low: Any, high: Any) -> Any:
    for k, (weight, bias) in enumerate(layers):
        middle, radius = (low + high) / 2, (high - low) / 2
        centre, reach = weight @ middle + bias, np.abs(weight) @ radius
        low, high = centre - reach, centre + reach
        if k < len(layers) - 1:
            low, high = np.maximum(low, 0), np.maximum(high, 0)
    return high


@pytest.mark.parametrize("bounder", [ChainBounder, GraphBounder, SparseGraphBounder])
def test_the_root_proves_what_intervals_prove(bounder: Callable[[ReluForm], Bounder]) -> None:
    far = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        layers = [
            (rng.standard_normal((width, size)), rng.standard_normal(width))
            for size, width in ((6, 12), (12, 10), (10, 1))
        ]
        # An output that only falls with what is before it, as training on intervals makes them.
        layers[-1] = (-np.abs(layers[-1][0]), layers[-1][1])
        network = chain(*layers)
        low, high = -np.ones(6), np.ones(6)
        most = float(interval_upper(layers, low, high)[0])
        query = Query(network, low, high, affine([(("y", 0), 1.0)], -(most + 1e-3)))
        prover = NeuronProver(bounder(query.form), STILL)
        found = prover.prove(query, np.inf, lambda *_: None, most_nodes=1)
        assert found.proved and found.nodes == 1, seed
        far += not prover.prove_at_once(query).proved
    assert far > 6  # CROWN's own slopes do not


def test_what_intervals_do_not_prove_is_searched_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what its ascent found: a domain without scores has nothing to be split by."""
    flattened, left = Root.flattened, 0

    def watched(self: Root, nodes: list[Subproblem]) -> list[Subproblem]:
        nonlocal left
        before = {id(node): (node.domain, node.bound) for node in nodes}
        found = flattened(self, nodes)
        left += len(found)
        assert all(before[id(node)] == (node.domain, node.bound) for node in found)
        return found

    monkeypatch.setattr(Root, "flattened", watched)
    for seed in range(4):
        rng = np.random.default_rng(seed)
        layers = [
            (rng.standard_normal((width, size)), rng.standard_normal(width))
            for size, width in ((4, 8), (8, 6), (6, 1))
        ]
        network = chain(*layers)
        most = float(network.relu_form.forward(rng.uniform(-1, 1, (5000, 4))).max())
        form = affine([(("y", 0), 1.0)], -(most + 0.5))
        query = Query(network, -np.ones(4), np.ones(4), form)
        NeuronProver(ChainBounder(query.form)).prove(query, np.inf, lambda *_: None)
    assert left
