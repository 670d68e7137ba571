"""Mean and deviation taken off the input."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qll.networks.entries import Form, Scaled
from qll.networks.layers.base import Layer, Shape, misfit
from qll.networks.matrices import Array, broadcast
from qll.networks.program import ProgramBuilder


@dataclass(frozen=True, eq=False)
class Normalise(Layer):
    """``(x - mean) / std``; both spread over the whole tensor, batch axis aside."""

    mean: Array
    std: Array

    def shape(self, *operands: Shape) -> Shape:
        (operand,) = operands
        if broadcast(operand, self.mean.shape, self.std.shape) != operand:
            raise misfit("a normalisation does not fit its tensor", str(operand), self.mean.shape)
        return operand

    def lower(self, builder: ProgramBuilder, values: list[int], shapes: list[Shape]) -> int:
        mean = np.broadcast_to(self.mean, shapes[0]).reshape(-1)
        std = np.broadcast_to(self.std, shapes[0]).reshape(-1)
        term = (values[0], builder.identity(values[0]))
        return builder.affine([term], -mean, divisor=np.ascontiguousarray(std))

    def form(self, shapes: list[Shape]) -> Form:
        return Scaled(1.0 / self.std, -self.mean / self.std)
