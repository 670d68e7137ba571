"""``z`` times the share ``(z + 3) / 6``, cut to [0, 1] (Howard et al. 2019)."""

from __future__ import annotations

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


@ACTIVATIONS.register("hardswish")
@dataclass(frozen=True)
class HardSwish(Activation):
    name = "hardswish"
    onnx = ("HardSwish",)
    in_torch = ("nn.Hardswish", "nn.functional.hardswish")
    bends = (-3.0, 3.0)
    turns = (-1.5,)

    def apply(self, z: Tensor) -> Tensor:
        return z * (z + 3.0).clamp(0.0, 6.0) / 6.0

    def derivative(self, z: Tensor) -> Tensor:
        """At a kink that of the parabola: what lies outside is seen at the other points."""
        parabola = (2.0 * z + 3.0) / 6.0
        return torch.where(z < -3.0, 0.0, torch.where(z > 3.0, 1.0, parabola))

    def kernel(self) -> tuple[Callable[..., None], tuple[float, ...]]:
        return _rows, ()

    def touching(self, slope: Tensor, low: Tensor, high: Tensor) -> list[Tensor]:
        kinks = [torch.full_like(low, bend).clamp(low, high) for bend in self.bends]
        return [*kinks, (3.0 * slope - 1.5).clamp(low, high)]


def _rows(z: Any, n: int, params: Any, value: Any, slope: Any) -> None:
    for i in range(n):
        x = z[i]
        value[i] = x * np.minimum(6.0, np.maximum(0.0, x + 3.0)) * (1.0 / 6.0)
        parabola = x * (1.0 / 3.0) + 0.5
        slope[i] = np.where(x < -3.0, 0.0, np.where(x > 3.0, 1.0, parabola))
