"""Interval bounds of modules that are no chains, against samples, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import qll
from qll.bounds.modules import BoxBounds, module_bounds
from qll.errors import NetworkError

ACTIVATIONS = {
    "relu": nn.ReLU(inplace=True),
    "leaky": nn.LeakyReLU(0.1),
    "relu6": nn.ReLU6(),
    "hardtanh": nn.Hardtanh(-0.2, 0.3),
    "sigmoid": nn.Sigmoid(),
    "tanh": nn.Tanh(),
    "gelu": nn.GELU(),
    "silu": nn.SiLU(),
    "softplus": nn.Softplus(),
}


class Residual(nn.Module):
    """Padding, batch norm, a residual sum, pooling, a product with constants, concatenation."""

    def __init__(self, bend: nn.Module) -> None:
        super().__init__()
        self.bend = bend
        self.first, self.second = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.drop = nn.BatchNorm2d(4), nn.Dropout(0.3)
        self.largest, self.mean = nn.MaxPool2d(2), nn.AvgPool2d(2, padding=1)
        self.pad, self.last = nn.ZeroPad2d(1), nn.Linear(4 * 16, 5)

    def forward(self, x: Tensor) -> Tensor:
        a = self.bend(self.norm(self.first(x)))
        a = self.bend(self.second(a) + a) * 0.5
        a = self.pad(self.largest(a)) - 0.1
        a = torch.cat([a[:, :2], 1 - functional.relu(a[:, 2:])], dim=1)
        a = self.mean(self.drop(a)) / 2
        return self.last(a.flatten(1))


def trained(bend: nn.Module) -> Residual:
    torch.manual_seed(0)
    model = Residual(bend)
    model(torch.rand(16, 1, 8, 8))  # statistics of the batch norm
    return model


def around(x: Tensor, radius: float, count: int) -> Tensor:
    spread = 2 * torch.rand(len(x), count, *x.shape[1:]) - 1
    return (x[:, None] + radius * spread).flatten(0, 1)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_outputs_and_rows_stay_within_the_bounds(name: str) -> None:
    model, x = trained(ACTIVATIONS[name]), torch.rand(3, 1, 8, 8)
    bounds = module_bounds(model, x - 0.05, x + 0.05)
    assert isinstance(bounds, BoxBounds) and bounds.outputs == 5
    assert model.training  # as it was
    with torch.no_grad():
        outputs = model.eval()(around(x, 0.05, 400)).reshape(3, 400, 5)
    low, high = bounds.outputs_box()
    assert (outputs >= low[:, None] - 1e-5).all() and (outputs <= high[:, None] + 1e-5).all()
    rows, constant = torch.randn(1, 4, 5), torch.randn(1, 4)
    ends = bounds.affine(rows, constant, None)
    values = outputs @ rows[0].t() + constant[0]
    assert (values >= ends[0].t()[:, None] - 1e-5).all()
    assert (values <= ends[1].t()[:, None] + 1e-5).all()
    # composed with the last layer: no wider than a combination of the outputs' own bounds
    middle, radius = (low + high) / 2, (high - low) / 2
    assert (
        ends[1].t() <= middle @ rows[0].t() + constant[0] + radius @ rows[0].abs().t() + 1e-4
    ).all()


def test_bounds_are_differentiable_and_train() -> None:
    model, x = trained(nn.LeakyReLU(0.1)), torch.rand(8, 1, 8, 8)
    labels = torch.zeros(8, dtype=torch.long)
    rule = qll.load("classification-robustness", epsilon=0.02, outputs=5)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(12):
        bounds = module_bounds(model, x - 0.02, x + 0.02)
        loss = rule.upper(bounds, labels=labels, logic="qll:5").mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] - 0.5


def test_a_chain_has_the_bounds_of_its_kernels() -> None:
    """The module run on boxes, and the folded layers: one network, nested bounds."""
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(48, 8), nn.ReLU(),
        nn.Linear(8, 3),
    )  # fmt: skip
    x = torch.rand(4, 1, 8, 8)
    from qll.bounds.boxes import output_box

    box = output_box(model, x - 0.1, x + 0.1)
    low, high = module_bounds(model, x - 0.1, x + 0.1).outputs_box()
    torch.testing.assert_close(box.lower, low, atol=1e-4, rtol=0)
    torch.testing.assert_close(box.upper, high, atol=1e-4, rtol=0)


class Odd(nn.Module):
    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.linear = what, nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        match self.what:
            case "sort":
                return self.linear(x.sort(dim=1).values)
            case "divide":
                return self.linear(x) / self.linear(x)
            case "branch" if x.sum() > 0:
                return self.linear(x)
            case "data":
                return self.linear(x.data)
            case "constant":
                return torch.zeros(len(x), 2)
        return self.linear(torch.erfinv(x))


@pytest.mark.parametrize("what", ["sort", "divide", "branch", "data", "constant", "erfinv"])
def test_what_has_no_rule_is_refused_by_name(what: str) -> None:
    with pytest.raises(NetworkError):
        module_bounds(Odd(what), torch.zeros(2, 4), torch.ones(2, 4))
