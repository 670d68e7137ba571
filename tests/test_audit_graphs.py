"""Certificates of networks that are no ReLU chains: true ones are confirmed, false ones are not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from verify_cases import graph_prover

from qll.audit import audit
from qll.audit.layout import SPLIT
from qll.audit.network import read_network
from qll.formula.hard import affine
from qll.networks import Network, load
from qll.verify.backend import Budget
from qll.verify.backends.bab import BranchAndBound
from qll.verify.boxes import BoxProver
from qll.verify.certificate import _header, certify, pack
from qll.verify.certificate import explicit as subject_of
from qll.verify.query import Query
from qll.verify.verdict import Status, Verdict
from qll.verify.writer import Writer

ACTIVATIONS = {
    "relu": functional.relu,
    "leaky-relu": lambda z: functional.leaky_relu(z, 0.125),
    "relu6": functional.relu6,
    "hardtanh": functional.hardtanh,
    "abs": torch.abs,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "softplus": functional.softplus,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "exp": lambda z: torch.exp(0.5 * z),
    "hardswish": lambda z: functional.hardswish(3.0 * z),
}


# Of several values, in the same place.
SEVERAL: dict[str, Callable[[Tensor], Tensor]] = {
    "product": lambda z: z * torch.cat([z[:, 1:], z[:, :1]], 1),
    "quotient": lambda z: z / (1.0 + z * z),
    "softmax": lambda z: 3.0 * torch.softmax(z, 1),
    "layer norm": lambda z: functional.layer_norm(z, (6,), eps=0.1),
    "matrices": lambda z: 0.5 * (z.reshape(-1, 3, 2) @ z.reshape(-1, 2, 3))[:, :, :2].flatten(1),
    "powers": lambda z: torch.sqrt(torch.sigmoid(z) + 0.5) + 1 / (z.square().mean(1, True) + 1),
}


class Residual(nn.Module):
    """A sum of two branches, one of which skips a layer."""

    def __init__(self, bend: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.bend = bend
        self.first, self.second, self.last = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.bend(self.first(x.flatten(1)))
        return self.last(self.bend(self.second(h) + h))


class Pictures(nn.Module):
    """Padding, batch norm, a residual sum, both poolings, grouped convolution, concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2)
        self.second = nn.Conv2d(2, 2, 3, padding=1, groups=2)
        self.largest, self.mean = nn.MaxPool2d(2), nn.AvgPool2d(2)
        self.last = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = functional.relu(self.norm(self.first(x)))
        h = functional.relu(self.second(h) + h)
        h = torch.cat([self.largest(h), self.mean(h)], dim=1)
        return self.last(h.flatten(1))


