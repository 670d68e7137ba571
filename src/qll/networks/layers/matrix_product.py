"""Two tensors multiplied as matrices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qll.networks.layers.base import Composite, Indices, Part, Shape, misfit, positions
from qll.networks.layers.mean import Mean
from qll.networks.layers.product import Product
from qll.networks.layers.rearrange import Rearrange
from qll.networks.matrices import broadcast, check_entries


@dataclass(frozen=True)
class MatrixProduct(Composite):
    """Of the last two axes, the others broadcast: a product of two values for each row, column and
    term, and their sums. Attention is made of two of these and a softmax."""

    onnx = ("MatMul",)
    in_torch = ("matmul", "Tensor.matmul", "bmm", "Tensor.bmm")

    def shape(self, *operands: Shape) -> Shape:
        left, right = operands
        if not len(left) == len(right) >= 2 or left[-1] != right[-2]:
            raise misfit("a matrix product does not fit", f"{left[-1:]} rows", right)
        return (*broadcast(left[:-2], right[:-2]), left[-2], right[-1])

    def parts(self, shapes: list[Shape]) -> list[Part]:
        left, right = shapes
        target = (*self.shape(left, right), left[-1])
        check_entries(int(np.prod(target)), "a matrix product")
        own = positions(left)[..., :, None, :]
        other = np.swapaxes(positions(right), -1, -2)[..., None, :, :]
        return [
            (Taken(np.broadcast_to(own, target)), (0,)),
            (Taken(np.broadcast_to(other, target)), (1,)),
            (Product(), (2, 3)),
            (Mean((-1,), keep=False, divide=False), (4,)),
        ]


@dataclass(frozen=True, eq=False)
class Taken(Rearrange):
    """Entries by their numbers, some of them several times."""

    entries: Indices

    def indices(self, operand: Shape) -> Indices:
        return self.entries
