"""``z`` times the normal distribution's share below it (Hendrycks and Gimpel 2016), by erf."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from qll.networks.activations.base import ACTIVATIONS, Activation

# Where the derivative is 0; the inflections are where 2 = z^2.
_TURN = -0.7517915246935645


@ACTIVATIONS.register("gelu")
@dataclass(frozen=True)
class Gelu(Activation):
    name = "gelu"
    onnx = ("Gelu",)
    bends = (-math.sqrt(2.0), math.sqrt(2.0))
    turns = (_TURN,)

    def apply(self, z: Tensor) -> Tensor:
        return z * _below(z)

    def derivative(self, z: Tensor) -> Tensor:
        density = torch.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
        return _below(z) + z * density


def _below(z: Tensor) -> Tensor:
    """The normal distribution function; by erfc, which keeps its digits far below 0."""
    return 0.5 * torch.erfc(z * -math.sqrt(0.5))
