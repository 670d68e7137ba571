"""``1 / (1 + exp(-z))``."""

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


@ACTIVATIONS.register("sigmoid")
@dataclass(frozen=True)
class Sigmoid(Activation):
    name = "sigmoid"
    onnx = ("Sigmoid",)
    in_torch = ("nn.Sigmoid", "sigmoid", "nn.functional.sigmoid", "Tensor.sigmoid")
    rising = True
    bends = (0.0,)

    def apply(self, z: Tensor) -> Tensor:
        return torch.sigmoid(z)

    def derivative(self, z: Tensor) -> Tensor:
        return torch.sigmoid(z) * torch.sigmoid(-z)

    def kernel(self) -> tuple[Callable[..., None], tuple[float, ...]]:
        return _rows, ()

    def touching(self, slope: Tensor, low: Tensor, high: Tensor) -> list[Tensor]:
        root = (1.0 - 4.0 * slope).clamp(min=0.0).sqrt()  # sigmoid = (1 +- root) / 2
        point = 2.0 * torch.atanh(root)
        return [(sign * point).clamp(low, high) for sign in (-1.0, 1.0)]


def _rows(z: Any, n: int, params: Any, value: Any, slope: Any) -> None:
    for i in range(n):
        x = z[i]
        # exp of what is not positive: neither half overflows
        small = np.exp(-np.abs(x))
        share = 1.0 / (1.0 + small)
        value[i] = np.where(x < 0.0, small * share, share)
        slope[i] = small * share * share
