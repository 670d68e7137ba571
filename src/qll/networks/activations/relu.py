"""``max(z, 0)``."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qll.late import late
from qll.networks.activations.base import ACTIVATIONS, Array, Convex, Line, PiecewiseLinear

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = late("torch")


@ACTIVATIONS.register("relu")
@dataclass(frozen=True)
class Relu(Convex, PiecewiseLinear):
    name = "relu"
    onnx = ("Relu",)
    in_torch = ("nn.ReLU", "relu", "nn.functional.relu", "Tensor.relu", "Tensor.relu_")
    bends = (0.0,)
    pieces = (0.0, 1.0)

    def apply(self, z: Tensor) -> Tensor:
        return torch.relu(z)

    def value(self, z: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(np.maximum(z, 0))

    def gradient(self, z: NDArray[Any]) -> NDArray[Any]:
        return z > 0

    def exact(self, z: Fraction) -> Fraction:
        return max(z, Fraction(0))

    def enclose(self, low: Array, high: Array) -> tuple[Array, Array]:
        return np.maximum(low, 0.0), np.maximum(high, 0.0)

    def image(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        return low.clamp(min=0), high.clamp(min=0)

    def image_error(self, low: Tensor, high: Tensor) -> Tensor:
        return torch.zeros_like(low)

    def line_error(self, low: Tensor, high: Tensor) -> Tensor:
        """That of the chord; everything else is exact."""
        return torch.where((low < 0) & (high > 0), high, torch.zeros_like(high))

    def is_linear(self, low: Tensor, high: Tensor) -> Tensor:
        return ~((low < 0) & (high > 0))

    def start(self, low: Tensor, high: Tensor) -> Tensor:
        """CROWN's choice: the identity where the positive side is larger, else 0."""
        return (high > -low).to(low.dtype)

    def lower_line(self, low: Tensor, high: Tensor, alpha: Tensor) -> Line:
        off = high <= 0
        on = (low >= 0) & ~off
        zero, one = torch.zeros_like(low), torch.ones_like(low)
        return torch.where(off, zero, torch.where(on, one, alpha)), zero

    def upper_line(self, low: Tensor, high: Tensor, alpha: Tensor) -> Line:
        off = high <= 0
        on = (low >= 0) & ~off
        zero, one = torch.zeros_like(low), torch.ones_like(low)
        slope = torch.where(off | on, one, high) / torch.where(off | on, one, high - low)
        chord = torch.where(off, zero, slope)
        return chord, torch.where(off | on, zero, -chord * low)


RELU = Relu()
