"""Plans of networks that are no chains of ReLUs: outputs and input gradients against torch."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("numba")

import qll
from qll.attacks import attack
from qll.kernels.announce import SlowPath, announced
from qll.kernels.graph import GraphPlan, plan_graph
from qll.kernels.network import plan_network
from qll.kernels.plan import run_network
from qll.kernels.steps import PICKED, PICKED_ROWS, POOL
from qll.networks import load
from qll.networks.activations import ACTIVATIONS
from qll.networks.activations.clip import Clip


class Calls(nn.Module):
    """A module of layers and a function that calls them."""

    def __init__(self, call: Callable[..., Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.call = call
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self, x)


def residual(channels: int = 8) -> nn.Module:
    """Two blocks, the second with a strided shortcut; channels that fill no tile are padded."""

    def call(m, x: Tensor) -> Tensor:
        h = torch.relu(m.norm1(m.first(x)))
        h = torch.relu(m.norm2(m.second(torch.relu(m.inner(h)))) + h)
        h = torch.relu(m.third(torch.relu(m.down(h))) + m.short(h))
        return m.last(nn.functional.max_pool2d(h, 2).flatten(1))

    wide = channels + 3
    return Calls(
        call,
        first=nn.Conv2d(3, channels, 3, padding=1),
        norm1=nn.BatchNorm2d(channels),
        inner=nn.Conv2d(channels, channels, 3, padding=1),
        second=nn.Conv2d(channels, channels, 3, padding=1),
        norm2=nn.BatchNorm2d(channels),
        down=nn.Conv2d(channels, wide, 3, stride=2, padding=1),
        third=nn.Conv2d(wide, wide, 3, padding=1),
        short=nn.Conv2d(channels, wide, 1, stride=2),
        last=nn.Linear(wide * 4, 5),
    )


def joined() -> nn.Module:
    """Concatenation, slices, groups, a transpose, padding with a number, sums with the input."""

    def call(m, x: Tensor) -> Tensor:
        h = torch.cat([m.one(x), nn.functional.leaky_relu(m.two(x), 0.2), x], 1)
        h = m.grouped(nn.functional.pad(h, (1, 2, 0, 1)))
        h = torch.sigmoid(h[:, 1:, ::2, 1:]) * torch.tensor([2.0]) - h[:, :-1, ::2, 1:]
        h = torch.maximum(h.transpose(2, 3), torch.minimum(h.transpose(2, 3) * 0.5, h.mean()))
        h = m.constant(h.abs())
        return m.last(h.flatten(1)) + x.mean((2, 3))[:, :1]

    return Calls(
        call,
        one=nn.Conv2d(3, 5, 3, padding=1),
        two=nn.Conv2d(3, 4, 1),
        grouped=nn.Conv2d(12, 8, 3, stride=1, groups=4, padding=1),
        constant=nn.ConstantPad2d(1, 0.3),
        last=nn.LazyLinear(4),
    )


def pooled() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.GELU(),
        nn.AvgPool2d(2, ceil_mode=True, count_include_pad=False),
        nn.Conv2d(6, 20, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(20, 300),
        nn.BatchNorm1d(300),
        nn.SiLU(),
        nn.Linear(300, 5),
        nn.Tanh(),
    )


def pooled_at_once() -> nn.Module:
    """Convolutions that are pooled as they are computed: a row that no window takes, channels that
    fill no tile, a ReLU before and behind, a scale behind (of either sign) that is none of theirs,
    a pooling of columns only."""
    scaled = nn.BatchNorm2d(16)
    with torch.no_grad():
        scaled.weight.copy_(torch.linspace(-1.0, 1.0, 16))
    return nn.Sequential(
        nn.Conv2d(3, 8, 2, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 15, 3, padding=1),
        nn.MaxPool2d((1, 2)),
        nn.ReLU(),
        nn.Conv2d(15, 16, 1),
        nn.MaxPool2d((2, 1)),
        scaled,
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(64, 5),
    )


def rows_and_columns() -> nn.Module:
    """Linear layers of a table's last axis, convolutions of one axis, a padded maximum."""
    return nn.Sequential(
        nn.Flatten(2),
        nn.Linear(64, 9),
        nn.Softplus(),
        nn.Conv1d(3, 4, 3, padding=1),
        nn.ReLU6(),
        nn.MaxPool1d(2),
        nn.Flatten(),
        nn.Linear(16, 3),
        nn.ReLU(),
    )


