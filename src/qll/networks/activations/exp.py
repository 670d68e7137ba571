"""The exponential function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qll.networks.activations.base import ACTIVATIONS, Convex


@ACTIVATIONS.register("exp")
@dataclass(frozen=True)
class Exp(Convex):
    name = "exp"
    onnx = ("Exp",)
    in_torch = (torch.exp, "exp")
    bends = ()

    def apply(self, z: Tensor) -> Tensor:
        return torch.exp(z)

    def derivative(self, z: Tensor) -> Tensor:
        return torch.exp(z)

    def kernel(self) -> tuple[Callable[..., None], tuple[float, ...]]:
        return _rows, ()

    @torch.no_grad()
    def touching(self, slope: Tensor, low: Tensor, high: Tensor) -> list[Tensor]:
        return [torch.log(slope).clamp(low, high)]


def _rows(z: Any, n: int, params: Any, value: Any, slope: Any) -> None:
    for i in range(n):
        grown = np.exp(z[i])
        value[i] = grown
        slope[i] = grown
