"""Small ONNX models, one for each operator and each of its options."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


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
    "dead-branch": model([node("Neg", "x", "unused"), node("Relu", "x")], (1, 3)),
    "constant-output": model(
        [node("Mul", "x z", "a"), node("Add", "a c")],
        (1, 3),
        {"z": np.zeros(3, np.float32), "c": weights(3)},
    ),
}
