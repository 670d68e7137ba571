"""Activations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qll.networks.activations import Activation
from qll.networks.entries import Curved, Form
from qll.networks.layers.base import Layer, Range, Shape, outward
from qll.networks.program import ProgramBuilder


@dataclass(frozen=True)
class Apply(Layer):
    """An activation, entry by entry."""

    function: Activation

    def shape(self, *operands: Shape) -> Shape:
        return operands[0]

    def lower(self, builder: ProgramBuilder, values: list[int], shapes: list[Shape]) -> int:
        return builder.activate(values[0], self.function)

    def form(self, shapes: list[Shape]) -> Form:
        return Curved(self.function)

    def range(self, ranges: list[Range], shapes: list[Shape]) -> Range:
        with np.errstate(all="ignore"):
            low, high = self.function.enclose(*(np.array([end]) for end in ranges[0]))
        return outward(float(low[0]), float(high[0]))

    def keeps_order(self, shape: Shape) -> bool:
        return self.function.rising
