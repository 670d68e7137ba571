"""What is read is what runs: models that ONNX Runtime runs otherwise than they look, or refuses.

Each was once read or confirmed with another meaning. Both readers refuse it, or agree with ONNX
Runtime; random models of all kinds are in `test_fuzz_graphs`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from graph_compare import compare
from graph_runtime import Runtime
from networks_models import ints, model, node, weights
from onnx import TensorProto, helper, numpy_helper

F = np.float32


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with Runtime() as started:
        yield started


def changed(built: onnx.ModelProto, change: Callable[[onnx.ModelProto], Any]) -> onnx.ModelProto:
    change(built)
    return built


def constant(name: str, *values: float) -> Any:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(F(values)))


def two_values() -> onnx.ModelProto:
    twice = constant("c", 1, 2)
    twice.attribute.append(helper.make_attribute("value", numpy_helper.from_array(F([5, 7]))))
    return model([twice, node("Add", "x c")], (1, 2))


def sparse(built: onnx.ModelProto) -> None:
    entry = built.graph.sparse_initializer.add()
    entry.values.CopyFrom(numpy_helper.from_array(F([9, 9]), "c"))
    entry.indices.CopyFrom(numpy_helper.from_array(ints(0, 1)))
    entry.dims.extend([2])


def integer(kind: str, *operands: np.ndarray, **given: Any) -> onnx.ModelProto:
    """A number of the network that is computed from integer constants."""
    names = {f"i{k}": value for k, value in enumerate(operands)}
    nodes = [
        node(kind, " ".join(names), "i", **given),
        node("Cast", "i", "f", to=TensorProto.FLOAT),
        node("Add", "x f"),
    ]
    return model(nodes, (1, 2), names, opset=13)


def pool(kind: str, opset: int, shape: tuple[int, ...], **given: Any) -> onnx.ModelProto:
    return model([node(kind, "x", **given)], shape, opset=opset)


PLAIN = {"c": F([1, 2])}
REFUSED: dict[str, onnx.ModelProto] = {
    "constant-with-two-values": two_values(),
    "constant-shadows-a-tensor-later": model(
        [node("Add", "x c"), constant("c", 5, 7)], (1, 2), PLAIN
    ),
    "constant-shadows-a-tensor-before": model(
        [constant("c", 5, 7), node("Add", "x c")], (1, 2), PLAIN
    ),
    "node-shadows-the-input": model([node("Neg", "x", "x"), node("Relu", "x")], (1, 2)),
    "tensor-twice": changed(
        model([node("Add", "x c")], (1, 2), PLAIN),
        lambda m: m.graph.initializer.append(numpy_helper.from_array(F([7, 7]), "c")),
    ),
    "sparse-twin": changed(model([node("Add", "x c")], (1, 2), PLAIN), sparse),
    "int64-division": model([node("Div", "x c")], (1, 2), {"c": ints(2)}, kind=TensorProto.INT64),
    "uint8-product": model(
        [node("Mul", "x c")], (1, 2), {"c": np.array([200], np.uint8)}, kind=TensorProto.UINT8
    ),
    "old-add-with-axis": model(
        [node("Add", "x c", axis=1, broadcast=1)], (1, 2, 2), {"c": F([1, 2])}, opset=6
    ),
    "add-with-axis": model([node("Add", "x c", axis=1)], (1, 2, 2), {"c": F([1, 2])}, opset=7),
    "matmul-with-transB": model(
        [node("MatMul", "x w", transB=1)], (1, 2), {"w": F([[1, 2], [3, 4]])}
    ),
    "matmul-with-a-third-input": model(
        [node("MatMul", "x w b")], (1, 2), {"w": weights(2, 2), "b": weights(2)}
    ),
    "conv-with-one-bias": model(
        [node("Conv", "x w b")], (1, 1, 3, 3), {"w": weights(2, 1, 2, 2), "b": weights(1)}
    ),
    "gemm-with-a-flag-of-2": model(
        [node("Gemm", "x w", transB=-(2**63))], (1, 2), {"w": weights(2, 2)}
    ),
    "gemm-of-rank-3": model([node("Gemm", "x w")], (1, 1, 2), {"w": weights(2, 2)}),
    "gemm-with-a-bias-of-rank-3": model(
        [node("Gemm", "x w b")], (1, 2), {"w": weights(2, 2), "b": weights(1, 1, 2)}
    ),
    "unknown-attribute": model([node("Relu", "x", alpha=0.5)], (1, 2)),
    "attribute-twice": changed(
        model([node("Flatten", "x", axis=1)], (1, 2, 2)),
        lambda m: m.graph.node[0].attribute.append(helper.make_attribute("axis", 2)),
    ),
    "attribute-of-another-type": model([node("Flatten", "x", axis=1.0)], (1, 2)),
    "attribute-with-two-fields": changed(
        model([node("Flatten", "x", axis=1)], (1, 2)),
        lambda m: m.graph.node[0].attribute[0].floats.append(1.0),
    ),
    "float64-constant": model([node("Add", "x c")], (1, 2), {"c": np.array([1.0, 2.0])}),
    "int64-constant": model([node("Add", "x c")], (1, 2), {"c": ints(1, 2)}),
    "unused-node-that-fails": model(
        [node("MatMul", "x w", "unused"), node("Relu", "x")], (1, 2), {"w": weights(3, 3)}
    ),
    "unused-node-unknown": model([node("Nothing", "x", "unused"), node("Relu", "x")], (1, 2)),
    "stated-type-of-the-output": changed(
        model([node("Relu", "x")], (1, 2)),
        lambda m: setattr(m.graph.output[0].type.tensor_type, "elem_type", TensorProto.DOUBLE),
    ),
    "stated-type-of-a-value": changed(
        model([node("Relu", "x", "a"), node("Relu", "a")], (1, 2)),
        lambda m: m.graph.value_info.append(
            helper.make_tensor_value_info("a", TensorProto.DOUBLE, (1, 2))
        ),
    ),
    "stated-shape-of-a-tensor": changed(
        model([node("Add", "x c")], (1, 2), PLAIN),
        lambda m: m.graph.input.append(
            helper.make_tensor_value_info("c", TensorProto.FLOAT, (1,))
        ),
    ),
    "empty-batch": model([node("Relu", "x")], (0, 2)),
    "two-opsets": changed(
        model([node("Relu", "x")], (1, 2)), lambda m: m.opset_import.add(domain="", version=13)
    ),
    "future-opset": model([node("Relu", "x")], (1, 2), opset=27),
    "future-format": changed(
        model([node("Relu", "x")], (1, 2)), lambda m: setattr(m, "ir_version", 14)
    ),
    "unused-tensor-of-an-old-file": changed(
        model([node("Relu", "x")], (1, 2), PLAIN), lambda m: setattr(m, "ir_version", 3)
    ),
    "division-by-zero-of-integers": integer("Div", ints(3), ints(0)),
    "int32-overflow": integer("Mul", np.array([2**30], np.int32), np.array([5], np.int32)),
    "int64-overflow": integer("Add", ints(2**63 - 1), ints(1)),
    "mean-of-integers": integer("ReduceMean", ints(3, 4), axes=[0], keepdims=0),
    "max-pool-same-dilated": pool(
        "MaxPool", 18, (1, 1, 4, 4), kernel_shape=[2, 2], auto_pad="SAME_UPPER", dilations=[2, 2]
    ),
    "max-pool-same-lower-dilated": pool(
        "MaxPool", 18, (1, 1, 4, 4), kernel_shape=[2, 2], auto_pad="SAME_LOWER", dilations=[2, 2]
    ),
    "average-pool-same-dilated": pool(
        "AveragePool", 19, (1, 1, 5), kernel_shape=[2], auto_pad="SAME_UPPER", dilations=[2]
    ),
    "average-pool-same-small-kernel": pool(
        "AveragePool", 19, (1, 1, 6), kernel_shape=[1], auto_pad="SAME_UPPER", strides=[3]
    ),
    "shape-after-a-window-that-is-dropped": model(
        [
            node("MaxPool", "x", "p", kernel_shape=[2, 2], strides=[1, 3], ceil_mode=1),
            node("Shape", "p", "s"),
            node("Cast", "s", to=TensorProto.FLOAT),
        ],
        (1, 1, 2, 3),
        opset=14,
    ),
    "average-pool-much-padding": pool(
        "AveragePool", 9, (1, 2, 3, 6), kernel_shape=[3, 2], strides=[1, 3], pads=[0, 1, 1, 2]
    ),
    "pool-without-a-kernel": pool("MaxPool", 18, (1, 1, 4), strides=[1]),
    "concat-without-an-axis": model([node("Concat", "x x")], (1, 2)),
    "max-pool-of-four-axes": model([node("GlobalMaxPool", "x")], (1, 1, 2, 2, 2, 2)),
    "gather-from-a-number": model(
        [node("Gather", "i i", "unused"), node("Relu", "x")], (1, 2), {"i": np.array(0)}
    ),
    "max-pool-much-padding": pool("MaxPool", 18, (1, 1, 4), kernel_shape=[1], pads=[1, 0]),
    "conv-same-dilated": model(
        [node("Conv", "x w", auto_pad="SAME_UPPER", dilations=[2])],
        (1, 1, 5),
        {"w": weights(1, 1, 2)},
    ),
    "old-clip-at-infinity": model(
        [node("Clip", "x", min=float("inf"), max=float("inf"))], (1, 2), opset=10
    ),
    "old-sum-that-broadcasts": model([node("Sum", "x c")], (1, 2), {"c": F([1])}, opset=7),
    "old-batch-norm-of-places": model(
        [node("BatchNormalization", "x g g g v", spatial=0, epsilon=0.0)],
        (1, 2),
        {"g": weights(2), "v": F([1, 1])},
        opset=8,
    ),
    "batch-norm-with-two-outputs": changed(
        model(
            [node("BatchNormalization", "x g g g v", epsilon=0.0)],
            (1, 2),
            {"g": weights(2), "v": F([1, 1])},
        ),
        lambda m: m.graph.node[0].output.append("more"),
    ),
    "dropout-with-a-computed-ratio": model(
        [node("Sub", "a b", "r"), node("Dropout", "x r", "d"), node("Mul", "d c")],
        (1, 2),
        {"a": np.array(0.75, F), "b": np.array(0.5, F), "c": F([1.5])},
        opset=13,
    ),
    "negative-axis-of-an-old-opset": model(
        [node("Concat", "x x", axis=-1)], (1, 2), opset=10
    ),
    "slope-of-more-axes": model([node("PRelu", "x s")], (1, 1), {"s": weights(1, 1, 1)}),
    "squeeze-without-a-name": model([node("Squeeze", "x -")], (1, 2)),
    "slice-of-a-number": model(
        [node("ReduceSum", "x a", "s", keepdims=0), node("Slice", "s e e")],
        (1, 2),
        {"a": ints(0, 1), "e": ints()},
    ),
    "tensor-in-two-places": changed(
        model([node("Add", "x c")], (1, 2), PLAIN),
        lambda m: m.graph.initializer[0].float_data.extend([9, 9]),
    ),
    "unknown-field": changed(
        model([node("Relu", "x")], (1, 2)), lambda m: m.graph.MergeFromString(b"\xb8\x3e\x01")
    ),
    "unknown-place-of-a-tensor": changed(
        model([node("Add", "x c")], (1, 2), PLAIN),
        lambda m: m.graph.initializer[0].MergeFromString(b"\x70\x07"),
    ),
    "tensor-in-segments": changed(
        model([node("Add", "x c")], (1, 2), PLAIN),
        lambda m: setattr(m.graph.initializer[0].segment, "end", 1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_may_run_otherwise_is_refused(name: str, runtime: Runtime) -> None:
    report = compare(REFUSED[name].SerializeToString(), 0, runtime)
    assert not report.differences
    assert not report.read
    assert not report.checked


def test_an_old_float64_pool_is_not_confirmed(runtime: Runtime) -> None:
    """ONNX Runtime has the kernel from opset 8 on; the verifier's reader does not need it."""
    for opset, checked in ((7, False), (8, True)):
        nodes = [node("MaxPool", "x", kernel_shape=[2])]
        built = model(nodes, (1, 1, 3), opset=opset, kind=TensorProto.DOUBLE)
        report = compare(built.SerializeToString(), 0, runtime)
        assert report.read and report.checked is checked and not report.differences


