"""``log(1 + exp(z))``."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from qll.networks.activations.base import ACTIVATIONS, Convex


@ACTIVATIONS.register("softplus")
@dataclass(frozen=True)
class Softplus(Convex):
    name = "softplus"
    onnx = ("Softplus",)
    bends = ()

    def apply(self, z: Tensor) -> Tensor:
        return torch.logaddexp(torch.zeros_like(z), z)

    def derivative(self, z: Tensor) -> Tensor:
        return torch.sigmoid(z)

    @torch.no_grad()
    def touching(self, slope: Tensor, low: Tensor, high: Tensor) -> list[Tensor]:
        return [torch.logit(slope).clamp(low, high)]
