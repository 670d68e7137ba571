"""The dual bound of any ReLU graph by its non-zeros: an ascent over lanes of domains, and a check.

The mathematics is that of `qll.bounds.dual`. Columns are the inputs and
then the hidden activations in the network's own order; row i is the pre-activation of neuron i over
the columns before it, rows of a layer that read the same columns are a block
(`qll.bounds.blocks`), so that one walk down the rows passes coefficients to the inputs, and one
walk up carries the minimiser through the relaxed network. The second gives all gradients: that of
a row's coefficient is its value there. Time is that of two sparse products a step, for all lanes,
over those rows alone that the objectives and the splits depend on. Domains may be of many boxes.

Entry ``i`` of lane ``d`` of an array is at ``i * LANES + d``.
"""

from __future__ import annotations

import numpy as np

from qll.kernels.cache import compiled
from qll.kernels.dual_hull import groups_of, minimise_groups, move_copies
from qll.kernels.simd import (
    LANES,
    absolute,
    broadcast,
    fma,
    kernel,
    less,
    less_equal,
    load,
    maximum,
    minimum,
    select,
    square_root,
    store,
    to_bits,
)
from qll.kernels.tile import tile_dot, tile_fma, tile_load, tile_store, tile_zero

_exact = compiled()

# Adam's decay rates, as in the reference.
FIRST, SECOND = np.float32(0.9), np.float32(0.99)
LEAST_WEIGHT = np.float32(1e-4)
TINY = np.float32(1e-20)
BLOCK = 4  # that of `qll.bounds.blocks`, as a number that numba knows
ZERO, ONE = np.float32(0.0), np.float32(1.0)


@compiled()
def reached(network, alive, split, top):  # type: ignore[no-untyped-def]
    """The blocks with rows that the columns ``top`` depend on, or that are ``split``, and of each
    block these rows, -1 in place of the others; all these rows, and the inputs that they read. Rows
    that are neither ``alive`` nor split are not among them."""
    inputs, members, starts, columns, _weights, _bias = network
    count = starts.shape[0] - 1
    asked = np.zeros(inputs + alive.shape[0], dtype=np.bool_)
    for t in top:
        asked[t] = True
    blocks = np.empty(count, dtype=np.int64)
    slots = np.full(count * BLOCK, -1, dtype=np.int64)
    rows = np.empty(alive.shape[0], dtype=np.int64)
    found, many = count, 0
    for block in range(count - 1, -1, -1):
        some = False
        for t in range(BLOCK):
            i = members[block * BLOCK + t]
            if i >= 0 and (split[i] or (alive[i] and asked[inputs + i])):
                if not some:
                    some = True
                    found -= 1
                    blocks[found] = block
                slots[found * BLOCK + t] = i
                rows[many] = i
                many += 1
        if some:
            for k in range(starts[block], starts[block + 1]):
                asked[columns[k]] = True
    read = np.flatnonzero(asked[:inputs])
    return blocks[found:].copy(), slots[found * BLOCK :].copy(), rows[:many].copy(), read


@compiled()
def relax(rows, low, high, sign, alpha, beta, chord, rise, free):  # type: ignore[no-untyped-def]
    """The lines of the rows, their multipliers as they are allowed, and which rows have some: no
    others move."""
    moving = np.zeros(rows.shape[0], dtype=np.bool_)
    for at, i in enumerate(rows):
        for d in range(i * LANES, (i + 1) * LANES):
            if high[d] <= ZERO:
                alpha[d] = ZERO
            elif low[d] >= ZERO:
                chord[d] = alpha[d] = ONE
            else:
                chord[d] = high[d] / (high[d] - low[d])
                rise[d] = -chord[d] * low[d]
                free[d] = ONE
                moving[at] = True
            if sign[d] == ZERO:
                beta[d] = ZERO
            else:
                moving[at] = True
    return rows[moving]


