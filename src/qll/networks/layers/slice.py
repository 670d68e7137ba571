"""Ranges of axes."""

from __future__ import annotations

from dataclasses import dataclass

from qll.networks.layers.base import Indices, Shape, misfit, positions
from qll.networks.layers.rearrange import Rearrange


@dataclass(frozen=True)
class Slice(Rearrange):
    """``slices[axis]`` is (start, stop, step) as Python means them."""

    onnx = ("Slice",)

    slices: tuple[tuple[int | None, int | None, int | None], ...]

    def indices(self, operand: Shape) -> Indices:
        if len(self.slices) > len(operand) or any(step == 0 for _, _, step in self.slices):
            raise misfit("a slice does not fit its tensor", f"{len(operand)} axes", self.slices)
        taken = positions(operand)[tuple(slice(*bounds) for bounds in self.slices)]
        if not taken.size:
            raise misfit("a slice is empty", f"a range inside {operand}", self.slices)
        return taken
