"""Products, quotients, Softmax and LayerNorm: bounds against samples, refusals, large numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import Tensor, nn
from torch.nn import functional

import qll
from qll.bounds.modules import module_bounds
from qll.errors import NetworkError
from qll.networks import load
from qll.networks.activations import ACTIVATIONS
from qll.networks.activations.square import SQUARE
from qll.networks.graph import GraphBuilder
from qll.networks.layers import Apply, Constant, Extremum, Mean, Product, Scale, Softmax, Sum


class Calls(nn.Module):
    def __init__(self, call: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.call = call

    def forward(self, x: Tensor) -> Tensor:
        return self.call(x)


def ends(
    call: Callable[[Tensor], Tensor], low: list[float], high: list[float], kind: str
) -> Tensor:
    lower, upper = (torch.tensor([side], dtype=torch.float64) for side in (low, high))
    found = module_bounds(Calls(call), lower, upper, kind=kind).outputs_box()  # type: ignore[arg-type]
    return torch.cat(found)[:, 0]


def test_linear_bounds_of_a_product_keep_what_cancels() -> None:
    """``a b - 2 b`` for a in [1, 3]: exactly what is left of it, where intervals know little."""

    def call(x: Tensor) -> Tensor:
        return x[:, :1] * x[:, 1:] - 2.0 * x[:, 1:]

    assert ends(call, [1, -1], [3, 2], "crown").tolist() == [-2.0, 2.0]
    assert ends(call, [1, -1], [3, 2], "interval").tolist() == [-7.0, 8.0]


SEVERAL: dict[str, Callable[[Tensor], Tensor]] = {
    "product": lambda z: z[:, :2] * z[:, 2:],
    "spread product": lambda z: z * z[:, :1],
    "square": lambda z: z * z - z**2 / 3 + torch.square(z - 1) + z.pow(2),
    "quotient": lambda z: z / (2 + z * z),
    "over": lambda z: 3.0 / (2 + z * z),
    "roots": lambda z: torch.sqrt(z * z + 1) + torch.rsqrt(z.exp() + 1) + (z * z + 2) ** -1,
    "matrices": lambda z: torch.bmm(z.reshape(-1, 2, 2), torch.tanh(z).reshape(-1, 2, 2)).flatten(
        1
    ),
    "attention": lambda z: torch.matmul(
        torch.softmax(z.reshape(-1, 2, 2) @ z.reshape(-1, 2, 2).transpose(1, 2), 2),
        z.reshape(-1, 2, 2),
    ).flatten(1),
    "softmax": lambda z: torch.softmax(2 * z, 1),
    "softmax of rows": lambda z: functional.softmax(z.reshape(-1, 2, 2), 1).flatten(1),
    "layer norm": lambda z: functional.layer_norm(z, (4,), eps=0.1),
    "layer norm of rows": lambda z: functional.layer_norm(
        z.reshape(-1, 2, 2),
        (2,),
        torch.tensor([2.0, -1.0]).to(z.dtype),
        torch.ones(2).to(z.dtype),
        0.1,
    ).flatten(1),
}
ROWS = torch.tensor([[1.0, -1.0], [0.5, 2.0], [-1.0, 0.0]], dtype=torch.float64)


@pytest.mark.parametrize("kind", ["interval", "crown"])
@pytest.mark.parametrize("name", SEVERAL)
def test_bounds_hold_at_dense_samples_and_corners(name: str, kind: str) -> None:
    """Of differences of outputs too, on boxes of all sizes; and no bound is far from the samples on
    a small one."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 4), Calls(SEVERAL[name])).double()
    module.requires_grad_(False)
    corners = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * 4)
    inside = torch.cat([corners, 2 * torch.rand(3000, 4, dtype=torch.float64) - 1])
    for size in (0.01, 0.3, 1.5):
        x = torch.randn(5, 4, dtype=torch.float64)
        found = module_bounds(module, x - size, x + size, kind=kind)  # type: ignore[arg-type]
        values = module((x[:, None] + size * inside).reshape(-1, 4)).reshape(5, len(inside), -1)
        low, high = found.outputs_box()
        assert ((values >= low[:, None] - 1e-9) & (values <= high[:, None] + 1e-9)).all()
        if size == 0.01:
            room = (high - low) / (values.amax(1) - values.amin(1) + 1e-3)
            assert room.max() < (2.5 if kind == "crown" else 20)
        rows = torch.cat([ROWS, torch.zeros(3, values.shape[2] - 2, dtype=torch.float64)], 1)
        low, high = found.affine(rows[None], torch.zeros(1, 3, dtype=torch.float64), None)
        asked = values @ rows.t()
        assert ((asked >= low.t()[:, None] - 1e-9) & (asked <= high.t()[:, None] + 1e-9)).all()


