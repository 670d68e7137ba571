"""The attack by mean slopes: where gradients vanish, against autograd, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import qll
from qll.attacks import attack
from qll.attacks.problem import AttackBatch
from qll.attacks.secant import _Chain
from qll.errors import QllError, RunError
from qll.kernels.spans import spans_of
from qll.logics import logic as read_logic
from qll.networks.models import create
from qll.regions import Region
from qll.training.config import resolve
from qll.training.initialise import ramp_first_convolution
from qll.training.loop import train

PIXELS = 40


def saturated() -> nn.Module:
    """The sum of what each pixel has above 0.3."""
    first, last = nn.Linear(PIXELS, PIXELS), nn.Linear(PIXELS, 1)
    with torch.no_grad():
        first.weight.copy_(torch.eye(PIXELS))
        first.bias.fill_(-0.3)
        last.weight.fill_(1.0)
        last.bias.zero_()
    return nn.Sequential(first, nn.ReLU(), last)


def test_pixels_without_a_gradient_are_moved() -> None:
    """Each pixel is 0.12 and may be 0.32: together they reach 40 * 0.02, and nine random starts of
    ten lie where the gradient by a pixel is 0."""
    x0 = torch.full((2, PIXELS), 0.12)
    rule = qll.parse("forall x in ball(x0, 0.2) and range(0, 1): y[0] <= 0.79", outputs=1)
    found = attack("secant:1")(saturated(), rule, x0)
    assert found.falsified.all() and found.inside.all()
    assert torch.allclose(found.x, torch.full_like(x0, 0.32))
    assert not attack("apgd:30,restarts=4")(saturated(), rule, x0).falsified.any()


class _Sloped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z: Tensor, slope: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(slope)
        return z.relu()

    @staticmethod
    def backward(ctx, g: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def]
        return g * ctx.saved_tensors[0], None


def by_autograd(
    model: nn.Sequential, problem: AttackBatch, x: Tensor, first: int
) -> tuple[Tensor, Tensor]:
    """Loss and gradient where the ReLU after layer ``first`` has its mean slope on the region; the
    ends of its inputs from the corners that its weights ask for."""
    region = problem.region
    layer = model[:first]
    zero = torch.zeros_like(region.x0[:1])
    outputs = layer(zero).numel()
    weight = torch.autograd.functional.jacobian(layer, zero).reshape(outputs, -1)
    low, high = region.lower.flatten(1), region.upper.flatten(1)
    bias = layer(zero).flatten()
    upper = bias + high @ weight.clamp(min=0).t() + low @ weight.clamp(max=0).t()
    lower = bias + low @ weight.clamp(min=0).t() + high @ weight.clamp(max=0).t()
    slope = (upper.relu() - lower.relu()) / (upper - lower).clamp(min=1e-9)
    leaf = x.clone().requires_grad_(True)
    z = layer(leaf)
    y = model[first + 1 :](_Sloped.apply(z, slope.detach().reshape(z.shape)))
    losses = problem.prop.loss(y, labels=problem.labels, logic=problem.logic)
    return losses.detach(), torch.autograd.grad(losses.sum(), leaf)[0]


@pytest.mark.parametrize("start", ["full kernels", "ramps"])
def test_values_and_directions_are_those_of_autograd(start: str) -> None:
    torch.manual_seed(3)
    model = create("paper-mnist")
    if start == "ramps":  # the path of few taps
        ramp_first_convolution(model, 0.2, 0.8)
    prop = qll.load("classification-robustness").with_parameters(epsilon=0.15)
    x0, labels = torch.rand(7, 1, 28, 28), torch.arange(7)
    region = Region.of(prop, x0)
    problem = AttackBatch(model, prop, read_logic("qll:5"), region, labels, None, 0, "auto")
    spans = spans_of(model, (1, 28, 28))
    assert spans is not None
    x = region.lower + torch.rand_like(x0) * (region.upper - region.lower)
    with torch.no_grad():
        chain = _Chain(problem, spans)
        assert (chain.taps[0].places is not None) is (start == "ramps")
        losses, direction = chain.evaluate(x)
    wanted, gradient = by_autograd(model, problem, x, 2)
    assert torch.allclose(losses, wanted, atol=1e-5)
    assert torch.allclose(direction, gradient, atol=1e-5)
    assert float(gradient.abs().max()) > 1e-3


def test_more_steps_and_starts_find_no_less() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 12), nn.ReLU(), nn.Linear(12, 3)
    )
    prop = qll.parse("forall x in ball(x0, 0.4) and range(0, 1): y[0] <= y[1] + y[2]", outputs=3)
    x0 = torch.rand(64, 6)
    start, some, more = (
        attack(text)(model, prop, x0, seed=1).losses
        for text in ("secant:0", "secant:5", "secant:5,restarts=3")
    )
    assert (some >= start).all() and (more >= some).all()
    assert float(some.mean()) > float(start.mean()) and float(more.mean()) > float(some.mean())


@pytest.mark.parametrize(
    ("model", "rule", "engine", "found"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1)), "y[0] <= 0", "auto", "Seq"),
        (nn.Sequential(nn.Linear(2, 1)), "y[0] <= x[0]", "auto", "speaks of inputs"),
        (nn.Sequential(nn.Linear(2, 1)), "y[0] <= 0", "compiled", "compiled"),
    ],
)
def test_what_it_is_not_for_is_refused(
    model: nn.Module, rule: str, engine: str, found: str
) -> None:
    prop = qll.parse(f"forall x in ball(x0, 0.1): {rule}", outputs=1)
    with pytest.raises(RunError, match=found) as error:
        attack("secant")(model, prop, torch.zeros(1, 2), engine=engine)  # type: ignore[arg-type]
    assert "apgd" in str(error.value)


def test_small_boxes_may_be_placed_by_it() -> None:
    def run(name: str) -> nn.Module:
        small = {"count_train": 32, "count_test": 8}
        asked = resolve(
            "not-both", "dice-rendered",
            options={
                "logic": "qll:5", "epochs": 1, "data_options": small, "method": "small-box",
                "initialisation": "ramp", "options": {"size": 0.2, "attack": name, "steps": 2},
            },
        )  # fmt: skip
        return train(asked).model

    weights = [run(name)[3].weight for name in ("secant", "secant", "apgd")]  # type: ignore[index]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])
    with pytest.raises(QllError, match="secand"):
        run("secand")