@kernel
def _down(network, box, asked, lines, hulls, sign, alpha, beta, weight, delta, work, room):  # type: ignore[no-untyped-def]
    """Coefficients of all columns, the bounds and their minimisers."""
    inputs, _members, starts, columns, weights, bias = network
    mid, rad = box
    top, objective, offset, blocks, slots, _rows, read = asked
    chord, rise, _free, _lift = lines
    coefficient, value, point, _row, block_rows = work
    zero = broadcast(ZERO)
    coefficient[:] = ZERO
    total = zero
    for m in range(0, weight.shape[0], LANES):
        total = total + load(weight, m)
    bound = zero
    for m in range(weight.shape[0] // LANES):
        share = load(weight, m * LANES) / total
        bound = fma(share, load(offset, m * LANES), bound)
        for t in range(top.shape[0]):
            o = top[t] * LANES
            here = load(objective, (m * top.shape[0] + t) * LANES)
            store(coefficient, o, fma(share, here, load(coefficient, o)))
    for at in range(blocks.shape[0] - 1, -1, -1):
        block = blocks[at]
        moved = False
        for t in range(BLOCK):
            i = slots[at * BLOCK + t]
            b = zero
            if i >= 0:
                n = i * LANES
                a = load(coefficient, (inputs + i) * LANES)
                negative = minimum(a, zero)
                b = (a - negative) * load(alpha, n) + negative * load(chord, n)
                b = b - load(beta, n) * load(sign, n)
                bound = fma(negative, load(rise, n), bound)
                bound = fma(b, broadcast(bias[i]), bound)
                moved = moved or to_bits(less(zero, absolute(b))) != 0
            store(block_rows, t * LANES, b)
        if not moved:
            continue
        tile = tile_load(BLOCK, block_rows, 0)
        for k in range(starts[block], starts[block + 1]):
            o = columns[k] * LANES
            store(coefficient, o, tile_dot(tile, load(coefficient, o), weights, k * BLOCK))
    for p in read:
        o = p * LANES
        c, m, r = load(coefficient, o), load(mid, o), load(rad, o)
        x = select(less(zero, c), m - r, m + r)
        store(point, o, x)
        bound = fma(c, x, bound)
    if hulls[1].shape[0] > 1:
        bound = minimise_groups(inputs, bias, box, lines, hulls, delta, work, room, bound)
    store(value, 0, bound)


@kernel
def _up(network, asked, lines, alpha, work):  # type: ignore[no-untyped-def]
    """Values of the rows and their columns at the minimisers, through the lines that were taken."""
    inputs, _members, starts, columns, weights, bias = network
    _top, _objective, _offset, blocks, slots, _rows, _read = asked
    chord, _rise, _free, lift = lines
    coefficient, _value, point, row, block_rows = work
    zero = broadcast(ZERO)
    for at in range(blocks.shape[0]):
        block = blocks[at]
        tile = tile_zero(BLOCK)
        for k in range(starts[block], starts[block + 1]):
            tile = tile_fma(tile, load(point, columns[k] * LANES), weights, k * BLOCK)
        tile_store(tile, block_rows, 0)
        for t in range(BLOCK):
            i = slots[at * BLOCK + t]
            if i < 0:
                continue
            n, o = i * LANES, (inputs + i) * LANES
            z = load(block_rows, t * LANES) + broadcast(bias[i])
            store(row, n, z)
            above = less(zero, load(coefficient, o))
            line = select(above, load(alpha, n) * z, fma(load(chord, n), z, load(lift, n)))
            store(point, o, line)


@kernel
def _adam(first, second, o, g, first_fix, second_fix):  # type: ignore[no-untyped-def]
    """The direction of a step along the gradient ``g``, about 1 in size."""
    one, f, s = broadcast(ONE), broadcast(FIRST), broadcast(SECOND)
    m = f * load(first, o) + (one - f) * g
    v = s * load(second, o) + (one - s) * g * g
    store(first, o, m)
    store(second, o, v)
    return m * first_fix / (square_root(v * second_fix) + broadcast(TINY))


@kernel
def ascend(  # type: ignore[no-untyped-def]
    steps, taken, target, rates, network, box, asked, moving, lines, hulls, sign,
    alpha, beta, weight, delta, moments, scales, work, room, best, kept,
):  # fmt: skip
    """Up to ``steps`` steps of Adam after ``taken`` ones: the best bounds go to ``best``, with what
    belongs to them to ``kept``. ``scales`` are the units of beta and delta; where one is 0 it is
    measured and written. Returns how many were taken: fewer if every lane has reached ``target``.
    """
    inputs, _members, _starts, _columns, _weights, _bias = network
    top, objective, offset, _blocks, _slots, rows, _read = asked
    _chord, _rise, free, _lift = lines
    coefficient, value, point, row, _block_rows = work
    count = weight.shape[0] // LANES
    zero, one = broadcast(ZERO), broadcast(ONE)
    alpha_first, alpha_second, beta_first, beta_second, weight_first, weight_second = moments[:6]
    delta_first, delta_second = moments[6:]
    best_alpha, best_beta, best_weight, best_delta = kept
    for step in range(steps + 1):
        _down(network, box, asked, lines, hulls, sign, alpha, beta, weight, delta, work, room)
        bound, old = load(value, 0), load(best, 0)
        better = less(old, bound)
        if to_bits(better) != 0:
            store(best, 0, select(better, bound, old))
            for i in moving:
                n = i * LANES
                store(best_alpha, n, select(better, load(alpha, n), load(best_alpha, n)))
                store(best_beta, n, select(better, load(beta, n), load(best_beta, n)))
            for m in range(0, count * LANES, LANES):
                store(best_weight, m, select(better, load(weight, m), load(best_weight, m)))
            for c in range(0, delta.shape[0], LANES):
                store(best_delta, c, select(better, load(delta, c), load(best_delta, c)))
        open_ = less_equal(bound, broadcast(target))
        if step == steps or to_bits(open_) == 0:
            return step
        speed = select(open_, one, zero)
        if to_bits(less_equal(minimum(load(scales, 0), load(scales, LANES)), zero)) != 0:
            size = zero
            for i in rows:
                size = size + absolute(load(coefficient, (inputs + i) * LANES))
            size = size / broadcast(np.float32(rows.shape[0])) + broadcast(np.float32(1e-30))
            known = load(scales, 0)
            store(scales, 0, select(less_equal(known, zero), size, known))
            size = zero
            for p in range(inputs):
                size = size + absolute(load(coefficient, p * LANES))
            size = size / broadcast(np.float32(inputs)) + broadcast(np.float32(1e-30))
            known = load(scales, LANES)
            store(scales, LANES, select(less_equal(known, zero), size, known))
        _up(network, asked, lines, alpha, work)
        number = taken + step
        decay = np.float32(rates[4] ** number)
        fix1 = np.float32(1.0 / (1.0 - np.float64(FIRST) ** (number + 1)))
        fix2 = np.float32(1.0 / (1.0 - np.float64(SECOND) ** (number + 1)))
        first_fix, second_fix = broadcast(fix1), broadcast(fix2)
        alpha_rate = speed * broadcast(np.float32(rates[0]) * decay)
        beta_rate = speed * broadcast(np.float32(rates[1]) * decay) * load(scales, 0)
        weight_rate = speed * broadcast(np.float32(rates[2]) * decay)
        delta_rate = speed * broadcast(np.float32(rates[3]) * decay) * load(scales, LANES)
        for i in moving:
            n = i * LANES
            f, s, z = load(free, n), load(sign, n), load(row, n)
            g = maximum(load(coefficient, (inputs + i) * LANES), zero) * z * f
            move = _adam(alpha_first, alpha_second, n, g, first_fix, second_fix)
            moved = load(alpha, n) + alpha_rate * f * move
            store(alpha, n, minimum(maximum(moved, zero), one))
            if to_bits(less(zero, absolute(s))) != 0:
                move = _adam(beta_first, beta_second, n, zero - s * z, first_fix, second_fix)
                moved = load(beta, n) + beta_rate * absolute(s) * move
                store(beta, n, maximum(moved, zero))
        move_copies(hulls, delta, delta_first, delta_second, room[0], delta_rate, fix1, fix2)
        if count > 1:
            for m in range(count):
                g = load(offset, m * LANES)
                for t in range(top.shape[0]):
                    here = load(objective, (m * top.shape[0] + t) * LANES)
                    g = fma(here, load(point, top[t] * LANES), g)
                o = m * LANES
                move = _adam(weight_first, weight_second, o, g, first_fix, second_fix)
                moved = load(weight, o) + weight_rate * move
                store(weight, o, minimum(maximum(moved, broadcast(LEAST_WEIGHT)), one))
    return steps


@kernel
def minimise(network, box, asked, lines, hulls, sign, kept, work, room):  # type: ignore[no-untyped-def]
    """Coefficients of given multipliers, and all values at the minimisers, in ``work``."""
    alpha, beta, weight, delta = kept
    _down(network, box, asked, lines, hulls, sign, alpha, beta, weight, delta, work, room)
    _up(network, asked, lines, alpha, work)


@_exact
def bound_of(  # type: ignore[no-untyped-def]
    network, ends, mid, rad, top, objective, offset,
    low, high, sign, alpha, beta, weight, delta, sizes, reach, objective_sizes, unit, hulls, joined,
):  # fmt: skip
    """The bound of one domain in float64, less what rounding may have added: the number that the
    engine believes. Multipliers are projected to the allowed ones. As in `qll.kernels.dual_check`,
    sums are short, one for each layer (``ends`` are where its blocks end), and ``size`` collects
    what the error is measured in (`qll.bounds.rounding`). ``joined`` says which neurons and which
    inputs are those of the ``hulls``."""
    inputs, members, starts, columns, weights, bias = network
    joined_neurons, joined_inputs = joined
    free, chords = np.zeros(bias.shape[0]), np.zeros(bias.shape[0])
    total = 0.0
    for m in range(weight.shape[0]):
        total += max(np.float64(weight[m]), 1e-4)
    value, size = 0.0, 0.0
    coefficient = np.zeros(inputs + bias.shape[0])
    for m in range(weight.shape[0]):
        w = max(np.float64(weight[m]), 1e-4) / total
        value += w * offset[m]
        size += w * objective_sizes[m]
        for t in range(top.shape[0]):
            coefficient[top[t]] += w * objective[m, t]
    row = np.zeros(BLOCK)
    for layer in range(ends.shape[0] - 1, 0, -1):
        here = 0.0
        for block in range(ends[layer] - 1, ends[layer - 1] - 1, -1):
            moved = False
            for t in range(BLOCK):
                row[t] = 0.0
                i = members[block * BLOCK + t]
                if i < 0:
                    continue
                a, below, above = coefficient[inputs + i], low[i], high[i]
                slope, chord, rise = 0.0, 0.0, 0.0
                unstable = False
                if above > 0.0:
                    if below >= 0.0:
                        slope, chord = 1.0, 1.0
                    else:
                        unstable = True
                        slope = min(max(np.float64(alpha[i]), 0.0), 1.0)
                        chord = above / (above - below)
                        rise = -chord * below
                b = a * chord if a < 0.0 else a * slope
                if sign[i] != 0:
                    split = max(np.float64(beta[i]), 0.0)
                    b -= split * sign[i]
                    size += split * sizes[i]
                size += abs(b) * sizes[i]
                chords[i] = chord
                if a < 0.0 and unstable:
                    size -= a * above
                    if joined_neurons[i]:
                        free[i] = a  # settled by group below
                        size -= 2.0 * a * sizes[i]
                    else:
                        here += a * rise
                here += b * bias[i]
                row[t] = b
                moved = moved or b != 0.0
            if moved:
                b0, b1, b2, b3 = row[0], row[1], row[2], row[3]
                for k in range(starts[block], starts[block + 1]):
                    o = k * BLOCK
                    more = b0 * weights[o] + b1 * weights[o + 1]
                    more += b2 * weights[o + 2] + b3 * weights[o + 3]
                    coefficient[columns[k]] += more
        value += here
    here = 0.0
    for p in range(inputs):
        if not joined_inputs[p]:
            here += coefficient[p] * mid[p] - abs(coefficient[p]) * rad[p]
    if hulls[1].shape[0] > 1:
        neurons, firsts, inputs_of, own, share, home = hulls
        found, more = groups_of(
            neurons, firsts, inputs_of, own, share, home, bias, mid, rad, reach, delta,
            coefficient, free, chords,
        )  # fmt: skip
        value += found
        size += more
    return value + here - unit * size
