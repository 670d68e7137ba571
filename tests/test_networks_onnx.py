"""ONNX operators read, folded and replayed, each against ONNX Runtime; and every refusal."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from qll.errors import InputError, NetworkError, QllError
from qll.networks import Network, load
from qll.networks.fold import fold

RNG = np.random.default_rng(0)


def weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape) + len(shape)).normal(size=shape).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def model(
    nodes: list[Any],
    shape: tuple[Any, ...],
    tensors: dict[str, np.ndarray] | None = None,
    *,
    opset: int = 18,
    kind: int = TensorProto.FLOAT,
) -> onnx.ModelProto:
    """A model from ``x`` to ``y``."""
    built = helper.make_model(
        helper.make_graph(
            nodes,
            "test",
            [helper.make_tensor_value_info("x", kind, shape)],
            [helper.make_tensor_value_info("y", kind, None)],
            [numpy_helper.from_array(value, name) for name, value in (tensors or {}).items()],
        ),
        opset_imports=[helper.make_opsetid("", opset)],
    )
    built.ir_version = 8
    return built


def node(kind: str, inputs: str, output: str = "y", **attributes: Any) -> Any:
    names = [("" if name == "-" else name) for name in inputs.split()]
    return helper.make_node(kind, names, [output], name=f"n_{kind}_{output}", **attributes)


def assert_parity(network: Network, points: int = 5) -> None:
    """Folded, unfolded, exact and enclosed agree with each other, and with ONNX Runtime."""
    x = np.random.default_rng(1).normal(size=(points, network.input_size)).astype(np.float32)
    run = network.runtime(x)
    folded = network.relu_form.forward(x)
    scale = 1.0 + np.abs(run).max()
    session = onnxruntime.InferenceSession(network.source)
    shape = session.run(
        None,
        {
            "x": x[:1]
            .reshape(network.graph.tensor_shape)
            .astype(np.float64 if "double" in session.get_inputs()[0].type else np.float32)
        },
    )[0].shape
    assert network.graph.output_shape == shape
    np.testing.assert_allclose(folded, run, atol=1e-5 * scale, rtol=0)
    np.testing.assert_allclose(network.program.forward(x), folded, atol=1e-10 * scale, rtol=0)
    lower, upper = network.enclose(x)
    assert np.all(upper - lower < 1e-9 * scale)
    exact = network.evaluate_exact(x[0])
    for value, low, high in zip(exact, lower[0], upper[0], strict=True):
        assert low <= value <= high


CASES: dict[str, onnx.ModelProto] = {
    "gemm": model([node("Gemm", "x w b", transB=1)], (1, 4), {"w": weights(3, 4), "b": weights(3)}),
    "gemm-factors": model(
        [node("Gemm", "x w b", alpha=0.3, beta=1.7)], (1, 4), {"w": weights(4, 3), "b": weights(3)}
    ),
    "gemm-matrix-bias": model(
        [node("Gemm", "x w b")], (1, 4), {"w": weights(4, 3), "b": weights(1, 3)}
    ),
    "matmul-add": model(
        [node("MatMul", "x w", "a"), node("Add", "a b")],
        ("n", 4),
        {"w": weights(4, 3), "b": weights(3)},
    ),
    "matmul-left": model([node("MatMul", "w x")], (1, 4, 2), {"w": weights(3, 4)}),
    "matmul-rank-3": model([node("MatMul", "x w")], (1, 2, 4), {"w": weights(4, 3)}),
    "unbatched": model([node("MatMul", "x w", "a"), node("Relu", "a")], (4,), {"w": weights(4, 3)}),
    "conv": model([node("Conv", "x w")], (1, 2, 6, 5), {"w": weights(3, 2, 3, 2)}),
    "conv-stride-pad": model(
        [node("Conv", "x w b", strides=[2, 1], pads=[1, 0, 2, 1])],
        ("n", 2, 7, 6),
        {"w": weights(3, 2, 3, 3), "b": weights(3)},
    ),
    "conv-groups-dilation": model(
        [node("Conv", "x w b", group=2, dilations=[2, 1], kernel_shape=[2, 3])],
        (1, 4, 6, 6),
        {"w": weights(6, 2, 2, 3), "b": weights(6)},
    ),
    "conv-depthwise": model(
        [node("Conv", "x w", group=3, pads=[1, 1, 1, 1])], (1, 3, 5, 5), {"w": weights(3, 1, 3, 3)}
    ),
    "conv-1d": model(
        [node("Conv", "x w b", strides=[2])], (1, 2, 9), {"w": weights(3, 2, 3), "b": weights(3)}
    ),
    "conv-same-upper": model(
        [node("Conv", "x w", auto_pad="SAME_UPPER", strides=[2, 2])],
        (1, 1, 5, 6),
        {"w": weights(2, 1, 2, 3)},
    ),
    "conv-same-lower": model(
        [node("Conv", "x w", auto_pad="SAME_LOWER", strides=[2, 2])],
        (1, 1, 5, 6),
        {"w": weights(2, 1, 2, 3)},
    ),
    "conv-valid": model(
        [node("Conv", "x w", auto_pad="VALID")], (1, 1, 5, 6), {"w": weights(2, 1, 2, 3)}
    ),
    "batch-norm": model(
        [node("BatchNormalization", "x g s m v", epsilon=1e-3)],
        (1, 3, 2, 2),
        {"g": weights(3), "s": weights(3) + 1, "m": weights(3), "v": np.abs(weights(3)) + 0.1},
    ),
    "batch-norm-flat": model(
        [node("BatchNormalization", "x g s m v")],
        (1, 3),
        {"g": weights(3), "s": weights(3) + 1, "m": weights(3), "v": np.abs(weights(3))},
    ),
    "average-pool": model(
        [node("AveragePool", "x", kernel_shape=[3, 2], strides=[2, 2])], (1, 2, 7, 6)
    ),
    "average-pool-pad": model(
        [node("AveragePool", "x", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1)],
        (1, 2, 5, 5),
    ),
    "average-pool-pad-excluded": model(
        [node("AveragePool", "x", kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])],
        (1, 2, 5, 6),
    ),
    "average-pool-ceil": model(
        [node("AveragePool", "x", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)], (1, 1, 5, 5)
    ),
    "max-pool": model([node("MaxPool", "x", kernel_shape=[2, 2], strides=[2, 2])], (1, 2, 6, 4)),
    "max-pool-3-pad": model(
        [node("MaxPool", "x", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])],
        (1, 2, 5, 6),
    ),
    "max-pool-ceil-dilated": model(
        [node("MaxPool", "x", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1, dilations=[2, 1])],
        (1, 1, 6, 5),
    ),
    "max-pool-1": model([node("MaxPool", "x", kernel_shape=[1, 1], strides=[2, 2])], (1, 2, 5, 5)),
    "max-pool-1d": model([node("MaxPool", "x", kernel_shape=[3])], (1, 2, 7)),
    "global-average-pool": model([node("GlobalAveragePool", "x")], (1, 3, 3, 4)),
    "global-max-pool": model([node("GlobalMaxPool", "x")], (1, 2, 3, 3)),
    "reduce-mean": model([node("ReduceMean", "x a", keepdims=0)], (1, 2, 3, 4), {"a": ints(2, -1)}),
    "reduce-mean-attribute": model(
        [node("ReduceMean", "x", axes=[1], keepdims=1)], (1, 6, 2), opset=13
    ),
    "reduce-sum": model([node("ReduceSum", "x a")], (1, 2, 3), {"a": ints(1)}),
    "pad": model(
        [node("Pad", "x p v")],
        (1, 2, 3),
        {"p": ints(0, 1, 0, 0, 0, 2), "v": np.float32(0.5).reshape(())},
    ),
    "pad-crops": model([node("Pad", "x p")], (1, 4, 3), {"p": ints(0, -1, 0, 0, 1, 0)}),
    "pad-attribute": model([node("Pad", "x", pads=[0, 1, 0, 1], value=2.0)], (1, 3), opset=10),
    "transpose": model([node("Transpose", "x", perm=[0, 2, 1])], (1, 2, 3)),
    "transpose-default": model([node("Transpose", "x")], (1, 2, 3)),
    "reshape": model([node("Reshape", "x s")], (1, 2, 6), {"s": ints(1, 0, -1, 3)}),
    "reshape-from-shape": model(
        [
            node("Shape", "x", "s"),
            node("Gather", "s zero", "batch"),
            node("Unsqueeze", "batch zeros", "lead"),
            node("Concat", "lead minus", "target", axis=0),
            node("Reshape", "x target"),
        ],
        (1, 2, 6),
        {"zero": np.array(0), "zeros": ints(0), "minus": ints(-1)},
    ),
    "flatten": model([node("Flatten", "x", axis=1)], ("n", 2, 3)),
    "flatten-axis-2": model([node("Flatten", "x", axis=2)], (1, 2, 3)),
    "squeeze": model([node("Squeeze", "x a")], (1, 1, 3), {"a": ints(1)}),
    "squeeze-all": model([node("Squeeze", "x")], (1, 2, 1, 3)),
    "squeeze-attribute": model([node("Squeeze", "x", axes=[1])], (1, 1, 3), opset=11),
    "unsqueeze": model([node("Unsqueeze", "x a")], (1, 3), {"a": ints(0, -1)}),
    "slice": model(
        [node("Slice", "x s e a t")],
        (1, 6, 5),
        {"s": ints(1, -1), "e": ints(100, -(2**62)), "a": ints(1, 2), "t": ints(2, -1)},
    ),
    "slice-attribute": model(
        [node("Slice", "x", starts=[1], ends=[-1], axes=[1])], (1, 5), opset=9
    ),
    "concat": model(
        [node("Relu", "x", "r"), node("Concat", "x r c", axis=1)],
        (1, 2, 3),
        {"c": weights(1, 1, 3)},
    ),
    "sub-div": model(
        [node("Sub", "x m", "c"), node("Div", "c s")],
        (1, 3, 2),
        {"m": weights(3, 1), "s": np.abs(weights(3, 1)) + 0.2},
    ),
    "constant-minus": model([node("Sub", "m x")], (1, 3), {"m": weights(3)}),
    "mul": model([node("Mul", "c x")], (1, 3, 2), {"c": weights(3, 1)}),
    "mul-grows": model([node("Mul", "x c")], (1, 3, 1), {"c": weights(1, 2)}),
    "neg-sum": model([node("Neg", "x", "n"), node("Sum", "x x n c")], (1, 3), {"c": weights(3)}),
    "constants-added": model(
        [node("Add", "c d", "e"), node("Add", "x e")], (1, 3), {"c": weights(3), "d": weights(1, 3)}
    ),
    "constant-node": model(
        [
            helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(weights(3))),
            helper.make_node("Constant", [], ["f"], value_float=0.5),
            node("Add", "x c", "a"),
            node("Mul", "a f"),
        ],
        (1, 3),
    ),
    "constant-of-shape": model(
        [node("ConstantOfShape", "s", "c"), node("Add", "x c")], (1, 3), {"s": ints(3)}
    ),
    "weights-transposed": model(
        [node("Transpose", "w", "t", perm=[1, 0]), node("MatMul", "x t")],
        (1, 4),
        {"w": weights(3, 4)},
    ),
    "identity-dropout": model([node("Identity", "x", "i"), node("Dropout", "i")], (1, 3)),
    "cast": model([node("Cast", "x", to=TensorProto.FLOAT)], (1, 3)),
    "relu": model([node("Relu", "x")], ("n", 3)),
    "leaky-relu": model([node("LeakyRelu", "x", alpha=0.1)], (1, 5)),
    "prelu": model([node("PRelu", "x s")], (1, 3, 2), {"s": weights(3, 1)}),
    "clip": model(
        [node("Clip", "x l u")],
        (1, 9),
        {"l": np.float32(-0.3).reshape(()), "u": np.float32(0.6).reshape(())},
    ),
    "clip-upper": model([node("Clip", "x - u")], (1, 9), {"u": np.float32(0.1).reshape(())}),
    "clip-attribute": model([node("Clip", "x", min=0.0, max=6.0)], (1, 9), opset=7),
    "max": model([node("Max", "x c z")], (1, 3), {"c": weights(3), "z": weights(1)}),
    "min": model([node("Relu", "x", "r"), node("Min", "x r c")], (1, 3), {"c": weights(3)}),
    "residual": model(
        [
            node("Gemm", "x w b", "a", transB=1),
            node("Relu", "a", "r"),
            node("Gemm", "r w b", "s", transB=1),
            node("Add", "s x", "t"),
            node("Relu", "t", "u"),
            node("Sub", "u a"),
        ],
        (1, 4),
        {"w": weights(4, 4), "b": weights(4)},
    ),
    "double": model(
        [node("Gemm", "x w", transB=1)],
        (1, 3),
        {"w": weights(2, 3).astype(np.float64) / 3},
        kind=TensorProto.DOUBLE,
    ),
    "output-is-input": model([node("Identity", "x")], (1, 3)),
    "dead-branch": model([node("Sigmoid", "x", "unused"), node("Relu", "x")], (1, 3)),
    "constant-output": model(
        [node("Mul", "x z", "a"), node("Add", "a c")],
        (1, 3),
        {"z": np.zeros(3, np.float32), "c": weights(3)},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_operator_agrees_with_onnx_runtime(name: str) -> None:
    assert_parity(load(CASES[name].SerializeToString()))


def test_residual_network_has_skip_blocks() -> None:
    form = load(CASES["residual"].SerializeToString()).relu_form
    assert not form.is_chain
    assert form.widths == (4, 4, 4, 4)
    assert form.relu_count == 8
    assert [tuple(j for j, _ in layer.terms) for layer in form.layers] == [(0,), (0, 1), (0, 2)]


def test_affine_run_is_one_layer() -> None:
    nodes = [
        node("Sub", "x m", "a"),
        node("Conv", "a k", "b"),
        node("Flatten", "b", "c"),
        node("Gemm", "c w b2", "y", transB=1),
    ]
    tensors = {"m": weights(1), "k": weights(2, 1, 2, 2), "w": weights(3, 18), "b2": weights(3)}
    form = load(model(nodes, (1, 1, 4, 4), tensors).SerializeToString()).relu_form
    assert form.widths == (16, 3)
    assert form.is_chain


def test_dead_and_duplicate_neurons_stay() -> None:
    w = np.array([[1, 1], [1, 1], [0, 0]], dtype=np.float32)
    v = np.array([[1, -1, 1]], dtype=np.float32)
    nodes = [
        node("Gemm", "x w b", "a", transB=1),
        node("Relu", "a", "r"),
        node("Gemm", "r v", transB=1),
    ]
    tensors = {"w": w, "v": v, "b": np.array([0, 0, -1], dtype=np.float32)}
    network = load(model(nodes, (1, 2), tensors).SerializeToString())
    assert network.relu_form.widths == (2, 3, 1)
    assert np.all(network.relu_form.forward(RNG.normal(size=(9, 2))) == 0)
    assert_parity(network)


@pytest.mark.parametrize(("mean", "std"), [(0.3, 0.7), ([0.1, 0.2], [0.5, 2.0])])
def test_normalisation_comes_first(mean: Any, std: Any) -> None:
    data = CASES["conv-stride-pad"].SerializeToString()
    plain, network = load(data), load(data, mean=mean, std=std)
    x = RNG.random((3, 2, 7, 6))
    centre, width = (np.broadcast_to(np.reshape(v, (-1, 1, 1)), (2, 7, 6)) for v in (mean, std))
    normal = ((x - centre) / width).reshape(3, -1)
    expected = plain.relu_form.forward(normal)
    flat = x.reshape(3, -1)
    np.testing.assert_allclose(network.relu_form.forward(flat), expected, atol=1e-12)
    prepended = plain.relu_form.prepend_normalisation(mean, std)
    np.testing.assert_allclose(prepended.forward(flat), expected, atol=1e-12)
    np.testing.assert_allclose(network.runtime(x), expected, atol=1e-5)
    lower, upper = network.enclose(x[0])
    for value, low, high in zip(network.evaluate_exact(x[0]), lower, upper, strict=True):
        assert low <= value <= high


def test_input_shape_fills_open_axes() -> None:
    built = model([node("Relu", "x")], ("n", "c", 3))
    assert load(built.SerializeToString(), input_shape=(2, 3)).relu_form.input_shape == (2, 3)
    with pytest.raises(InputError, match="input shape is not the network's"):
        load(built.SerializeToString(), input_shape=(2, 4))


def test_fold_is_lazy_and_cached() -> None:
    network = load(CASES["conv"].SerializeToString())
    assert network.relu_form is network.relu_form
    assert len(network.sha256) == 64
    np.testing.assert_array_equal(
        fold(network.program).layers[0].bias, network.relu_form.layers[0].bias
    )


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
        model([node("Sigmoid", "x", "a"), node("Softmax", "a")], (1, 2)).SerializeToString(),
        r"Sigmoid \(node 'n_Sigmoid_a'\), Softmax \(node 'n_Softmax_y'\)",
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
    "product": (
        model([node("Mul", "x x")], (1, 2)).SerializeToString(),
        "n_Mul_y.*not affine",
        "without it",
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
        "n_Concat_y.*malformed",
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
        "wholly in the padding",
        "less padding",
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
