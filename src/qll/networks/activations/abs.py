"""``|z|``."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from qll.networks.activations.base import ACTIVATIONS, Convex, PiecewiseLinear


@ACTIVATIONS.register("abs")
@dataclass(frozen=True)
class Abs(Convex, PiecewiseLinear):
    name = "abs"
    onnx = ("Abs",)
    in_torch = (torch.abs, "abs")
    bends = (0.0,)
    pieces = (-1.0, 1.0)
    turns = (0.0,)

    def apply(self, z: Tensor) -> Tensor:
        return z.abs()

    def exact(self, z: Fraction) -> Fraction:
        return abs(z)
