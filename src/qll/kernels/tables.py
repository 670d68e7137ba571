"""The pieces of a network plan: where values lie, how weights are packed, which rows meet them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
from numpy.typing import NDArray

from qll.kernels.recognise import Convolution, Shape


@dataclass(frozen=True, eq=False)
class Placement:
    """Where a layer's values lie: ``row_of[k]`` is the row of logical entry ``k``."""

    first: int
    rows: int
    row_of: NDArray[np.int64]
    # Images: rows run over height, width, then this many channels (some may be padding); else 0.
    stride: int


@dataclass(eq=False)
class Packing:
    """How one step's weights come out of an effective weight tensor: a gather, once a refresh."""

    first: int
    index: NDArray[np.int64]

    def fill(self, packed: NDArray[np.float32], effective: NDArray[np.float32]) -> None:
        place = packed[self.first : self.first + self.index.size]
        np.take(effective, self.index, out=place, mode="clip")


@dataclass(eq=False)
class Tables:
    """Growing step, block and tap tables."""

    steps: list[tuple[int, ...]] = field(default_factory=list)
    blocks: list[tuple[int, int, int, int]] = field(default_factory=list)
    taps: list[tuple[int, int, int]] = field(default_factory=list)
    weights: int = 0

    def reserve(self, index: NDArray[np.int64]) -> Packing:
        packing = Packing(self.weights, index.reshape(-1))
        self.weights += packing.index.size
        return packing

    def block(self, row: int, runs: Sequence[tuple[int, int, int]], height: int, bias: int) -> None:
        """Runs that continue one another in rows and weights become one tap."""
        first = len(self.taps)
        for source, weight, count in runs:
            if len(self.taps) > first:
                s, w, n = self.taps[-1]
                if source == s + n and weight == w + n * height:
                    self.taps[-1] = (s, w, n + count)
                    continue
            self.taps.append((source, weight, count))
        self.blocks.append((row, first, len(self.taps), bias))

    def apart(self, row: int, taps: Sequence[tuple[int, int, int]], last: int) -> None:
        """A block of rows that are summed one by one: its taps are not joined."""
        first = len(self.taps)
        self.taps += taps
        self.blocks.append((row, first, len(self.taps), last))


def height_for(count: int, tallest: int) -> int:
    """The tile height that wastes least: padding rows, and loads that a low tile repeats."""
    heights = [h for h in (8, 4, 1) if h <= tallest]
    return min(heights, key=lambda h: -(-count // h) * h * (1 + 1 / h))


def height_dividing(count: int, tallest: int) -> int:
    return next(h for h in (8, 4, 1) if h <= tallest and count % h == 0)


def readers(core: Convolution, axis: int, position: int) -> list[tuple[int, int]]:
    """(tap, output) that read an input position, on an axis without ends."""
    places = ((k, position + core.padding[axis] - k) for k in range(core.kernel[axis]))
    return [(k, p // core.stride[axis]) for k, p in places if p % core.stride[axis] == 0]


def image_region(first: int, shape: Shape, stride: int) -> Placement:
    channels, height, width = shape
    c, y, x = np.meshgrid(np.arange(channels), np.arange(height), np.arange(width), indexing="ij")
    row_of = ((y * width + x) * stride + c).reshape(-1)
    return Placement(first, height * width * stride, row_of, stride)


def weight_index(core: Convolution, *, padded_out: int, padded_in: int) -> NDArray[np.int64]:
    """(padded outputs, padded inputs, ky, kx): where each weight is, padding at the end."""
    in_group = core.in_shape[0] // core.groups
    count = core.out_channels * in_group * prod(core.kernel)
    index = np.full((padded_out, padded_in, *core.kernel), count)
    index[: core.out_channels, :in_group] = np.arange(count).reshape(
        core.out_channels, in_group, *core.kernel
    )
    return index


def window(core: Convolution, axis: int, position: int) -> list[tuple[int, int]]:
    """(tap, input position) of one output position, padding left out."""
    start = position * core.stride[axis] - core.padding[axis]
    pairs = ((k, start + k * core.dilation[axis]) for k in range(core.kernel[axis]))
    return [(k, i) for k, i in pairs if 0 <= i < core.in_shape[1 + axis]]


def outputs_of(core: Convolution, axis: int, position: int) -> list[tuple[int, int]]:
    """(tap, output position) that read one input position, outputs ascending."""
    found = []
    for k in range(core.kernel[axis]):
        start = position + core.padding[axis] - k * core.dilation[axis]
        if start % core.stride[axis] == 0:
            output = start // core.stride[axis]
            if 0 <= output < core.out_shape[1 + axis]:
                found.append((k, output))
    return sorted(found, key=lambda pair: pair[1])
