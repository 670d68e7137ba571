"""ONNX operators of several values: products, quotients, roots, Softmax, normalisations."""

from __future__ import annotations

import math

import numpy as np

from qll.networks.activations.exp import Exp
from qll.networks.activations.sigmoid import Sigmoid
from qll.networks.activations.silu import Silu
from qll.networks.activations.square import SQUARE
from qll.networks.divisors import inverse, root
from qll.networks.layers import Apply, Layer, LayerNorm, Mean, Product, Scale, Softmax
from qll.networks.onnx_constants import computes_integers, integer_arithmetic
from qll.networks.onnx_operators import axis_of, operand, scalar
from qll.networks.onnx_reading import Call, Reading, Result, operator, refuse

SOFTMAX_OF_AN_AXIS = 13  # before, all axes from the given one on were one


@operator(*Product.onnx)
def _scale(reading: Reading, call: Call) -> Result:
    if computes_integers(reading, call):
        return integer_arithmetic(reading, call)
    left, right = call.inputs
    if call.kind == "Mul" and reading.is_constant(left):
        left, right = right, left
    if not reading.is_constant(right):
        multiply = _multiply if call.kind == "Mul" else _divide
        return multiply(reading, call, left, right)
    constant = reading.floats(right)
    if call.kind == "Mul":
        return reading.add(call.name, Scale(constant), reading.value(left))
    if not np.all(constant):
        raise refuse("a tensor is divided by zero", "a divisor without zeros", f"'{right}'")
    return reading.add(call.name, Scale(np.ones(()), constant), reading.value(left))


def _multiply(reading: Reading, call: Call, left: str, right: str) -> int:
    a, b = reading.value(left), reading.value(right)
    if a == b:
        return reading.add(call.name, Apply(SQUARE), a)
    for value, share in ((a, b), (b, a)):  # x * sigmoid(x) is SiLU, written out
        node = reading.builder.nodes[share - 1] if share else None
        if node is not None and node.layer == Apply(Sigmoid()) and node.sources == (value,):
            return reading.add(call.name, Apply(Silu()), value)
    return reading.add(call.name, Product(), a, b)


def _divide(reading: Reading, call: Call, left: str, right: str) -> int:
    divisor = reading.value(right)
    if reading.is_constant(left):
        factor = Scale(reading.floats(left))
        return reading.add(call.name, factor, _inverse(reading, call, divisor))
    axis = _shared(reading, reading.value(left), divisor)
    if axis is not None:
        (logits,) = reading.builder.nodes[reading.value(left) - 1].sources
        return reading.add(call.name, Softmax(axis), logits)
    inverted = _inverse(reading, call, divisor)
    return reading.add(call.name, Product(), reading.value(left), inverted)


def _shared(reading: Reading, value: int, divisor: int) -> int | None:
    """The axis of a softmax that is written out: exponentials over their sum."""
    if not value or not divisor:
        return None
    own, total = (reading.builder.nodes[v - 1] for v in (value, divisor))
    summed = isinstance(total.layer, Mean) and total.layer.keep and not total.layer.divide
    if own.layer != Apply(Exp()) or not summed or total.sources != (value,):
        return None
    axes = total.layer.axes if isinstance(total.layer, Mean) else ()
    return axes[0] if len(axes) == 1 else None


def _inverse(reading: Reading, call: Call, value: int) -> int:
    return _chain(reading, call, inverse(reading.builder.range(value)), value)


def _chain(reading: Reading, call: Call, layers: list[Layer], value: int) -> int:
    for layer in layers:
        value = reading.add(call.name, layer, value)
    return value


@operator("Reciprocal")
def _reciprocal(reading: Reading, call: Call) -> Result:
    return _inverse(reading, call, operand(reading, call))


@operator("Sqrt")
def _root(reading: Reading, call: Call) -> Result:
    value = operand(reading, call)
    return _chain(reading, call, root(reading.builder.range(value)), value)


@operator("Pow")
def _power(reading: Reading, call: Call) -> Result:
    value, exponent = operand(reading, call), scalar(reading, call.inputs[1])
    if len(reading.shape(call.inputs[1])) > len(reading.builder.shape(value)):
        raise refuse("a power adds an axis", "an exponent of shape ()", "one of shape (1,)")
    known = reading.builder.range(value)
    if exponent == 2.0:
        return reading.add(call.name, Apply(SQUARE), value)
    if exponent == 1.0:
        return value
    if exponent == 0.5:
        return _chain(reading, call, root(known), value)
    if exponent == -1.0:
        return _inverse(reading, call, value)
    raise refuse("a power is not one we take", "an exponent of 2, 1, 0.5 or -1", exponent)


@operator(*Softmax.onnx)
def _softmax(reading: Reading, call: Call) -> Result:
    rank = len(reading.shape(call.inputs[0]))
    default = -1 if reading.opset >= SOFTMAX_OF_AN_AXIS else 1
    given = call.given.get("axis", default)
    if default == 1 and not -rank <= given < rank:
        raise refuse("an axis is not there", f"one of {rank}", given)
    axis = given % rank if default == 1 else axis_of(reading, given, rank)
    if default == 1 and axis != rank - 1:
        raise refuse("a softmax of this opset runs over several axes", "the last axis", given)
    return reading.add(call.name, Softmax(axis), operand(reading, call))


@operator(*LayerNorm.onnx)
def _layer_norm(reading: Reading, call: Call) -> Result:
    shape = reading.shape(call.inputs[0])
    first = axis_of(reading, call.given.get("axis", -1), len(shape))
    if call.given.get("stash_type", 1) != 1:
        raise refuse("a normalisation computes in another type", "stash_type = 1", "another")
    last = shape[first:]
    gain, name = reading.floats(call.inputs[1]), call.optional(2)
    shift = np.zeros(()) if name is None else reading.floats(name)
    if gain.shape != last or (name is not None and shift.shape != last):
        raise refuse("a normalisation's scale does not fit", f"shape {last}", gain.shape)
    epsilon = float(np.float32(call.given.get("epsilon", 1e-5)))
    if not math.isfinite(epsilon):
        raise refuse("a normalisation has no epsilon", "a number above 0", epsilon)
    return reading.add(
        call.name, LayerNorm(len(last), gain, shift, epsilon), operand(reading, call)
    )
