"""One lane group's whole attack: start, layers, formula, gradient signs and update, all restarts.

The group's points and activations stay in the second-level cache from the first step to the last.
``schedule.py`` states the mathematics; ``qll.attacks.ascent`` is the same in torch.
"""

from __future__ import annotations

import numpy as np

from qll.kernels.chance import uniform
from qll.kernels.interpreter import judge_lanes, lay_out_passes
from qll.kernels.layers import run_backward, run_forward, run_move
from qll.kernels.moves import BEST, CORNER, FIRST, LOWER, OVERALL, SECOND, UPPER, spread_lanes
from qll.kernels.schedule import RHO
from qll.kernels.simd import (
    LANES,
    broadcast,
    fma,
    kernel,
    load,
    maximum,
    minimum,
    never_inline,
    select,
    store,
    to_mask,
)
from qll.kernels.starts import GOLDEN
from qll.kernels.turns import empty_lanes, fill_lanes

# Bits of lanes are uint64 everywhere: what numba makes of a shifted uint32, and a kernel that takes
# both would be compiled for each.
ALL_LANES, NO_LANES, ONE_LANE = np.uint64(0xFFFFFFFF), np.uint64(0), np.uint64(1)


@kernel
def fill_boxes(points, rows, valid, widths, width):  # type: ignore[no-untyped-def]
    """The corners and widths of the boxes, whose ends are in LOWER and UPPER, and the ends cut to
    the valid range. A ``width`` that is a number is that of every input."""
    never_inline()
    low, high = broadcast(valid[0]), broadcast(valid[1])
    store(widths, 0, broadcast(width))
    varied = np.isnan(width)
    for row in range(rows):
        lower = load(points, (LOWER * rows + row) * LANES)
        upper = load(points, (UPPER * rows + row) * LANES)
        if varied:
            store(widths, row * LANES, upper - lower)
        store(points, (CORNER * rows + row) * LANES, lower)
        store(points, (LOWER * rows + row) * LANES, maximum(low, lower))
        store(points, (UPPER * rows + row) * LANES, minimum(high, upper))


@kernel
def random_start(points, places, keys, widths, varied):  # type: ignore[no-untyped-def]
    """Uniform in the box, then into the valid range; the same point as current and as previous."""
    never_inline()
    rows = len(places)
    for i in range(rows):
        row = places[i]
        number = uniform(keys, np.uint32(np.uint32(i + 1) * GOLDEN))
        width = load(widths, varied * row * LANES)
        start = fma(number, width, load(points, (CORNER * rows + row) * LANES))
        start = maximum(load(points, (LOWER * rows + row) * LANES), start)
        start = minimum(load(points, (UPPER * rows + row) * LANES), start)
        store(points, (FIRST * rows + row) * LANES, start)
        store(points, (SECOND * rows + row) * LANES, start)


@kernel
def lanes_in_order(order, first, count, skipped, width, samples):  # type: ignore[no-untyped-def]
    """Where the rows of the lanes' samples begin, ``skipped`` samples behind the first; unused
    lanes repeat the first sample."""
    for lane in range(LANES):
        samples[lane] = (skipped + order[first + (lane if lane < count else 0)]) * width


@kernel
def keep_best(points, rows, current, section, improved):  # type: ignore[no-untyped-def]
    never_inline()
    mask = to_mask(improved)
    for row in range(rows):
        place = (section * rows + row) * LANES
        point = load(points, (current * rows + row) * LANES)
        store(points, place, select(mask, point, load(points, place)))


