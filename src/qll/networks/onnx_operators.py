"""What each ONNX operator means, as layers of the op graph.

A reader takes the walk so far and a node, and returns the index of an activation or, where all
operands are constants and no rounding can occur, an array. Attributes and types are those of the
node's schema (``onnx_checks``); here stands what the schema leaves to the operator. Where ONNX
Runtime departs from ONNX, or ONNX is silent, the node is refused.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qll.networks.activations import ACTIVATIONS
from qll.networks.activations.clip import Clip, clip
from qll.networks.activations.gelu import Gelu
from qll.networks.activations.leaky_relu import LeakyRelu
from qll.networks.layers import (
    Apply,
    AveragePool,
    BatchNorm,
    Concat,
    Convolution,
    Extremum,
    Linear,
    MatrixProduct,
    MaxPool,
    Mean,
    Pad,
    ParametricRelu,
    Reshape,
    Scale,
    Shape,
    Slice,
    Sum,
    Transpose,
)
from qll.networks.matrices import broadcast
from qll.networks.onnx_constants import computes_integers, integer_arithmetic
from qll.networks.onnx_reading import Call, Reading, Result, operator, refuse
from qll.networks.windows import Window, same_padding

NEGATIVE_AXES = 11  # the first opset that counts axes from the end
MOST_AXES = 5  # of images: batch, channels and three more, as many as ONNX Runtime pools
BROADCAST_MANY = 8  # the first in which Sum, Max and Min broadcast


def operand(reading: Reading, call: Call, position: int = 0) -> int:
    return reading.value(call.inputs[position])


def axis_of(reading: Reading, axis: int, rank: int) -> int:
    least = -rank if reading.opset >= NEGATIVE_AXES else 0
    if not least <= axis < rank:
        raise refuse("an axis is not there", f"{least} to {rank - 1}", axis)
    return axis % rank


def axes_of(reading: Reading, axes: tuple[int, ...], rank: int) -> tuple[int, ...]:
    found = tuple(axis_of(reading, axis, rank) for axis in axes)
    if len(set(found)) != len(found):
        raise refuse("an axis is named twice", f"different axes of {rank}", axes)
    return found


def given_axes(reading: Reading, call: Call, position: int = 1) -> tuple[int, ...] | None:
    """An attribute in old opsets, an input in new ones."""
    if "axes" in call.given:
        return tuple(call.given["axes"])
    name = call.optional(position)
    return None if name is None else reading.integers(name)


def _reshape(reading: Reading, call: Call, target: Shape) -> Result:
    name = call.inputs[0]
    if reading.is_constant(name):
        return reading.constant(name).reshape(target)
    return reading.add(call.name, Reshape(target), reading.value(name))


@operator("Reshape")
def _read_reshape(reading: Reading, call: Call) -> Result:
    shape = reading.shape(call.inputs[0])
    target = list(reading.integers(call.inputs[1]))
    if call.given.get("allowzero", 0):
        if 0 in target:
            raise refuse("a reshape has an empty axis", "sizes of at least 1", target)
    else:
        target = [shape[i] if size == 0 else size for i, size in enumerate(target)]
    if target.count(-1) > 1 or any(size < -1 for size in target):
        raise refuse("a reshape has no meaning", "at most one -1", target)
    if -1 in target:
        known = math.prod(size for size in target if size != -1)
        if not known or math.prod(shape) % known:
            raise refuse("a reshape does not fit its tensor", str(shape), target)
        target[target.index(-1)] = math.prod(shape) // known
    return _reshape(reading, call, tuple(target))


@operator("Flatten")
def _flatten(reading: Reading, call: Call) -> Result:
    shape = reading.shape(call.inputs[0])
    axis, rank = call.given.get("axis", 1), len(shape)
    axis = rank if axis == rank else axis_of(reading, axis, rank)
    return _reshape(reading, call, (math.prod(shape[:axis]), math.prod(shape[axis:])))


@operator("Squeeze")
def _squeeze(reading: Reading, call: Call) -> Result:
    shape = reading.shape(call.inputs[0])
    axes = given_axes(reading, call)
    if call.inputs[1:] == ("",):  # which ONNX allows, and ONNX Runtime does not take
        raise refuse("a squeeze names no axes", "axes, or no second input", "an empty name")
    if axes is None:
        places = tuple(i for i, size in enumerate(shape) if size == 1)
    else:
        places = axes_of(reading, axes, len(shape))
    if axes == () or any(shape[axis] != 1 for axis in places):
        raise refuse("a squeeze does not fit its tensor", f"axes of size 1 of {shape}", axes)
    rest = tuple(size for axis, size in enumerate(shape) if axis not in places)
    return _reshape(reading, call, rest)


@operator("Unsqueeze")
def _unsqueeze(reading: Reading, call: Call) -> Result:
    shape = reading.shape(call.inputs[0])
    axes = given_axes(reading, call) or ()
    rank = len(shape) + len(axes)
    places, rest = axes_of(reading, axes, rank), iter(shape)
    return _reshape(
        reading, call, tuple(1 if axis in places else next(rest) for axis in range(rank))
    )


@operator(*Transpose.onnx)
def _transpose(reading: Reading, call: Call) -> Result:
    name = call.inputs[0]
    rank = len(reading.shape(name))
    order = tuple(call.given.get("perm", range(rank)[::-1]))
    if sorted(order) != list(range(rank)):
        raise refuse("a transpose does not fit its tensor", f"an order of {rank} axes", order)
    if reading.is_constant(name):
        return reading.constant(name).transpose(order)
    return reading.add(call.name, Transpose(order), reading.value(name))


@operator(*Concat.onnx)
def _concat(reading: Reading, call: Call) -> Result:
    axis = axis_of(reading, call.given["axis"], len(reading.shape(call.inputs[0])))
    if all(reading.is_constant(name) for name in call.inputs):
        return np.concatenate([reading.constant(name) for name in call.inputs], axis=axis)
    return reading.add(call.name, Concat(axis), *(reading.value(name) for name in call.inputs))


@operator(*Slice.onnx)
def _slice(reading: Reading, call: Call) -> Result:
    name = call.inputs[0]
    shape = reading.shape(name)
    if not shape:
        raise refuse("a number is sliced", "a tensor with axes", "none")

    def read(position: int, key: str) -> tuple[int, ...] | None:
        if key in call.given:
            return tuple(call.given[key])
        tensor = call.optional(position)
        return None if tensor is None else reading.integers(tensor)

    starts, ends, axes, steps = (
        read(i + 1, key) for i, key in enumerate(("starts", "ends", "axes", "steps"))
    )
    starts, ends = starts or (), ends or ()
    places = axes_of(reading, tuple(range(len(starts))) if axes is None else axes, len(shape))
    paces = (1,) * len(starts) if steps is None else steps
    slices: list[tuple[int | None, int | None, int | None]] = [(None, None, None)] * len(shape)
    for start, end, axis, pace in zip(starts, ends, places, paces, strict=True):
        slices[axis] = _clamped(start, end, pace, shape[axis])
    if reading.is_constant(name):
        return reading.constant(name)[tuple(slice(*bounds) for bounds in slices)]
    return reading.add(call.name, Slice(tuple(slices)), reading.value(name))


def _clamped(start: int, end: int, pace: int, size: int) -> tuple[int, int | None, int]:
    """As ONNX clamps, and not Python: a first entry before the tensor is its first, whichever way
    the steps go."""
    if not pace:
        raise refuse("a slice has steps of 0", "steps that move", pace)
    start, end = (v + size if v < 0 else v for v in (start, end))
    if pace > 0:
        return min(max(start, 0), size), min(max(end, 0), size), pace
    last = min(max(end, -1), size)
    return min(max(start, 0), max(size - 1, 0)), last if last >= 0 else None, pace


@operator(*Pad.onnx)
def _pad(reading: Reading, call: Call) -> Result:
    rank = len(reading.shape(call.inputs[0]))
    mode = call.given.get("mode", "constant")
    if mode != "constant":
        raise refuse("a padding mode is not one we take", "constant", mode)
    if reading.opset < 11:
        pads, fill = tuple(call.given["pads"]), float(call.given.get("value", 0.0))
    else:
        pads, name = reading.integers(call.inputs[1]), call.optional(2)
        fill = 0.0 if name is None else scalar(reading, name)
    name = call.optional(3)
    if name is not None and name not in reading.stored:
        # ONNX Runtime counts the extents before it computes the axes.
        raise refuse("the axes of a padding are computed", "a stored constant", f"'{name}'")
    axes = range(rank) if name is None else axes_of(reading, reading.integers(name), rank)
    if len(pads) != 2 * len(axes) or not math.isfinite(fill):
        raise refuse("a padding is malformed", f"{2 * len(axes)} extents, finite fill", pads)
    before, after = [0] * rank, [0] * rank
    for place, axis in enumerate(axes):
        before[axis], after[axis] = pads[place], pads[place + len(axes)]
    layer = Pad(tuple(before), tuple(after), fill)
    return reading.add(call.name, layer, operand(reading, call))


def scalar(reading: Reading, name: str) -> float:
    array = reading.floats(name)
    if array.shape not in ((), (1,)):
        raise refuse(f"the constant '{name}' is not one number", "shape ()", array.shape)
    return float(array.reshape(()))


@operator("Add", "Sub", "Sum")
def _sum(reading: Reading, call: Call) -> Result:
    if computes_integers(reading, call):
        return integer_arithmetic(reading, call)
    signs = {"Add": (1, 1), "Sub": (1, -1)}.get(call.kind, (1,) * len(call.inputs))
    if call.kind == "Sum":
        _refuse_old_broadcast(reading, call)
    return reading.add(call.name, Sum(signs), *(reading.value(name) for name in call.inputs))


def _refuse_old_broadcast(reading: Reading, call: Call) -> None:
    shapes = {reading.shape(name) for name in call.inputs}
    if reading.opset < BROADCAST_MANY and len(shapes) > 1:
        raise refuse(f"a {call.kind} of this opset does not broadcast", "equal shapes", shapes)


@operator("Neg")
def _negate(reading: Reading, call: Call) -> Result:
    if computes_integers(reading, call):
        return integer_arithmetic(reading, call)
    return reading.add(call.name, Sum((-1,)), operand(reading, call))


@operator("MatMul")
def _matmul(reading: Reading, call: Call) -> Result:
    left, right = call.inputs
    if reading.is_constant(right) and reading.constant(right).ndim == 2:
        weight = reading.floats(right).T
        layer = Linear(weight, np.zeros(weight.shape[0]))
        return reading.add(call.name, layer, reading.value(left))
    rank = len(reading.shape(right))
    if reading.is_constant(left) and reading.constant(left).ndim == 2 and rank >= 2:
        weight = reading.floats(left)
        swap = Transpose((*range(rank - 2), rank - 1, rank - 2))
        turned = reading.add(call.name, swap, reading.value(right))
        turned = reading.add(call.name, Linear(weight, np.zeros(weight.shape[0])), turned)
        return reading.add(call.name, swap, turned)
    if not reading.is_constant(left) and not reading.is_constant(right):
        return reading.add(call.name, MatrixProduct(), reading.value(left), reading.value(right))
    raise refuse(
        "a matrix product is not one of two activations, or with a constant matrix",
        "a constant operand of rank 2, or none",
        f"shapes {reading.shape(left)} and {reading.shape(right)}",
    )


@operator("Gemm")
def _gemm(reading: Reading, call: Call) -> Result:
    given, name = call.given, call.name
    shapes = [reading.shape(operand) for operand in call.inputs[:2]]
    if any(len(shape) != 2 for shape in shapes):
        raise refuse("a Gemm's operands are not matrices", "two axes each", shapes)
    value = operand(reading, call)
    if given.get("transA", 0):
        value = reading.add(name, Transpose((1, 0)), value)
    weight = reading.floats(call.inputs[1])
    weight = weight if given.get("transB", 0) else weight.T
    alpha, beta = float(given.get("alpha", 1.0)), float(given.get("beta", 1.0))
    if not math.isfinite(alpha) or not math.isfinite(beta):
        raise refuse("a Gemm's factors are not numbers", "finite alpha and beta", (alpha, beta))
    if alpha != 1.0:
        value = reading.add(name, Scale(np.asarray(alpha)), value)
    offset = call.optional(2)
    after = (reading.builder.shape(value)[0], weight.shape[0])
    if offset is not None and broadcast(after, reading.shape(offset)) != after:
        raise refuse("a Gemm's bias does not fit", f"one of {after}", reading.shape(offset))
    bias = np.zeros(weight.shape[0])
    if offset is not None and beta == 1.0 and reading.is_constant(offset):
        stored = reading.floats(offset)
        if stored.ndim <= 1:
            bias, offset = np.broadcast_to(stored, bias.shape), None
    value = reading.add(name, Linear(weight, bias), value)
    if offset is None:
        return value
    shift = reading.value(offset)
    if beta != 1.0:
        shift = reading.add(name, Scale(np.asarray(beta)), shift)
    return reading.add(name, Sum((1, 1)), value, shift)


def _window(given: dict[str, Any], spatial: Shape, kernel: tuple[int, ...]) -> Window:
    rank = len(kernel)
    pads = tuple(given.get("pads", (0,) * (2 * rank)))
    window = Window(
        kernel=kernel,
        stride=tuple(given.get("strides", (1,) * rank)),
        before=pads[:rank],
        after=pads[rank:],
        dilation=tuple(given.get("dilations", (1,) * rank)),
        ceil=bool(given.get("ceil_mode", 0)),
    )
    mode = given.get("auto_pad", "NOTSET")
    if mode == "NOTSET":
        return window
    if any(pads):
        raise refuse("a padding is given twice", "pads or auto_pad", f"{pads} and {mode}")
    if mode == "VALID":
        return window
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        raise refuse("an auto_pad is not one we take", "VALID or SAME", mode)
    if any(d != 1 for d in window.dilation):
        raise refuse("a dilated window's padding is left open", "explicit pads", mode)
    before, after = same_padding(spatial, window, upper=mode == "SAME_UPPER")
    return Window(window.kernel, window.stride, before, after, window.dilation, window.ceil)


def _spatial(reading: Reading, call: Call) -> Shape:
    shape = reading.shape(call.inputs[0])
    if not 3 <= len(shape) <= MOST_AXES:
        raise refuse(f"a {call.kind} of so many axes", f"3 to {MOST_AXES} axes", shape)
    return shape[2:]


@operator(*Convolution.onnx)
def _convolution(reading: Reading, call: Call) -> Result:
    weight = reading.floats(call.inputs[1])
    name = call.optional(2)
    bias = np.zeros(weight.shape[0]) if name is None else reading.floats(name)
    spatial = _spatial(reading, call)
    kernel = tuple(call.given.get("kernel_shape", weight.shape[2:]))
    mode = call.given.get("auto_pad", "NOTSET")
    if mode != "NOTSET" and "pads" in call.given:  # ONNX Runtime refuses zeros too
        raise refuse("a padding is given twice", "pads or auto_pad", f"both, {mode}")
    window = _window(call.given, spatial, kernel)
    layer = Convolution(weight, bias, window, int(call.given.get("group", 1)))
    return reading.add(call.name, layer, operand(reading, call))


@operator("AveragePool", "MaxPool")
def _pool(reading: Reading, call: Call) -> Result:
    given, spatial = call.given, _spatial(reading, call)
    kernel = tuple(given["kernel_shape"])
    window = _window(given, spatial, kernel)
    if any(p >= k for side in (window.before, window.after) for p, k in zip(side, kernel)):
        found = f"{window.before} and {window.after}"
        raise refuse("a pooling layer has too much padding", f"less than {kernel}", found)
    if given.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        # Readers differ: ONNX Runtime rounds up by a rule of its own.
        small = any(k < s for k, s in zip(kernel, window.stride, strict=True))
        if small or window.ceil:
            raise refuse(
                "a pooling layer's padding is left open where readers differ",
                "explicit pads with ceil_mode, or with a kernel smaller than its stride",
                given["auto_pad"],
            )
    if window.drops(spatial):
        raise refuse("a pooling layer's last window is beyond its input", "explicit pads", window)
    if call.kind == "MaxPool":
        return reading.add(call.name, MaxPool(window), operand(reading, call))
    layer = AveragePool(window, bool(given.get("count_include_pad", 0)))
    return reading.add(call.name, layer, operand(reading, call))


@operator("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(reading: Reading, call: Call) -> Result:
    spatial = _spatial(reading, call)
    ones, zeros = (1,) * len(spatial), (0,) * len(spatial)
    window = Window(spatial, ones, zeros, zeros, ones)
    layer = AveragePool(window) if call.kind == "GlobalAveragePool" else MaxPool(window)
    return reading.add(call.name, layer, operand(reading, call))


@operator(*Mean.onnx)
def _reduce(reading: Reading, call: Call) -> Result:
    rank = len(reading.shape(call.inputs[0]))
    places = axes_of(reading, given_axes(reading, call) or (), rank)
    if not places and not call.given.get("noop_with_empty_axes", 0):
        places = tuple(range(rank))
    layer = Mean(places, bool(call.given.get("keepdims", 1)), divide=call.kind == "ReduceMean")
    return reading.add(call.name, layer, operand(reading, call))


@operator(*BatchNorm.onnx)
def _batch_norm(reading: Reading, call: Call) -> Result:
    if call.given.get("training_mode", 0):
        raise refuse("a batch norm is in training mode", "inference mode", "training_mode = 1")
    if call.given.get("spatial", 1) != 1:
        raise refuse("a batch norm has a mean for each place", "one a channel", "spatial = 0")
    kinds = {reading.types[name] for name in call.inputs}
    if len(kinds) != 1:
        raise refuse("a batch norm mixes types", "one type", sorted(kinds))
    gain, shift, mean, variance = (reading.floats(name) for name in call.inputs[1:])
    # The attribute is a float32; ONNX's default 1e-5 is too.
    epsilon = float(np.float32(call.given.get("epsilon", 1e-5)))
    layer = BatchNorm(gain, shift, mean, variance, epsilon)
    return reading.add(call.name, layer, operand(reading, call))


_PLAIN = {name: r() for r in ACTIVATIONS.values() if not r.has_settings for name in r.onnx}


@operator(*_PLAIN)
def _entrywise(reading: Reading, call: Call) -> Result:
    """Activations without settings, under their own names."""
    return reading.add(call.name, Apply(_PLAIN[call.kind]), operand(reading, call))


@operator(*Gelu.onnx)
def _gelu(reading: Reading, call: Call) -> Result:
    approximate = call.given.get("approximate", "none")
    if approximate != "none":
        raise refuse("a GELU is approximated", "approximate = none", approximate)
    return reading.add(call.name, Apply(Gelu()), operand(reading, call))


@operator(*LeakyRelu.onnx, *ParametricRelu.onnx)
def _leaky_relu(reading: Reading, call: Call) -> Result:
    if call.kind == "PRelu":
        slope, shape = reading.floats(call.inputs[1]), reading.shape(call.inputs[0])
        if broadcast(shape, slope.shape) != shape:
            raise refuse("a slope does not fit its tensor", str(shape), slope.shape)
    else:
        slope = np.asarray(np.float32(call.given.get("alpha", 0.01)), dtype=np.float64)
    if not np.all(np.isfinite(slope)):
        raise refuse("a slope is not a number", "finite slopes", "NaN or infinity")
    layer = ParametricRelu(slope) if slope.size > 1 else Apply(LeakyRelu(float(slope.reshape(()))))
    return reading.add(call.name, layer, operand(reading, call))


@operator(*Clip.onnx)
def _clip(reading: Reading, call: Call) -> Result:
    def end(position: int, key: str, default: float) -> float:
        if key in call.given:
            return float(call.given[key])
        name = call.optional(position)
        return default if name is None else scalar(reading, name)

    low, high = end(1, "min", -math.inf), end(2, "max", math.inf)
    if not low <= high or low == math.inf or high == -math.inf:
        raise refuse("a clip has no room", "a lower end below the upper", f"[{low}, {high}]")
    return reading.add(call.name, Apply(clip(low, high)), operand(reading, call))


@operator(*Extremum.onnx)
def _extremum(reading: Reading, call: Call) -> Result:
    _refuse_old_broadcast(reading, call)
    layer = Extremum(1 if call.kind == "Max" else -1)
    value = operand(reading, call)
    for name in call.inputs[1:]:
        value = reading.add(call.name, layer, value, reading.value(name))
    return value
