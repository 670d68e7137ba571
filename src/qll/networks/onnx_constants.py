"""ONNX operators on constants: shapes, casts, and integers in arithmetic of their own type.

What a constant becomes is what ONNX Runtime makes of it, to the bit, or it is refused: integers
are cut towards zero by a division and do not overflow here. Floats are never computed here but
only moved; sums and products of theirs become layers, in real arithmetic.
"""

from __future__ import annotations

import math

import numpy as np

from qll.networks.layers import Reshape
from qll.networks.matrices import check_entries
from qll.networks.onnx_reading import Call, Reading, Result, operator, refuse
from qll.networks.onnx_tensors import TYPES, tensor_array, type_name

MAX_INTEGERS = 1 << 16  # entries of an integer constant that is computed: they are shapes
FLOAT_CODES = (1, 11)


@operator("Constant")
def _constant(reading: Reading, call: Call) -> Result:
    if len(call.given) != 1:
        raise refuse("a constant has not one value", "one attribute", sorted(call.given) or "none")
    ((name, value),) = call.given.items()
    if name == "value":
        return tensor_array(value, call.name)
    if name in ("value_float", "value_floats"):
        array = np.asarray(value, dtype=np.float32)
        if not np.all(np.isfinite(array)):
            raise refuse("a constant is not a number", "finite values", "NaN or infinity")
        return array
    if name in ("value_int", "value_ints"):
        return np.asarray(value, dtype=np.int64)
    raise refuse("a constant is of a kind we do not take", "a number or tensor", name)


@operator("ConstantOfShape")
def _constant_of_shape(reading: Reading, call: Call) -> Result:
    shape = reading.integers(call.inputs[0])
    if any(size < 0 for size in shape):
        raise refuse("a constant has a negative extent", "extents >= 0", shape)
    check_entries(math.prod(shape), "a constant")
    if "value" not in call.given:
        return np.zeros(shape, dtype=np.float32)
    value = tensor_array(call.given["value"], call.name)
    if value.shape != (1,):  # more axes are refused by ONNX Runtime
        raise refuse("a constant is filled with a tensor", "one number", f"shape {value.shape}")
    return np.full(shape, value.reshape(-1)[0])


@operator("Identity")
def identity(reading: Reading, call: Call) -> Result:
    name = call.inputs[0]
    if reading.is_constant(name):
        return reading.constant(name)
    source = reading.value(name)
    return reading.add(call.name, Reshape(reading.builder.shape(source)), source)


@operator("Dropout")
def _dropout(reading: Reading, call: Call) -> Result:
    # ONNX Runtime takes the ratio for the value where a node computes it.
    for name in filter(None, call.inputs[1:]):
        if name not in reading.stored:
            raise refuse("a dropout has computed options", "stored constants", f"'{name}'")
        shape = np.shape(reading.constant(name))
        if shape:
            raise refuse("an option of a dropout is a tensor", "one number", f"shape {shape}")
    mode = call.optional(2)
    if mode is not None and np.any(reading.constant(mode)):
        raise refuse("a dropout is in training mode", "inference mode", "training_mode = 1")
    return identity(reading, call)


@operator("Cast")
def _cast(reading: Reading, call: Call) -> Result:
    to = call.given["to"]
    if not reading.is_constant(call.inputs[0]):
        if to not in FLOAT_CODES:
            found = type_name(to)
            raise refuse("an activation is cast away from floats", "float32 or float64", found)
        return identity(reading, call)
    if to not in TYPES or TYPES[to][2] == "|b1":
        found = type_name(to)
        raise refuse("a constant is cast to a type we do not take", "float or integer", found)
    array, kind = reading.constant(call.inputs[0]), np.dtype(TYPES[to][2])
    if kind.kind == "i":
        ends = np.iinfo(kind)
        # As Python's numbers: the largest int64 is no float64.
        if any(not ends.min <= int(v) <= ends.max for v in array.reshape(-1)):
            raise refuse("a constant does not fit the type it is cast to", str(kind), call.name)
    with np.errstate(over="ignore"):
        cast = array.astype(kind)
    if kind.kind == "f" and not np.all(np.isfinite(cast)):
        raise refuse("a constant does not fit the type it is cast to", str(kind), call.name)
    return cast


@operator("Shape")
def _shape(reading: Reading, call: Call) -> Result:
    start, end = call.given.get("start", 0), call.given.get("end")
    return np.asarray(reading.shape(call.inputs[0])[start:end], dtype=np.int64)


@operator("Gather")
def _gather(reading: Reading, call: Call) -> Result:
    array, places = (reading.constant(name) for name in call.inputs)
    if not array.ndim:
        raise refuse("entries of a number are gathered", "a tensor with axes", "none")
    check_entries(array.size * max(places.size, 1), "a constant")
    return np.take(array, places, axis=call.given.get("axis", 0))


def computes_integers(reading: Reading, call: Call) -> bool:
    """ONNX gives all operands of arithmetic one type, so the first tells."""
    return reading.types[call.inputs[0]] in ("tensor(int32)", "tensor(int64)")


def integer_arithmetic(reading: Reading, call: Call) -> np.ndarray:
    arrays = [reading.constant(name) for name in call.inputs]
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    if math.prod(shape) > MAX_INTEGERS:
        raise refuse("too many integers are computed", f"{MAX_INTEGERS:,} at most", shape)
    ends = np.iinfo(arrays[0].dtype)
    operands = [np.broadcast_to(array, shape).reshape(-1).tolist() for array in arrays]
    found = [_compute(call.kind, *numbers) for numbers in zip(*operands, strict=True)]
    if not all(ends.min <= number <= ends.max for number in found):
        raise refuse("an integer overflows", f"numbers of type {arrays[0].dtype}", max(found))
    return np.array(found, dtype=arrays[0].dtype).reshape(shape)


def _compute(kind: str, first: int, *rest: int) -> int:
    match kind, rest:
        case "Neg", ():
            return -first
        case "Add", (second,):
            return first + second
        case "Sub", (second,):
            return first - second
        case "Mul", (second,):
            return first * second
        case "Div", (second,) if second:
            size = abs(first) // abs(second)
            return size if (first < 0) == (second < 0) else -size
        case "Div", _:
            raise refuse("an integer is divided by zero", "another divisor", f"{first} / 0")
    raise refuse("integers are computed in a way we do not take", "sums and products", kind)
