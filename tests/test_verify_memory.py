"""Branch and bound with little memory for open domains: the deepest come first, and the proof is
the same; where even that does not fit, the answer says so."""

from __future__ import annotations

import numpy as np
import pytest
from verify_cases import chain

from qll.bounds.sparse_graph import SparseGraphBounder
from qll.formula.hard import affine
from qll.verify import depth_first, prover, root
from qll.verify.proof import Outcome
from qll.verify.prover import NeuronProver, Run
from qll.verify.query import Query
from qll.verify.verdict import Reason

pytest.importorskip("numba")


def asked(seed: int, slack: float) -> Query:
    """Whether the output can exceed the largest of many samples by ``slack``."""
    rng = np.random.default_rng(seed)
    layers = []
    for size, width in ((8, 16), (16, 16), (16, 1)):
        bias = rng.standard_normal(width) * 0.1
        layers.append((rng.standard_normal((width, size)) / (1 if size == 8 else 4), bias))
    network = chain(*layers)
    most = float(network.relu_form.forward(rng.uniform(-1, 1, (20000, 8))).max())
    return Query(network, -np.ones(8), np.ones(8), affine([(("y", 0), 1.0)], -(most + slack)))


def prove(query: Query) -> Outcome:
    return NeuronProver(SparseGraphBounder(query.form)).prove(
        query, np.inf, lambda *_: None, most_nodes=40_000
    )


@pytest.fixture(autouse=True)
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(depth_first, "fits", lambda form: False)
    monkeypatch.setattr(root, "MOST_BYTES", 1)  # 64 domains


def test_a_proof_goes_on_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    query = asked(6, 0.6)
    most = 0
    crowd = Run.watch_memory

    def watch(self: Run) -> None:
        nonlocal most
        crowd(self)
        most = max(most, len(self.queue))

    monkeypatch.setattr(Run, "watch_memory", watch)
    found = prove(query)
    assert found.proved and 32 < most <= 64
    monkeypatch.setattr(prover, "CROWDED", (np.inf, np.inf))
    assert prove(query).reason is Reason.MEMORY
