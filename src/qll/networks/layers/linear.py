"""A matrix over the last axis."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from qll.networks.entries import Form, Windowed
from qll.networks.layers.base import Layer, Shape, misfit
from qll.networks.matrices import Array, check_entries, compact, sparse
from qll.networks.program import ProgramBuilder


@dataclass(frozen=True, eq=False)
class Linear(Layer):
    """``x @ weight.T + bias`` over the last axis; ``weight`` is (out, in)."""

    onnx = ("MatMul", "Gemm")
    in_torch = ("nn.Linear", "nn.functional.linear", "matmul", "Tensor.matmul")

    weight: Array
    bias: Array

    def shape(self, *operands: Shape) -> Shape:
        (operand,) = operands
        rows, columns = self.weight.shape
        if not operand or operand[-1] != columns or self.bias.shape != (rows,):
            raise misfit(
                "a linear layer does not fit its tensor",
                f"a last axis of {columns} and a bias of {rows}",
                f"{operand} and {self.bias.shape}",
            )
        return (*operand[:-1], rows)

    def lower(self, builder: ProgramBuilder, values: list[int], shapes: list[Shape]) -> int:
        repeats = math.prod(shapes[0][:-1])
        check_entries(self.weight.size * repeats, "a linear layer")
        matrix = compact(self.weight)
        if repeats != 1:
            matrix = sparse().kron(sparse().identity(repeats), matrix, format="csr")
        return builder.affine([(values[0], matrix)], np.tile(self.bias, repeats))

    def form(self, shapes: list[Shape]) -> Form:
        return Windowed(self.weight, self.bias)
