"""A stored tensor."""

from __future__ import annotations

from dataclasses import dataclass

from qll.networks.entries import Fixed, Form
from qll.networks.layers.base import Layer, Range, Shape
from qll.networks.matrices import Array
from qll.networks.program import ProgramBuilder


@dataclass(frozen=True, eq=False)
class Constant(Layer):
    onnx = ("Constant", "ConstantOfShape")

    value: Array

    def shape(self, *operands: Shape) -> Shape:
        return self.value.shape

    def lower(self, builder: ProgramBuilder, values: list[int], shapes: list[Shape]) -> int:
        return builder.constant(self.value)

    def form(self, shapes: list[Shape]) -> Form:
        return Fixed(self.value)

    def range(self, ranges: list[Range], shapes: list[Shape]) -> Range:
        return float(self.value.min()), float(self.value.max())
