"""The hyperbolic tangent."""

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


@ACTIVATIONS.register("tanh")
@dataclass(frozen=True)
class Tanh(Activation):
    name = "tanh"
    onnx = ("Tanh",)
    in_torch = ("nn.Tanh", "tanh", "nn.functional.tanh", "Tensor.tanh")
    rising = True
    bends = (0.0,)

    def apply(self, z: Tensor) -> Tensor:
        return torch.tanh(z)

    def derivative(self, z: Tensor) -> Tensor:
        return 4.0 * torch.sigmoid(2.0 * z) * torch.sigmoid(-2.0 * z)  # 1 - tanh^2, accurate

    def kernel(self) -> tuple[Callable[..., None], tuple[float, ...]]:
        return _rows, ()

    def touching(self, slope: Tensor, low: Tensor, high: Tensor) -> list[Tensor]:
        point = torch.atanh((1.0 - slope).clamp(min=0.0).sqrt())
        return [(sign * point).clamp(low, high) for sign in (-1.0, 1.0)]


def _rows(z: Any, n: int, params: Any, value: Any, slope: Any) -> None:
    for i in range(n):
        x = z[i]
        small = np.exp(-2.0 * np.abs(x))
        share = 1.0 / (1.0 + small)
        size = (1.0 - small) * share
        value[i] = np.where(x < 0.0, -size, size)
        slope[i] = 4.0 * small * share * share
