"""The largest entry under a window."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qll.networks.entries import Form, Largest
from qll.networks.layers.base import Indices, Layer, Shape
from qll.networks.layers.pooling import channel_taps, check_channels, check_windows
from qll.networks.matrices import csr, selection
from qll.networks.program import ProgramBuilder
from qll.networks.windows import Window


@dataclass(frozen=True)
class MaxPool(Layer):
    """A tree of ``max(a, b) = a + relu(b - a)``; padding takes no part."""

    onnx = ("MaxPool", "GlobalMaxPool")
    in_torch = (
        "nn.MaxPool1d",
        "nn.MaxPool2d",
        "nn.AdaptiveMaxPool2d",
        "nn.functional.max_pool1d",
        "nn.functional.max_pool2d",
    )

    window: Window

    def shape(self, *operands: Shape) -> Shape:
        (operand,) = operands
        check_channels(operand)
        return (*operand[:2], *self.window.output(operand[2:]))

    def lower(self, builder: ProgramBuilder, values: list[int], shapes: list[Shape]) -> int:
        taps = channel_taps(self.window, shapes[0])
        check_windows((taps >= 0).sum(axis=1))
        return _maximum(builder, values[0], taps)

    def form(self, shapes: list[Shape]) -> Form:
        taps = channel_taps(self.window, shapes[0])
        check_windows((taps >= 0).sum(axis=1))
        return Largest(taps)


def _maximum(builder: ProgramBuilder, source: int, table: Indices) -> int:
    """The maximum over each row of ``table``, whose entries index ``source`` (-1 is absent)."""
    absent_last = np.argsort(table < 0, axis=1, kind="stable")
    table = np.take_along_axis(table, absent_last, axis=1)
    if table.shape[1] == 1:
        return builder.select(source, table[:, 0])
    while table.shape[1] > 1:
        if table.shape[1] % 2:
            table = np.pad(table, ((0, 0), (0, 1)), constant_values=-1)
        left, right = table[:, 0::2], table[:, 1::2]
        present, paired = left >= 0, right >= 0  # right is present only where left is
        width = builder.widths[source]
        a, b = selection(left[paired], width), selection(right[paired], width)
        gain = builder.rectify(builder.affine([(source, b - a)]))
        # Entry i of the next vector is the i-th present pair, in row-major order.
        place = np.where(present, np.cumsum(present).reshape(present.shape) - 1, -1)
        count = int(present.sum())
        pairs = int(paired.sum())
        lift = csr(np.ones(pairs), place[paired], np.arange(pairs), (count, pairs))
        source = builder.affine([(source, selection(left[present], width)), (gain, lift)])
        table = place
    return source
