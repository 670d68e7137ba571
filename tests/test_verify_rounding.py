"""Sums of large numbers that cancel: no rounding may turn a violated property into a proof.

The truth is computed in fractions. A network of one input is piecewise linear along it, so that its
exact maximum is at one of finitely many points.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from verify_cases import FormNetwork, chain, chain_prover, graph_prover

import qll
from qll.formula.hard import affine
from qll.networks import load
from qll.networks.relu_form import FormLayer, ReluForm
from qll.verify import clock
from qll.verify.backend import BACKENDS, Budget
from qll.verify.backends.bab import BranchAndBound
from qll.verify.boxes import BoxProver
from qll.verify.query import Query
from qll.verify.verdict import Status

pytest.importorskip("numba")

PROVERS: dict[str, Callable[[Query], Any]] = {
    "boxes": lambda q: BoxProver(q.form),
    "boxes-duals": lambda q: BoxProver(q.form, alone=0.0),
    "boxes-torch": lambda q: BoxProver(q.form, compiled=False),
    "graph": lambda q: graph_prover(q.form),
    "chain": lambda q: chain_prover(q.form),
}


def no_search(points: Any, leaves: Any, programmes: bool) -> None:
    return None


def breaks(network: Any, low: float, high: float) -> list[Fraction]:
    """Points between which the exact network is affine, ends included; one input."""
    points = [Fraction(low), Fraction(high)]
    form: ReluForm = network.relu_form
    for depth in range(len(form.layers) - 1):
        more = []
        for a, b in itertools.pairwise(points):
            at_a, at_b = (exact_layers(form, [p])[depth] for p in (a, b))
            for u, v in zip(at_a, at_b, strict=True):
                if u * v < 0:
                    more.append(a + (b - a) * u / (u - v))
        points = sorted({*points, *more})
    return points


def exact_layers(form: ReluForm, x: list[Fraction]) -> list[list[Fraction]]:
    """Every pre-activation in fractions."""
    values, found = [x], []
    for layer in form.layers:
        z = [Fraction(float(b)) for b in layer.bias]
        for source, weight in layer.terms:
            for i, row in enumerate(np.asarray(weight).tolist()):
                z[i] += sum(Fraction(w) * v for w, v in zip(row, values[source], strict=True))
        found.append(z)
        values.append([max(v, Fraction(0)) for v in z])
    return found


def greatest(network: FormNetwork, low: float, high: float) -> Fraction:
    form = network.relu_form
    return max(exact_layers(form, [p])[-1][0] for p in breaks(network, low, high))


def large(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Weights of 2^0 to 2^60 with a few bits, many of them another's negative."""
    exponent = rng.integers(0, 61, shape) * (rng.random(shape) < 0.6)
    values = rng.choice([-1.0, 1.0], shape) * (1 + rng.integers(0, 8, shape) / 8) * 2.0**exponent
    return np.where(rng.random(shape) < 0.2, rng.standard_normal(shape), values)


def cancelling(seed: int) -> FormNetwork:
    """One input. Blocks of two layers: the first sums large numbers, the second takes them off
    again, as far as float64 can say, so that what follows is small and looks harmless."""
    rng = np.random.default_rng(seed)
    layers: list[FormLayer] = []
    below = 1
    for _ in range(int(rng.integers(1, 3))):
        width = int(rng.integers(1, 4))
        weight, shift = rng.standard_normal((width, below)), np.abs(large(rng, (width,)))
        layers.append(FormLayer(shift, ((len(layers), weight),)))
        down = rng.standard_normal((width, width)) * 2.0 ** -rng.integers(0, 12, (width, width))
        terms: list[tuple[int, Any]] = [(len(layers), down)]
        if seed % 3 == 0:
            terms.insert(0, (0, rng.standard_normal((width, 1))))
        layers.append(FormLayer(-down @ shift, tuple(terms)))
        below = width
    layers.append(FormLayer(np.zeros(1), ((len(layers), rng.standard_normal((1, below))),)))
    return FormNetwork(ReluForm((1,), tuple(layers)))


def takes(name: str, query: Query) -> bool:
    return name != "chain" or query.form.is_chain


@pytest.mark.parametrize("name", PROVERS)
def test_a_shift_by_two_to_the_53_proves_nothing(name: str) -> None:
    """y = relu(relu(x + 2^53) - 2^53) is x, but every float64 sum says 0."""
    shift = 2.0**53
    network = chain(([[1.0]], [shift]), ([[1.0]], [-shift]), ([[1.0]], [0.0]))
    box = np.zeros(1), np.full(1, 0.8)
    query = Query(network, *box, affine([(("y", 0), 1.0)], -0.5))
    assert not PROVERS[name](query).prove(query, clock.now() + 2, no_search).proved
    verdict = BranchAndBound(choose=PROVERS[name]).decide([query], Budget(seconds=2))[0]
    assert verdict.status is not Status.VERIFIED
    above = Query(network, *box, affine([(("y", 0), 1.0)], -(2.0**14)))
    assert PROVERS[name](above).prove(above, clock.now() + 60, no_search).proved


