"""Tensors one after the other along an axis."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qll.networks.entries import Form, Moved
from qll.networks.layers.base import Indices, Layer, Range, Shape, misfit, operand_starts, positions
from qll.networks.matrices import selection
from qll.networks.program import ProgramBuilder


@dataclass(frozen=True)
class Concat(Layer):
    onnx = ("Concat",)
    in_torch = ("cat", "concat")

    axis: int

    def shape(self, *operands: Shape) -> Shape:
        rank = len(operands[0])
        axis = self.axis % rank if rank else 0
        rest = {shape[:axis] + shape[axis + 1 :] for shape in operands}
        ranks = {len(shape) for shape in operands}
        if not -rank <= self.axis < rank or len(rest) != 1 or len(ranks) != 1:
            raise misfit("a concatenation's operands do not fit", f"axis {self.axis}", operands)
        joined = sum(shape[axis] for shape in operands)
        return (*operands[0][:axis], joined, *operands[0][axis + 1 :])

    def _joined(self, shapes: list[Shape]) -> tuple[Indices, Indices]:
        """Where each operand's entries begin, and which entry stands where."""
        offsets = operand_starts(shapes)
        parts = [positions(shape) + first for shape, first in zip(shapes, offsets, strict=False)]
        return offsets, np.concatenate(parts, axis=self.axis).reshape(-1)

    def form(self, shapes: list[Shape]) -> Form:
        return Moved(self._joined(shapes)[1])

    def lower(self, builder: ProgramBuilder, values: list[int], shapes: list[Shape]) -> int:
        offsets, joined = self._joined(shapes)
        terms = []
        for value, start, stop in zip(values, offsets, offsets[1:], strict=False):
            mine = (joined >= start) & (joined < stop)
            picks = np.where(mine, joined - start, -1)
            terms.append((value, selection(picks, int(stop - start))))
        return builder.affine(terms)

    def range(self, ranges: list[Range], shapes: list[Shape]) -> Range:
        return min(low for low, _ in ranges), max(high for _, high in ranges)