def untouched() -> nn.Module:
    """An output that does not depend on the input but for its first entry."""
    return Calls(lambda m, x: m.last(x.flatten(1)[:, :1]), last=nn.Linear(1, 2))


def products() -> nn.Module:
    """Products, a quotient, powers, Softmax over several axes and normalisations."""

    def call(m, x: Tensor) -> Tensor:
        h = m.norm(m.one(x))
        gate = torch.softmax(m.two(x), 1) * h + torch.softmax(h, -1)
        gate = gate / (1.0 + gate.square().mean((2, 3), keepdim=True)) + torch.sqrt(h**2 + 1.0)
        return m.last(m.rows(gate.flatten(1))).softmax(1)

    return Calls(
        call,
        one=nn.Conv2d(3, 3, 3, padding=1),
        two=nn.Conv2d(3, 3, 1),
        norm=nn.LayerNorm((8, 8)),
        rows=nn.LayerNorm(192, elementwise_affine=False),
        last=nn.Linear(192, 4),
    )


MODULES: dict[str, Callable[[], nn.Module]] = {
    "products": products,
    "residual": residual,
    "residual, five channels": lambda: residual(5),
    "joined": joined,
    "pooled": pooled,
    "pooled at once": pooled_at_once,
    "rows and columns": rows_and_columns,
    "untouched": untouched,
}
SHAPE = (3, 8, 8)


def built(name: str) -> nn.Module:
    torch.manual_seed(5)
    module = MODULES[name]()
    module.train()
    module(torch.randn(32, *SHAPE))  # lazy layers, and statistics of batch norms
    return module.eval()


def assert_agrees(plan: object, module: nn.Module, count: int) -> None:
    assert isinstance(plan, GraphPlan), plan
    torch.manual_seed(count)
    points = torch.randn(count, *SHAPE)
    leaf = points.double().requires_grad_()
    outputs = module.double()(leaf)
    cotangent = torch.randn(count, plan.outputs)
    (gradient,) = torch.autograd.grad((outputs * cotangent.double()).sum(), leaf)
    module.float()
    got, got_gradient = run_network(plan, points.reshape(count, -1).numpy(), cotangent.numpy())
    for found, expected in ((got, outputs), (got_gradient, gradient)):
        wanted = expected.detach().reshape(count, -1).numpy()
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("count", [1, 35])
@pytest.mark.parametrize("name", MODULES)
def test_outputs_and_gradients_agree_with_float64(name: str, count: int) -> None:
    module = built(name)
    assert_agrees(plan_network(module, SHAPE), module, count)


@pytest.mark.parametrize("name", ["residual", "joined", "pooled", "pooled at once", "products"])
def test_refresh_reads_the_new_weights(name: str) -> None:
    module = built(name)
    plan = plan_network(module, SHAPE)
    assert isinstance(plan, GraphPlan)
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point():
                tensor.mul_(1.0 + 0.3 * torch.rand_like(tensor))
    plan.refresh()
    assert_agrees(plan, module, 5)


@pytest.mark.parametrize("name", ["residual", "pooled", "products"])
def test_a_file_is_planned_as_it_was_read(name: str) -> None:
    module = built(name)
    network = load(module, input_shape=SHAPE, mean=[0.1, 0.2, 0.3], std=[0.5, 1.0, 2.0])
    graph = network.raw_graph
    points = np.random.default_rng(0).random((7, 192), dtype=np.float32)
    found, _ = run_network(plan_graph(lambda: graph), points)
    np.testing.assert_allclose(found, network.program.forward(points), rtol=1e-4, atol=1e-4)


def test_a_network_that_is_too_large_for_rows_is_left_to_torch() -> None:
    wide = nn.Sequential(
        nn.Conv2d(1, 64, 3), nn.Tanh(), nn.AvgPool2d(100), nn.Flatten(), nn.Linear(64, 2)
    )
    assert "more values" in str(plan_network(wide, (1, 102, 102)))


