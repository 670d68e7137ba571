"""Two tensors multiplied."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qll.networks.activations.square import SQUARE
from qll.networks.layers.apply import Apply
from qll.networks.layers.base import Composite, Part, Range, Shape, multiplied, positions
from qll.networks.layers.scale import Scale
from qll.networks.layers.sum import Sum
from qll.networks.matrices import Matrix, broadcast, csr, selection, sparse
from qll.networks.program import ProgramBuilder


@dataclass(frozen=True)
class Product(Composite):
    """``a b = ((a + b)^2 - (a - b)^2) / 4``, broadcast: one curve of one value, twice.

    A square above its tangents and below its chord gives planes above and below the product, which
    in the middle of a box are those of McCormick (1976) if its sides are equal, and a split of
    ``a + b`` or ``a - b`` at a point halves their distance."""

    onnx = ("Mul", "Div")
    in_torch = ("mul", "Tensor.mul", "div", "Tensor.div")

    def shape(self, *operands: Shape) -> Shape:
        left, right = operands
        return broadcast(left, right)

    def parts(self, shapes: list[Shape]) -> list[Part]:
        return [
            (Sum((1, 1)), (0, 1)),
            (Apply(SQUARE), (2,)),
            (Sum((1, -1)), (0, 1)),
            (Apply(SQUARE), (4,)),
            (Sum((1, -1)), (3, 5)),
            (Scale(np.asarray(0.25)), (6,)),
        ]

    def lower(self, builder: ProgramBuilder, values: list[int], shapes: list[Shape]) -> int:
        target = broadcast(*shapes)
        left, right = (
            selection(np.broadcast_to(positions(shape), target).reshape(-1), builder.widths[value])
            for value, shape in zip(values, shapes, strict=True)
        )
        stack = sparse().vstack
        both = builder.affine(
            [
                (values[0], stack([left, left], format="csr")),
                (values[1], stack([right, -right], format="csr")),
            ]
        )
        squares = builder.activate(both, SQUARE)
        return builder.affine([(squares, _quarter_of_difference(left.shape[0]))])

    def range(self, ranges: list[Range], shapes: list[Shape]) -> Range:
        return multiplied(ranges[0], ranges[1])


def _quarter_of_difference(count: int) -> Matrix:
    """Of the first ``count`` entries and as many after them."""
    rows = np.concatenate([np.arange(count)] * 2)
    values = np.repeat([0.25, -0.25], count)
    return csr(values, rows, np.arange(2 * count), (count, 2 * count))
