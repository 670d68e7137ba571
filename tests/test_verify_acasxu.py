"""Networks of few inputs: ACAS Xu instances with known verdicts, and what halving rests on."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from verify_cases import chain, sizes_of

from qll.bounds.crown import Boxes, Crown
from qll.bounds.dense import DenseGraph
from qll.exchange.files import read
from qll.formula.hard import Min, affine
from qll.networks import ReluForm, load
from qll.verify import boxes, clock
from qll.verify.backend import BACKENDS, Budget
from qll.verify.backends.bab import BranchAndBound
from qll.verify.boxes import BoxProver
from qll.verify.certificate import certify
from qll.verify.documents import queries
from qll.verify.query import Query
from qll.verify.verdict import Reason, Status

pytest.importorskip("numba")


def acas_query(shared: Path, network: str, prop: int) -> Query:
    folder = shared / "corpus" / "acasxu"
    network_ = load(folder / f"ACASXU_run2a_{network}_batch_2000.onnx")
    (query,) = queries(read(folder / f"prop_{prop}.vnnlib"), network_)
    return query


@pytest.mark.parametrize(
    ("network", "prop", "expected"),
    [
        ("1_5", 1, "verified"),
        ("2_2", 4, "verified"),
        ("5_3", 3, "verified"),
        ("2_2", 2, "falsified"),
        ("1_7", 3, "falsified"),
    ],
)
def test_acasxu_verdicts(shared: Path, network: str, prop: int, expected: str) -> None:
    query = acas_query(shared, network, prop)
    verdict = BACKENDS["bab"]().decide([query], Budget(seconds=60, clock="cpu"))[0]
    assert str(verdict.status) == expected


@pytest.mark.parametrize("alone", [0.0, 1.0])
def test_acasxu_proofs_are_confirmed(shared: Path, alone: float) -> None:
    """With duals on every box, and by halving alone."""
    query = acas_query(shared, "2_2", 4)
    budget = Budget(seconds=60, clock="cpu", proofs=True)
    backend = BranchAndBound(choose=lambda q: BoxProver(q.form, alone=alone))
    verdict = backend.decide([query], budget)[0]
    assert verdict.status is Status.VERIFIED
    assert verdict.nodes > 1
    _, answer = certify(query, verdict)
    assert answer.confirmed, answer.reason


def deep_form(seed: int, inputs: int = 3) -> ReluForm:
    rng = np.random.default_rng(seed)
    widths = [inputs, 12, 9, 12, 4]
    layers = [
        (rng.standard_normal((b, a)) / np.sqrt(a), rng.standard_normal(b) * 0.3)
        for a, b in itertools.pairwise(widths)
    ]
    return chain(*layers).relu_form


@pytest.mark.parametrize("seed", range(6))
def test_compiled_bounds_are_those_of_the_reference(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neurons that are off are left out of the products; the numbers must not change."""
    form, rng = deep_form(seed), np.random.default_rng(seed)
    lower = rng.standard_normal((20, 3))
    upper = lower + rng.random((20, 3)) * rng.choice([0.0, 0.1, 2.0], size=(20, 1))
    rows, constant = rng.standard_normal((5, 4)), rng.standard_normal(5)
    parts = ([0], [1, 2], [2, 3, 4])
    dense, crown = DenseGraph(form), Crown(form)
    sizes = sizes_of(form, lower, upper)
    found = dense.bound(lower, upper, rows, constant, parts, sizes=sizes, margin=np.inf)
    for n in range(20):
        box = lower[n : n + 1], upper[n : n + 1]
        same = Boxes(
            *(crown.tensor(side) for side in box),
            [crown.tensor(t)[None] for t in dense.by_layer(found.low[n])],
            [crown.tensor(t)[None] for t in dense.by_layer(found.high[n])],
        )
        for k in range(1, len(same.low)):  # neurons whose sign is open are bounded by CROWN
            both = torch.cat([torch.eye(len(same.low[k][0])), -torch.eye(len(same.low[k][0]))])
            least, most = crown.rows(same, k + 1, both.double()[None]).value[0].chunk(2)
            low, high = same.low[k][0], same.high[k][0]
            open_ = (low < 0) & (high > 0)
            assert (low[open_] >= least[open_] - 1e-9).all()
            assert (high[open_] <= -most[open_] + 1e-9).all()
        monkeypatch.setattr(crown, "pre_activations", lambda *_, same=same: same)
        expected = crown.bound(*box, rows, constant, parts)
        monkeypatch.undo()
        for name in ("value", "linear", "mixed", "mixed_linear"):
            ours, theirs = getattr(found, name)[n], getattr(expected, name)[0]
            assert np.allclose(ours, theirs, atol=1e-9), name
        for ours, theirs in zip(found.weights, expected.weights, strict=True):
            assert np.allclose(ours[n], theirs[0], atol=1e-9)
    assert (found.blame >= 0).all()
    exact = (upper == lower).all(axis=1)
    assert (found.blame[exact] <= 1e-12).all()


