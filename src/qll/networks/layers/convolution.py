"""Convolutions, grouped, strided and dilated."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from qll.networks.entries import Form, Windowed
from qll.networks.layers.base import Layer, Shape, misfit
from qll.networks.matrices import Array, check_entries, compact, csr_by_rows
from qll.networks.program import ProgramBuilder
from qll.networks.windows import Window


@dataclass(frozen=True, eq=False)
class Convolution(Layer):
    """Any number of spatial axes; ``weight`` is (out, in / groups, *kernel)."""

    onnx = ("Conv",)
    in_torch = ("nn.Conv1d", "nn.Conv2d", "nn.functional.conv1d", "nn.functional.conv2d")

    weight: Array
    bias: Array
    window: Window
    groups: int = 1

    def shape(self, *operands: Shape) -> Shape:
        (operand,) = operands
        out, taken, *kernel = self.weight.shape
        fits = (
            self.groups >= 1
            and len(operand) == self.weight.ndim
            and operand[0] == 1
            and operand[1] == taken * self.groups
            and out % self.groups == 0
            and tuple(kernel) == self.window.kernel
            and self.bias.shape == (out,)
        )
        if not fits:
            raise misfit(
                "a convolution does not fit its tensor",
                f"(1, {taken * self.groups}, ...) with a kernel {self.window.kernel}",
                f"{operand}, weight {self.weight.shape}, bias {self.bias.shape}",
            )
        return (operand[0], out, *self.window.output(operand[2:]))

    def lower(self, builder: ProgramBuilder, values: list[int], shapes: list[Shape]) -> int:
        spatial = shapes[0][2:]
        out, taken = self.weight.shape[:2]
        taps = self.window.taps(spatial)  # (places, kernel entries)
        places, entries = taps.shape
        table = (out, places, taken, entries)
        check_entries(math.prod(table), "a convolution")
        group = np.arange(out) // (out // self.groups)
        channel = group[:, None] * taken + np.arange(taken)  # (out, taken)
        first = (channel * math.prod(spatial)).astype(np.int32)  # entries of a tensor fit
        columns = first[:, None, :, None] + taps[None, :, None, :].astype(np.int32)
        data = self.weight.reshape(out, 1, taken, entries)
        inside = taps >= 0
        keep = np.broadcast_to(inside[None, :, None, :], table)
        matrix = csr_by_rows(
            np.broadcast_to(data, table)[keep],
            columns[keep],
            np.tile(taken * inside.sum(axis=1), out),
            builder.widths[values[0]],
        )
        return builder.affine([(values[0], compact(matrix))], np.repeat(self.bias, places))

    def form(self, shapes: list[Shape]) -> Form:
        return Windowed(self.weight, self.bias, self.window, self.groups)
