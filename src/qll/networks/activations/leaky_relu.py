"""``z`` where it is positive, a fraction of it elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from qll.late import late
from qll.networks.activations.base import ACTIVATIONS, PiecewiseLinear

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = late("torch")


@ACTIVATIONS.register("leaky-relu")
@dataclass(frozen=True)
class LeakyRelu(PiecewiseLinear):
    slope: float = 0.01

    name = "leaky-relu"
    onnx = ("LeakyRelu",)
    has_settings = True
    bends = (0.0,)

    @property
    def pieces(self) -> tuple[float, ...]:
        return (self.slope, 1.0)

    @property
    def turns(self) -> tuple[float, ...]:
        return (0.0,) if self.slope < 0 else ()

    def apply(self, z: Tensor) -> Tensor:
        return torch.where(z >= 0, z, self.slope * z)

    def exact(self, z: Fraction) -> Fraction:
        return z if z >= 0 else Fraction(self.slope) * z
