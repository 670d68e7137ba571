"""Sums and differences of branches."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from qll.networks.entries import Combined, Form
from qll.networks.layers.base import (
    Layer,
    Range,
    Shape,
    misfit,
    outward,
    positions,
    spread_entries,
)
from qll.networks.matrices import broadcast, selection
from qll.networks.program import ProgramBuilder


@dataclass(frozen=True)
class Sum(Layer):
    """Sum and difference of two or more branches, broadcast; ``signs`` are +1 or -1."""

    onnx = ("Add", "Sub", "Sum", "Neg")
    in_torch = ("add", "Tensor.add", "sub", "Tensor.sub", "neg", "Tensor.neg")

    signs: tuple[int, ...]

    def shape(self, *operands: Shape) -> Shape:
        if len(operands) != len(self.signs):
            raise misfit("a sum has operands missing", f"{len(self.signs)}", len(operands))
        return broadcast(*operands)

    def lower(self, builder: ProgramBuilder, values: list[int], shapes: list[Shape]) -> int:
        target = broadcast(*shapes)
        bias = np.zeros(math.prod(target))
        absorbed = False
        terms = []
        for value, shape, sign in zip(values, shapes, self.signs, strict=True):
            flat = np.broadcast_to(positions(shape), target).reshape(-1)
            constant = builder.constant_value(value)
            if constant is not None and not absorbed:
                # Only one constant becomes the bias: the sum of two would be rounded.
                bias, absorbed = sign * constant[flat], True
            else:
                terms.append((value, sign * selection(flat, builder.widths[value])))
        return builder.affine(terms, bias)

    def form(self, shapes: list[Shape]) -> Form:
        entries = spread_entries(shapes)
        return Combined(entries, np.tile(np.array(self.signs, dtype=np.float64), (len(entries), 1)))

    def range(self, ranges: list[Range], shapes: list[Shape]) -> Range:
        found = (0.0, 0.0)
        for sign, (low, high) in zip(self.signs, ranges, strict=True):
            first, last = (low, high) if sign > 0 else (-high, -low)
            found = outward(found[0] + first, found[1] + last)
        return found
