"""The input of a strided first convolution, in patches one stride high and wide.

One pixel is read by few outputs, and a tile of its channels would be low. All pixels of a patch are
read by the same outputs: four of one channel share a tile. With a stride of 2 and a kernel of 3,
an output that lies beyond the patch reads one row or one column of it. So pixels come in an order
in which what such an output reads is a run, and a tap reaches a part of the tile only.
"""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.typing import NDArray

from qll.kernels.recognise import Convolution
from qll.kernels.tables import Placement, Tables, readers, weight_index, window

# First row and rows of the parts of a tile that the taps of a block reach, in turn.
PARTS = ((0, 4), (1, 2), (2, 2), (2, 1))
HEIGHT = 4
Tap = tuple[int, int, int]  # source row, first weight, rows


def has_patches(core: Convolution) -> bool:
    """Whether patches of one stride tile the image and give a higher tile than the channels do."""
    fits = all(core.in_shape[1 + a] % core.stride[a] == 0 for a in (0, 1))
    plain = max(core.dilation) == 1 and core.groups == 1
    return fits and plain and core.in_shape[0] < HEIGHT and prod(core.stride) % HEIGHT == 0


def pixel_order(core: Convolution) -> list[tuple[int, int]]:
    """The pixels of a patch, as ``PARTS`` wants them for a stride of 2."""
    if core.stride != (2, 2):
        return [(y, x) for y in range(core.stride[0]) for x in range(core.stride[1])]
    # The row and the column that more outputs read.
    y, x = (max((0, 1), key=lambda p, a=a: len(readers(core, a, p))) for a in (0, 1))  # type: ignore[misc]
    return [(1 - y, 1 - x), (1 - y, x), (y, x), (y, 1 - x)]


def patch_region(core: Convolution) -> Placement:
    """Rows run over patches, channels, then the pixels of a patch."""
    channels, height, width = core.in_shape
    high, wide = core.stride
    size = high * wide
    y, x = np.meshgrid(np.arange(height // high), np.arange(width // wide), indexing="ij")
    row_of = np.empty(core.in_shape, dtype=np.int64)
    for rank, (py, px) in enumerate(pixel_order(core)):
        for c in range(channels):
            row_of[c, py::high, px::wide] = ((y * (width // wide) + x) * channels + c) * size + rank
    return Placement(0, prod(core.in_shape), row_of.reshape(-1), 0)


def forward_taps(
    core: Convolution, source: Placement, height: int, padded_out: int
) -> tuple[NDArray[np.int64], list[list[tuple[int, int]]]]:
    """Which weight stands where (tile, tap, row of the tile), and of each output position the
    (row, tap) that it reads."""
    row_of = source.row_of.reshape(core.in_shape)
    outputs = [(y, x) for y in range(core.out_shape[1]) for x in range(core.out_shape[2])]
    reads: list[list[tuple[int, tuple[int, int, int]]]] = []
    for y, x in outputs:
        inside = [
            (int(row_of[c, iy, ix]), (c, ky, kx))
            for ky, iy in window(core, 0, y)
            for kx, ix in window(core, 1, x)
            for c in range(core.in_shape[0])
        ]
        reads.append(sorted(inside))
    # Taps in the order of rows where all are inside, so that their weights lie in runs too.
    fullest = sorted(reads, key=len)[-1]
    order = {tap: n for n, (_, tap) in enumerate(fullest)}
    for inside in reads:
        for _, tap in inside:
            order.setdefault(tap, len(order))
    index = weight_index(core, padded_out=padded_out, padded_in=core.in_shape[0])
    packed = np.stack([index[:, c, ky, kx] for c, ky, kx in order], axis=-1)
    packed = packed.reshape(-1, height, len(order)).transpose(0, 2, 1)
    return packed, [[(row, order[tap]) for row, tap in inside] for inside in reads]


def has_windows(tables: Tables, first: int, channels: int) -> bool:
    """Whether each block from ``first`` on that could be a whole window of 3x3 is one whose taps
    and weights lie as ``layers.py`` reads them."""
    counts = [1] * channels + [2] * (2 * channels) + [HEIGHT * channels]
    begins = [HEIGHT * sum(counts[:tap]) for tap in range(len(counts))]
    found = False
    for _, begin, end, _ in tables.blocks[first:]:
        taps = tables.taps[begin:end]
        if len(taps) == len(counts):
            found = True
            weight = taps[0][1]
            if [(w - weight, n) for _, w, n in taps] != list(zip(begins, counts, strict=True)):
                return False
    return found


def backward_taps(
    core: Convolution, target: Placement
) -> tuple[NDArray[np.int64], list[list[Tap]]]:
    """The weights of all taps one after the other, and of each tile of input rows its taps, as many
    of each part in turn; first weights count from 0."""
    channels, height, width = core.in_shape
    high, wide = core.stride
    index = weight_index(core, padded_out=core.out_channels, padded_in=channels)
    nothing = index.size
    pixels = pixel_order(core)
    # (distance of the output from the patch's own) -> weights (pixel, channel, output channel)
    by_distance: dict[tuple[int, int], NDArray[np.int64]] = {}
    for rank, (py, px) in enumerate(pixels):
        for ky, dy in readers(core, 0, py):
            for kx, dx in readers(core, 1, px):
                empty = np.full((len(pixels), channels, core.out_channels), nothing)
                by_distance.setdefault((dy, dx), empty)[rank] = index[:, :, ky, kx].T
    packed: list[NDArray[np.int64]] = []
    places: dict[tuple[int, int], list[tuple[tuple[int, int], int, int]]] = {}
    first = 0
    for c in range(channels):
        for group in range(len(pixels) // HEIGHT):
            found = places.setdefault((c, group), [])
            for distance, whole in sorted(by_distance.items()):
                four = whole[group * HEIGHT : (group + 1) * HEIGHT, c]  # (pixel, output channel)
                read = np.nonzero((four != nothing).any(1))[0]
                if len(read):
                    part = _part(int(read[0]), int(read[-1]))
                    begin, count = PARTS[part]
                    packed.append(four[begin : begin + count].T.reshape(-1))
                    found.append((distance, part, first))
                    first += packed[-1].size
    tiles = []
    for y in range(height // high):
        for x in range(width // wide):
            for found in places.values():
                by_part: list[list[Tap]] = [[] for _ in PARTS]
                for (dy, dx), part, weight in found:
                    oy, ox = y + dy, x + dx
                    if 0 <= oy < core.out_shape[1] and 0 <= ox < core.out_shape[2]:
                        row = target.first + (oy * core.out_shape[2] + ox) * target.stride
                        by_part[part].append((row, weight, core.out_channels))
                turns = max(len(taps) for taps in by_part)
                padded = [taps + [(0, 0, 0)] * (turns - len(taps)) for taps in by_part]
                tiles.append([tap for turn in zip(*padded, strict=True) for tap in turn])
    return np.concatenate(packed), tiles


def _part(first: int, last: int) -> int:
    """The smallest part that holds these rows."""
    fits = [n for n, (begin, count) in enumerate(PARTS) if begin <= first and last < begin + count]
    return min(fits, key=lambda n: PARTS[n][1])