@pytest.mark.parametrize("seed", range(6))
def test_a_mixture_bounds_the_largest_of_its_rows(seed: int) -> None:
    form, rng = deep_form(seed), np.random.default_rng(seed)
    lower = rng.standard_normal((8, 3))
    upper = lower + rng.random((8, 3))
    rows, constant = rng.standard_normal((4, 4)), rng.standard_normal(4)
    sizes = sizes_of(form, lower, upper)
    every = [range(4)]
    found = DenseGraph(form).bound(lower, upper, rows, constant, every, sizes=sizes, margin=np.inf)
    assert np.allclose(found.weights[0].sum(axis=1), 1.0)
    assert (found.mixed[:, 0] >= found.value.max(axis=1) - 1e-9).all()
    for n in range(8):
        points = rng.uniform(lower[n], upper[n], size=(500, 3))
        leaves = form.forward(points) @ rows.T + constant
        linear = (points - (lower[n] + upper[n]) / 2) @ found.mixed_linear[n, 0]
        centre = found.mixed[n, 0] + np.abs(found.mixed_linear[n, 0]) @ (upper[n] - lower[n]) / 2
        assert (leaves.max(axis=1) >= centre + linear - 1e-9).all()


@pytest.mark.parametrize("seed", range(6))
def test_what_is_known_of_a_box_holds_on_its_parts(seed: int) -> None:
    form, rng = deep_form(seed), np.random.default_rng(seed)
    dense = DenseGraph(form)
    rows, constant = np.eye(4), np.zeros(4)
    lower, upper = -np.ones((1, 3)), np.ones((1, 3))
    sizes = sizes_of(form, lower, upper)
    whole = dense.bound(lower, upper, rows, constant, sizes=sizes)
    centre = rng.uniform(-0.8, 0.8, size=(8, 3))
    small = centre - 0.2, centre + 0.2
    alone = dense.bound(*small, rows, constant, sizes=sizes)
    known = np.repeat(whole.low, 8, axis=0), np.repeat(whole.high, 8, axis=0)
    found = dense.bound(*small, rows, constant, sizes=sizes, known=known)
    assert (found.low >= known[0]).all()
    assert (found.high <= known[1]).all()
    assert (found.value >= alone.value - 0.1).all()
    for k in range(8):
        points = rng.uniform(small[0][k], small[1][k], size=(300, 3))
        z = form.pre_activations(points)
        hidden = np.concatenate(z[:-1], axis=1)
        assert (hidden >= found.low[k] - 1e-9).all()
        assert (hidden <= found.high[k] + 1e-9).all()
        assert (z[-1] >= found.value[k] - 1e-9).all()


def test_open_boxes_take_a_bounded_amount_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    network = chain((np.eye(2), [0.0, 0.0]), ([[1.0, -1.0]], [0.0]))
    # The least value is 0 exactly, on a whole diagonal: no bound shows it, no point violates.
    tie = Min((affine([(("y", 0), 1.0)]), affine([(("y", 0), -1.0)])))
    query = Query(network, np.zeros(2), np.ones(2), tie)
    monkeypatch.setattr(boxes, "MOST_BYTES", 5000)
    outcome = BoxProver(network.relu_form).prove(query, clock.now() + 20, lambda *_: None)
    assert not outcome.proved
    assert outcome.reason is Reason.MEMORY


def test_a_network_without_hidden_layers() -> None:
    """x0 + 2 x1 and x0 - x1 on the unit square: where the second is above 0.5, the first is below
    2, which only a mixture of the two shows."""
    network = chain((np.array([[1.0, 2.0], [1.0, -1.0]]), [0.0, 0.5]))
    for limit, expected in ((2.01, Status.VERIFIED), (1.5, Status.FALSIFIED)):
        both = Min((affine([(("y", 0), 1.0)], -limit), affine([(("y", 1), 1.0)], -1.0)))
        query = Query(network, np.zeros(2), np.ones(2), both)
        assert BACKENDS["bab"]().decide([query], Budget(seconds=20))[0].status is expected
