"""The loops of tiles: what a step of a plan does whose height is above 0 (layouts: ``layers.py``).

A convolution or a dense layer, forward or backward, is always the same loop: an output block of
``height`` rows is the sum over its taps, and a tap is a run of source rows times a run of weights.
One compiled loop for each height serves all networks.
"""

from __future__ import annotations

from typing import Any

from qll.kernels.simd import LANES, always_inline, kernel, load, never_inline
from qll.kernels.steps import (
    BLOCK_FIELDS,
    FROM_BIAS,
    FROM_DESTINATION,
    GATE,
    RELU,
    TAP_FIELDS,
)
from qll.kernels.tile import (
    tile_broadcast,
    tile_fma,
    tile_fma_part,
    tile_gate,
    tile_load,
    tile_relu,
    tile_store,
    tile_zero,
)


def sum_of_taps(height: int) -> Any:
    @kernel
    def accumulate(tile, block, blocks, taps, weights, source, base):  # type: ignore[no-untyped-def]
        for t in range(blocks[block + 1], blocks[block + 2]):
            row = (base + taps[TAP_FIELDS * t]) * LANES
            weight = taps[TAP_FIELDS * t + 1]
            for i in range(taps[TAP_FIELDS * t + 2]):
                vector = load(source, row + i * LANES)
                tile = tile_fma(tile, vector, weights, weight + i * height)
        return tile

    return accumulate


def step_runner(height: int) -> Any:
    accumulate = sum_of_taps(height)

    @kernel
    def run(step, plan, source, base, target):  # type: ignore[no-untyped-def]
        never_inline()
        blocks, taps, weights, biases = plan[0], plan[1], plan[2], plan[3]
        start, finish = step[3], step[4]
        for b in range(step[2], step[2] + step[1]):
            block = b * BLOCK_FIELDS
            place = blocks[block] * LANES
            if start == FROM_BIAS:
                tile = tile_broadcast(height, biases, blocks[block + 3])
            elif start == FROM_DESTINATION:
                tile = tile_load(height, target, place)
            else:
                tile = tile_zero(height)
            tile = accumulate(tile, block, blocks, taps, weights, source, base)
            if finish == RELU:
                tile = tile_relu(tile)
            elif finish == GATE:
                tile = tile_gate(tile, target, place)
            tile_store(tile, target, place)

    return run


@kernel
def sum_of_parts(tile, block, blocks, taps, weights, source, base):  # type: ignore[no-untyped-def]
    always_inline()
    for t in range(blocks[block + 1], blocks[block + 2], 4):
        tap = TAP_FIELDS * t
        row, weight, count = (base + taps[tap]) * LANES, taps[tap + 1], taps[tap + 2]
        for i in range(count):
            tile = tile_fma(tile, load(source, row + i * LANES), weights, weight + 4 * i)
        tap = TAP_FIELDS * (t + 1)
        row, weight, count = (base + taps[tap]) * LANES, taps[tap + 1], taps[tap + 2]
        for i in range(count):
            vector = load(source, row + i * LANES)
            tile = tile_fma_part(tile, 1, 2, vector, weights, weight + 2 * i)
        tap = TAP_FIELDS * (t + 2)
        row, weight, count = (base + taps[tap]) * LANES, taps[tap + 1], taps[tap + 2]
        for i in range(count):
            vector = load(source, row + i * LANES)
            tile = tile_fma_part(tile, 2, 2, vector, weights, weight + 2 * i)
        tap = TAP_FIELDS * (t + 3)
        row, weight, count = (base + taps[tap]) * LANES, taps[tap + 1], taps[tap + 2]
        for i in range(count):
            vector = load(source, row + i * LANES)
            tile = tile_fma_part(tile, 2, 1, vector, weights, weight + i)
    return tile


_some_taps = sum_of_taps(4)


@kernel
def run_windows(step, plan, source, base, target):  # type: ignore[no-untyped-def]
    """Windows of 3x3 on patches. Where all of one is inside, its taps are one row of each channel,
    two of each twice over and all four of each, and their weights follow one another: with these
    counts known it takes four fifths of what it takes as any other block."""
    never_inline()
    blocks, taps, weights, biases = plan[0], plan[1], plan[2], plan[3]
    finish, channels = step[4], step[5] - 1
    for b in range(step[2], step[2] + step[1]):
        block = b * BLOCK_FIELDS
        first, last = blocks[block + 1], blocks[block + 2]
        tile = tile_broadcast(4, biases, blocks[block + 3])
        if last - first == 3 * channels + 1:
            tap, weight = TAP_FIELDS * first, taps[TAP_FIELDS * first + 1]
            for _ in range(channels):
                row = (base + taps[tap]) * LANES
                tile = tile_fma(tile, load(source, row), weights, weight)
                tap += TAP_FIELDS
                weight += 4
            for _ in range(2 * channels):
                row = (base + taps[tap]) * LANES
                tile = tile_fma(tile, load(source, row), weights, weight)
                tile = tile_fma(tile, load(source, row + LANES), weights, weight + 4)
                tap += TAP_FIELDS
                weight += 8
            row = (base + taps[tap]) * LANES
            for _ in range(channels):
                tile = tile_fma(tile, load(source, row), weights, weight)
                tile = tile_fma(tile, load(source, row + LANES), weights, weight + 4)
                tile = tile_fma(tile, load(source, row + 2 * LANES), weights, weight + 8)
                tile = tile_fma(tile, load(source, row + 3 * LANES), weights, weight + 12)
                row += 4 * LANES
                weight += 16
        else:
            tile = _some_taps(tile, block, blocks, taps, weights, source, base)
        if finish == RELU:
            tile = tile_relu(tile)
        tile_store(tile, target, blocks[block] * LANES)


@kernel
def run_patches(step, plan, source, base, target):  # type: ignore[no-untyped-def]
    """The patched step with its result kept, for references and tests."""
    never_inline()
    blocks, taps, weights = plan[0], plan[1], plan[2]
    for b in range(step[2], step[2] + step[1]):
        block = b * BLOCK_FIELDS
        tile = sum_of_parts(tile_zero(4), block, blocks, taps, weights, source, base)
        tile_store(tile, target, blocks[block] * LANES)
