"""Steps of random graphs that make products, quotients, Softmax and normalisations."""

from __future__ import annotations

import numpy as np
from graph_cases import Maker, Shape, reduce


def fitting(m: Maker, shape: Shape) -> Shape:
    """A shape that broadcasts to this one, rarely one that does not or makes it larger."""
    sizes = [size if m.chance(0.7) else 1 for size in shape[m.rng.randint(0, len(shape)) :]]
    if m.odd():
        sizes = [m.rng.randint(1, 3), *sizes]
    return tuple(sizes)


def product(m: Maker, x: str, shape: Shape) -> str | None:
    """Of two values, of which one may be a mean that is spread again."""
    other = m.add(m.pick("Sigmoid", "Relu", "Neg", "Identity"), [x])
    if m.chance(0.3) and len(shape) > 1:
        other = reduce(m, m.pick("ReduceMean", "ReduceSum"), other, [len(shape) - 1], 1)
    pair = [x if m.chance(0.8) else other, other]
    m.rng.shuffle(pair)
    return m.add("Mul", pair)


def matrices(m: Maker, x: str, shape: Shape) -> str | None:
    """A product of a value with another of it, turned."""
    rank = len(shape)
    if rank < 2 and not m.odd():
        return None
    order = [*range(rank - 2), rank - 1, rank - 2] if rank > 1 else [0]
    other = m.add("Transpose", [m.add(m.pick("Relu", "Identity", "Sigmoid"), [x])], perm=order)
    return m.add("MatMul", [x, other if not m.odd() else x])


def quotient(m: Maker, x: str, shape: Shape) -> str | None:
    """Over what stays away from 0, mostly."""
    below = m.add("Mul", [x, x]) if m.chance(0.5) else m.add("Exp", [x])
    if m.chance(0.9):
        offset = np.abs(m.numbers(*fitting(m, shape))) + (0 if m.odd() else 0.5)
        below = m.add("Add", [below, m.constant(offset.astype(m.dtype))])
    if m.chance(0.2):
        below = m.add("Neg", [below])
    kind = m.pick("Reciprocal", "Sqrt", "Div", "Div", "Pow")
    if kind == "Div":
        above = x if m.chance(0.7) else m.constant(m.numbers(*fitting(m, shape)))
        return m.add("Div", [above, below])
    if kind == "Pow":
        return power(m, below, shape)
    return m.add(kind, [below])


def power(m: Maker, x: str, shape: Shape) -> str | None:
    exponent = m.pick(2.0, 2.0, 2.0, 1.0, 0.5, -1.0, 3.0)
    sizes = m.pick((), (), (1,), (1, 1))
    return m.add("Pow", [x, m.constant(np.full(sizes, exponent, dtype=m.dtype))])


def softmax(m: Maker, x: str, shape: Shape) -> str | None:
    rank = len(shape)
    if m.chance(0.1):  # written out
        grown = m.add("Exp", [x])
        total = reduce(m, m.pick("ReduceSum", "ReduceSum", "ReduceMean"), grown, [rank - 1], 1)
        return m.add("Div", [grown, total])
    axis = m.pick(None, -1, rank - 1, m.rng.randrange(max(rank, 1)))
    if m.odd():
        axis = m.pick(rank, -rank - 1)
    return m.add("Softmax", [x], axis=axis if m.opset >= 11 or axis != -1 or m.odd() else None)


def layer_norm(m: Maker, x: str, shape: Shape) -> str | None:
    if (m.opset < 17 or not shape) and not m.odd():
        return None
    axis = m.pick(None, -1, m.rng.randrange(-len(shape), len(shape)) if shape else 0)
    last = shape[-1 if axis is None else axis :]
    inputs = [x, m.constant(m.numbers(*last))]
    if m.chance(0.6):
        inputs.append(m.constant(m.numbers(*((1,) if m.odd() else last))))
    epsilon, stash = m.pick(None, 1.0, 0.25, 0.0), m.pick(None, None, 1, 10 if m.odd() else 1)
    return m.add("LayerNormalization", inputs, axis=axis, epsilon=epsilon, stash_type=stash)
