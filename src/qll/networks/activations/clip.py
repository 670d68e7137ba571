"""``z`` kept between two ends: ReLU6, HardTanh."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qll.errors import NetworkError
from qll.networks.activations.base import ACTIVATIONS, Array, PiecewiseLinear

if TYPE_CHECKING:
    from torch import Tensor


def clip(lower: float, upper: float) -> Clip:
    """A clip whose ends are in order."""
    if not lower <= upper:
        raise NetworkError(
            "a clip has no room",
            expected="a lower end that is not above the upper one",
            found=f"{lower} and {upper}",
            fix="check the layer's ends",
        )
    return Clip(lower, upper)


@ACTIVATIONS.register("clip")
@dataclass(frozen=True)
class Clip(PiecewiseLinear):
    """Either end may be infinite."""

    lower: float = -1.0
    upper: float = 1.0

    name = "clip"
    onnx = ("Clip",)
    has_settings = True

    @property
    def bends(self) -> tuple[float, ...]:
        return tuple(end for end in (self.lower, self.upper) if math.isfinite(end))

    @property
    def pieces(self) -> tuple[float, ...]:
        before = (0.0,) if math.isfinite(self.lower) else ()
        after = (0.0,) if math.isfinite(self.upper) else ()
        return (*before, 1.0, *after)

    def apply(self, z: Tensor) -> Tensor:
        return z.clamp(self.lower, self.upper)

    def value(self, z: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(np.clip(z, self.lower, self.upper))

    def enclose(self, low: Array, high: Array) -> tuple[Array, Array]:
        return self.value(low), self.value(high)

    def exact(self, z: Fraction) -> Fraction:
        above = Fraction(self.lower) if math.isfinite(self.lower) and z < self.lower else z
        return Fraction(self.upper) if math.isfinite(self.upper) and z > self.upper else above
