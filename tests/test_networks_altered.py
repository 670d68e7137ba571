"""Modules that do not compute what their layers say, or use a layer twice: read rightly by every
part that looks at layers (bounds, folded passes, attacks, the verifier), or refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

import qll
from qll.attacks import attack
from qll.bounds.modules import module_bounds
from qll.errors import NetworkError
from qll.kernels.forward import training_forward
from qll.kernels.recognise import recognise

RULE = "outputs 1\nforall x in box([-1], [1]): y[0] <= 0"
LOWER, UPPER = torch.full((1, 1), -1.0), torch.full((1, 1), 1.0)


def chain(*parts: nn.Module) -> nn.Sequential:
    """Every weight and bias -1, so that the outputs of two layers stay below 0."""
    model = nn.Sequential(*parts)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(-1.0)
    return model


def plain() -> nn.Sequential:
    return chain(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1))


def shared_relu() -> nn.Sequential:
    """0.5 everywhere; -0.5 without the second ReLU."""
    relu = nn.ReLU()
    model = nn.Sequential(nn.Linear(1, 2), relu, nn.Linear(2, 1), relu, nn.Linear(1, 1))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0], [-1.0]]))
        model[0].bias.zero_()
        model[2].weight.fill_(-1.0)
        model[2].bias.fill_(-1.0)
        model[4].weight.fill_(1.0)
        model[4].bias.fill_(0.5)
    return model


@pytest.mark.parametrize("kind", ["interval", "crown"])
def test_a_relu_that_stands_twice_counts_twice(kind) -> None:
    model, prop = shared_relu(), qll.parse(RULE)
    bounds = module_bounds(model, LOWER, UPPER, kind=kind)
    low, high = bounds.outputs_box()
    assert low.item() <= 0.5 <= high.item()
    assert not prop.certified(bounds).item()
    assert not prop.certified(bounds, logic="qll:5").item()
    x = torch.zeros(1, 1)
    assert training_forward(model, x)(x).item() == 0.5
    assert qll.verify(prop, model, x.numpy())[0].status == "falsified"
    found = attack("apgd:5").find(model, prop, x, None, logic=qll.QLL(5.0))
    assert prop.margin(model(found["x"])).item() == -0.5


def test_a_linear_layer_that_stands_twice_learns_from_both() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(3, 3)
    model = nn.Sequential(layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(3, 2))
    x = torch.rand(5, 3)
    by_hand = torch.autograd.grad(model(x).square().sum(), [layer.weight])[0]
    folded = torch.autograd.grad(training_forward(model, x)(x).square().sum(), [layer.weight])[0]
    assert torch.allclose(by_hand, folded, atol=1e-5)
    low, high = module_bounds(model, x - 0.1, x + 0.1).outputs_box()
    assert (low <= model(x)).all() and (model(x) <= high).all()


class Negated(nn.ReLU):
    def forward(self, x: Tensor) -> Tensor:
        return -super().forward(x) - 5


class Doubled(nn.Flatten):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x) + 7


def with_hook(at: Callable[[nn.Sequential], nn.Module]) -> nn.Sequential:
    model = plain()
    at(model).register_forward_hook(lambda module, given, found: -found + 5)
    return model


def own_forward() -> nn.Sequential:
    model = plain()
    model[1].forward = lambda x: -x - 5  # type: ignore[method-assign]
    return model


ALTERED: dict[str, Callable[[], nn.Module]] = {
    "hook-at-the-root": lambda: with_hook(lambda model: model),
    "hook-at-a-relu": lambda: with_hook(lambda model: model[1]),
    "hook-at-a-part": lambda: with_hook(lambda model: model[2]),
    "hook-at-a-sequence": lambda: nn.Sequential(with_hook(lambda model: model), nn.Identity()),
    "own-forward": own_forward,
    "subclass-of-relu": lambda: chain(nn.Linear(1, 2), Negated(), nn.Linear(2, 1)),
    "subclass-of-flatten": lambda: chain(Doubled(), nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1)),
}


def assert_bounded(model: nn.Module, kind: str = "interval") -> None:
    """The module itself is run on boxes, with whatever it does beside its class; or refused."""
    points = torch.linspace(-1, 1, 101)[:, None].clamp(LOWER, UPPER)
    try:
        low, high = module_bounds(model, LOWER, UPPER, kind=kind).outputs_box()  # type: ignore[arg-type]
    except NetworkError:
        return
    outputs = model(points)
    assert ((outputs >= low - 1e-5) & (outputs <= high + 1e-5)).all()


@pytest.mark.parametrize("name", ALTERED)
def test_what_a_layer_does_beside_its_class_is_not_overlooked(name: str) -> None:
    model, x = ALTERED[name](), torch.zeros(1, 1)
    prop = qll.parse(RULE)
    assert_bounded(model)
    assert_bounded(model, "crown")
    assert recognise(model, (1,)) is None
    assert training_forward(model, x)(x).item() == model(x).item()
    found = attack("apgd:5").find(model, prop, x, None, logic=qll.QLL(5.0))
    assert prop.margin(model(found["x"])).item() <= prop.margin(model(x)).item()
    try:
        verdict = qll.verify(prop, model, x.numpy())[0]
    except NetworkError:
        return
    points = torch.linspace(-1, 1, 101)[:, None]
    holds = bool(prop.holds(model(points)).all())
    assert verdict.status == ("verified" if holds else "falsified")


@pytest.fixture
def everywhere() -> Iterator[None]:
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, given, found: -3 * found + 7 if isinstance(module, nn.Linear) else None
    )
    yield
    handle.remove()


def test_a_hook_on_all_modules_is_not_overlooked(everywhere: None) -> None:
    model, x = plain(), torch.zeros(1, 1)
    assert_bounded(model)
    with pytest.raises(NetworkError, match="with a hook"):
        qll.verify(qll.parse(RULE), model, x.numpy())
    assert training_forward(model, x)(x).item() == model(x).item()


def test_a_hook_that_comes_later_is_not_overlooked() -> None:
    model, x, prop = plain(), torch.zeros(1, 1), qll.parse(RULE)
    module_bounds(model, LOWER, UPPER)
    training_forward(model, x)(x)
    attack("apgd:2").find(model, prop, x, None, logic=qll.QLL(5.0))
    model[1].forward = lambda x: -x - 5  # type: ignore[method-assign]
    assert_bounded(model)
    assert training_forward(model, x)(x).item() == model(x).item() == 7.0


@pytest.mark.parametrize("kind", ["interval", "crown"])
def test_bounds_that_are_no_numbers_certify_nothing(kind) -> None:
    torch.manual_seed(0)
    parts = nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)
    model = nn.Sequential(*parts)
    with torch.no_grad():
        model[0].weight.mul_(1e25)
        model[2].weight.mul_(1e25)
        model[4].weight.abs_()
    bounds = module_bounds(model, torch.full((1, 2), -1.0), torch.ones(1, 2), kind=kind)
    above = qll.parse("outputs 1\nforall x in box([-1, -1], [1, 1]): y[0] <= 100")
    points = torch.rand(1000, 2) * 2 - 1
    assert (model(points) > 100).any()
    assert not above.certified(bounds).item()
    _, high = bounds.outputs_box()
    assert high.isnan().all() or (high == torch.inf).all()


@pytest.mark.parametrize("kind", ["interval", "crown"])
def test_pooling_of_float64_networks_is_bounded(kind) -> None:
    torch.manual_seed(0)
    parts = nn.Conv2d(1, 2, 3), nn.AvgPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 3 * 3, 2)
    model = nn.Sequential(*parts).double()
    x = torch.rand(4, 1, 8, 8, dtype=torch.float64)
    low, high = module_bounds(model, x - 0.1, x + 0.1, kind=kind).outputs_box()
    moved = model(x + 0.2 * (torch.rand_like(x) - 0.5))
    assert (low <= moved).all() and (moved <= high).all()
