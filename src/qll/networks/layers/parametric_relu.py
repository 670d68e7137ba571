"""A leaky ReLU with a slope for each entry."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qll.networks.entries import Form, Leaky
from qll.networks.layers.base import Layer, Shape, misfit
from qll.networks.matrices import Array, broadcast, diagonal
from qll.networks.program import ProgramBuilder


@dataclass(frozen=True, eq=False)
class ParametricRelu(Layer):
    """``slope * x + relu(x) - slope * relu(x)``, a slope for each entry, broadcast."""

    onnx = ("PRelu",)
    in_torch = ("nn.PReLU", "nn.functional.prelu")

    slope: Array

    def shape(self, *operands: Shape) -> Shape:
        if broadcast(operands[0], self.slope.shape) != operands[0]:
            raise misfit("a slope does not fit its tensor", str(operands[0]), self.slope.shape)
        return operands[0]

    def lower(self, builder: ProgramBuilder, values: list[int], shapes: list[Shape]) -> int:
        slope = diagonal(np.broadcast_to(self.slope, shapes[0]).reshape(-1))
        bent = builder.rectify(values[0])
        # 1 - slope is not always a float: two terms keep the stored slope exact.
        return builder.affine([(values[0], slope), (bent, builder.identity(bent)), (bent, -slope)])

    def form(self, shapes: list[Shape]) -> Form:
        return Leaky(self.slope)
