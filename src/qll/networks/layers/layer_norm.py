"""Normalisation of each tensor by its own mean and deviation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qll.networks.activations.power import Power
from qll.networks.activations.square import SQUARE
from qll.networks.layers.apply import Apply
from qll.networks.layers.base import Composite, Part, Shape, misfit
from qll.networks.layers.constant import Constant
from qll.networks.layers.mean import Mean
from qll.networks.layers.product import Product
from qll.networks.layers.scale import Scale
from qll.networks.layers.sum import Sum
from qll.networks.matrices import Array, broadcast


@dataclass(frozen=True, eq=False)
class LayerNorm(Composite):
    """``gain (x - mean) / sqrt(variance + epsilon) + shift`` over the last ``axes`` axes; ``gain``
    and ``shift`` are of their shape."""

    onnx = ("LayerNormalization",)
    in_torch = ("nn.LayerNorm", "nn.functional.layer_norm")

    axes: int
    gain: Array
    shift: Array
    epsilon: float

    def shape(self, *operands: Shape) -> Shape:
        (operand,) = operands
        fits = 0 < self.axes <= len(operand)
        last = operand[len(operand) - self.axes :]
        parts = (self.gain.shape, self.shift.shape)
        if not fits or any(broadcast(last, part) != last for part in parts):
            raise misfit("a normalisation does not fit its tensor", str(operand), parts)
        if not 0.0 < self.epsilon < float("inf"):
            raise misfit("a normalisation may divide by 0", "an epsilon above 0", self.epsilon)
        return operand

    def parts(self, shapes: list[Shape]) -> list[Part]:
        last = tuple(range(-self.axes, 0))
        return [
            (Mean(last, keep=True), (0,)),
            (Sum((1, -1)), (0, 1)),
            (Apply(SQUARE), (2,)),
            (Mean(last, keep=True), (3,)),
            (Constant(np.asarray(self.epsilon)), ()),
            (Sum((1, 1)), (4, 5)),
            (Apply(Power(-0.5, self.epsilon)), (6,)),
            (Product(), (2, 7)),
            (Scale(self.gain), (8,)),
            (Constant(self.shift), ()),
            (Sum((1, 1)), (9, 10)),
        ]
