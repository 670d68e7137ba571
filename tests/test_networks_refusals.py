"""Every refusal of a network file: three parts, with the node, before any work; and no crash."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
from networks_models import CASES, ints, model, node, weights
from onnx import TensorProto, helper

from qll.errors import InputError, NetworkError, QllError
from qll.networks import load
from qll.networks.fold import fold

NAN = np.array([[1, np.nan]], dtype=np.float32)
external = model([node("Gemm", "x w")], (1, 2), {"w": weights(2, 2)})
external.graph.initializer[0].ClearField("raw_data")
external.graph.initializer[0].data_location = TensorProto.EXTERNAL
external.graph.initializer[0].external_data.add(key="location", value="../weights.bin")
damaged = model([node("Gemm", "x w")], (1, 2), {"w": weights(2, 2)})
damaged.graph.initializer[0].dims[0] = 2**40
two_inputs = model([node("Add", "x z")], (1, 2))
two_inputs.graph.input.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, (1, 2)))
two_outputs = model([node("Relu", "x")], (1, 2))
two_outputs.graph.output.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 2)))
no_shape = model([node("Relu", "x")], (1, 2))
no_shape.graph.input[0].type.tensor_type.ClearField("shape")
integer_input = model([node("Relu", "x")], (1, 2), kind=TensorProto.INT64)
old = model([node("Relu", "x")], (1, 2), opset=6)
half = model([node("Gemm", "x w")], (1, 2), {"w": weights(2, 2).astype(np.float16)})
custom = model([node("Relu", "x")], (1, 2))
custom.graph.node[0].domain = "com.example"

BAD: dict[str, tuple[bytes, str, str]] = {
    "not-onnx": (b"hello, I am a text file", "not an ONNX model|empty or cut off", "copied whole"),
    "empty": (b"", "empty or cut off", "copied whole"),
    "operators": (
        model([node("Erf", "x", "a"), node("Softsign", "a")], (1, 2)).SerializeToString(),
        r"Erf \(node 'n_Erf_a'\), Softsign \(node 'n_Softsign_y'\)",
        "replace these layers",
    ),
    "domain": (custom.SerializeToString(), "operators that we do not take", "replace"),
    "external": (external.SerializeToString(), "'w' are in another file", "one file"),
    "damaged": (damaged.SerializeToString(), "'w' is damaged", "export the network again"),
    "nan": (
        model([node("Gemm", "x w")], (1, 1), {"w": NAN}).SerializeToString(),
        "'w' are not all numbers",
        "without NaN",
    ),
    "half": (half.SerializeToString(), "'w' has a type we do not take", "float32"),
    "two-inputs": (two_inputs.SerializeToString(), "one input", "fixed as constants"),
    "two-outputs": (two_outputs.SerializeToString(), "one output", "the property speaks of"),
    "no-shape": (no_shape.SerializeToString(), "open shape", "input_shape"),
    "open-axis": (
        model([node("Relu", "x")], ("n", "m")).SerializeToString(),
        r"found \(\?, \?\)",
        "input_shape",
    ),
    "integer-input": (integer_input.SerializeToString(), "not a float tensor", "float input"),
    "old-opset": (old.SerializeToString(), "operator set", "recent opset"),
    "quotient": (
        model([node("Div", "x x")], (1, 2)).SerializeToString(),
        "n_Div_y.*may be 0",
        "add a constant",
    ),
    "misfit": (
        model([node("Gemm", "x w")], (1, 3), {"w": weights(2, 2)}).SerializeToString(),
        "n_Gemm_y.*does not fit",
        "shapes",
    ),
    "fixed-batch-conv": (
        model([node("Conv", "x w")], (8, 1, 5, 5), {"w": weights(2, 1, 3, 3)}).SerializeToString(),
        "n_Conv_y.*does not fit",
        "shapes",
    ),
    "bad-attribute": (
        model([node("Concat", "x x")], (1, 3)).SerializeToString(),
        "n_Concat_y.*attribute 'axis'",
        "onnx.checker",
    ),
    "unproduced": (
        model([node("Add", "x ghost")], (1, 3)).SerializeToString(),
        "'ghost' is read before",
        "copied whole",
    ),
    "twice": (
        model([node("Relu", "x", "y"), node("Neg", "x", "y")], (1, 3)).SerializeToString(),
        "'y' is produced twice",
        "export",
    ),
    "huge-input": (
        model([node("Relu", "x")], (1, 10**6, 10**6)).SerializeToString(),
        "size we do not take",
        "smaller network",
    ),
    "huge-constant": (
        model(
            [node("ConstantOfShape", "s", "c"), node("Add", "x c")],
            (1, 3),
            {"s": ints(10**6, 10**6)},
        ).SerializeToString(),
        "too large",
        "smaller",
    ),
    "huge-pad": (
        model([node("Pad", "x p")], (1, 3), {"p": ints(0, 10**12, 0, 0)}).SerializeToString(),
        "too large",
        "smaller",
    ),
    "empty-window": (
        model([node("MaxPool", "x", kernel_shape=[1], pads=[3, 3])], (1, 1, 2)).SerializeToString(),
        "too much padding",
        "without it",
    ),
    "window-too-large": (
        model([node("MaxPool", "x", kernel_shape=[9])], (1, 1, 2)).SerializeToString(),
        "larger than the padded",
        "input shape",
    ),
    "divide-by-zero": (
        model([node("Div", "x z")], (1, 1), {"z": np.zeros(1, np.float32)}).SerializeToString(),
        "divided by zero",
        "without it",
    ),
    "negative-variance": (
        model(
            [node("BatchNormalization", "x g g g v")],
            (1, 2),
            {"g": weights(2), "v": -np.ones(2, np.float32)},
        ).SerializeToString(),
        "variance is not positive",
        "shapes",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_refusal_has_three_parts(name: str) -> None:
    data, message, fix = BAD[name]
    with pytest.raises(NetworkError, match=f"(?s){message}") as caught:
        _ = load(data).relu_form
    text = str(caught.value)
    assert "\nExpected " in text
    assert "Fix: " in text
    assert fix in caught.value.fix
    assert caught.value.where is not None
    assert caught.value.where.startswith("<bytes>")


def test_matrices_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["x", "a", "b", "y"]
    nodes = [node("MatMul", f"{p} w", q) for p, q in itertools.pairwise(names)]
    data = model(nodes, (1, 10), {"w": weights(10, 10)}).SerializeToString()
    monkeypatch.setattr("qll.networks.matrices.MAX_TOTAL", 300)
    program = load(data).program
    monkeypatch.setattr("qll.networks.matrices.MAX_TOTAL", 299)
    with pytest.raises(NetworkError, match="too large together"):
        _ = load(data).relu_form
    with pytest.raises(NetworkError, match="too large together"):
        fold(program)


def test_missing_file_and_wrong_type(tmp_path: Any) -> None:
    with pytest.raises(NetworkError, match=r"none\.onnx: the network's file cannot be read"):
        load(tmp_path / "none.onnx")
    with pytest.raises(NetworkError, match="cannot be read"):
        load(tmp_path)
    with pytest.raises(InputError, match="not a network"):
        load(7)  # type: ignore[arg-type]


def test_bad_normalisation_and_points() -> None:
    data = CASES["conv"].SerializeToString()
    with pytest.raises(InputError, match="half given"):
        load(data, mean=0.5)
    with pytest.raises(InputError, match="std is not usable"):
        load(data, mean=0.5, std=0.0)
    with pytest.raises(InputError, match="mean does not fit"):
        load(data, mean=[0.5] * 3, std=1.0)
    network = load(data)
    for use in (network.relu_form.forward, network.enclose, network.runtime):
        with pytest.raises(InputError, match="not fit the network"):
            use(np.zeros((2, 7)))
    with pytest.raises(InputError, match="not fit the network"):
        network.evaluate_exact(np.zeros((2, network.input_size)))
    with pytest.raises(InputError, match="not finite"):
        network.evaluate_exact(np.full(network.input_size, np.nan))


def test_truncated_and_damaged_files_never_crash() -> None:
    """Any prefix and any flipped byte is read or refused, never anything else."""
    rnd = random.Random(0)
    sources = [m.SerializeToString() for m in CASES.values()]
    refused = 0
    for trial in range(1500):
        data = bytearray(rnd.choice(sources))
        if trial % 2:
            del data[rnd.randrange(len(data)) :]
        else:
            for _ in range(rnd.choice((1, 1, 4))):
                data[rnd.randrange(len(data))] = rnd.randrange(256)
        try:
            network = load(bytes(data))
            if network.input_size < 10_000:
                _ = network.relu_form
        except QllError:
            refused += 1
    assert refused > 700
