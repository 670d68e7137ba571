"""A convolution whose outputs are pooled at once, and the way back through both.

Of up to four outputs that are pooled, the largest and its number are kept; the others are never
written, and the rows fit the second-level cache. On the way back an entry of the layer's input
meets a pooled output once, with the weight of whichever won, instead of once for each of the four
with nothing but zeros for three of them: for a window of 3x3, 4 products in the place of 9.

Layouts as in ``layers.py``, with these uses of a block's numbers:

- ``POOL``: the step's second-last number says how many blocks follow one another for one pooled
  block, all with its destination; winners lie behind it by the step's fourth number. With a
  ReLU, it follows.
- ``PICKED`` and ``PICKED_ROWS``: a weight is four, one for each winner; winners lie behind a
  gradient's row by the block's last number.
"""

from __future__ import annotations

from typing import Any

from qll.kernels.simd import LANES, TILE, always_inline, kernel, load, never_inline
from qll.kernels.steps import BLOCK_FIELDS, FROM_DESTINATION, GATE, TAP_FIELDS
from qll.kernels.tile import (
    tile_broadcast,
    tile_contest,
    tile_fma,
    tile_fma_picked,
    tile_gate,
    tile_larger,
    tile_load,
    tile_relu,
    tile_store,
    tile_store_contest,
    tile_zero,
)


@kernel
def _outputs(block, plan, source, base):  # type: ignore[no-untyped-def]
    always_inline()
    blocks, taps, weights, biases = plan[0], plan[1], plan[2], plan[3]
    tile = tile_broadcast(TILE, biases, blocks[block + 3])
    for t in range(blocks[block + 1], blocks[block + 2]):
        row = (base + taps[TAP_FIELDS * t]) * LANES
        weight = taps[TAP_FIELDS * t + 1]
        for i in range(taps[TAP_FIELDS * t + 2]):
            tile = tile_fma(tile, load(source, row + i * LANES), weights, weight + i * TILE)
    return tile


@kernel
def run_pool(step, plan, source, base, target):  # type: ignore[no-untyped-def]
    never_inline()
    blocks = plan[0]
    behind, terms, rectified = step[3] * LANES, step[4] // 2, step[4] % 2 == 1
    for b in range(step[2], step[2] + step[1], terms):
        place = blocks[b * BLOCK_FIELDS] * LANES
        tile = _outputs(b * BLOCK_FIELDS, plan, source, base)
        contest = tile_contest(tile)
        for number in range(1, terms):
            tile = _outputs((b + number) * BLOCK_FIELDS, plan, source, base)
            contest = tile_larger(contest, tile, number)
        tile_store_contest(contest, target, place, place + behind)
        if rectified:
            tile_store(tile_relu(tile_load(TILE, target, place)), target, place)


def _sum_of_picked(height: int) -> Any:
    @kernel
    def accumulate(tile, block, blocks, taps, weights, source, base):  # type: ignore[no-untyped-def]
        always_inline()
        behind = blocks[block + 3] * LANES
        for t in range(blocks[block + 1], blocks[block + 2]):
            row = (base + taps[TAP_FIELDS * t]) * LANES
            weight = taps[TAP_FIELDS * t + 1]
            for i in range(taps[TAP_FIELDS * t + 2]):
                vector = load(source, row + i * LANES)
                winner = load(source, row + behind + i * LANES)
                tile = tile_fma_picked(tile, vector, winner, weights, weight + 4 * height * i)
        return tile

    return accumulate


def picked_runner(height: int) -> Any:
    accumulate = _sum_of_picked(height)

    @kernel
    def run(step, plan, source, base, target):  # type: ignore[no-untyped-def]
        never_inline()
        blocks, taps, weights = plan[0], plan[1], plan[2]
        for b in range(step[2], step[2] + step[1]):
            block = b * BLOCK_FIELDS
            place = blocks[block] * LANES
            if step[3] == FROM_DESTINATION:
                tile = tile_load(height, target, place)
            else:
                tile = tile_zero(height)
            tile = accumulate(tile, block, blocks, taps, weights, source, base)
            if step[4] == GATE:
                tile = tile_gate(tile, target, place)
            tile_store(tile, target, place)

    return run
