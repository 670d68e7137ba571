"""A border of one number, or a cut one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from qll.networks.layers.base import Indices, Shape, misfit, positions
from qll.networks.layers.rearrange import Rearrange
from qll.networks.matrices import check_entries


@dataclass(frozen=True)
class Pad(Rearrange):
    onnx = ("Pad",)
    in_torch = ("nn.ZeroPad2d", "nn.ConstantPad2d", "nn.functional.pad")

    before: tuple[int, ...]
    after: tuple[int, ...]
    fill: float = 0.0

    def indices(self, operand: Shape) -> Indices:
        if len(self.before) != len(operand) or len(self.after) != len(operand):
            raise misfit("a padding does not fit its tensor", f"{len(operand)} axes", self)
        widths = list(zip(self.before, self.after, strict=True))
        grown = [size + a + b for size, (a, b) in zip(operand, widths, strict=True)]
        if min(grown, default=1) < 1:
            raise misfit("a padding removes the whole tensor", "a positive size", tuple(grown))
        check_entries(math.prod(grown), "a padding")
        inner = positions(operand)
        crop = tuple(slice(max(-a, 0), size - max(-b, 0)) for size, (a, b) in zip(operand, widths))
        return np.pad(inner[crop], [(max(a, 0), max(b, 0)) for a, b in widths], constant_values=-1)
