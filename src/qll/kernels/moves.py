"""The last step back to the input of an attack, and the move that it leads to.

``schedule.py`` states the mathematics. The points of a group lie in sections, one row an input. A
tile of the gradient moves its rows of the points at once: nothing of a gradient is kept but signs,
and the sums of the next tile hide the points' way from the cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from qll.kernels.simd import (
    LANES,
    absolute,
    broadcast,
    copy_sign,
    fma,
    kernel,
    less,
    load,
    maximum,
    merge,
    minimum,
    never_inline,
    select,
    store,
    to_bits,
    to_mask,
    to_words,
)
from qll.kernels.steps import BLOCK_FIELDS
from qll.kernels.tile import tile_store, tile_zero

# Sections of the point buffer, in units of the input's rows. LOWER and UPPER are cut to the valid
# range, CORNER is the lower end of the box before that.
FIRST, SECOND, BEST, LOWER, UPPER, OVERALL, CORNER, SECTIONS = range(8)


@kernel
def spread_lanes(bits, words):  # type: ignore[no-untyped-def]
    """Bits of lanes as words in memory, where no compiler sees that they were a mask."""
    never_inline()
    store(words, 0, to_words(to_mask(bits)))


def move_runner(height: int, accumulate: Any) -> Any:
    """For tiles of one height, whose sums ``accumulate`` makes.

    The loop is one function and its arrays are arguments: numba counts references to what is
    unpacked or handed on inside a loop, and that took longer than the loop. No mask is kept over a
    branch: without AVX-512 it would be packed to bytes and unpacked at every use. Minima, maxima
    and comparisons are few: they take the place of the sums on some machines.
    """

    @kernel
    def run(  # type: ignore[no-untyped-def]
        step, plan, source, tile_room, points, rows, current, widths, varied, best_positive,
        best_negative, improved, reduced, better, back, signed, sizes, share,
    ):  # fmt: skip
        """The next points into the other buffer; before it, the best points and their signs are
        kept (lanes in ``improved``, as words in ``better``) and taken back (lanes in ``reduced``,
        as words in ``back``). ``varied`` is 1 where the box has a width for each input, 0 where one
        is for all."""
        never_inline()
        blocks, taps, weights = plan[0], plan[1], plan[2]
        zero, one = broadcast(np.float32(0.0)), broadcast(np.float32(1.0))
        size, part, rest = load(sizes, 0), broadcast(share), broadcast(np.float32(1.0) - share)
        kept, returned = load(better, 0), load(back, 0)
        for b in range(step[2], step[2] + step[1]):
            block = b * BLOCK_FIELDS
            tile = accumulate(tile_zero(height), block, blocks, taps, weights, source, 0)
            tile_store(tile, tile_room, 0)
            first = blocks[block]
            for t in range(height):
                row = np.uint64(first + t)
                here = (current * rows + first + t) * LANES
                there = ((1 - current) * rows + first + t) * LANES
                best = (BEST * rows + first + t) * LANES
                gradient, point = load(tile_room, t * LANES), load(points, here)
                if improved != 0:
                    store(points, best, merge(kept, point, load(points, best)))
                    if signed:
                        up = np.uint32(to_bits(less(zero, gradient)))
                        down = np.uint32(to_bits(less(gradient, zero)))
                        best_positive[row] = (best_positive[row] & ~improved) | (up & improved)
                        best_negative[row] = (best_negative[row] & ~improved) | (down & improved)
                if reduced != 0:
                    point = merge(returned, load(points, best), point)
                    store(points, here, point)
                    sign = select(to_mask(best_negative[row]), zero - one, zero)
                    sign = select(to_mask(best_positive[row]), one, sign)
                    gradient = merge(returned, sign, gradient)
                lower = load(points, (LOWER * rows + first + t) * LANES)
                upper = load(points, (UPPER * rows + first + t) * LANES)
                length = load(widths, varied * (first + t) * LANES) * size
                # Where the derivative is 0 or no number, there is no way to go.
                length = select(less(zero, absolute(gradient)), copy_sign(length, gradient), zero)
                aim = minimum(upper, maximum(lower, point + length))
                inertia = rest * (point - load(points, there))
                following = fma(part, aim - point, point) + inertia
                store(points, there, minimum(upper, maximum(lower, following)))

    return run
