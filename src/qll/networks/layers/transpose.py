"""Axes in another order."""

from __future__ import annotations

from dataclasses import dataclass

from qll.networks.layers.base import Indices, Shape, misfit, positions
from qll.networks.layers.rearrange import Rearrange


@dataclass(frozen=True)
class Transpose(Rearrange):
    onnx = ("Transpose",)
    in_torch = ("permute", "Tensor.permute", "transpose", "Tensor.transpose")

    order: tuple[int, ...]

    def indices(self, operand: Shape) -> Indices:
        if sorted(self.order) != list(range(len(operand))):
            raise misfit(
                "a transpose does not fit its tensor", f"an order of {operand}", self.order
            )
        return positions(operand).transpose(self.order)
