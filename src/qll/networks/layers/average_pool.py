"""The mean under a window."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qll.networks.entries import Combined, Form
from qll.networks.layers.base import Indices, Layer, Shape
from qll.networks.layers.pooling import channel_taps, check_channels, check_windows
from qll.networks.matrices import csr
from qll.networks.program import ProgramBuilder
from qll.networks.windows import Window


@dataclass(frozen=True)
class AveragePool(Layer):
    onnx = ("AveragePool", "GlobalAveragePool")
    in_torch = (
        "nn.AvgPool1d",
        "nn.AvgPool2d",
        "nn.AdaptiveAvgPool1d",
        "nn.AdaptiveAvgPool2d",
        "nn.functional.avg_pool1d",
        "nn.functional.avg_pool2d",
        "nn.functional.adaptive_avg_pool1d",
        "nn.functional.adaptive_avg_pool2d",
    )

    window: Window
    count_padding: bool = False

    def shape(self, *operands: Shape) -> Shape:
        (operand,) = operands
        check_channels(operand)
        return (*operand[:2], *self.window.output(operand[2:]))

    def _counted(self, shape: Shape) -> tuple[Indices, Indices]:
        """The entries of each window, and the number that their sum is divided by."""
        taps = channel_taps(self.window, shape)
        if self.count_padding:
            count = np.tile(self.window.padded_taps(shape[2:]), shape[1])
        else:
            count = (taps >= 0).sum(axis=1)
        check_windows(count)
        return taps, count

    def form(self, shapes: list[Shape]) -> Form:
        taps, count = self._counted(shapes[0])
        return Combined(taps, np.repeat(1.0 / count[:, None], taps.shape[1], axis=1))

    def lower(self, builder: ProgramBuilder, values: list[int], shapes: list[Shape]) -> int:
        taps, count = self._counted(shapes[0])
        rows, entries = np.nonzero(taps >= 0)
        matrix = csr(
            np.ones(rows.size),
            rows,
            taps[rows, entries],
            (taps.shape[0], builder.widths[values[0]]),
        )
        return builder.affine([(values[0], matrix)], divisor=count.astype(np.float64))
