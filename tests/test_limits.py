"""Time and memory of a whole query: reading, folding, matrices and root bounds count as well."""

from __future__ import annotations

import itertools
import time
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import qll
from qll import limits
from qll.networks import load
from qll.networks.matrices import multiply, sparse
from qll.verify import clock
from qll.verify.verdict import Reason, Status, Verdict

pytest.importorskip("scipy")


def convolutions() -> tuple[nn.Module, tuple[int, ...]]:
    """362,286 weights over 3 x 32 x 32; as matrices 7 million, and 300 million zeros and all."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for below, above, kernel, stride in ((3, 32, 3, 1), (32, 32, 4, 2), (32, 64, 4, 2)):
        layers += [nn.Conv2d(below, above, kernel, stride=stride, padding=1), nn.ReLU()]
    layers += [nn.Flatten(), nn.Linear(4096, 76), nn.ReLU(), nn.Linear(76, 10)]
    return nn.Sequential(*layers).eval(), (3, 32, 32)


def wide() -> tuple[nn.Module, tuple[int, ...]]:
    """Dense layers of which almost every neuron is open."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Flatten()]
    for below in (784, 2048, 2048):
        layers += [nn.Linear(below, 2048), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(2048, 10)).eval(), (1, 28, 28)


NETWORKS = {"convolutions": (convolutions, 0.01), "wide": (wide, 0.0008)}


def ask(name: str, **options: Any) -> Verdict:
    """Whether no other output comes above the largest one by much: no attack breaks it soon."""
    make, epsilon = NETWORKS[name]
    module, shape = make()
    x = np.random.default_rng(0).random((1, *shape))
    with torch.no_grad():
        best = int(module(torch.tensor(x, dtype=torch.float32)).argmax())
    rule = f"outputs 10\nforall x in ball(x0, {epsilon}): y[{best}] + 0.1 >= y[{(best + 1) % 10}]"
    (verdict,) = qll.verify(qll.parse(rule + "\n"), module, x, **options)
    return verdict


@pytest.mark.parametrize("seconds", [2.0, pytest.param(5.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_timeout_holds_for_all_of_a_query(name: str, seconds: float) -> None:
    from qll.verify.backend import BACKENDS

    BACKENDS["bab"]().prepare()
    start = time.process_time()
    with clock.counting("cpu"):  # others may use this machine
        verdict = ask(name, timeout=seconds)
    spent = time.process_time() - start
    assert spent <= 1.3 * seconds + 1.5
    assert verdict.status is not Status.UNKNOWN or verdict.reason is Reason.TIME, verdict
    assert verdict.seconds <= 1.3 * seconds + 1.0  # a step of the longest kind on a slow machine


@pytest.mark.parametrize("name", NETWORKS)
def test_memory_is_asked_for_before_it_is_taken(name: str) -> None:
    limit = 0.1e9
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        verdict = ask(name, timeout=60, memory=limit / 1e9)
        taken = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert verdict.reason is Reason.MEMORY
    assert "needs about" in verdict.detail and "limit 0.1 GB" in verdict.detail
    assert str(verdict).startswith("unknown: out of memory (")
    assert taken < 2 * limit  # the file's weights are there before the limit is


def test_reading_that_takes_the_whole_time_is_out_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that moves by a second with each look."""
    ticks = iter(range(10**9))
    monkeypatch.setitem(clock._CLOCKS, "wall", lambda: float(next(ticks)))
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    prop = qll.parse("outputs 2\nforall x in ball(x0, 0.1): y[0] <= 10\n")
    (verdict,) = qll.verify(prop, module, np.zeros((1, 3)), timeout=4)
    assert (verdict.status, verdict.reason, verdict.stage) == ("unknown", "out of time", "reading")


def test_a_product_in_pieces_is_the_product(monkeypatch: pytest.MonkeyPatch) -> None:
    from qll.networks import matrices

    rng = np.random.default_rng(0)
    left, right = rng.standard_normal((2, 40, 40))
    left[rng.random((40, 40)) < 0.9] = 0.0
    kinds = [
        (a, b)
        for a in (left, sparse().csr_matrix(left))
        for b in (right, sparse().csr_matrix(left))
    ]
    expected = [left @ (right if b is right else left) for _, b in kinds]
    monkeypatch.setattr(matrices, "PIECE_DENSE", 5000)
    monkeypatch.setattr(matrices, "PIECE_SPARSE", 500)
    for (a, b), whole in zip(kinds, expected, strict=True):
        found = multiply(a, b)
        found = found.toarray() if sparse().issparse(found) else found
        assert np.allclose(found, whole, rtol=1e-12, atol=1e-14)
        with limits.limited(deadline=0.0), pytest.raises(limits.OutOfTime):
            multiply(a, b)


def test_exact_replays_are_interrupted() -> None:
    module, shape = convolutions()
    network = load(module, input_shape=shape)
    _ = network.program
    looks = itertools.count()  # of a clock that moves by a second with each
    late = limits.limited(deadline=20.0, now=lambda: float(next(looks)))
    with late, pytest.raises(limits.OutOfTime):
        network.evaluate_exact(np.zeros(shape))
    assert next(looks) < 25


def test_limits_within_limits() -> None:
    with limits.limited(deadline=time.monotonic() + 100, memory=1e9):
        outer = limits.left()
        with limits.limited(deadline=time.monotonic() + 1e6, memory=1e12):
            assert limits.left() <= outer
            assert limits.memory_limit() <= 1e9
        with limits.limited(deadline=time.monotonic() + 1):
            assert limits.left() <= 1
    assert limits.left() == limits.memory_limit() == np.inf
    limits.check()
    limits.need(1e30, "nothing is limited")


def test_unfolding_a_formula_counts() -> None:
    """Lipschitz robustness over thousands of inputs unfolds for half a minute."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 4), nn.ReLU(), nn.Linear(4, 10))
    begun = time.process_time()
    rule = qll.load("lipschitz-robustness")
    (found,) = qll.verify(rule, model.eval(), torch.rand(1, 3, 32, 32), timeout=2.0)
    assert found.reason is Reason.TIME
    assert time.process_time() - begun < 8.0
