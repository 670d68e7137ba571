"""``z`` times the normal distribution's share below it (Hendrycks and Gimpel 2016), by erf."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from qll.late import late
from qll.networks.activations.base import ACTIVATIONS, Activation

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = late("torch")

# Where the derivative is 0; the inflections are where 2 = z^2.
_TURN = -0.7517915246935645


@ACTIVATIONS.register("gelu")
@dataclass(frozen=True)
class Gelu(Activation):
    name = "gelu"
    onnx = ("Gelu",)
    bends = (-math.sqrt(2.0), math.sqrt(2.0))
    turns = (_TURN,)

    def apply(self, z: Tensor) -> Tensor:
        return z * _below(z)

    def derivative(self, z: Tensor) -> Tensor:
        density = torch.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
        return _below(z) + z * density

    def kernel(self) -> tuple[Callable[..., None], tuple[float, ...]]:
        return _rows, ()


def _below(z: Tensor) -> Tensor:
    """The normal distribution function; by erfc, which keeps its digits far below 0."""
    return 0.5 * torch.erfc(z * -math.sqrt(0.5))


# erfc of Abramowitz and Stegun 7.1.26, within 1.5e-7.
_A = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
_P = 0.3275911 * math.sqrt(0.5)
_DENSITY = 1.0 / math.sqrt(2.0 * math.pi)


def _rows(z: Any, n: int, params: Any, value: Any, slope: Any) -> None:
    for i in range(n):
        x = z[i]
        bell = np.exp(-0.5 * x * x)
        t = 1.0 / (1.0 + _P * np.abs(x))
        tail = 0.5 * bell * t * (_A[0] + t * (_A[1] + t * (_A[2] + t * (_A[3] + t * _A[4]))))
        below = np.where(x < 0.0, tail, 1.0 - tail)
        value[i] = x * below
        slope[i] = below + x * bell * _DENSITY
