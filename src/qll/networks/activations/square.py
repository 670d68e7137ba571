"""``z * z``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qll.networks.activations.base import ACTIVATIONS, Convex


@ACTIVATIONS.register("square")
@dataclass(frozen=True)
class Square(Convex):
    name = "square"
    in_torch = (torch.square, "square")
    bends = ()
    turns = (0.0,)

    def apply(self, z: Tensor) -> Tensor:
        return z * z

    def derivative(self, z: Tensor) -> Tensor:
        return 2.0 * z

    def kernel(self) -> tuple[Callable[..., None], tuple[float, ...]]:
        return _rows, ()

    @torch.no_grad()
    def touching(self, slope: Tensor, low: Tensor, high: Tensor) -> list[Tensor]:
        return [(slope / 2).clamp(low, high)]


def _rows(z: Any, n: int, params: Any, value: Any, slope: Any) -> None:
    for i in range(n):
        x = z[i]
        value[i] = x * x
        slope[i] = x + x


SQUARE = Square()