@kernel
def attack_group(  # type: ignore[no-untyped-def]
    first,
    count,
    network,
    tape,
    box,
    valid,
    order,
    chosen,
    centre,
    keys,
    starts,
    schedule,
    work,
    out,
):
    """Attack the samples at ``first .. first + count`` (at most LANES) of ``order`` and write their
    worst points; ``chosen``, ``centre`` and ``keys`` are in that order."""
    never_inline()
    forward_steps, backward_steps, plan, places, output_row, outputs = network
    lower, upper, width = box
    windows, first_step, alpha, as_published = schedule
    points, widths, activations, tile_room, room, (singles, doubles, integers, bits) = work
    scratch, passes, term_sources, term_numbers, atom_numbers, table_widths = room
    patterns, nodes, hardness, atoms, offsets, sources, coefficients, functions, params = tape
    best_points, best_values = out
    rows, steps, samples = len(places), len(windows), len(lower)
    restarts = len(keys) // samples if len(keys) > 0 else len(starts) // samples
    step, better, back = singles[0], singles[1], singles[2]
    values, previous, best, best_at_check, overall = (
        doubles[0], doubles[1], doubles[2], doubles[3], doubles[4],
    )  # fmt: skip
    lane_patterns, rises, was_reduced, turning = (
        integers[0], integers[1], integers[2], integers[3],
    )  # fmt: skip
    best_positive, best_negative, lane_keys = bits[0], bits[1], bits[2]
    lane_centre = centre[first : first + count] if len(centre) > 0 else centre
    for lane in range(LANES):
        lane_patterns[lane] = chosen[first + (lane if lane < count else 0)]
    pass_count = lay_out_passes(
        lane_patterns, count, passes, term_sources, term_numbers, atom_numbers, table_widths,
        patterns, atoms, offsets, sources, coefficients,
    )  # fmt: skip
    last_check = 0
    for k in range(steps):
        last_check = k + 1 if windows[k] > 0 else last_check
    lanes_in_order(order, first, count, 0, rows, turning)
    fill_lanes(lower, places, points, LOWER * rows, turning)
    fill_lanes(upper, places, points, UPPER * rows, turning)
    fill_boxes(points, rows, valid, widths, width)
    varied = 1 if np.isnan(width) else 0
    for restart in range(restarts):
        at = restart * samples + first
        if len(keys) > 0:
            for lane in range(count):
                lane_keys[lane] = keys[at + lane]
            random_start(points, places, lane_keys, widths, varied)
        else:
            lanes_in_order(order, first, count, restart * samples, rows, turning)
            fill_lanes(starts, places, points, FIRST * rows, turning)
            fill_lanes(starts, places, points, SECOND * rows, turning)
        current = 0
        improved, reduced = ALL_LANES, NO_LANES
        for lane in range(LANES):
            step[lane] = first_step
            rises[lane], was_reduced[lane] = 0, 1 if as_published else 0
        for k in range(steps + 1):
            run_forward(forward_steps, plan, points, current * rows, activations)
            judge_lanes(
                pass_count, passes, term_sources, term_numbers, atom_numbers, table_widths,
                count, LANES, outputs, lane_centre, activations, output_row, values, scratch,
                patterns, nodes, hardness, atoms, functions, params,
            )  # fmt: skip
            if k == 0:
                for lane in range(count):
                    best[lane] = best_at_check[lane] = values[lane]
                    previous[lane] = 0.0 if as_published else values[lane]
            else:
                window = windows[k - 1]
                improved, reduced = NO_LANES, NO_LANES
                for lane in range(count):
                    if values[lane] > best[lane]:
                        best[lane] = values[lane]
                        improved |= ONE_LANE << np.uint64(lane)
                    if values[lane] > previous[lane]:
                        rises[lane] += 1
                    previous[lane] = values[lane]
                    if window > 0:
                        few = rises[lane] < RHO * window
                        if as_published:
                            few = rises[lane] <= RHO * window
                        stuck = was_reduced[lane] == 0 and best_at_check[lane] >= best[lane]
                        was_reduced[lane] = 1 if few or stuck else 0
                        if was_reduced[lane] == 1:
                            step[lane] *= np.float32(0.5)
                            previous[lane] = best[lane]
                            reduced |= ONE_LANE << np.uint64(lane)
                        best_at_check[lane] = best[lane]
                        rises[lane] = 0
            if k == steps:
                keep_best(points, rows, current, BEST, improved)
                break
            run_backward(backward_steps, plan, activations)
            share = np.float32(alpha if k > 0 else 1.0)
            # Signs of the best point are for lanes that return to it at a later check.
            signed = k <= last_check
            spread_lanes(improved, better)
            spread_lanes(reduced, back)
            run_move(
                backward_steps, plan, activations, tile_room, points, rows, current, widths,
                varied, best_positive, best_negative, improved, reduced, better, back, signed,
                step, share,
            )  # fmt: skip
            current = 1 - current
        if restart == 0:
            # A loop: the slice assignment would compile numba's formatting of its error, 3 s.
            for lane in range(count):
                overall[lane] = best[lane]
            keep_best(points, rows, BEST, OVERALL, ALL_LANES)
        else:
            improved = NO_LANES
            for lane in range(count):
                if best[lane] > overall[lane]:
                    overall[lane] = best[lane]
                    improved |= ONE_LANE << np.uint64(lane)
            keep_best(points, rows, BEST, OVERALL, improved)
    lanes_in_order(order, first, count, 0, rows, turning)
    empty_lanes(points, OVERALL * rows, places, count, best_points, turning)
    for lane in range(count):
        best_values[order[first + lane]] = overall[lane]


@kernel
def attack_groups(  # type: ignore[no-untyped-def]
    first, last, size, network, tape, box, valid, order, chosen, centre, keys, starts, schedule,
    work, out,
):  # fmt: skip
    """Attack samples ``first .. last`` in groups of ``size``, one after the other: a call from
    Python, which looks at every array, takes as long as a gradient."""
    for begin in range(first, last, size):
        attack_group(
            begin, min(size, last - begin), network, tape, box, valid, order, chosen, centre, keys,
            starts, schedule, work, out,
        )  # fmt: skip
