"""Linear bounds of modules that are no chains, and training on bounds of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from qll.bounds.modules import CarriedBounds, ModuleBounds, module_bounds
from qll.errors import NetworkError
from qll.training.config import resolve
from qll.training.loop import train


class Calls(nn.Module):
    def __init__(self, call: Callable[..., Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.call = call
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self, x)


def mixed() -> nn.Module:
    """A residual sum, both poolings, a maximum with a constant and one of two branches."""

    def call(m, x: Tensor) -> Tensor:
        h = torch.relu(m.first(x))
        h = nn.functional.max_pool2d(m.inner(torch.tanh(h)) + h, 3, 2, 1)
        h = torch.maximum(m.left(h), torch.minimum(m.right(h), h))
        return m.last(nn.functional.silu(m.norm(h)).flatten(1))

    return Calls(
        call,
        first=nn.Conv2d(1, 2, 3, padding=1),
        inner=nn.Conv2d(2, 2, 3, padding=1),
        left=nn.Conv2d(2, 2, 1),
        right=nn.Conv2d(2, 2, 1),
        norm=nn.BatchNorm2d(2),
        last=nn.Linear(8, 3),
    )


def rows(batch: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(8)
    return (
        torch.randn(2, 4, 3, dtype=torch.float64),
        torch.randn(2, 4, dtype=torch.float64),
        torch.arange(batch) % 2,
    )


def test_a_chain_has_the_bounds_that_it_has_as_a_chain() -> None:
    torch.manual_seed(0)
    chain = nn.Sequential(nn.Linear(5, 9), nn.ReLU(), nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, 3))
    chain = chain.double()
    x = torch.randn(6, 5, dtype=torch.float64)
    plain = module_bounds(chain, x - 0.3, x + 0.3, kind="crown")
    carried = module_bounds(
        Calls(lambda m, x: m.chain(x), chain=chain), x - 0.3, x + 0.3, kind="crown"
    )
    assert isinstance(plain, ModuleBounds) and isinstance(carried, CarriedBounds)
    asked, shift, pick = rows(6)
    intervals = module_bounds(chain, x - 0.3, x + 0.3).affine(asked, shift, pick)
    low, high = plain.affine(asked, shift, pick)
    found = carried.affine(asked, shift, pick)
    torch.testing.assert_close(found[0], torch.maximum(low, intervals[0]))
    torch.testing.assert_close(found[1], torch.minimum(high, intervals[1]))


def test_samples_lie_inside_and_the_bounds_are_tighter_than_intervals() -> None:
    torch.manual_seed(1)
    module = mixed().double().eval()
    x = torch.rand(4, 1, 4, 4, dtype=torch.float64)
    lower, upper = x - 0.1, x + 0.1
    asked, shift, pick = rows(4)
    low, high = module_bounds(module, lower, upper, kind="crown").affine(asked, shift, pick)
    points = lower + (upper - lower) * torch.rand(3000, *x.shape, dtype=torch.float64)
    y = module(points.flatten(0, 1)).reshape(3000, 4, 3)
    values = torch.einsum("bno,kbo->knb", asked[pick], y) + shift[pick].t()
    assert (values >= low).all() and (values <= high).all()
    least, most = module_bounds(module, lower, upper).affine(asked, shift, pick)
    assert ((high - low) < 0.7 * (most - least)).all()


def test_bounds_are_differentiated_by_the_weights() -> None:
    torch.manual_seed(2)
    module = mixed().double().eval()
    x = torch.rand(2, 1, 4, 4, dtype=torch.float64)
    asked, shift, pick = rows(2)

    def bound() -> Tensor:
        low, high = module_bounds(module, x - 0.05, x + 0.05, kind="crown").affine(
            asked, shift, pick
        )
        return (high - 2 * low).sum()

    bound().backward()
    for name in ("first", "inner", "left", "last"):
        weight = getattr(module, name).weight
        turn = torch.randn_like(weight)
        step = 1e-6
        with torch.no_grad():
            weight.add_(step * turn)
            above = bound()
            weight.sub_(2 * step * turn)
            below = bound()
            weight.add_(step * turn)
        slope = float(above - below) / (2 * step)
        assert float((weight.grad * turn).sum()) == pytest.approx(slope, rel=2e-3, abs=1e-4)


def test_slopes_of_every_size_are_bounded() -> None:
    torch.manual_seed(3)
    module = nn.Sequential(nn.Linear(3, 5), nn.PReLU(5), nn.Linear(5, 2)).double()
    with torch.no_grad():
        module[1].weight.copy_(torch.tensor([-0.5, 0.0, 0.25, 1.0, 2.5]))
    x = torch.randn(8, 3, dtype=torch.float64)
    low, high = module_bounds(module, x - 0.6, x + 0.6, kind="crown").outputs_box()
    points = x + 1.2 * torch.rand(4000, 8, 3, dtype=torch.float64) - 0.6
    y = module(points.flatten(0, 1)).reshape(4000, 8, 2)
    assert (y >= low).all() and (y <= high).all()
    least, most = module_bounds(module, x - 0.6, x + 0.6).outputs_box()
    assert ((high - low) <= (most - least)).all() and (high - low).sum() < (most - least).sum()


def test_what_has_no_linear_bound_is_refused_by_name() -> None:
    module = Calls(
        lambda m, x: m.last(nn.functional.adaptive_max_pool1d(x, 3)[:, 0]), last=nn.Linear(3, 1)
    )
    x = torch.zeros(1, 3, 6)
    with pytest.raises(NetworkError, match="max_pool"):
        module_bounds(module, x, x + 1, kind="crown").outputs_box()


def network(name: str) -> nn.Module:
    torch.manual_seed(4)
    bend = {"leaky": nn.LeakyReLU(0.1), "sigmoid": nn.Sigmoid(), "pool": nn.MaxPool2d(2)}.get(name)
    if bend is None:
        return Calls(
            lambda m, x: m.last(
                (torch.relu(m.inner(torch.relu(m.first(x)))) + m.first(x)).flatten(1)
            ),
            first=nn.Conv2d(3, 4, 3, stride=4),
            inner=nn.Conv2d(4, 4, 3, padding=1),
            last=nn.Linear(196, 6),
        )
    width = 36 if name == "pool" else 196
    return nn.Sequential(nn.Conv2d(3, 4, 3, stride=4), bend, nn.Flatten(), nn.Linear(width, 6))


@pytest.mark.parametrize("name", ["leaky", "sigmoid", "pool", "residual"])
@pytest.mark.parametrize(
    ("method", "options"), [("small-box", {}), ("bound", {"kind": "crown"}), ("mixed", {})]
)
def test_training_on_bounds_takes_it(name: str, method: str, options: dict[str, object]) -> None:
    config = resolve(
        "not-both",
        "dice-rendered",
        options={
            "logic": "qll:5", "epochs": 2, "method": method, "options": options, "warm_up": 0.0,
            "data_options": {"count_train": 32, "count_test": 4}, "attack": "apgd:2,restarts=0",
        },
    )  # fmt: skip
    first, second = train(config, model=network(name)).rows
    assert second["property_loss"] < first["property_loss"]
