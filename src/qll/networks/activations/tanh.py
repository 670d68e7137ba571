"""The hyperbolic tangent."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from qll.networks.activations.base import ACTIVATIONS, Activation


@ACTIVATIONS.register("tanh")
@dataclass(frozen=True)
class Tanh(Activation):
    name = "tanh"
    onnx = ("Tanh",)
    bends = (0.0,)

    def apply(self, z: Tensor) -> Tensor:
        return torch.tanh(z)

    def derivative(self, z: Tensor) -> Tensor:
        return 4.0 * torch.sigmoid(2.0 * z) * torch.sigmoid(-2.0 * z)  # 1 - tanh^2, accurate

    @torch.no_grad()
    def touching(self, slope: Tensor, low: Tensor, high: Tensor) -> list[Tensor]:
        point = torch.atanh((1.0 - slope).clamp(min=0.0).sqrt())
        return [(sign * point).clamp(low, high) for sign in (-1.0, 1.0)]
