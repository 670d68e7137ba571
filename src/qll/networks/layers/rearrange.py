"""What only moves entries."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from qll.networks.entries import Form, Moved
from qll.networks.layers.base import Indices, Layer, Range, Shape
from qll.networks.matrices import selection
from qll.networks.program import ProgramBuilder


class Rearrange(Layer):
    """Layers whose every output entry is one input entry, or a fill value."""

    fill: float = 0.0

    @abstractmethod
    def indices(self, operand: Shape) -> Indices:
        """The output's shape, filled with flat input positions; -1 takes the fill value."""

    def shape(self, *operands: Shape) -> Shape:
        (operand,) = operands
        return self.indices(operand).shape

    def lower(self, builder: ProgramBuilder, values: list[int], shapes: list[Shape]) -> int:
        flat = self.indices(shapes[0]).reshape(-1)
        bias = np.where(flat < 0, self.fill, 0.0)
        return builder.affine([(values[0], selection(flat, builder.widths[values[0]]))], bias)

    def form(self, shapes: list[Shape]) -> Form:
        return Moved(self.indices(shapes[0]).reshape(-1), self.fill)

    def range(self, ranges: list[Range], shapes: list[Shape]) -> Range:
        low, high = ranges[0]
        if (self.indices(shapes[0]) < 0).any():
            return min(low, self.fill), max(high, self.fill)
        return low, high
