"""Running a network plan, forward and backward, for ``LANES`` samples at once.

A convolution or a dense layer, forward or backward, is always the same loop: an output block of
``height`` rows is the sum over its taps, and a tap is a run of source rows times a run of weights.
One compiled loop for each height serves all networks. A row is ``LANES`` floats. What else there is
(sums, activations, pooling) is in ``rows.py``, under heights below 1.

Layout of a step (int64): height, blocks, first block, start, finish, reads input (0; 1; for patches
of ``n`` channels under a window of 3x3, 1 + n).
Layout of a block (int32): destination row, first tap, end of taps, first bias.
Layout of a tap (int32): source row, first weight, rows.
"""

from __future__ import annotations

from typing import Any

from qll.kernels.moves import move_runner
from qll.kernels.rows import run_row_step
from qll.kernels.simd import LANES, always_inline, kernel, load, never_inline
from qll.kernels.steps import (
    BLOCK_FIELDS,
    FROM_BIAS,
    FROM_DESTINATION,
    GATE,
    PATCHED,
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


def _sum_of_taps(height: int) -> Any:
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


def _step_runner(height: int) -> Any:
    accumulate = _sum_of_taps(height)

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
def _sum_of_parts(tile, block, blocks, taps, weights, source, base):  # type: ignore[no-untyped-def]
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


_some_taps = _sum_of_taps(4)


@kernel
def _run_windows(step, plan, source, base, target):  # type: ignore[no-untyped-def]
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
def _run_patches(step, plan, source, target):  # type: ignore[no-untyped-def]
    """The patched step with its result kept, for references and tests."""
    never_inline()
    blocks, taps, weights = plan[0], plan[1], plan[2]
    for b in range(step[2], step[2] + step[1]):
        block = b * BLOCK_FIELDS
        tile = _sum_of_parts(tile_zero(4), block, blocks, taps, weights, source, 0)
        tile_store(tile, target, blocks[block] * LANES)


_run1, _run4, _run8 = (_step_runner(height) for height in (1, 4, 8))
_move1, _move4, _move8 = (move_runner(height, _sum_of_taps(height)) for height in (1, 4, 8))
_move_patches = move_runner(4, _sum_of_parts)


@kernel
def run_step(step, plan, source, base, target):  # type: ignore[no-untyped-def]
    if step[0] == 8:
        _run8(step, plan, source, base, target)
    elif step[0] == 4 and step[5] > 1:
        _run_windows(step, plan, source, base, target)
    elif step[0] == 4:
        _run4(step, plan, source, base, target)
    elif step[0] == 1:
        _run1(step, plan, source, base, target)
    else:
        run_row_step(step, plan, source, base, target)


@kernel
def run_forward(steps, plan, points, base, rows):  # type: ignore[no-untyped-def]
    """The outputs of the points whose rows begin at ``base``; everything else lands in ``rows``."""
    for s in range(len(steps)):
        if steps[s, 5]:
            run_step(steps[s], plan, points, base, rows)
        else:
            run_step(steps[s], plan, rows, 0, rows)


@kernel
def run_backward(steps, plan, rows):  # type: ignore[no-untyped-def]
    """All but the last backward step; gradients overwrite the activations they were gated by."""
    for s in range(len(steps) - 1):
        run_step(steps[s], plan, rows, 0, rows)


@kernel
def run_move(  # type: ignore[no-untyped-def]
    steps, plan, rows, tile_room, points, inputs, current, widths, varied, best_positive,
    best_negative, improved, reduced, better, back, signed, sizes, share,
):  # fmt: skip
    """The last backward step, by which the points move."""
    step = steps[len(steps) - 1]
    if step[0] == PATCHED:
        _move_patches(
            step, plan, rows, tile_room, points, inputs, current, widths, varied, best_positive,
            best_negative, improved, reduced, better, back, signed, sizes, share,
        )  # fmt: skip
    elif step[0] == 8:
        _move8(
            step, plan, rows, tile_room, points, inputs, current, widths, varied, best_positive,
            best_negative, improved, reduced, better, back, signed, sizes, share,
        )  # fmt: skip
    elif step[0] == 4:
        _move4(
            step, plan, rows, tile_room, points, inputs, current, widths, varied, best_positive,
            best_negative, improved, reduced, better, back, signed, sizes, share,
        )  # fmt: skip
    else:
        _move1(
            step, plan, rows, tile_room, points, inputs, current, widths, varied, best_positive,
            best_negative, improved, reduced, better, back, signed, sizes, share,
        )  # fmt: skip


@kernel
def run_input_gradient(steps, plan, rows, gradient):  # type: ignore[no-untyped-def]
    """The last backward step with the gradient itself, for references and tests."""
    step = steps[len(steps) - 1]
    if step[0] == PATCHED:
        _run_patches(step, plan, rows, gradient)
    else:
        run_step(step, plan, rows, 0, gradient)
