"""Entries that keep their order."""

from __future__ import annotations

import math
from dataclasses import dataclass

from qll.networks.entries import Form, Same
from qll.networks.layers.base import Layer, Range, Shape, misfit
from qll.networks.program import ProgramBuilder


@dataclass(frozen=True)
class Reshape(Layer):
    """Also flatten, squeeze, unsqueeze and identity: the entries keep their order."""

    onnx = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
    in_torch = (
        "nn.Flatten",
        "nn.Unflatten",
        "flatten",
        "Tensor.flatten",
        "reshape",
        "Tensor.reshape",
        "Tensor.view",
        "Tensor.unflatten",
        "squeeze",
        "Tensor.squeeze",
        "unsqueeze",
        "Tensor.unsqueeze",
    )

    target: Shape

    def shape(self, *operands: Shape) -> Shape:
        (operand,) = operands
        if math.prod(operand) != math.prod(self.target):
            raise misfit("a reshape changes the number of entries", f"{operand}", self.target)
        return self.target

    def lower(self, builder: ProgramBuilder, values: list[int], shapes: list[Shape]) -> int:
        return values[0]

    def form(self, shapes: list[Shape]) -> Form:
        return Same()

    def range(self, ranges: list[Range], shapes: list[Shape]) -> Range:
        return ranges[0]
