"""A tensor times and over constants."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qll.networks.entries import Form, Scaled
from qll.networks.layers.base import Layer, Range, Shape, multiplied, outward, positions
from qll.networks.matrices import Array, broadcast, diagonal, selection
from qll.networks.program import ProgramBuilder


@dataclass(frozen=True, eq=False)
class Scale(Layer):
    """``x * factor / divisor`` with constants, broadcast."""

    onnx = ("Mul", "Div")
    in_torch = ("mul", "Tensor.mul", "div", "Tensor.div")

    factor: Array
    divisor: Array | None = None

    def shape(self, *operands: Shape) -> Shape:
        divisor = () if self.divisor is None else self.divisor.shape
        return broadcast(operands[0], self.factor.shape, divisor)

    def lower(self, builder: ProgramBuilder, values: list[int], shapes: list[Shape]) -> int:
        target = self.shape(shapes[0])
        flat = np.broadcast_to(positions(shapes[0]), target).reshape(-1)
        factor = np.broadcast_to(self.factor, target).reshape(-1)
        matrix = diagonal(factor) @ selection(flat, builder.widths[values[0]])
        divisor = None
        if self.divisor is not None:
            divisor = np.ascontiguousarray(np.broadcast_to(self.divisor, target)).reshape(-1)
        return builder.affine([(values[0], matrix.tocsr())], divisor=divisor)

    def form(self, shapes: list[Shape]) -> Form:
        factor = self.factor if self.divisor is None else self.factor / self.divisor
        return Scaled(factor, np.zeros(()))

    def range(self, ranges: list[Range], shapes: list[Shape]) -> Range:
        divisor = np.ones(()) if self.divisor is None else self.divisor
        factor = self.factor / divisor
        return multiplied(ranges[0], outward(float(factor.min()), float(factor.max())))
