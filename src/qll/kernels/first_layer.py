"""The first convolution with its ReLU, and the gradient of its weights, samples across lanes.

Inputs and activations lie batch-major outside, one row a sample; a group of ``LANES`` samples is
turned, computed and turned back while it is in the first-level cache.
"""

from __future__ import annotations

from qll.kernels.layers import run_step
from qll.kernels.simd import LANES, fma, kernel, load, store, total
from qll.kernels.steps import BLOCK_FIELDS, TAP_FIELDS
from qll.kernels.turns import empty_lanes, fill_lanes, lanes_in_turn


@kernel
def layer_forward(  # type: ignore[no-untyped-def]
    first, last, step, plan, x, places, out_places, lanes, rows, turning, out
):
    """Activations of samples ``first .. last``."""
    for begin in range(first, last, LANES):
        count = min(LANES, last - begin)
        lanes_in_turn(begin, count, len(places), turning)
        fill_lanes(x, places, lanes, 0, turning)
        run_step(step, plan, lanes, 0, rows)
        lanes_in_turn(begin, count, len(out_places), turning)
        empty_lanes(rows, 0, out_places, count, out, turning)


@kernel
def layer_gradient(  # type: ignore[no-untyped-def]
    first,
    last,
    step,
    plan,
    x,
    places,
    gradient,
    out_places,
    lanes,
    rows,
    turning,
    by_weight,
    by_bias,
):
    """Adds the gradients of packed weights and biases, still spread over the lanes.

    ``gradient`` is 0 where the ReLU is shut.
    """
    blocks, taps = plan[0], plan[1]
    height = step[0]
    for begin in range(first, last, LANES):
        count = min(LANES, last - begin)
        lanes_in_turn(begin, count, len(places), turning)
        fill_lanes(x, places, lanes, 0, turning)
        lanes_in_turn(begin, count, len(out_places), turning)
        fill_lanes(gradient, out_places, rows, 0, turning)
        for place in range(0, len(out_places) * LANES, LANES):
            for lane in range(count, LANES):  # lanes without a sample
                rows[place + lane] = 0.0
        for place in range(0, len(out_places) * LANES, LANES):
            store(by_bias, place, load(by_bias, place) + load(rows, place))
        for b in range(step[2], step[2] + step[1]):
            block = b * BLOCK_FIELDS
            here = blocks[block] * LANES
            for t in range(blocks[block + 1], blocks[block + 2]):
                row, weight = taps[TAP_FIELDS * t], taps[TAP_FIELDS * t + 1]
                for i in range(taps[TAP_FIELDS * t + 2]):
                    source = load(lanes, (row + i) * LANES)
                    for k in range(height):
                        place = (weight + i * height + k) * LANES
                        part = fma(source, load(rows, here + k * LANES), load(by_weight, place))
                        store(by_weight, place, part)


@kernel
def sum_lanes(spread, sums):  # type: ignore[no-untyped-def]
    for i in range(len(sums)):
        sums[i] += total(load(spread, i * LANES))
