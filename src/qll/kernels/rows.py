"""The steps of a plan that are not tiles: sums of rows, activations, the largest of several rows.

Layouts as in ``layers.py``, with these uses of a step's numbers (height, blocks, first block,
start, finish, reads input):

- ``SUM``: block ``d`` is ``sum of w_t * row_t`` over its taps, each a run of rows with a weight a
  row; all taps of a block have as many rows as it has (a block without taps has one).
- ``LARGEST``: as above without weights; a tap's second number tells which term it is, and the
  block's last number is the row where the winner is written. ``finish`` 1 takes the least.
- ``CHOSEN``: the gradient of the former. A tap reads a gradient row where the winner, so many rows
  behind it as the block's last number says, is the tap's own.
- ``ACTIVATE``: rows from ``first block`` on, in place; slopes go to the row ``start``; ``finish``
  is the function's number.
- ``SCALE``: rows from ``first block`` on times those from ``start`` on; or, with ``finish`` 1, 0
  where these are not positive.
- ``CLEAR``: rows from ``first block`` on are 0.
"""

from __future__ import annotations

import numpy as np

from qll.kernels.lanes import WIDTH
from qll.kernels.pointers import call_activation
from qll.kernels.simd import (
    LANES,
    absolute,
    broadcast,
    fma,
    kernel,
    less,
    less_equal,
    load,
    never_inline,
    select,
    store,
)
from qll.kernels.steps import (
    BLOCK_FIELDS,
    FROM_BIAS,
    FROM_DESTINATION,
    GATE,
    RELU,
    TAP_FIELDS,
)


@kernel
def sum_rows(step, plan, source, base, target):  # type: ignore[no-untyped-def]
    never_inline()
    blocks, taps, weights, biases = plan[0], plan[1], plan[2], plan[3]
    start, finish = step[3], step[4]
    zero = broadcast(np.float32(0.0))
    for b in range(step[2], step[2] + step[1]):
        block = b * BLOCK_FIELDS
        place, first, last = blocks[block] * LANES, blocks[block + 1], blocks[block + 2]
        count = taps[TAP_FIELDS * first + 2] if last > first else 1
        for i in range(count):
            here = place + i * LANES
            if start == FROM_BIAS:
                total = broadcast(biases[blocks[block + 3] + i])
            elif start == FROM_DESTINATION:
                total = load(target, here)
            else:
                total = zero
            for t in range(first, last):
                row = (base + taps[TAP_FIELDS * t] + i) * LANES
                weight = broadcast(weights[taps[TAP_FIELDS * t + 1] + i])
                total = fma(weight, load(source, row), total)
            if finish == RELU:
                total = select(less(total, zero), zero, total)
            elif finish == GATE:
                total = select(less(zero, load(target, here)), total, zero)
            store(target, here, total)


@kernel
def largest_rows(step, plan, source, base, rows):  # type: ignore[no-untyped-def]
    never_inline()
    blocks, taps = plan[0], plan[1]
    least = step[4] == 1
    for b in range(step[2], step[2] + step[1]):
        block = b * BLOCK_FIELDS
        first, last = blocks[block + 1], blocks[block + 2]
        for i in range(taps[TAP_FIELDS * first + 2]):
            best = load(rows, (taps[TAP_FIELDS * first] + i) * LANES)
            winner = broadcast(np.float32(taps[TAP_FIELDS * first + 1]))
            for t in range(first + 1, last):
                value = load(rows, (taps[TAP_FIELDS * t] + i) * LANES)
                better = less(value, best) if least else less(best, value)
                winner = select(better, broadcast(np.float32(taps[TAP_FIELDS * t + 1])), winner)
                best = select(better, value, best)
                best = select(less_equal(value, value), best, value)  # NaN wins
            store(rows, (blocks[block] + i) * LANES, best)
            store(rows, (blocks[block + 3] + i) * LANES, winner)


@kernel
def chosen_rows(step, plan, source, base, rows):  # type: ignore[no-untyped-def]
    never_inline()
    blocks, taps = plan[0], plan[1]
    zero, half = broadcast(np.float32(0.0)), broadcast(np.float32(0.5))
    for b in range(step[2], step[2] + step[1]):
        block = b * BLOCK_FIELDS
        first, last, behind = blocks[block + 1], blocks[block + 2], blocks[block + 3]
        count = taps[TAP_FIELDS * first + 2] if last > first else 1
        for i in range(count):
            here = (blocks[block] + i) * LANES
            total = load(rows, here) if step[3] == FROM_DESTINATION else zero
            for t in range(first, last):
                row = taps[TAP_FIELDS * t] + i
                own = broadcast(np.float32(taps[TAP_FIELDS * t + 1]))
                away = absolute(load(rows, (row + behind) * LANES) - own)
                total = total + select(less(away, half), load(rows, row * LANES), zero)
            if step[4] == GATE:
                total = select(less(zero, load(rows, here)), total, zero)
            store(rows, here, total)


@kernel
def scale_rows(step, plan, source, base, rows):  # type: ignore[no-untyped-def]
    never_inline()
    zero = broadcast(np.float32(0.0))
    for i in range(step[1]):
        here = (step[2] + i) * LANES
        other = load(rows, (step[3] + i) * LANES)
        if step[4] == 1:
            store(rows, here, select(less(zero, other), load(rows, here), zero))
        else:
            store(rows, here, load(rows, here) * other)


@kernel
def clear_rows(step, plan, source, base, rows):  # type: ignore[no-untyped-def]
    never_inline()
    zero = broadcast(np.float32(0.0))
    for i in range(step[1]):
        store(rows, (step[2] + i) * LANES, zero)


@kernel
def activate_rows(step, plan, source, base, rows):  # type: ignore[no-untyped-def]
    never_inline()
    functions, params = plan[4], plan[5]
    first = step[2] * LANES
    call_activation(
        functions[2 * step[4]], rows, first, step[1] * (LANES // WIDTH), params,
        functions[2 * step[4] + 1], rows, first, rows, step[3] * LANES,
    )  # fmt: skip
