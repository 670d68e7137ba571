"""What each ONNX operator means, as layers of the op graph.

A reader takes the walk so far and a node, and returns the index of an activation or, where all
operands are constants and no rounding can occur, an array.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from qll.errors import NetworkError
from qll.networks.activations import AveragePool, Clip, Extremum, LeakyRelu, MaxPool, Mean, Relu
from qll.networks.layers import (
    BatchNorm,
    Concat,
    Convolution,
    Linear,
    Pad,
    Reshape,
    Scale,
    Shape,
    Slice,
    Sum,
    Transpose,
)
from qll.networks.matrices import check_entries
from qll.networks.onnx_reader import Reading, attributes, label
from qll.networks.onnx_tensors import tensor_array
from qll.networks.windows import Window, same_padding

Result: TypeAlias = int | np.ndarray
Operator: TypeAlias = Callable[[Reading, Any], Result]

OPERATORS: dict[str, Operator] = {}


def operator(*names: str) -> Callable[[Operator], Operator]:
    def add(read: Operator) -> Operator:
        for name in names:
            OPERATORS[name] = read
        return read

    return add


def refuse(what: str, expected: str, found: object) -> NetworkError:
    return NetworkError(
        what, expected=expected, found=str(found), fix="export the network without it"
    )


def optional(node: Any, position: int) -> str | None:
    """The name of an operand that may be absent (ONNX writes an empty name, or ends the list)."""
    return node.input[position] or None if position < len(node.input) else None


def operand(reading: Reading, node: Any, position: int = 0) -> int:
    return reading.value(node.input[position])


def integers(values: Any) -> tuple[int, ...]:
    return tuple(int(v) for v in np.asarray(values, dtype=np.int64).reshape(-1))


@operator("Constant")
def _constant(reading: Reading, node: Any) -> Result:
    given = attributes(node)
    if "value" in given:
        return tensor_array(given["value"], label(node))
    for name in ("value_float", "value_floats"):
        if name in given:
            array = np.asarray(given[name], dtype=np.float64)
            if not np.all(np.isfinite(array)):
                raise refuse("a constant is not a number", "finite values", "NaN or infinity")
            return array
    for name in ("value_int", "value_ints"):
        if name in given:
            return np.asarray(given[name], dtype=np.int64)
    raise refuse("a constant is of a kind we do not take", "a number or tensor", sorted(given))


@operator("ConstantOfShape")
def _constant_of_shape(reading: Reading, node: Any) -> Result:
    shape = integers(reading.constant(node.input[0]))
    if any(size < 0 for size in shape):
        raise refuse("a constant has a negative extent", "extents >= 0", shape)
    check_entries(math.prod(shape), "a constant")
    given = attributes(node)
    value = tensor_array(given["value"], label(node)) if "value" in given else np.zeros(1)
    return np.full(shape, value.reshape(-1)[0])


@operator("Identity")
def _identity(reading: Reading, node: Any) -> Result:
    if reading.is_constant(node.input[0]):
        return reading.constant(node.input[0])
    source = operand(reading, node)
    return reading.add(label(node), Reshape(reading.builder.shape(source)), source)


@operator("Dropout")
def _dropout(reading: Reading, node: Any) -> Result:
    mode = optional(node, 2)
    if mode is not None and np.any(reading.constant(mode)):
        raise refuse("a dropout is in training mode", "inference mode", "training_mode = 1")
    return _identity(reading, node)


@operator("Cast")
def _read_cast(reading: Reading, node: Any) -> Result:
    to = attributes(node).get("to")
    if reading.is_constant(node.input[0]):
        return _cast(reading.constant(node.input[0]), to)
    if to not in (1, 11):
        raise refuse("an activation is cast away from floats", "float32 or float64", to)
    return _identity(reading, node)


def _cast(array: np.ndarray, to: object) -> np.ndarray:
    kinds: dict[object, type] = {1: np.float32, 11: np.float64, 6: np.int32, 7: np.int64}
    if to not in kinds:
        raise refuse("a constant is cast to a type we do not take", "float or integer", to)
    cast: np.ndarray = array.astype(kinds[to])
    return cast.astype(np.float64 if cast.dtype.kind == "f" else np.int64)


@operator("Shape")
def _shape(reading: Reading, node: Any) -> Result:
    given = attributes(node)
    shape = reading.shape(node.input[0])
    return np.asarray(shape[given.get("start", 0) : given.get("end", None)], dtype=np.int64)


@operator("Gather")
def _gather(reading: Reading, node: Any) -> Result:
    array = reading.constant(node.input[0])
    indices = reading.constant(node.input[1])
    return np.take(array, indices.astype(np.int64), axis=attributes(node).get("axis", 0))


def _reshape(reading: Reading, node: Any, target: Shape) -> Result:
    if reading.is_constant(node.input[0]):
        return reading.constant(node.input[0]).reshape(target)
    return reading.add(label(node), Reshape(target), operand(reading, node))


@operator("Reshape")
def _read_reshape(reading: Reading, node: Any) -> Result:
    shape = reading.shape(node.input[0])
    target = list(integers(reading.constant(node.input[1])))
    if not attributes(node).get("allowzero", 0):
        target = [shape[i] if size == 0 else size for i, size in enumerate(target)]
    if target.count(-1) > 1 or any(size < -1 for size in target):
        raise refuse("a reshape has no meaning", "at most one -1", target)
    if -1 in target:
        known = math.prod(size for size in target if size != -1)
        if not known or math.prod(shape) % known:
            raise refuse("a reshape does not fit its tensor", str(shape), target)
        target[target.index(-1)] = math.prod(shape) // known
    return _reshape(reading, node, tuple(target))


@operator("Flatten")
def _flatten(reading: Reading, node: Any) -> Result:
    shape = reading.shape(node.input[0])
    axis = attributes(node).get("axis", 1)
    if not -len(shape) <= axis <= len(shape):
        raise refuse("a flatten's axis is not there", str(shape), axis)
    axis = axis % len(shape) if axis < 0 else axis
    return _reshape(reading, node, (math.prod(shape[:axis]), math.prod(shape[axis:])))


@operator("Squeeze", "Unsqueeze")
def _squeeze(reading: Reading, node: Any) -> Result:
    shape = reading.shape(node.input[0])
    axes = attributes(node).get("axes")
    if axes is None and (name := optional(node, 1)) is not None:
        axes = reading.constant(name)
    places = None if axes is None else integers(axes)
    probe = np.broadcast_to(np.zeros(()), shape)
    if node.op_type == "Squeeze":
        return _reshape(reading, node, probe.squeeze(places).shape)
    if places is None:
        raise refuse("an unsqueeze has no axes", "axes", "none")
    return _reshape(reading, node, np.expand_dims(probe, places).shape)


@operator("Transpose")
def _transpose(reading: Reading, node: Any) -> Result:
    shape = reading.shape(node.input[0])
    order = integers(attributes(node).get("perm", range(len(shape))[::-1]))
    if reading.is_constant(node.input[0]):
        return reading.constant(node.input[0]).transpose(order)
    return reading.add(label(node), Transpose(order), operand(reading, node))


@operator("Concat")
def _concat(reading: Reading, node: Any) -> Result:
    axis = attributes(node)["axis"]
    if all(reading.is_constant(name) for name in node.input):
        return np.concatenate([reading.constant(name) for name in node.input], axis=axis)
    return reading.add(label(node), Concat(axis), *(reading.value(name) for name in node.input))


@operator("Slice")
def _slice(reading: Reading, node: Any) -> Result:
    shape = reading.shape(node.input[0])
    given = attributes(node)

    def read(position: int, name: str) -> tuple[int, ...] | None:
        if reading.opset < 10:
            return integers(given[name]) if name in given else None
        tensor = optional(node, position)
        return None if tensor is None else integers(reading.constant(tensor))

    starts, ends = read(1, "starts") or (), read(2, "ends") or ()
    axes = read(3, "axes") or tuple(range(len(starts)))
    steps = read(4, "steps") or (1,) * len(starts)
    slices: list[tuple[int | None, int | None, int | None]] = [(None, None, None)] * len(shape)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        slices[axis] = (start, end, step)  # ends beyond the axis are clamped, as in ONNX
    if reading.is_constant(node.input[0]):
        return reading.constant(node.input[0])[tuple(slice(*s) for s in slices)]
    return reading.add(label(node), Slice(tuple(slices)), operand(reading, node))


@operator("Pad")
def _pad(reading: Reading, node: Any) -> Result:
    given = attributes(node)
    rank = len(reading.shape(node.input[0]))
    mode = given.get("mode", b"constant")
    if mode not in (b"constant", "constant"):
        raise refuse("a padding mode is not one we take", "constant", mode)
    if reading.opset < 11:
        pads, fill = integers(given["pads"]), float(given.get("value", 0.0))
    else:
        pads = integers(reading.constant(node.input[1]))
        name = optional(node, 2)
        fill = float(reading.constant(name).reshape(())) if name else 0.0
    axes = range(rank)
    if (name := optional(node, 3)) is not None:
        axes = [axis % rank for axis in integers(reading.constant(name))]  # type: ignore[assignment]
    if len(pads) != 2 * len(axes) or not math.isfinite(fill):
        raise refuse("a padding is malformed", f"{2 * len(axes)} extents, finite fill", pads)
    before, after = [0] * rank, [0] * rank
    for place, axis in enumerate(axes):
        before[axis], after[axis] = pads[place], pads[place + len(axes)]
    layer = Pad(tuple(before), tuple(after), fill)
    return reading.add(label(node), layer, operand(reading, node))


@operator("Add", "Sub", "Sum")
def _sum(reading: Reading, node: Any) -> Result:
    signs = {"Add": (1, 1), "Sub": (1, -1)}.get(node.op_type, (1,) * len(node.input))
    if not signs:
        raise refuse("a sum has no operands", "one or more", "none")
    return reading.add(label(node), Sum(signs), *(reading.value(name) for name in node.input))


@operator("Neg")
def _negate(reading: Reading, node: Any) -> Result:
    return reading.add(label(node), Sum((-1,)), operand(reading, node))


@operator("Mul", "Div")
def _scale(reading: Reading, node: Any) -> Result:
    left, right = node.input
    if node.op_type == "Mul" and reading.is_constant(left):
        left, right = right, left
    if not reading.is_constant(right):
        raise refuse(
            "two activations are multiplied or divided, which is not affine",
            "a constant operand",
            f"'{left}' and '{right}'",
        )
    constant = reading.constant(right).astype(np.float64)
    if node.op_type == "Mul":
        return reading.add(label(node), Scale(constant), reading.value(left))
    if not np.all(constant):
        raise refuse("a tensor is divided by zero", "a divisor without zeros", f"'{right}'")
    return reading.add(label(node), Scale(np.ones(()), constant), reading.value(left))


@operator("MatMul")
def _matmul(reading: Reading, node: Any) -> Result:
    left, right = node.input
    name = label(node)
    if reading.is_constant(right) and reading.constant(right).ndim == 2:
        weight = reading.constant(right).astype(np.float64).T
        return reading.add(name, Linear(weight, np.zeros(weight.shape[0])), reading.value(left))
    rank = len(reading.shape(right))
    if reading.is_constant(left) and reading.constant(left).ndim == 2 and rank >= 2:
        weight = reading.constant(left).astype(np.float64)
        swap = Transpose((*range(rank - 2), rank - 1, rank - 2))
        turned = reading.add(name, swap, reading.value(right))
        turned = reading.add(name, Linear(weight, np.zeros(weight.shape[0])), turned)
        return reading.add(name, swap, turned)
    raise refuse(
        "a matrix product is not a constant matrix times an activation",
        "one constant operand of rank 2",
        f"shapes {reading.shape(left)} and {reading.shape(right)}",
    )


@operator("Gemm")
def _gemm(reading: Reading, node: Any) -> Result:
    given, name = attributes(node), label(node)
    value = operand(reading, node)
    if given.get("transA", 0):
        value = reading.add(name, Transpose((1, 0)), value)
    weight = reading.constant(node.input[1]).astype(np.float64)
    weight = weight if given.get("transB", 0) else weight.T
    alpha, beta = float(given.get("alpha", 1.0)), float(given.get("beta", 1.0))
    if not math.isfinite(alpha) or not math.isfinite(beta):
        raise refuse("a Gemm's factors are not numbers", "finite alpha and beta", (alpha, beta))
    if alpha != 1.0:
        value = reading.add(name, Scale(np.asarray(alpha)), value)
    offset = optional(node, 2)
    plain = offset is not None and reading.is_constant(offset) and beta == 1.0
    bias = np.zeros(weight.shape[0])
    if plain and offset is not None and reading.constant(offset).ndim <= 1:
        bias = np.broadcast_to(reading.constant(offset).astype(np.float64), bias.shape)
        offset = None
    value = reading.add(name, Linear(weight, bias), value)
    if offset is None:
        return value
    shift = reading.value(offset)
    if beta != 1.0:
        shift = reading.add(name, Scale(np.asarray(beta)), shift)
    return reading.add(name, Sum((1, 1)), value, shift)


def _window(given: dict[str, Any], spatial: Shape, kernel: tuple[int, ...] | None = None) -> Window:
    shape = integers(given["kernel_shape"]) if "kernel_shape" in given else kernel
    if shape is None:
        raise refuse("a window has no kernel shape", "kernel_shape", "none")
    rank = len(shape)
    pads = integers(given.get("pads", (0,) * (2 * rank)))
    window = Window(
        kernel=shape,
        stride=integers(given.get("strides", (1,) * rank)),
        before=pads[:rank],
        after=pads[rank:],
        dilation=integers(given.get("dilations", (1,) * rank)),
        ceil=bool(given.get("ceil_mode", 0)),
    )
    mode = given.get("auto_pad", b"NOTSET")
    mode = mode.decode("ascii", "replace") if isinstance(mode, bytes) else str(mode)
    if mode in ("NOTSET", ""):
        return window
    zero = (0,) * rank
    if mode == "VALID":
        before, after = zero, zero
    elif mode in ("SAME_UPPER", "SAME_LOWER"):
        before, after = same_padding(spatial, window, upper=mode == "SAME_UPPER")
    else:
        raise refuse("an auto_pad is not one we take", "VALID or SAME", mode)
    return Window(window.kernel, window.stride, before, after, window.dilation, window.ceil)


@operator("Conv")
def _convolution(reading: Reading, node: Any) -> Result:
    given = attributes(node)
    weight = reading.constant(node.input[1]).astype(np.float64)
    name = optional(node, 2)
    bias = np.zeros(weight.shape[0])
    if name is not None:
        bias = reading.constant(name).astype(np.float64)
    spatial = reading.shape(node.input[0])[2:]
    window = _window(given, spatial, weight.shape[2:])
    layer = Convolution(weight, bias, window, int(given.get("group", 1)))
    return reading.add(label(node), layer, operand(reading, node))


@operator("AveragePool", "MaxPool")
def _pool(reading: Reading, node: Any) -> Result:
    given = attributes(node)
    window = _window(given, reading.shape(node.input[0])[2:])
    if node.op_type == "MaxPool":
        return reading.add(label(node), MaxPool(window), operand(reading, node))
    layer = AveragePool(window, bool(given.get("count_include_pad", 0)))
    return reading.add(label(node), layer, operand(reading, node))


@operator("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(reading: Reading, node: Any) -> Result:
    spatial = reading.shape(node.input[0])[2:]
    ones, zeros = (1,) * len(spatial), (0,) * len(spatial)
    window = Window(spatial, ones, zeros, zeros, ones)
    layer = AveragePool(window) if node.op_type == "GlobalAveragePool" else MaxPool(window)
    return reading.add(label(node), layer, operand(reading, node))


@operator("ReduceMean", "ReduceSum")
def _reduce(reading: Reading, node: Any) -> Result:
    given = attributes(node)
    axes = given.get("axes")
    if axes is None and (name := optional(node, 1)) is not None:
        axes = reading.constant(name)
    rank = len(reading.shape(node.input[0]))
    places = integers(axes) if axes is not None else ()
    if not places and not given.get("noop_with_empty_axes", 0):
        places = tuple(range(rank))
    layer = Mean(places, bool(given.get("keepdims", 1)), divide=node.op_type == "ReduceMean")
    return reading.add(label(node), layer, operand(reading, node))


@operator("BatchNormalization")
def _batch_norm(reading: Reading, node: Any) -> Result:
    given = attributes(node)
    if given.get("training_mode", 0):
        raise refuse("a batch norm is in training mode", "inference mode", "training_mode = 1")
    gain, shift, mean, variance = (
        reading.constant(name).astype(np.float64) for name in node.input[1:5]
    )
    # The attribute is a float32; ONNX's default 1e-5 is too.
    epsilon = float(np.float32(given.get("epsilon", 1e-5)))
    layer = BatchNorm(gain, shift, mean, variance, epsilon)
    return reading.add(label(node), layer, operand(reading, node))


@operator("Relu")
def _relu(reading: Reading, node: Any) -> Result:
    return reading.add(label(node), Relu(), operand(reading, node))


@operator("LeakyRelu", "PRelu")
def _leaky_relu(reading: Reading, node: Any) -> Result:
    if node.op_type == "PRelu":
        slope = reading.constant(node.input[1]).astype(np.float64)
    else:
        slope = np.asarray(np.float32(attributes(node).get("alpha", 0.01)), dtype=np.float64)
    if not np.all(np.isfinite(slope)):
        raise refuse("a slope is not a number", "finite slopes", "NaN or infinity")
    return reading.add(label(node), LeakyRelu(slope), operand(reading, node))


@operator("Clip")
def _clip(reading: Reading, node: Any) -> Result:
    given = attributes(node)

    def end(position: int, name: str, default: float) -> float:
        if name in given:
            return float(given[name])
        tensor = optional(node, position)
        return default if tensor is None else float(reading.constant(tensor).reshape(()))

    layer = Clip(end(1, "min", -math.inf), end(2, "max", math.inf))
    return reading.add(label(node), layer, operand(reading, node))


@operator("Max", "Min")
def _extremum(reading: Reading, node: Any) -> Result:
    layer = Extremum(1 if node.op_type == "Max" else -1)
    value = operand(reading, node)
    for name in node.input[1:]:
        value = reading.add(label(node), layer, value, reading.value(name))
    return value
