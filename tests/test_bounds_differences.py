"""Differences of two runs, layer by layer: prover and checker against sampling and enumeration."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import qll
from qll.audit.bounds import Bounder
from qll.audit.curves import curve
from qll.audit.network import NotConfirmed, read_network
from qll.audit.product import product
from qll.audit.slope import Slopes
from qll.bounds.crown import Crown
from qll.bounds.differences import Differences, Runs, fits
from qll.networks import load
from qll.networks.joint import Joint
from qll.verify.verdict import Evidence


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        found: Tensor = self.last(h + torch.tanh(self.inner(h)))
        return found


def chain(bent: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), bent, nn.Linear(5, 4), bent, nn.Linear(4, 2))


KINDS: dict[str, Any] = {
    "relu": lambda: chain(nn.ReLU()),
    "leaky": lambda: chain(nn.LeakyReLU(0.25)),
    "falling": lambda: chain(nn.LeakyReLU(-0.5)),
    "clip": lambda: chain(nn.Hardtanh()),
    "sigmoid": lambda: chain(nn.Sigmoid()),
    "tanh": lambda: chain(nn.Tanh()),
    "softplus": lambda: chain(nn.Softplus()),
    "max pool": lambda: nn.Sequential(
        nn.Linear(3, 6), nn.Unflatten(1, (1, 6)), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(3, 2)
    ),
    "residual": Residual,
}


def runs_of(joint: Joint, single: Any, lower: Any, upper: Any) -> tuple[Runs, Any]:
    """Bounds of both runs, as the prover and as the checker have them."""
    crown = Crown(joint.relu_form)
    with torch.no_grad():
        boxes = crown.pre_activations(crown.tensor(lower[None]), crown.tensor(upper[None]), None)
    ends: list[list[Any]] = [[], [], [], []]
    theirs = []
    for low, high in zip(boxes.low, boxes.high, strict=True):
        half = low.shape[1] // 2
        parts = [t.numpy()[:, p] for p in (slice(half), slice(half, None)) for t in (low, high)]
        for side, part in zip(ends, parts, strict=True):
            side.append(part)
        theirs.append([(parts[0][0], parts[1][0]), (parts[2][0], parts[3][0])])
    return Runs(*ends), theirs


@pytest.mark.parametrize("kind", KINDS)
def test_differences_are_within_their_bounds(kind: str) -> None:
    """Of outputs at thousands of pairs, corners among them; what is equal cancels."""
    rng = np.random.default_rng(0)
    for seed in range(4):
        torch.manual_seed(seed)
        model = KINDS[kind]().double().eval()
        network = load(model.float(), input_shape=(3,))
        model = model.double()
        assert fits(network)
        joint = Joint((network, network), (0, 1, 2, 3, 1, 2), 4)  # x2 differs in the first input
        lower = rng.normal(size=4) * 0.5
        upper = lower + rng.random(4) * float(rng.choice([0.05, 0.5, 2.0]))
        runs, theirs = runs_of(joint, network, lower, upper)
        first, last = np.zeros((2, 3))
        first[0], last[0] = lower[3] - upper[0], upper[3] - lower[0]
        rows, direct = rng.normal(size=(3, 2)), rng.normal(size=(3, 3)) * [[0.5, 0, 0]]
        found = Differences(network).lower(runs, first[None], last[None], rows, direct)[0][0]
        run = read_network(network.source, None, None)
        slopes = Slopes(run, Bounder(product([run, run], joint.home, 4)).g)
        checked = [
            slopes.lower(theirs, first, last, row, own)
            for row, own in zip(rows, direct, strict=True)
        ]
        points = rng.uniform(lower, upper, size=(3000, 4))
        points[:1000] = np.where(rng.random((1000, 4)) < 0.5, lower, upper)
        x, x2 = points[:, :3], points[:, [3, 1, 2]]
        with torch.no_grad():
            rise = (model(torch.from_numpy(x2)) - model(torch.from_numpy(x))).numpy()
        values = rise @ rows.T + (x2 - x) @ direct.T
        for bound in (found, np.array(checked)):
            assert (values.min(axis=0) >= bound - 1e-12).all(), (kind, seed)
        np.testing.assert_allclose(found, checked, rtol=1e-5, atol=1e-7)
        # A step of no length moves nothing: no bias and no relaxation is left.
        none = np.zeros((1, 3))
        assert (Differences(network).lower(runs, none, none, rows, direct)[0] == 0).all()


def test_slopes_between_two_points_are_enclosed() -> None:
    rng = np.random.default_rng(1)
    curves = [curve("leaky-relu", 0.2), curve("leaky-relu", -0.5), curve("clip", -1.0, 2.0)]
    curves += [curve("clip", -1e17, 1e17), curve("clip", 0.0, np.inf), curve("abs")]
    curves += [curve(name) for name in ("sigmoid", "tanh", "softplus", "exp")]
    for bent in curves:
        for scale in (1.0, 6.0, 40.0, 1e17 if bent.rough else 40.0):
            low = rng.normal(size=200) * scale
            high = low + rng.random(200) * scale * rng.choice([0.0, 0.1, 3.0], 200)
            least, most = bent.between(low, high)
            a, b = rng.uniform(low, high, size=(2, 50, 200))
            apart = np.abs(b - a) > 1e-4 * scale
            slope = (bent.value(b) - bent.value(a)) / np.where(apart, b - a, 1.0)
            error = 1e-9 * (1 + np.abs(slope))
            assert (~apart | ((slope >= least - error) & (slope <= most + error))).all()
    with pytest.raises(NotConfirmed):
        torch.manual_seed(0)
        Slopes(read_network(load(chain(nn.GELU()), input_shape=(3,)).source, None, None), 1e-12)


RISING = (
    "forall x in box(-1, 1), x2 in box(-1, 1) and x2[0] >= x[0] and "
    "(forall i in inputs where i != 0: x2[i] == x[i]): y2[0] >= y[0]"
)


@pytest.mark.parametrize("kind", ["leaky", "clip", "sigmoid", "tanh", "softplus"])
def test_what_rises_is_proved_with_other_activations(kind: str) -> None:
    """Steps of every length, down to none; a fall somewhere is found. The checker agrees."""
    for rises in (True, False):
        torch.manual_seed(0)
        model = KINDS[kind]()
        with torch.no_grad():
            model[0].weight[:, 0].abs_(), model[2].weight.abs_(), model[4].weight.abs_()
            if not rises:
                model[4].weight.neg_()
        network = load(model, input_shape=(3,))
        (found,) = qll.verify(qll.parse(RISING, outputs=2), network, certified=True, timeout=20)
        assert found.status == ("verified" if rises else "falsified")
        assert found.evidence is Evidence.CHECKED or not rises
