"""``|z|``."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from qll.networks.activations.base import ACTIVATIONS, Convex, PiecewiseLinear

if TYPE_CHECKING:
    from torch import Tensor


@ACTIVATIONS.register("abs")
@dataclass(frozen=True)
class Abs(Convex, PiecewiseLinear):
    name = "abs"
    onnx = ("Abs",)
    in_torch = ("abs", "Tensor.abs")
    bends = (0.0,)
    pieces = (-1.0, 1.0)
    turns = (0.0,)

    def apply(self, z: Tensor) -> Tensor:
        return z.abs()

    def exact(self, z: Fraction) -> Fraction:
        return abs(z)
