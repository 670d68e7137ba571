"""``z`` times its sigmoid: SiLU, or Swish."""

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

# Where the derivative and the second derivative are 0.
_TURN = -1.2784645427610738
_BEND = 2.399357280515468


@ACTIVATIONS.register("silu")
@dataclass(frozen=True)
class Silu(Activation):
    name = "silu"
    in_torch = ("nn.SiLU", "nn.functional.silu")
    bends = (-_BEND, _BEND)
    turns = (_TURN,)

    def apply(self, z: Tensor) -> Tensor:
        return z * torch.sigmoid(z)

    def derivative(self, z: Tensor) -> Tensor:
        share = torch.sigmoid(z)
        return share * (1.0 + z * torch.sigmoid(-z))

    def kernel(self) -> tuple[Callable[..., None], tuple[float, ...]]:
        return _rows, ()


def _rows(z: Any, n: int, params: Any, value: Any, slope: Any) -> None:
    for i in range(n):
        x = z[i]
        small = np.exp(-np.abs(x))
        share = 1.0 / (1.0 + small)
        below = np.where(x < 0.0, small * share, share)
        value[i] = x * below
        slope[i] = below + x * small * share * share
