"""torch modules: read, exported, read back, each against torch itself; and the named networks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from qll.errors import InputError, NetworkError, RunError
from qll.networks import load
from qll.networks.models import Normalize, create, networks
from qll.networks.onnx_writer import export_onnx, onnx_bytes
from qll.networks.torch_reader import read_torch


class Call(nn.Module):
    """A module from a function, so that each case is a line."""

    def __init__(self, function: Callable[..., Tensor], *parts: nn.Module) -> None:
        super().__init__()
        self.function = function
        self.parts = nn.ModuleList(parts)
        self.register_buffer("c", torch.tensor([0.5, -1.0, 2.0]))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def warm(module: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    """Running statistics and affine parameters that are not the defaults."""
    for part in module.modules():
        if isinstance(part, (nn.BatchNorm1d, nn.BatchNorm2d)):
            with torch.no_grad():
                part.running_mean.normal_()
                part.running_var.uniform_(0.5, 2.0)
                if part.affine:
                    part.weight.normal_()
                    part.bias.normal_()
    return module


def assert_module_parity(module: nn.Module, shape: tuple[int, ...], points: int = 4) -> None:
    torch.manual_seed(1)
    module.eval()
    dtype = next((p.dtype for p in module.parameters()), torch.float32)
    x = torch.randn(points, *shape, dtype=dtype)
    with torch.no_grad():
        # Row by row: the graph is the module's map on one point.
        expected = torch.stack([module(row[None]).reshape(-1) for row in x]).double().numpy()
    network = load(module, input_shape=shape)
    flat = x.reshape(points, -1).double().numpy()
    scale = 1.0 + np.abs(expected).max()
    np.testing.assert_allclose(network.relu_form.forward(flat), expected, atol=1e-5 * scale)
    np.testing.assert_allclose(network.runtime(flat), expected, atol=1e-5 * scale)
    graph = read_torch(module, input_shape=shape)
    # The graph that was read from the module and the one in the file are one function.
    np.testing.assert_allclose(
        graph.program.forward(flat), network.program.forward(flat), atol=1e-12 * scale
    )
    lower, upper = network.enclose(flat[0])
    for value, low, high in zip(network.evaluate_exact(flat[0]), lower, upper, strict=True):
        assert low <= value <= high
    onnx.checker.check_model(onnx.load_from_string(network.source), full_check=True)


torch.manual_seed(0)
CASES: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "linear": (nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3, bias=False)), (4,)),
    "conv": (
        nn.Sequential(nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2), nn.ReLU(), nn.Flatten()),
        (2, 6, 5),
    ),
    "conv-dilated": (nn.Conv2d(1, 2, (2, 3), dilation=(2, 1), padding=(0, 2)), (1, 6, 5)),
    "conv-same": (nn.Conv2d(1, 2, (5, 3), padding="same"), (1, 6, 5)),
    "conv-1d": (nn.Sequential(nn.Conv1d(2, 3, 3, stride=2), nn.ReLU()), (2, 9)),
    "batch-norm": (
        nn.Sequential(nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout2d(0.5)),
        (2, 4, 4),
    ),
    "batch-norm-flat": (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, affine=False)), (3,)),
    "normalize": (nn.Sequential(Normalize((0.5, 0.1), (0.3, 0.7)), nn.Conv2d(2, 1, 2)), (2, 3, 3)),
    "normalize-scalar": (nn.Sequential(Normalize(0.5, 0.3), nn.Conv2d(2, 1, 2)), (2, 3, 3)),
    "max-pool": (nn.MaxPool2d(2), (2, 6, 4)),
    "max-pool-pad": (nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True), (2, 6, 5)),
    "max-pool-starts-in-padding": (nn.MaxPool2d(2, 3, padding=1, ceil_mode=True), (1, 4, 7)),
    "max-pool-1d": (nn.MaxPool1d(3, stride=2), (2, 9)),
    "average-pool": (nn.AvgPool2d(2), (2, 6, 4)),
    "average-pool-pad": (nn.AvgPool2d(3, stride=2, padding=1), (1, 5, 6)),
    "average-pool-excluded": (nn.AvgPool2d(3, 2, padding=1, count_include_pad=False), (1, 5, 6)),
    "average-pool-ceil": (nn.AvgPool2d(2, ceil_mode=True, count_include_pad=False), (1, 5, 5)),
    "average-pool-1d": (nn.AvgPool1d(3), (2, 9)),
    "adaptive": (nn.Sequential(nn.AdaptiveAvgPool2d((2, 1)), nn.Flatten()), (3, 4, 5)),
    "adaptive-max": (nn.AdaptiveMaxPool2d(1), (2, 3, 3)),
    "leaky": (nn.Sequential(nn.Linear(3, 6), nn.LeakyReLU(0.2), nn.Linear(6, 2)), (3,)),
    "clips": (nn.Sequential(nn.Linear(3, 9), nn.ReLU6(), nn.Hardtanh(-0.5, 1.0)), (3,)),
    "pads": (nn.Sequential(nn.ZeroPad2d((1, 0, 2, 1)), nn.ConstantPad2d(1, 0.5)), (1, 2, 3)),
    "unflatten": (nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (2, 3)), nn.Identity()), (4,)),
    "linear-rank-3": (nn.Linear(4, 2), (3, 4)),
    "double": (nn.Sequential(nn.Linear(3, 4), nn.LeakyReLU(0.1), nn.Linear(4, 2)).double(), (3,)),
    "residual": (
        Call(lambda m, x: torch.relu(m.parts[0](x)) + x, nn.Linear(4, 4)),
        (4,),
    ),
    "residual-block": (
        Call(
            lambda m, x: functional.relu(m.parts[1](functional.relu(m.parts[0](x))) + x),
            nn.Conv2d(2, 2, 3, padding=1),
            nn.Conv2d(2, 2, 3, padding=1),
        ),
        (2, 4, 4),
    ),
    "concat": (
        Call(
            lambda m, x: torch.cat([m.parts[0](x).relu(), m.parts[1](x), x], dim=1),
            nn.Linear(3, 2),
            nn.Linear(3, 4),
        ),
        (3,),
    ),
    "arithmetic": (Call(lambda m, x: (2 * x - m.c) / 3 + 0.1 - x * m.c), (3,)),
    "constant-first": (Call(lambda m, x: m.c - x), (3,)),
    "negation": (Call(lambda m, x: -x + (-x).neg()), (3,)),
    "views": (Call(lambda m, x: x.view(x.size(0), -1).reshape(-1, 2, 6)), (3, 4)),
    "shape": (Call(lambda m, x: x.reshape(x.shape[0], x.shape[1] * x.shape[2])), (3, 4)),
    "permute": (Call(lambda m, x: x.permute(0, 2, 1).transpose(1, 2).transpose(-1, 1)), (3, 4)),
    "squeeze": (Call(lambda m, x: x.unsqueeze(1).squeeze(1).unsqueeze(-1)), (3, 4)),
    "index": (
        Call(lambda m, x: x[:, 1:, ::2] + x[..., :2][:, 1:] + x[:, 0, 1:3].unsqueeze(1)),
        (3, 4),
    ),
    "flatten": (Call(lambda m, x: torch.flatten(x, 1, 2)), (2, 3, 4)),
    "clamp": (Call(lambda m, x: x.clamp(min=-0.5) + torch.clamp(x, -1, 1)), (5,)),
    "extrema": (Call(lambda m, x: torch.maximum(x, m.c) - torch.minimum(x, -x)), (3,)),
    "means": (Call(lambda m, x: x.mean((2, 3)) + x.sum(dim=(-1, -2))), (3, 2, 2)),
    "mean-of-all": (Call(lambda m, x: x.mean()), (3, 2)),
    "batch-moves": (Call(lambda m, x: x.transpose(0, 1).relu().transpose(1, 0)), (3,)),
    "matmul": (Call(lambda m, x: x @ m.parts[0].weight), (4,)),
    "functional": (
        Call(
            lambda m, x: functional.linear(
                functional.max_pool2d(
                    functional.conv2d(x, m.parts[0].weight, padding=1), 2
                ).flatten(1),
                m.parts[1].weight,
                m.parts[1].bias,
            ),
            nn.Conv2d(1, 2, 3),
            nn.Linear(8, 3),
        ),
        (1, 4, 4),
    ),
    "functional-pools": (
        Call(
            lambda m, x: functional.adaptive_avg_pool2d(
                functional.avg_pool2d(functional.pad(x, (1, 1), value=2.0), (1, 2)), 1
            )
        ),
        (2, 3, 4),
    ),
    "dropout": (Call(lambda m, x: functional.dropout(x, 0.5, m.training)), (3,)),
    "in-place": (nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True), nn.Linear(3, 2)), (3,)),
}
CASES["matmul"][0].parts.append(nn.Linear(5, 4))


@pytest.mark.parametrize("name", CASES)
def test_module_agrees_with_torch(name: str) -> None:
    module, shape = CASES[name]
    torch.manual_seed(2)
    assert_module_parity(warm(module, shape), shape)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_random_networks(data: st.DataObject) -> None:
    """Convolution, pooling and linear layers in random geometry, with and without a skip."""
    draw = data.draw
    torch.manual_seed(draw(st.integers(0, 10**6)))
    channels, height, width = (draw(st.integers(1, 3)) for _ in range(3))
    height, width = height + 3, width + 3
    groups = channels if draw(st.booleans()) else 1
    conv = nn.Conv2d(
        channels,
        channels * draw(st.integers(1, 2)),
        (draw(st.integers(1, 3)), draw(st.integers(1, 3))),
        stride=draw(st.integers(1, 2)),
        padding=draw(st.integers(0, 1)),
        groups=groups,
        bias=draw(st.booleans()),
    )
    parts: list[nn.Module] = [conv]
    if draw(st.booleans()):
        parts.append(nn.BatchNorm2d(conv.out_channels))
    parts.append(nn.ReLU())
    if draw(st.booleans()):
        pool = draw(st.sampled_from([nn.MaxPool2d, nn.AvgPool2d]))
        parts.append(pool(2, stride=1, padding=1))
    parts.append(nn.Flatten())
    body = nn.Sequential(*parts)
    with torch.no_grad():
        size = body.eval()(torch.zeros(1, channels, height, width)).shape[1]
    head = nn.Linear(size, 4)
    if draw(st.booleans()):
        square = nn.Linear(4, 4)
        module: nn.Module = Call(
            lambda m, x: (
                m.parts[2](m.parts[1](m.parts[0](x)).relu()).relu() + m.parts[1](m.parts[0](x))
            ),
            body,
            head,
            square,
        )
    else:
        module = nn.Sequential(body, head)
    assert_module_parity(warm(module, ()), (channels, height, width), points=2)


def test_training_mode_is_left_alone() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.BatchNorm1d(2))
    module.train()
    module[1].eval()
    load(module, input_shape=(2,))
    assert [part.training for part in module.modules()] == [True, True, False, True]


def hooked() -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 3))
    module[0].register_forward_hook(lambda *_: None)
    return module


def in_place(module: Any, x: Tensor) -> Tensor:
    y = module.parts[0](x)
    return functional.relu(y, inplace=True) + y


def in_place_view(module: Any, x: Tensor) -> Tensor:
    y = module.parts[0](x)
    y.view(-1).relu_()
    return y + y.view(1, 3).relu_()


REFUSED: dict[str, tuple[nn.Module, str]] = {
    "layers": (
        nn.Sequential(nn.Linear(3, 3), nn.ELU(), nn.Softsign()),
        r"ELU \(layer 'network_1'\), Softsign \(layer 'network_2'\)",
    ),
    "softmax": (nn.Softmax(), "a dim and no type of its own"),
    "function": (Call(lambda m, x: torch.erf(x)), r"erf \(layer 'erf'\)"),
    "control-flow": (Call(lambda m, x: x if x.sum() > 0 else -x), "cannot be traced"),
    "quotient": (Call(lambda m, x: x / x), "may be 0"),
    "power": (Call(lambda m, x: x**3), "a power is not one we take"),
    "dropout": (Call(lambda m, x: functional.dropout(x, 0.5, True)), "training mode"),
    "hook": (hooked(), "Linear with a hook"),
    "hook-at-the-root": (hooked()[0], "Linear with a hook"),
    "in-place": (Call(in_place, nn.Linear(3, 3)), "overwrites a tensor that is used elsewhere"),
    "in-place-view": (Call(in_place_view, nn.Linear(3, 3)), "overwrites a tensor"),
    "half": (nn.Linear(3, 3).half(), "one type"),
    "misfit": (nn.Linear(4, 3), "does not fit"),
    "two-outputs": (Call(lambda m, x: (x, x)), "one tensor"),
    "max-of-all": (Call(lambda m, x: torch.max(x)), "in a way that we do not take"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusal(name: str) -> None:
    module, message = REFUSED[name]
    with pytest.raises(NetworkError, match=message) as caught:
        load(module, input_shape=(3,))
    assert "\nExpected " in str(caught.value)
    assert "Fix: " in str(caught.value)


def test_nan_weights_are_refused() -> None:
    module = nn.Linear(3, 3)
    with torch.no_grad():
        module.weight[0, 0] = float("nan")
    with pytest.raises(NetworkError, match="not all numbers"):
        load(module, input_shape=(3,))


def test_module_needs_a_shape() -> None:
    with pytest.raises(InputError, match="input_shape"):
        load(nn.Linear(3, 3))


class TwoInputs(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


def test_two_inputs_are_refused() -> None:
    with pytest.raises(NetworkError, match="one tensor"):
        load(TwoInputs(), input_shape=(3,))


# The file.


def test_export_is_one_file_with_raw_input(tmp_path: Path) -> None:
    module = create("paper-mnist")
    path = tmp_path / "net.onnx"
    data = export_onnx(module, path, input_shape=(1, 28, 28))
    assert path.read_bytes() == data
    assert [p.name for p in tmp_path.iterdir()] == ["net.onnx"]
    model = onnx.load(str(path))
    assert [i.name for i in model.graph.input] == ["input"]
    assert [o.name for o in model.graph.output] == ["output"]
    kinds = [node.op_type for node in model.graph.node]
    assert kinds == [
        "BatchNormalization",
        "Conv",
        "Relu",
        "Conv",
        "Flatten",
        "Gemm",
        "Relu",
        "Gemm",
    ]
    assert data == onnx_bytes(module, input_shape=(1, 28, 28))


def test_failed_export_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(b"precious")
    with pytest.raises(NetworkError):
        export_onnx(nn.ELU(), path, input_shape=(3,))
    assert path.read_bytes() == b"precious"
    (tmp_path / "folder.onnx").mkdir()
    with pytest.raises(RunError, match="cannot be written"):
        export_onnx(nn.Linear(3, 3), tmp_path / "folder.onnx", input_shape=(3,))
    with pytest.raises(RunError, match="cannot be written"):
        export_onnx(nn.Linear(3, 3), tmp_path / "none" / "net.onnx", input_shape=(3,))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder.onnx", "net.onnx"]


def test_subtraction_of_a_constant_is_written_as_addition() -> None:
    """Marabou 2.0 reads ``x - c`` as ``x + c``."""
    model = onnx.load_from_string(onnx_bytes(CASES["arithmetic"][0], input_shape=(3,)))
    stored = {tensor.name for tensor in model.graph.initializer}
    for node in model.graph.node:
        assert node.op_type != "Sub" or not stored & set(node.input)


@pytest.mark.parametrize(
    ("function", "is_open"),
    [
        (lambda m, x: x.relu(), True),
        (lambda m, x: x.reshape(1, -1), True),
        (lambda m, x: x.transpose(0, 1), False),
        (lambda m, x: x.mean(0, keepdim=True), False),
        (lambda m, x: x.mean(), False),
        (lambda m, x: torch.cat([x, x], 0), False),
        (lambda m, x: x[0], False),
    ],
)
def test_batch_axis_is_open_only_where_rows_stay_apart(function: Any, is_open: bool) -> None:
    model = onnx.load_from_string(onnx_bytes(Call(function), input_shape=(1, 3)))
    assert model.graph.input[0].type.tensor_type.shape.dim[0].HasField("dim_param") == is_open


def test_marabou_reads_the_file(tmp_path: Path) -> None:
    marabou = pytest.importorskip("maraboupy.Marabou", reason="the marabou extra is not installed")
    for name, shape in (("paper-mnist", (1, 28, 28)), ("paper-dice", (3, 28, 28))):
        module = create(name).eval()
        path = tmp_path / f"{name}.onnx"
        export_onnx(module, path, input_shape=shape)
        network = marabou.read_onnx(str(path))
        x = torch.rand(1, *shape)
        options = marabou.createOptions(verbosity=0)
        found = network.evaluateWithMarabou([x.numpy()], options=options)[0]
        np.testing.assert_allclose(found, module(x).detach().numpy(), atol=1e-4)


# Named networks.


@pytest.mark.parametrize(
    ("name", "shape", "outputs"),
    [("paper-mnist", (1, 28, 28), 10), ("paper-dice", (3, 28, 28), 6), ("wide", (1, 28, 28), 10)],
)
def test_named_network(name: str, shape: tuple[int, ...], outputs: int) -> None:
    module = create(name)
    network = load(module, input_shape=shape)
    assert network.output_size == outputs
    hidden = (6272, 128) if name == "wide" else (784, 16)
    assert network.relu_form.widths == (np.prod(shape), *hidden, outputs)
    assert network.relu_form.is_chain
    x = torch.rand(3, *shape)
    with torch.no_grad():
        expected = module(x).numpy()
    np.testing.assert_allclose(network.runtime(x.numpy()), expected, atol=1e-5)


def test_factories_take_options() -> None:
    assert set(networks) == {"paper-mnist", "paper-dice", "wide", "mlp"}
    options = {"in_channels": 2, "height": 11, "width": 9, "outputs": 3, "mean": 0.0, "std": 1.0}
    for name in networks:
        module = create(name, **options)
        assert module(torch.zeros(1, 2, 11, 9)).shape == (1, 3)


def test_user_factory() -> None:
    module = create("torch.nn:Linear", in_features=3, out_features=2)
    assert module(torch.zeros(1, 3)).shape == (1, 2)
    with pytest.raises(NetworkError, match="not found"):
        create("no.such.module:factory")
    with pytest.raises(NetworkError, match="not found"):
        create("torch.nn:NoSuchLayer")
    with pytest.raises(NetworkError, match="not a factory"):
        create("torch.nn:__name__")
    with pytest.raises(NetworkError, match="does not build a network"):
        create("builtins:dict")
    with pytest.raises(NetworkError, match="cannot be built"):
        create("paper-mnist", colour="red")
    with pytest.raises(InputError, match="paper-mnist"):
        create("paper-minst")


def test_bad_normalisation_is_refused() -> None:
    with pytest.raises(InputError, match="normalisation"):
        Normalize((0.1, 0.2), (1.0, 0.0))
    with pytest.raises(InputError, match="normalisation"):
        Normalize((0.1, 0.2), 1.0)
