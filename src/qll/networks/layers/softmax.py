"""Shares of exponentials."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from qll.networks.activations.exp import Exp
from qll.networks.activations.power import Power
from qll.networks.entries import Combined, Form
from qll.networks.layers.apply import Apply
from qll.networks.layers.base import (
    Composite,
    Indices,
    Layer,
    Part,
    Range,
    Shape,
    misfit,
    positions,
)
from qll.networks.layers.constant import Constant
from qll.networks.layers.mean import Mean
from qll.networks.layers.sum import Sum
from qll.networks.layers.transpose import Transpose
from qll.networks.matrices import check_entries, selection
from qll.networks.program import ProgramBuilder


@dataclass(frozen=True)
class Softmax(Composite):
    """``1 / (1 + sum over j != i of exp(x_j - x_i))``, over one axis.

    The same as ``exp(x_i) / sum exp(x_j)`` without a product of two values: of curves alone, of
    differences, in which what moves all logits alike cancels, and of a divisor that is never below
    1. It takes n (n - 1) exponentials instead of n."""

    onnx = ("Softmax",)
    in_torch = ("nn.Softmax", "softmax", "nn.functional.softmax", "Tensor.softmax")

    axis: int

    def shape(self, *operands: Shape) -> Shape:
        (operand,) = operands
        _axis(self.axis, operand)
        return operand

    def parts(self, shapes: list[Shape]) -> list[Part]:
        (shape,) = shapes
        axis, rank = _axis(self.axis, shape), len(shape)
        one: Part = (Constant(np.ones(())), ())
        if shape[axis] == 1:
            return [
                (Sum((1, -1)), (0, 0)),
                one,
                (Sum((1, 1)), (1, 2)),
            ]
        order = [place for place in range(rank) if place != axis]
        back = tuple([*order, axis].index(place) for place in range(rank))
        return [
            (Rivals(axis), (0,)),
            (Apply(Exp()), (1,)),
            (Mean((rank,), keep=False, divide=False), (2,)),
            one,
            (Sum((1, 1)), (3, 4)),
            (Apply(Power(-1.0, 1.0)), (5,)),
            (Transpose(back), (6,)),
        ]

    def range(self, ranges: list[Range], shapes: list[Shape]) -> Range:
        return (0.0, 1.0)

    def keeps_order(self, shape: Shape) -> bool:
        return math.prod(shape) == shape[self.axis]  # one sum for all


@dataclass(frozen=True)
class Rivals(Layer):
    """How far each other entry along the axis lies above each: (the other axes, n, n - 1)."""

    axis: int

    def shape(self, *operands: Shape) -> Shape:
        (operand,) = operands
        count = operand[self.axis]
        rest = tuple(s for place, s in enumerate(operand) if place != self.axis)
        return (*rest, count, count - 1)

    def _entries(self, shape: Shape) -> tuple[Indices, Indices]:
        """Of all differences: the entry, and the one that it is taken from."""
        count = shape[self.axis]
        check_entries(int(np.prod(shape)) * (count - 1), "a softmax")
        last = np.moveaxis(positions(shape), self.axis, -1)
        own, other = np.divmod(np.arange(count * (count - 1)), count - 1)
        other = other + (other >= own)
        return last[..., other].reshape(-1), last[..., own].reshape(-1)

    def lower(self, builder: ProgramBuilder, values: list[int], shapes: list[Shape]) -> int:
        width = builder.widths[values[0]]
        other, own = (selection(taken, width) for taken in self._entries(shapes[0]))
        return builder.affine([(values[0], (other - own).tocsr())])

    def form(self, shapes: list[Shape]) -> Form:
        entries = np.stack(self._entries(shapes[0]), axis=1)
        return Combined(entries, np.tile([1.0, -1.0], (len(entries), 1)))


def _axis(axis: int, shape: Shape) -> int:
    if not -len(shape) <= axis < len(shape):
        raise misfit("a softmax runs over an axis that is not there", str(shape), axis)
    return axis % len(shape)