READ: dict[str, tuple[onnx.ModelProto, bool]] = {  # with: does the checker read it too?
    "chain": (
        model(
            [node("Gemm", "x w b", "a", transB=1), node("Relu", "a", "r"), node("MatMul", "r v")],
            ("n", 3),
            {"w": weights(4, 3), "b": weights(4), "v": weights(4, 2)},
        ),
        True,
    ),
    "integer-division": (integer("Div", ints(3), ints(2)), False),
    "integer-division-of-negatives": (integer("Div", ints(-3, 3), ints(2, -2)), False),
    "integer-product": (integer("Mul", ints(-3), ints(2)), False),
    "clip-at-infinity": (
        model([node("Clip", "x", min=-np.inf, max=np.inf)], (1, 2), opset=10),
        False,
    ),
    "same-opset-twice": (
        changed(
            model([node("Relu", "x")], (1, 2)), lambda m: m.opset_import.add(domain="", version=18)
        ),
        False,
    ),
    "tf2onnx-imports": (
        changed(
            model([node("Relu", "x")], (1, 2)),
            lambda m: m.opset_import.add(domain="ai.onnx.ml", version=2),
        ),
        True,
    ),
    "tensors-that-are-inputs": (
        changed(
            model([node("Add", "x c")], (1, 2), PLAIN),
            lambda m: m.graph.input.append(
                helper.make_tensor_value_info("c", TensorProto.FLOAT, (2,))
            ),
        ),
        True,
    ),
    "true-statements": (
        changed(
            model([node("Relu", "x", "a"), node("Relu", "a")], ("n", 2)),
            lambda m: m.graph.value_info.append(
                helper.make_tensor_value_info("a", TensorProto.FLOAT, ("n", 2))
            ),
        ),
        True,
    ),
    "slice-from-before-the-tensor": (
        model(
            [node("Slice", "x s e a t")],
            (1, 3),
            {"s": ints(-9), "e": ints(-(2**62)), "a": ints(1), "t": ints(-1)},
        ),
        True,
    ),
    "max-pool-without-pairs": (
        model(
            [
                node("Softplus", "x", "a"),
                node("MaxPool", "a", kernel_shape=[2, 2], strides=[2, 1], pads=[1, 1, 1, 0]),
            ],
            (1, 1, 1, 3),
        ),
        True,
    ),
    "gelu-by-name": (model([node("Gelu", "x", approximate="none")], (1, 2), opset=20), True),
    "float64": (
        model(
            [node("Gemm", "x w", "a"), node("Relu", "a")],
            (1, 2),
            {"w": weights(2, 2).astype(np.float64)},
            kind=TensorProto.DOUBLE,
        ),
        True,
    ),
}


@pytest.mark.parametrize("name", READ)
def test_what_is_plain_is_read(name: str, runtime: Runtime) -> None:
    built, checked = READ[name]
    report = compare(built.SerializeToString(), 0, runtime)
    assert not report.differences
    assert report.ran and report.read
    assert report.checked is checked