@pytest.mark.parametrize("name", PROVERS)
def test_cancelling_networks_against_exact_enumeration(name: str) -> None:
    proved = wrong = 0
    for seed in range(10):
        network = cancelling(seed)
        top = greatest(network, -0.5, 1.0)
        size = max(abs(float(v)) for z in exact_layers(network.relu_form, [Fraction(1)]) for v in z)
        box = np.full(1, -0.5), np.full(1, 1.0)
        # From what is violated by far, if float64 cannot see it, to where a proof is possible.
        for bound in (*(float(top) - 2.0 ** -np.array([0, 2, 5, 10])), float(top) + size):
            query = Query(network, *box, affine([(("y", 0), 1.0)], -bound))
            if not takes(name, query):
                continue
            # What cannot be proved takes all of its time; what can has enough on a busy machine.
            seconds = 0.02 if Fraction(bound) < top else 2.0
            found = PROVERS[name](query).prove(query, clock.now() + seconds, no_search).proved
            proved += found
            wrong += found and Fraction(bound) < top
    assert wrong == 0
    assert proved >= 6, "a margin that lets nothing through is no margin"


def test_what_folding_rounds_is_counted() -> None:
    """Affine layers in a row, each exact in float32, whose product is not in float64."""
    wrong = proved = 0
    for seed in range(8):
        rng = np.random.default_rng(seed)
        module = nn.Sequential(
            nn.Linear(1, 2), nn.Linear(2, 2), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)
        )
        with torch.no_grad():
            for part in (module[0], module[1], module[2], module[4]):
                for values in part.parameters():
                    drawn = rng.standard_normal(tuple(values.shape))
                    scale = 2.0 ** rng.integers(-20, 21, drawn.shape)
                    values.copy_(torch.from_numpy((drawn * scale).astype(np.float32)))
            module[2].bias.zero_()
        network = load(module.eval(), input_shape=(1,))
        ends = [network.evaluate_exact(np.array([p]))[0] for p in (0.25, 0.5, 1.0)]
        top = max(ends)  # a lower bound of the maximum: enough to catch a wrong proof
        for room in (2.0**-60, 2.0**-53, 2.0**-48):
            bound = float(top) - abs(float(top)) * room
            query = Query(network, np.full(1, 0.25), np.ones(1), affine([(("y", 0), 1.0)], -bound))
            for name in ("boxes", "graph", "chain"):
                found = PROVERS[name](query).prove(query, clock.now() + 0.02, no_search).proved
                wrong += found and Fraction(bound) < top
        wide = float(max(abs(v) for v in ends)) * 2.0**10 + 1.0
        easy = Query(network, np.full(1, 0.25), np.ones(1), affine([(("y", 0), 1.0)], -wide))
        proved += PROVERS["chain"](easy).prove(easy, clock.now() + 5, no_search).proved
    assert wrong == 0
    assert proved >= 4


@pytest.mark.parametrize("scale", [2.0**300, 2.0**-600])
def test_numbers_near_the_ends_of_float64_prove_nothing_wrong(scale: float) -> None:
    network = chain(([[scale], [-scale]], [0.0, 0.0]), ([[scale, scale]], [0.0]))
    query = Query(network, -np.ones(1), np.ones(1), affine([(("y", 0), 1.0)], -(scale**2) / 2))
    for name in PROVERS:
        assert not PROVERS[name](query).prove(query, clock.now() + 1, no_search).proved
        verdict = BACKENDS["bab"]().decide([query], Budget(seconds=1))[0]
        assert verdict.status is not Status.VERIFIED


@pytest.mark.parametrize("options", [{}, {"fast": True}, {"certified": True}], ids=str)
def test_outputs_at_the_data_point_are_exact(options: dict[str, Any]) -> None:
    """y is x there and everywhere else: in float64 it would be 0 at x0 = 0.8."""
    network = nn.Sequential(
        nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1)
    ).eval()
    with torch.no_grad():
        for part, bias in zip(network[::2], (2.0**53, -(2.0**53), 0.0), strict=True):
            part.weight.fill_(1.0)
            part.bias.fill_(bias)
    for rule, holds in (
        ("x[0] >= y0[0] + 0.5 and y[0] >= -5000", False),
        ("x[0] >= y0[0] + 0.5 and y[0] <= 5000", False),
        ("x[0] >= y0[0] - 0.1 or y[0] >= 9000", True),
        ("x[0] <= y0[0] + 0.1 or y[0] >= 9000", True),
    ):
        prop = qll.parse(f"outputs 1\nforall x in ball(x0, 0.01): {rule}\n")
        (found,) = qll.verify(prop, network, np.array([[0.8]]), **options)
        assert found.status is not (Status.FALSIFIED if holds else Status.VERIFIED), rule
        assert str(found.reason) != "refused by the checker"
