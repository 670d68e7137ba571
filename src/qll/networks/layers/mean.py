"""Means and sums over axes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from qll.networks.entries import Combined, Form
from qll.networks.layers.base import Layer, Range, Shape, misfit, outward, positions
from qll.networks.matrices import csr
from qll.networks.program import ProgramBuilder


@dataclass(frozen=True)
class Mean(Layer):
    """Mean (or sum) over axes; the axes stay with extent 1 if ``keep``."""

    onnx = ("ReduceMean", "ReduceSum")
    in_torch = ("mean", "Tensor.mean", "sum", "Tensor.sum")

    axes: tuple[int, ...]
    keep: bool
    divide: bool = True

    def shape(self, *operands: Shape) -> Shape:
        (operand,) = operands
        axes = self._axes(operand)
        if self.keep:
            return tuple(1 if axis in axes else size for axis, size in enumerate(operand))
        return tuple(size for axis, size in enumerate(operand) if axis not in axes)

    def lower(self, builder: ProgramBuilder, values: list[int], shapes: list[Shape]) -> int:
        axes = self._axes(shapes[0])
        kept = tuple(1 if axis in axes else size for axis, size in enumerate(shapes[0]))
        size, width = math.prod(kept), builder.widths[values[0]]
        rows = np.broadcast_to(positions(kept), shapes[0]).reshape(-1)
        matrix = csr(np.ones(width), rows, np.arange(width), (size, width))
        divisor = np.full(size, width / size) if self.divide else None
        return builder.affine([(values[0], matrix)], divisor=divisor)

    def _axes(self, operand: Shape) -> set[int]:
        rank = len(operand)
        if not all(-rank <= axis < rank for axis in self.axes):
            raise misfit("a mean runs over an axis that is not there", str(operand), self.axes)
        return {axis % rank for axis in self.axes}

    def form(self, shapes: list[Shape]) -> Form:
        axes = self._axes(shapes[0])
        last = [axis for axis in range(len(shapes[0])) if axis not in axes]
        # the axes that stay, then those that are summed
        entries = positions(shapes[0]).transpose([*last, *sorted(axes)])
        entries = entries.reshape(math.prod(shapes[0][axis] for axis in last), -1)
        share = 1.0 / entries.shape[1] if self.divide else 1.0
        return Combined(entries, np.full(entries.shape, share))

    def range(self, ranges: list[Range], shapes: list[Shape]) -> Range:
        count = math.prod(shapes[0]) // math.prod(self.shape(shapes[0]))
        low, high = ranges[0]
        # A mean of rounded numbers is rounded; the true one lies between them.
        return (low, high) if self.divide else outward(count * low, count * high)
