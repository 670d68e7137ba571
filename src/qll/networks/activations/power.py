"""Square root, reciprocal, and the reciprocal of a root, of what is at least ``floor``.

Below the floor, which a value never is, the function goes on along its tangent there. So it has a
value everywhere, and is convex or concave on the whole line: a bound that reaches too far down is
a weaker bound and not a division by zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from qll.late import late
from qll.networks.activations.base import ACTIVATIONS, Activation, Array, Line

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = late("torch")

_ROOTS: dict[float, Callable[[Tensor], Tensor]] = {
    -1.0: lambda z: 1.0 / z,
    -0.5: lambda z: 1.0 / torch.sqrt(z),
    0.5: lambda z: torch.sqrt(z),
}


@ACTIVATIONS.register("power")
@dataclass(frozen=True)
class Power(Activation):
    exponent: float = -1.0
    floor: float = 1.0

    name = "power"
    onnx = ("Reciprocal", "Sqrt", "Pow")
    has_settings = True
    bends = ()

    def __post_init__(self) -> None:
        if self.exponent not in _ROOTS or not 0.0 < self.floor < float("inf"):
            raise ValueError(f"a power {self.exponent} of what is at least {self.floor}")

    def apply(self, z: Tensor) -> Tensor:
        p, floor = self.exponent, self.floor
        # Neither form loses digits: the second sums what has one sign, or is one subtraction.
        along = ((1.0 - p) * floor + p * z) * floor ** (p - 1.0)
        return torch.where(z >= floor, _ROOTS[p](z.clamp(min=floor)), along)

    def derivative(self, z: Tensor) -> Tensor:
        inside = z.clamp(min=self.floor)
        return self.exponent * _ROOTS[self.exponent](inside) / inside

    def kernel(self) -> tuple[Callable[..., None], tuple[float, ...]]:
        p, floor = self.exponent, self.floor
        return _rows, (floor, p, floor**p, p * floor ** (p - 1.0))

    def touching(self, slope: Tensor, low: Tensor, high: Tensor) -> list[Tensor]:
        rise = (slope / self.exponent).clamp(min=1e-300)
        return [(rise ** (1.0 / (self.exponent - 1.0))).clamp(low, high)]

    def is_linear(self, low: Tensor, high: Tensor) -> Tensor:
        return (high <= low) | (high <= self.floor)

    def lower_line(self, low: Tensor, high: Tensor, alpha: Tensor) -> Line:
        if self.exponent < 0:
            return super().lower_line(low, high, alpha)
        slope = self.chord(low, high)
        return slope, self._offsets(slope, low, high).amin(0)

    def upper_line(self, low: Tensor, high: Tensor, alpha: Tensor) -> Line:
        if self.exponent > 0:
            return super().upper_line(low, high, alpha)
        slope = self.chord(low, high)
        return slope, self._offsets(slope, low, high).amax(0)

    def split_point(self, low: Array, high: Array) -> Array:
        """The geometric mean: most of the bend is near the lower end."""
        first = np.maximum(low, self.floor)
        middle = low + (high - low) / 2
        between = np.sqrt(first) * np.sqrt(np.maximum(high, first))
        inside = (between > low) & (between < high)
        return np.where(inside, between, middle)


def _rows(z: Any, n: int, params: Any, value: Any, slope: Any) -> None:
    for i in range(n):
        x = z[i]
        above = np.maximum(x, params[0])
        power = np.exp(params[1] * np.log(above))
        value[i] = np.where(x < params[0], params[2] + params[3] * (x - params[0]), power)
        slope[i] = np.where(x < params[0], params[3], params[1] * power / above)
