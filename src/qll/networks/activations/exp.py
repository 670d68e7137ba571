"""The exponential function."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from qll.networks.activations.base import ACTIVATIONS, Convex


@ACTIVATIONS.register("exp")
@dataclass(frozen=True)
class Exp(Convex):
    name = "exp"
    onnx = ("Exp",)
    bends = ()

    def apply(self, z: Tensor) -> Tensor:
        return torch.exp(z)

    def derivative(self, z: Tensor) -> Tensor:
        return torch.exp(z)

    @torch.no_grad()
    def touching(self, slope: Tensor, low: Tensor, high: Tensor) -> list[Tensor]:
        return [torch.log(slope).clamp(low, high)]