class Extrema(nn.Module):
    """The larger and the lesser of two values and of constants, slices, a slope for each neuron."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.bend, self.last = nn.Linear(4, 6), nn.PReLU(6), nn.Linear(3, 2)
        nn.init.uniform_(self.bend.weight, -0.3, 0.6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.bend(self.first(x.flatten(1)))
        high = torch.maximum(h[:, :3], h[:, 1::2])
        return self.last(torch.minimum(high, torch.maximum(h[:, 3:] * 0.5, torch.tensor(0.1))))


def networks() -> dict[str, Network]:
    torch.manual_seed(0)
    found = {}
    for name, bend in {**ACTIVATIONS, **SEVERAL}.items():
        module = Residual(bend)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.mul_(1.5)
        found[name] = load(module.eval(), input_shape=(2, 2))
    torch.manual_seed(1)  # of which not all ReLUs are dead
    pictures = Pictures()
    pictures(torch.rand(64, 1, 4, 4))
    extrema = Extrema()
    with torch.no_grad():
        extrema.first.weight.mul_(1.5)
    found["extrema"] = load(extrema.eval(), input_shape=(2, 2))
    found["pictures"] = load(pictures.eval(), input_shape=(1, 4, 4))
    return found


NETWORKS = networks()
PROVERS = {"neurons": graph_prover, "boxes": BoxProver}
SLOW = {("pictures", "boxes"), ("layer norm", "neurons")}
every_case = pytest.mark.parametrize(
    ("name", "prover"),
    [(n, p) for n in NETWORKS for p in PROVERS if (n, p) not in SLOW],
)


def claim(name: str, share: float) -> tuple[Query, float]:
    """``y[0]`` is at least its least sampled value, less ``share`` of what it ranges over."""
    network = NETWORKS[name]
    low = np.full(network.input_size, 0.3)
    points = np.random.default_rng(1).uniform(low, low + 0.3, (20_000, low.size))
    values = network.relu_form.forward(points)[:, 0]
    assert np.ptp(values) > 1e-3, "a network that does not move proves nothing"
    level = float(values.min() - share * np.ptp(values))
    form = affine([(("y", 0), -1.0)], level)
    return Query(network, low, low + 0.3, form), level


def proved(name: str, prover: str, share: float = 0.15) -> tuple[Query, Verdict]:
    # Samples of 16 inputs stay far from the least value; splits of single neurons are slow where a
    # curve reads all of a layer.
    query, _ = claim(name, {"pictures": 1.0, "softmax": 0.6}.get(name, share))
    backend = BranchAndBound(choose=lambda q: PROVERS[prover](q.form))
    return query, backend.run([query], Budget(30.0, proofs=True))[0]


@every_case
def test_a_true_claim_is_proved_and_confirmed(name: str, prover: str) -> None:
    query, verdict = proved(name, prover)
    assert verdict.status is Status.VERIFIED
    _, answer = certify(query, verdict)
    assert answer.confirmed, answer.reason


@pytest.mark.parametrize("name", NETWORKS)
def test_a_witness_is_confirmed_and_a_point_that_obeys_is_not(name: str) -> None:
    query, _ = claim(name, -0.2)
    verdict = BranchAndBound().run([query], Budget(30.0))[0]
    assert verdict.status is Status.FALSIFIED
    assert certify(query, verdict)[1].confirmed
    points = np.random.default_rng(2).uniform(query.lower, query.upper, (200, query.lower.size))
    best = points[NETWORKS[name].relu_form.forward(points)[:, 0].argmax()]
    other = Verdict(Status.FALSIFIED, "attack", witness=best)
    assert not certify(query, other)[1].confirmed


@every_case
def test_proofs_of_false_claims_are_not_confirmed(name: str, prover: str) -> None:
    """The tree of a true proof under a claim that is false, with its own multipliers and with
    others that are as good as any: nothing but a wrong bound could confirm it."""
    query, verdict = proved(name, prover)
    writer, draw = Writer.of(query.cases[0], verdict.proof), np.random.default_rng(3)
    for share in (-0.02, -0.1, -0.3, -0.6):
        false, _ = claim(name, share)
        header, subject = _header(false, verdict, subject_of(false)), subject_of(false)
        for trial in range(6):
            arrays: dict[str, Any] = {"x0": subject.x0, **writer.arrays(32)}
            if trial:
                changed(arrays, draw)
            sealed = pack(replace(header, precision=32), arrays)
            answer = audit(sealed, false.network.source)  # type: ignore[attr-defined]
            assert not answer.confirmed, (share, trial)


def changed(arrays: dict[str, Any], draw: Any) -> None:
    arrays["alpha"] = draw.random(np.shape(arrays["alpha"]))
    arrays["beta"] = draw.exponential(2.0 ** draw.integers(-6, 6), np.shape(arrays["beta"]))
    arrays["weights"] = draw.random(np.shape(arrays["weights"])) + 0.01
    arrays["points"] = np.asarray(arrays["points"]) + draw.normal(
        0.0, 2.0 ** draw.integers(-4, 6), np.shape(arrays["points"])
    )


@pytest.mark.parametrize("name", NETWORKS)
def test_the_checker_reads_the_layers_of_the_verifier(name: str) -> None:
    """A proof speaks of neurons by their numbers: both must count them alike."""
    network = NETWORKS[name]
    read = read_network(network.source, None, None)
    assert tuple(read.widths) == network.relu_form.widths
    assert read.is_exact == network.relu_form.is_piecewise_linear


@pytest.mark.parametrize("name", ["sigmoid", "tanh"])
def test_splits_at_points_are_confirmed(name: str) -> None:
    """Steep activations on a wide box: the first relaxation is far from enough."""
    torch.manual_seed(1)
    module = Residual(ACTIVATIONS[name])
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(6.0)
    network = load(module.eval(), input_shape=(2, 2))
    low, high = np.full(4, -0.5), np.full(4, 0.5)
    values = network.relu_form.forward(np.random.default_rng(4).uniform(low, high, (20_000, 4)))
    backend = BranchAndBound(choose=lambda q: graph_prover(q.form))
    for share in (0.4, 0.3, 0.2, 0.15, 0.1, 0.07, 0.05):  # until it takes splits
        level = float(values[:, 0].min() - share * np.ptp(values[:, 0]))
        query = Query(network, low, high, affine([(("y", 0), -1.0)], level))
        verdict = backend.run([query], Budget(60.0, proofs=True))[0]
        assert verdict.status is Status.VERIFIED
        assert certify(query, verdict)[1].confirmed
        writer = Writer.of(query.cases[0], verdict.proof)
        splits = sum(kind == SPLIT for kind, _ in writer.kinds)
        assert splits == len(writer.points)
        if splits:
            return
    pytest.fail("no proof took a split")
