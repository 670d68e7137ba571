"""``log(1 + exp(z))``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from qll.late import late
from qll.networks.activations.base import ACTIVATIONS, Convex

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = late("torch")


@ACTIVATIONS.register("softplus")
@dataclass(frozen=True)
class Softplus(Convex):
    name = "softplus"
    onnx = ("Softplus",)
    rising = True
    bends = ()

    def apply(self, z: Tensor) -> Tensor:
        return torch.logaddexp(torch.zeros_like(z), z)

    def derivative(self, z: Tensor) -> Tensor:
        return torch.sigmoid(z)

    def kernel(self) -> tuple[Callable[..., None], tuple[float, ...]]:
        return _rows, ()

    def touching(self, slope: Tensor, low: Tensor, high: Tensor) -> list[Tensor]:
        return [torch.logit(slope).clamp(low, high)]


def _rows(z: Any, n: int, params: Any, value: Any, slope: Any) -> None:
    for i in range(n):
        x = z[i]
        small = np.exp(-np.abs(x))
        share = 1.0 / (1.0 + small)
        value[i] = np.maximum(x, 0.0) + np.log(1.0 + small)
        slope[i] = np.where(x < 0.0, small * share, share)
