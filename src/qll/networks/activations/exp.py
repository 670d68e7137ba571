"""The exponential function."""

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


@ACTIVATIONS.register("exp")
@dataclass(frozen=True)
class Exp(Convex):
    name = "exp"
    onnx = ("Exp",)
    in_torch = ("exp", "Tensor.exp")
    rising = True
    bends = ()

    def apply(self, z: Tensor) -> Tensor:
        return torch.exp(z)

    def derivative(self, z: Tensor) -> Tensor:
        return torch.exp(z)

    def kernel(self) -> tuple[Callable[..., None], tuple[float, ...]]:
        return _rows, ()

    def touching(self, slope: Tensor, low: Tensor, high: Tensor) -> list[Tensor]:
        return [torch.log(slope).clamp(low, high)]


def _rows(z: Any, n: int, params: Any, value: Any, slope: Any) -> None:
    for i in range(n):
        # Below the largest float32 by far: a gradient is never 0 times infinity.
        grown = np.minimum(np.exp(z[i]), 1e30)
        value[i] = grown
        slope[i] = grown