def test_convolutions_are_pooled_as_they_are_computed() -> None:
    plan = plan_network(built("pooled at once"), SHAPE)
    assert isinstance(plan, GraphPlan)
    assert (plan.forward_steps[:, 0] == POOL).sum() == 3
    assert {PICKED, PICKED_ROWS} <= set(plan.backward_steps[:, 0].tolist())


@pytest.mark.parametrize("name", ["residual", "pooled at once"])
def test_a_nan_stays_in_its_lane(name: str) -> None:
    plan = plan_network(built(name), SHAPE)
    assert isinstance(plan, GraphPlan)
    points = np.random.default_rng(0).random((7, 192), dtype=np.float32)
    clean, _ = run_network(plan, points)
    points[3, 100] = np.nan
    outputs, _ = run_network(plan, points)
    assert np.isnan(outputs[3]).all()
    keep = np.arange(7) != 3
    np.testing.assert_array_equal(outputs[keep], clean[keep])


RECORDS = [*(ACTIVATIONS[name]() for name in ACTIVATIONS), Clip(0.0, 6.0), Clip(-np.inf, 2.0)]


@pytest.mark.parametrize("record", RECORDS, ids=repr)
def test_the_compiled_form_of_an_activation_is_the_record(record) -> None:
    z = torch.linspace(-40.0, 40.0, 4000, dtype=torch.float64).reshape(50, 80)
    value, slope = np.empty_like(z.numpy()), np.empty_like(z.numpy())
    function, params = record.kernel()
    function(z.numpy(), len(z), params, value, slope)
    for found, expected in ((value, record.apply(z)), (slope, record.derivative(z))):
        error = np.abs(found - expected.numpy()) / (1.0 + expected.abs().numpy())
        assert error.max() < 1e-6


@pytest.mark.parametrize("name", ["residual", "pooled at once"])
def test_both_engines_find_the_same(name: str) -> None:
    module = built(name)
    prop = qll.parse("outputs 5\nforall x in ball(x0, 0.1): y[0] <= y[1]")
    x = torch.rand(40, *SHAPE)
    found = {
        engine: attack("apgd:12,restarts=1")(module, prop, x, seed=3, engine=engine)
        for engine in ("autograd", "compiled")
    }
    ours, reference = found["compiled"].losses, found["autograd"].losses
    close = (ours - reference).abs() <= 2e-5 * (1 + reference.abs())
    assert close.float().mean() >= 0.9, (ours - reference).abs().max()


def test_a_forward_that_a_trace_does_not_show_is_left_to_torch() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.calls = nn.Linear(2, 1), 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return torch.tanh(self.layer(x)) * self.calls

    prop = qll.parse("forall x in ball(x0, 1): y[0] <= 0", outputs=1)
    with pytest.raises(qll.QllError, match="not what a trace of it shows"):
        attack("apgd:3").find(Counting(), prop, torch.rand(3, 2), engine="compiled")


def test_who_falls_off_the_compiled_path_is_told_once_which_layer_did_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("qll.kernels.announce._said", set())
    prop = qll.parse("forall x in ball(x0, 1): y[0] <= 0", outputs=1)
    module = nn.Sequential(nn.Linear(2, 3), nn.ELU(), nn.Linear(3, 1))
    x = torch.rand(3, 2)
    heard: list[str] = []
    with announced(heard.append):
        for _ in range(2):
            attack("apgd:3").find(module, prop, x)
    (text,) = heard
    assert "ELU" in text and "torch" in text
    with pytest.warns(SlowPath, match="ELU"):
        attack("apgd:3").find(module, prop, x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attack("apgd:3").find(module, prop, x)


def test_a_plan_does_not_keep_its_module() -> None:
    prop = qll.parse("forall x in ball(x0, 1): y[0] <= 0", outputs=1)
    module = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    attack("apgd:2").find(module, prop, torch.rand(3, 2), engine="compiled")
    gone = weakref.ref(module)
    del module
    gc.collect()
    assert gone() is None
