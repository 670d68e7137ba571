"""Operators of several values, out of curves of one: products, quotients, softmax, normalisation.

* ``a b = ((a + b)^2 - (a - b)^2) / 4``: the sums first, then the differences, in one layer.
  A product of matrices is one for each row, column and term, and their sums.
* ``softmax_i = 1 / (1 + sum over j != i of exp(x_j - x_i))``, of which the divisor is at least 1.
* ``(x - mean) / sqrt(variance + epsilon)`` is a product with the inverse root of what is at least
  epsilon.
* Any other divisor, and what a root is taken of, must lie above NEAREST on the whole region, by
  interval arithmetic; else nothing is confirmed.

In float32 nothing is known of these.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np

from qll.audit.curves import Curve, curve
from qll.audit.exact import Affine, diagonal
from qll.audit.onnx_file import Dims, Node, require
from qll.audit.operators import Value, reduced, spreads
from qll.audit.pace import room

KINDS = ("Softmax", "LayerNormalization", "Reciprocal", "Sqrt", "Pow", "ReduceMean", "ReduceSum")
NEAREST = 2.0**-60
MOST_PAIRS = 1 << 18  # of entries of a softmax, or terms of a matrix product


class Walk(Protocol):
    def activate(self, value: Value, bent: Curve | None) -> Value: ...


def is_composed(node: Node, given: list[Any]) -> bool:
    pair = node.kind in ("Mul", "Div", "MatMul") and isinstance(given[-1], Value)
    return node.kind in KINDS or (pair and (node.kind == "Div" or isinstance(given[0], Value)))


def composed(walk: Walk, node: Node, given: list[Any]) -> Value:
    kind, options, value = node.kind, node.options, given[0]
    some = next(g for g in given if isinstance(g, Value))
    require(some.rounded is None, f"a {kind} in float32")
    if kind == "Div":
        return _quotient(walk, *given)
    require(isinstance(value, Value), f"a constant that goes through {kind}")
    if kind == "Mul":
        same = node.inputs[0] == node.inputs[1]
        return walk.activate(value, curve("square")) if same else _product(walk, *given)
    if kind == "MatMul":
        return _matrices(walk, *given)
    if kind == "Softmax":
        return _softmax(walk, value, options.get("axis", -1))
    if kind == "LayerNormalization":
        return _normalised(walk, value, given[1:], options)
    if kind in ("ReduceMean", "ReduceSum"):
        axes = [int(a) for a in given[1].ravel()] if len(given) > 1 else options["axes"]
        keep = options.get("keepdims", 1)
        require(keep in (0, 1), "such a mean")
        return reduced(value, axes, bool(keep), kind == "ReduceMean")
    exponent = {"Reciprocal": -1.0, "Sqrt": 0.5}.get(kind)
    if exponent is None:
        require(given[1].shape in ((), (1,)), "such a power")
        exponent = float(given[1].reshape(()))
    if exponent == 2.0:
        return walk.activate(value, curve("square"))
    return walk.activate(value, curve("power", exponent, NEAREST, True))


def _product(walk: Walk, left: Value, right: Value) -> Value:
    shape = left.shape if spreads(right.shape, left.shape) else right.shape
    require(all(spreads(v.shape, shape) for v in (left, right)), "a product that does not fit")
    a, b = (v.moved(np.broadcast_to(v.places, shape)).form for v in (left, right))
    both = a.plus(b).joined(a.plus(b, -1))
    squares = walk.activate(Value(both, (1, len(both))), curve("square")).form
    count = len(a)
    less = squares.take(range(count)).plus(squares.take(range(count, 2 * count)), -1)
    return Value(Affine(less.rows, [4 * n for n in less.below]), shape)


def _matrices(walk: Walk, left: Value, right: Value) -> Value:
    """A product for each row, column and term, and their sums."""
    rank, lead = len(left.shape), left.shape[:-2]
    fine = rank == len(right.shape) > 2 and lead == right.shape[:-2]
    require(fine and left.shape[-1] == right.shape[-2], "a matrix product that does not fit")
    shape = (*lead, left.shape[-2], right.shape[-1], left.shape[-1])
    room(math.prod(shape) <= MOST_PAIRS, "a matrix product that is too large")
    a = left.moved(np.broadcast_to(left.places[..., :, None, :], shape))
    b = right.moved(np.broadcast_to(right.places.swapaxes(-1, -2)[..., None, :, :], shape))
    return reduced(_product(walk, a, b), [rank], False, False)


def _quotient(walk: Walk, left: Any, right: Value) -> Value:
    """The divisor's own sign is not tried: one that is negative is not confirmed."""
    inverse = walk.activate(right, curve("power", -1.0, NEAREST, True))
    if isinstance(left, Value):
        return _product(walk, left, inverse)
    require(spreads(left.shape, right.shape), "a quotient that does not fit")
    return _scaled(inverse, left, np.zeros(()))


def _scaled(value: Value, gain: Any, shift: Any) -> Value:
    wide, above = (np.broadcast_to(t, value.shape).ravel() for t in (gain, shift))
    step = diagonal(wide, above, np.ones(len(value.form)))
    return value._replace(form=step.after(value.form))


def _softmax(walk: Walk, value: Value, axis: int) -> Value:
    rank = len(value.shape)
    require(-rank <= axis < rank and axis % rank and value.shape[axis] > 1, "such a softmax")
    last = np.moveaxis(value.places, axis, -1)
    count = last.shape[-1]
    room(last.size * (count - 1) <= MOST_PAIRS, "a softmax that is too large")
    own = np.repeat(np.arange(count), count - 1)
    other = np.array([j for i in range(count) for j in range(count) if i != j])
    above = value.moved(last[..., other]).form.plus(value.moved(last[..., own]).form, -1)
    grown = walk.activate(Value(above, (1, len(above))), curve("exp")).form
    total = Affine([{-1: 1} for _ in range(last.size)], [1] * last.size)
    for rival in range(count - 1):
        total = total.plus(grown.take(range(rival, len(grown), count - 1)))
    shares = walk.activate(Value(total, last.shape), curve("power", -1.0, 1.0))
    return shares.moved(np.moveaxis(shares.places, -1, axis))


def _normalised(walk: Walk, value: Value, given: list[Any], options: dict[str, Any]) -> Value:
    axis, rank = options.get("axis", -1), len(value.shape)
    require(-rank <= axis < rank and axis % rank, "such a normalisation")
    last: Dims = value.shape[axis % rank :]
    fine = all(g.shape == last for g in given) and options.get("stash_type", 1) == 1
    epsilon = options.get("epsilon", float(np.float32(1e-5)))
    require(fine and NEAREST < epsilon < math.inf, "a normalisation that does not fit")
    axes = [*range(axis % rank, rank)]
    mean = reduced(value, axes, True, True)
    wide = np.broadcast_to(mean.places, value.shape)
    centred = value._replace(form=value.form.plus(mean.moved(wide).form, -1))
    variance = reduced(walk.activate(centred, curve("square")), axes, True, True)
    variance = _scaled(variance, np.ones(()), np.full((), epsilon))
    inverse = walk.activate(variance, curve("power", -0.5, epsilon))
    shift = given[1] if len(given) > 1 else np.zeros(())
    return _scaled(_product(walk, centred, inverse), given[0], shift)
