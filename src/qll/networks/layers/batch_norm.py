"""Batch normalisation with its running statistics."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from qll.networks.entries import Form, Scaled
from qll.networks.layers.base import Layer, Shape, misfit
from qll.networks.matrices import Array, diagonal
from qll.networks.program import ProgramBuilder


@dataclass(frozen=True, eq=False)
class BatchNorm(Layer):
    """``gain * (x - mean) / deviation + shift`` per channel, ``deviation = sqrt(variance + eps)``.

    The root is irrational: the layer is *defined* with the root rounded to float64 (relative error
    2^-53), and every reading, the exact one included, uses that same number.
    """

    onnx = ("BatchNormalization",)
    in_torch = ("nn.BatchNorm1d", "nn.BatchNorm2d")

    gain: Array
    shift: Array
    mean: Array
    variance: Array
    epsilon: float

    @cached_property
    def deviation(self) -> Array:
        with np.errstate(invalid="ignore"):
            root: Array = np.sqrt(self.variance + self.epsilon)
        if not np.all(root > 0) or not np.all(np.isfinite(root)):
            raise misfit(
                "a batch norm's variance is not positive",
                "variance + epsilon > 0",
                f"{float(np.min(self.variance))} + {self.epsilon}",
            )
        return root

    def shape(self, *operands: Shape) -> Shape:
        (operand,) = operands
        channels = {part.shape for part in (self.gain, self.shift, self.mean, self.deviation)}
        if len(operand) < 2 or operand[0] != 1 or channels != {(operand[1],)}:
            raise misfit("a batch norm does not fit its tensor", f"channels of {operand}", channels)
        return operand

    def lower(self, builder: ProgramBuilder, values: list[int], shapes: list[Shape]) -> int:
        def spread(part: Array) -> Array:
            return np.repeat(part, math.prod(shapes[0][2:]))

        # Three steps, because the products of the constants would be rounded.
        eye = builder.identity(values[0])
        centred = builder.affine([(values[0], eye)], -spread(self.mean))
        scaled = builder.affine(
            [(centred, diagonal(spread(self.gain)))], divisor=spread(self.deviation)
        )
        return builder.affine([(scaled, eye)], spread(self.shift))

    def form(self, shapes: list[Shape]) -> Form:
        by_channel = (1, -1, *(1,) * (len(shapes[0]) - 2))
        factor = self.gain / self.deviation
        shift = self.shift - self.mean * factor
        return Scaled(factor.reshape(by_channel), shift.reshape(by_channel))
