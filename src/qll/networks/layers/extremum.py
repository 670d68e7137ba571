"""The larger or the lesser of two tensors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qll.networks.entries import Form, Largest
from qll.networks.layers.base import Layer, Range, Shape, positions, spread_entries
from qll.networks.matrices import broadcast, selection
from qll.networks.program import ProgramBuilder


@dataclass(frozen=True)
class Extremum(Layer):
    """Entry-wise maximum (``sign`` 1) or minimum (-1) of two tensors, broadcast."""

    onnx = ("Max", "Min")
    in_torch = ("maximum", "max", "minimum", "min")

    sign: int

    def shape(self, *operands: Shape) -> Shape:
        left, right = operands
        return broadcast(left, right)

    def lower(self, builder: ProgramBuilder, values: list[int], shapes: list[Shape]) -> int:
        target = broadcast(*shapes)
        left, right = (
            selection(np.broadcast_to(positions(shape), target).reshape(-1), builder.widths[value])
            for value, shape in zip(values, shapes, strict=True)
        )
        # max(a, b) = b + relu(a - b), min(a, b) = b - relu(b - a)
        gap = builder.affine([(values[0], self.sign * left), (values[1], -self.sign * right)])
        gain = builder.rectify(gap)
        return builder.affine([(values[1], right), (gain, self.sign * builder.identity(gain))])

    def form(self, shapes: list[Shape]) -> Form:
        return Largest(spread_entries(shapes), self.sign)

    def range(self, ranges: list[Range], shapes: list[Shape]) -> Range:
        (low, high), (low2, high2) = ranges
        end = max if self.sign > 0 else min
        return end(low, low2), end(high, high2)