def test_a_divisor_that_may_be_zero_is_refused_by_name() -> None:
    for call in (
        lambda z: 1.0 / z,
        lambda z: z / z.exp(),
        lambda z: torch.sqrt(z * z),
        lambda z: z / (torch.tanh(z) + 1.0),
    ):
        with pytest.raises(NetworkError, match="may be 0"):
            load(Calls(call), input_shape=(3,))
    with pytest.raises(NetworkError, match="may be 0 on a box"):
        ends(lambda z: 1.0 / z, [-1, 1], [1, 2], "interval")


def test_ranges_hold_whatever_the_input() -> None:
    builder = GraphBuilder((4,), (1, 4))
    wave = builder.add("a", Apply(ACTIVATIONS["tanh"]()), [0])
    grown = builder.add("b", Apply(ACTIVATIONS["exp"]()), [0])
    square = builder.add("c", Apply(SQUARE), [0])
    offset = builder.add("d", Constant(np.array([1.5, -2.0, 0.25, 3.0])), [])
    made = [
        builder.add("e", Sum((1, -1)), [wave, offset]),
        builder.add("f", Scale(np.array([-2.0, 3.0, 0.5, 1.0]), np.array(-4.0)), [wave]),
        builder.add("g", Product(), [wave, builder.add("h", Extremum(-1), [square, wave])]),
        builder.add("i", Mean((1,), keep=True, divide=False), [wave]),
        builder.add("j", Softmax(1), [grown]),
        builder.add("k", Extremum(1), [grown, offset]),
        builder.add("l", Mean((1,), keep=False), [square]),
    ]
    points = np.random.default_rng(0).normal(size=(4000, 4)) * 4
    for index in made:
        low, high = builder.range(index)
        values = builder.finish(index).program.forward(points)
        assert low <= values.min() and values.max() <= high
        assert np.isfinite(low) or np.isfinite(high)


def test_softmax_of_large_logits_has_a_value_and_a_gradient_in_compiled_code() -> None:
    pytest.importorskip("numba")
    from qll.kernels.network import plan_network
    from qll.kernels.plan import NetworkPlan, run_network

    module = nn.Sequential(nn.Flatten(), nn.Softmax(1))
    plan = plan_network(module, (4,))
    assert isinstance(plan, NetworkPlan)
    points = np.array([[300.0, -300.0, 0.0, 299.0]], dtype=np.float32)
    outputs, gradient = run_network(plan, points, np.ones((1, 4), dtype=np.float32))
    np.testing.assert_allclose(outputs, module(torch.from_numpy(points)), atol=1e-6)
    assert np.isfinite(gradient).all()


def written_out(axis: int) -> bytes:
    """exp(x) / sum exp(x), as some exporters write a softmax."""
    graph = helper.make_graph(
        [
            helper.make_node("Exp", ["x"], ["e"]),
            helper.make_node("ReduceSum", ["e", "axes"], ["s"], keepdims=1),
            helper.make_node("Div", ["e", "s"], ["y"]),
        ],
        "softmax",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2, 3])],
        [helper.make_tensor("axes", TensorProto.INT64, [1], [axis])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.checker.check_model(model)
    return model.SerializeToString()


@pytest.mark.parametrize("axis", [1, 2])
def test_a_softmax_that_is_written_out_is_read_as_one(axis: int) -> None:
    network = load(written_out(axis))
    (node,) = network.graph.nodes[-1:]
    assert node.layer == Softmax(axis)
    x = np.random.default_rng(1).normal(size=(5, 6)).astype(np.float32)
    wanted = [network.runtime(row[None]) for row in x]
    np.testing.assert_allclose(network.program.forward(x), np.concatenate(wanted), atol=1e-6)


@pytest.mark.parametrize("rule", ["y[0] <= y[1]", "y[0] <= 0.9"])
def test_a_softmax_that_is_written_out_is_certified(rule: str) -> None:
    """The checker reads it as the verifier does: as the logits, or as shares."""
    shape = [1, 2]
    graph = helper.make_graph(
        [
            helper.make_node("Exp", ["x"], ["e"]),
            helper.make_node("ReduceSum", ["e", "axes"], ["s"], keepdims=1),
            helper.make_node("Div", ["e", "s"], ["y"]),
        ],
        "softmax",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [helper.make_tensor("axes", TensorProto.INT64, [1], [-1])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    prop = qll.parse(f"forall x in box([0, 0.1], [0.05, 1]): {rule}", outputs=2)
    (verdict,) = qll.verify(prop, model.SerializeToString(), certified=True, timeout=20)
    assert verdict.status == "verified"
