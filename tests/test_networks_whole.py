"""Networks that are no ReLU chains, from training to a certificate: trained on the rule, attacked
in compiled code, proved, and confirmed by the independent checker."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("numba")

import qll
from qll.attacks import attack
from qll.verify.verdict import Status


class Residual(nn.Module):
    """Colour images, batch norm, a residual block, max pooling: CIFAR's in small."""

    def __init__(self, channels: int = 4) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, stride=2, padding=1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(channels) for _ in range(3)])
        self.one = nn.Conv2d(channels, channels, 3, padding=1)
        self.two = nn.Conv2d(channels, channels, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.last = nn.Linear(channels * 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.norms[0](self.first(x)))
        inner = self.norms[2](self.two(torch.relu(self.norms[1](self.one(h)))))
        return self.last(self.pool(torch.relu(inner + h)).flatten(1))


def images(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Noise, of which one colour is stronger."""
    draw = torch.Generator().manual_seed(seed)
    x, labels = torch.rand(count, 3, 8, 8, generator=draw) * 0.6, torch.arange(count) % 3
    x[torch.arange(count), labels] += 0.3
    return x, labels


def trained(model: nn.Module, loss: qll.PropertyLoss, batches: list[tuple[Tensor, Tensor]]) -> None:
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for x, labels in batches:
        optimiser.zero_grad()
        loss(model, x, labels).backward()
        optimiser.step()
    model.eval()


def assert_whole(model: nn.Module, prop: qll.Property, x: Tensor, labels: Tensor | None) -> None:
    found = attack("apgd:20")(model, prop, x, labels, engine="compiled")
    verdicts = qll.verify(prop, model, x, labels, timeout=20, certified=True)
    assert sum(v.status is Status.VERIFIED for v in verdicts) >= 3
    for verdict, falsified in zip(verdicts, found.falsified.tolist(), strict=True):
        assert verdict.status is (Status.FALSIFIED if falsified else Status.VERIFIED), verdict


def test_a_residual_network_with_pooling_and_batch_norm() -> None:
    torch.manual_seed(0)
    model, prop = Residual(), qll.load("classification-robustness", epsilon=0.015)
    loss = qll.PropertyLoss(prop, logic="qll:5", attack="apgd:5,restarts=0", engine="compiled")
    trained(model, loss, [images(48, seed) for seed in range(25)])
    assert_whole(model, prop, *images(3, 100))


def test_a_tanh_controller() -> None:
    """Near a target it slows down: the speed asked for is bounded by the distance."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(2, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 1)
    )
    prop = qll.parse("outputs 1\nforall x in ball(x0, 0.05): y[0] <= 0.5 and y[0] >= -0.5")
    x = torch.rand(64, 2, generator=torch.Generator().manual_seed(1)) - 0.5
    wanted = 0.5 * torch.sin(3.0 * x[:, 0]) - 0.3 * x[:, 1]

    def task(y: Tensor, labels: Tensor) -> Tensor:
        return ((y[:, 0] - labels) ** 2).mean()

    loss = qll.PropertyLoss(
        prop, logic="qll:5", attack="apgd:5,restarts=0", engine="compiled", task=task
    )
    trained(model, loss, [(x, wanted)] * 150)
    assert_whole(model, prop, x[:4], None)


def test_shares_of_a_softmax() -> None:
    """With a normalisation inside: how sure it is of a class is asked of the shares themselves, and
    which class is the first of the logits."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3), nn.Softmax(1)
    )
    sure = qll.parse(
        "outputs 3\nforall x in ball(x0, 0.02): forall c in outputs: label(c) -> y[c] >= 0.75"
    )
    draw = torch.Generator().manual_seed(1)
    labels = torch.arange(60) % 3
    x = torch.rand(60, 4, generator=draw) * 0.4 + 0.6 * torch.eye(4)[labels]

    def task(y: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.nll_loss(y.clamp(min=1e-6).log(), labels)

    loss = qll.PropertyLoss(
        sure, logic="qll:5", attack="apgd:5,restarts=0", engine="compiled", task=task
    )
    trained(model, loss, [(x, labels)] * 60)
    assert_whole(model, sure, x[:4], labels[:4])
    first = qll.load("classification-robustness", epsilon=0.03, outputs=3)
    assert_whole(model, first, x[:4], labels[:4])
