"""``z * z``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qll.networks.activations.base import ACTIVATIONS, Convex

if TYPE_CHECKING:
    from torch import Tensor


@ACTIVATIONS.register("square")
@dataclass(frozen=True)
class Square(Convex):
    name = "square"
    in_torch = ("square", "Tensor.square")
    bends = ()
    turns = (0.0,)

    def apply(self, z: Tensor) -> Tensor:
        return z * z

    def derivative(self, z: Tensor) -> Tensor:
        return 2.0 * z

    def kernel(self) -> tuple[Callable[..., None], tuple[float, ...]]:
        return _rows, ()

    def touching(self, slope: Tensor, low: Tensor, high: Tensor) -> list[Tensor]:
        return [(slope / 2).clamp(low, high)]


def _rows(z: Any, n: int, params: Any, value: Any, slope: Any) -> None:
    for i in range(n):
        x = z[i]
        value[i] = x * x
        slope[i] = x + x


SQUARE = Square()
