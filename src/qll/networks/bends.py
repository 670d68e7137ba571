"""Activations as layers, extrema made of ReLUs, and the pooling layers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from qll.errors import NetworkError
from qll.networks.activations import Activation
from qll.networks.entries import Combined, Curved, Form, Largest, Leaky
from qll.networks.layers import Indices, Layer, Shape, misfit, positions, spread_entries
from qll.networks.matrices import Array, broadcast, csr, diagonal, selection
from qll.networks.program import ProgramBuilder
from qll.networks.windows import Window


@dataclass(frozen=True)
class Apply(Layer):
    """An activation, entry by entry."""

    function: Activation

    def shape(self, *operands: Shape) -> Shape:
        return operands[0]

    def lower(self, builder: ProgramBuilder, values: list[int], shapes: list[Shape]) -> int:
        return builder.activate(values[0], self.function)

    def form(self, shapes: list[Shape]) -> Form:
        return Curved(self.function)


@dataclass(frozen=True, eq=False)
class ParametricRelu(Layer):
    """``slope * x + relu(x) - slope * relu(x)``, a slope for each entry, broadcast."""

    slope: Array

    def shape(self, *operands: Shape) -> Shape:
        if broadcast(operands[0], self.slope.shape) != operands[0]:
            raise misfit("a slope does not fit its tensor", str(operands[0]), self.slope.shape)
        return operands[0]

    def lower(self, builder: ProgramBuilder, values: list[int], shapes: list[Shape]) -> int:
        slope = diagonal(np.broadcast_to(self.slope, shapes[0]).reshape(-1))
        bent = builder.rectify(values[0])
        # 1 - slope is not always a float: two terms keep the stored slope exact.
        return builder.affine([(values[0], slope), (bent, builder.identity(bent)), (bent, -slope)])

    def form(self, shapes: list[Shape]) -> Form:
        return Leaky(self.slope)


@dataclass(frozen=True)
class Extremum(Layer):
    """Entry-wise maximum (``sign`` 1) or minimum (-1) of two tensors, broadcast."""

    sign: int

    def shape(self, *operands: Shape) -> Shape:
        left, right = operands
        return broadcast(left, right)

    def lower(self, builder: ProgramBuilder, values: list[int], shapes: list[Shape]) -> int:
        target = broadcast(*shapes)
        left, right = (
            selection(np.broadcast_to(positions(shape), target).reshape(-1), builder.widths[value])
            for value, shape in zip(values, shapes, strict=True)
        )
        # max(a, b) = b + relu(a - b), min(a, b) = b - relu(b - a)
        gap = builder.affine([(values[0], self.sign * left), (values[1], -self.sign * right)])
        gain = builder.rectify(gap)
        return builder.affine([(values[1], right), (gain, self.sign * builder.identity(gain))])

    def form(self, shapes: list[Shape]) -> Form:
        return Largest(spread_entries(shapes), self.sign)


@dataclass(frozen=True)
class AveragePool(Layer):
    window: Window
    count_padding: bool = False

    def shape(self, *operands: Shape) -> Shape:
        (operand,) = operands
        _check_channels(operand)
        return (*operand[:2], *self.window.output(operand[2:]))

    def _counted(self, shape: Shape) -> tuple[Indices, Indices]:
        """The entries of each window, and the number that their sum is divided by."""
        taps = _channel_taps(self.window, shape)
        if self.count_padding:
            count = np.tile(self.window.padded_taps(shape[2:]), shape[1])
        else:
            count = (taps >= 0).sum(axis=1)
        _check_windows(count)
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


@dataclass(frozen=True)
class MaxPool(Layer):
    """A tree of ``max(a, b) = a + relu(b - a)``; padding takes no part."""

    window: Window

    def shape(self, *operands: Shape) -> Shape:
        (operand,) = operands
        _check_channels(operand)
        return (*operand[:2], *self.window.output(operand[2:]))

    def lower(self, builder: ProgramBuilder, values: list[int], shapes: list[Shape]) -> int:
        taps = _channel_taps(self.window, shapes[0])
        _check_windows((taps >= 0).sum(axis=1))
        return _maximum(builder, values[0], taps)

    def form(self, shapes: list[Shape]) -> Form:
        taps = _channel_taps(self.window, shapes[0])
        _check_windows((taps >= 0).sum(axis=1))
        return Largest(taps)


@dataclass(frozen=True)
class Mean(Layer):
    """Mean (or sum) over axes; the axes stay with extent 1 if ``keep``."""

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


def _check_channels(operand: Shape) -> None:
    if len(operand) < 3 or operand[0] != 1:
        raise misfit("a pooling layer does not fit its tensor", "(1, channels, ...)", operand)


def _check_windows(counts: Indices) -> None:
    if not np.all(counts > 0):
        raise NetworkError(
            "a pooling window lies wholly in the padding",
            expected="at least one input entry in every window",
            found="none in some",
            fix="use less padding than half the kernel",
        )


def _channel_taps(window: Window, shape: Shape) -> Indices:
    """(channels * places, kernel entries), each channel over its own entries."""
    spatial = math.prod(shape[2:])
    taps = window.taps(shape[2:])
    offsets = np.arange(shape[1])[:, None, None] * spatial
    return np.where(taps >= 0, taps + offsets, -1).reshape(-1, taps.shape[1])


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
