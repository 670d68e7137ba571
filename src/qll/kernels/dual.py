"""The dual bound of a chain of ReLU layers and its ascent, ``LANES`` domains at a time.

The mathematics is that of `qll.bounds.dual` (read that first; tests hold this file to it): for the
multipliers of 32 domains that share one box, the least value of ``sum_m weight_m g_m`` over it,
its gradient by one forward sweep of the relaxed minimiser, and Adam on all multipliers, without
leaving the caches. Everything per domain lies in lanes: entry ``i`` of lane ``d`` of an array is at
``i * LANES + d``. Widths are padded to a multiple of ``TILE``; padded neurons have low = high = -1.
"""

from __future__ import annotations

import numpy as np

from qll.kernels.simd import (
    LANES,
    TILE,
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
from qll.kernels.tile import tile_fma, tile_store, tile_zero

# Adam's decay rates and the floor of its denominator.
KEEP_FIRST = np.float32(0.9)
NEW_FIRST = np.float32(0.1)
KEEP_SECOND = np.float32(0.99)
NEW_SECOND = np.float32(0.01)
FLOOR = np.float32(1e-20)
# Least simplex weight before normalisation: no disjunct is given up for good.
LEAST_WEIGHT = np.float32(1e-4)
ZERO = np.float32(0.0)
ONE = np.float32(1.0)
TINY = np.float32(1e-30)

# Most neurons of one group in the joint hull: 2^4 box minima.
HULL = 4


@kernel
def _adam(first, second, offset, gradient, rate, fix_first, fix_second):  # type: ignore[no-untyped-def]
    """The step of one entry; its moments are updated in place."""
    m = fma(broadcast(KEEP_FIRST), load(first, offset), broadcast(NEW_FIRST) * gradient)
    v = fma(
        broadcast(KEEP_SECOND), load(second, offset), broadcast(NEW_SECOND) * gradient * gradient
    )
    store(first, offset, m)
    store(second, offset, v)
    bottom = square_root(v * broadcast(fix_second)) + broadcast(FLOOR)
    return rate * (m * broadcast(fix_first)) / bottom


@kernel
def relax(low, high, slope, rise, alpha_low, alpha_high, count):  # type: ignore[no-untyped-def]
    """The upper chord ``slope * z + rise`` of each neuron and the range of its lower slope."""
    zero, one = broadcast(ZERO), broadcast(ONE)
    for i in range(count):
        o = i * LANES
        below, above = load(low, o), load(high, o)
        off = less_equal(above, zero)
        on = less_equal(zero, below)
        chord = above / maximum(above - below, broadcast(TINY))
        s = select(off, zero, select(on, one, chord))
        store(slope, o, s)
        store(rise, o, select(off, zero, select(on, zero, zero - s * below)))
        store(alpha_low, o, select(off, zero, select(on, one, zero)))
        store(alpha_high, o, select(off, zero, one))


@kernel
def _linear(weights, at, rows, columns, source, source_at, target, target_at):  # type: ignore[no-untyped-def]
    """target[c] = sum_r weights[r, c] source[r] for all columns (a multiple of TILE)."""
    for c in range(0, columns, TILE):
        tile = tile_zero(TILE)
        for r in range(rows):
            tile = tile_fma(
                tile, load(source, (source_at + r) * LANES), weights, at + r * columns + c
            )
        tile_store(tile, target, (target_at + c) * LANES)


@kernel
def ascend(  # type: ignore[no-untyped-def]
    steps,  # updates; the bound is computed once more after the last
    begin,  # steps already taken with these moments
    hull_on,  # joint hulls in the first layer, or chords
    target,  # lanes above it stop moving
    rates,  # (alpha, beta, weight, delta, decay per step)
    network,  # `qll.bounds.chain.Chain.packed32`
    box,  # (mid, rad)
    domain,  # (low, high, sign, objective, offset, objectives)
    variables,  # (alpha, beta, weight, delta)
    first,  # moments of the variables
    second,
    scratch,
    scales,  # (2 * LANES,) units of beta and delta; where 0, measured here and written
    bound,  # out: (LANES,)
    minimiser,  # out: (inputs * LANES,)
    scores,  # out: (neurons * LANES,) branching scores: what each relaxation loses there
):
    (
        layers, widths, starts, bias, upper, upper_transposed, upper_at,
        group_neurons, group_copies, group_weights, group_hull, weights,
        copy_pixel, copy_home, copy_is_home, share,
    ) = network  # fmt: skip
    mid, rad = box
    low, high, sign, objective, offset, objectives = domain
    alpha, beta, weight, delta = variables
    alpha1, beta1, weight1, delta1 = first
    alpha2, beta2, weight2, delta2 = second
    (
        slope, rise, alpha_low, alpha_high, coefficient, back, activation,
        copy_coefficient, pixel_coefficient, copy_point, residual, member, hull_gain, hull_active,
        reached,
    ) = scratch  # fmt: skip
    groups = group_hull.shape[0]
    pixels = share.shape[0]
    copies = copy_pixel.shape[0]
    neurons = starts[layers]
    zero, one = broadcast(ZERO), broadcast(ONE)
    top = layers - 1
    top_width = widths[top]
    relax(low, high, slope, rise, alpha_low, alpha_high, neurons)
    delta_scale = one
    beta_scale = one
    power_first = KEEP_FIRST ** np.float32(begin)
    power_second = KEEP_SECOND ** np.float32(begin)
    decay = np.float32(rates[4]) ** np.float32(begin)

    for step in range(steps + 1):
        last = step == steps
        # The mixture of objectives.
        total_weight = zero
        for m in range(objectives):
            total_weight = total_weight + load(weight, m * LANES)
        constant = zero
        for m in range(objectives):
            constant = fma(
                load(weight, m * LANES) / total_weight, load(offset, m * LANES), constant
            )
        for i in range(top_width):
            c = zero
            for m in range(objectives):
                c = fma(
                    load(weight, m * LANES) / total_weight,
                    load(objective, (m * top_width + i) * LANES),
                    c,
                )
            store(coefficient, (starts[top] + i) * LANES, c)
        # Backward through the upper layers.
        for k in range(top, 0, -1):
            base = starts[k]
            for i in range(widths[k]):
                o = (base + i) * LANES
                a = load(coefficient, o)
                negative = minimum(a, zero)
                positive = a - negative
                s = minimum(maximum(load(alpha, o), load(alpha_low, o)), load(alpha_high, o))
                b = positive * s + negative * load(slope, o) - load(beta, o) * load(sign, o)
                constant = fma(b, broadcast(bias[base + i]), constant)
                constant = fma(negative, load(rise, o), constant)
                store(back, o, b)
            _linear(
                upper, upper_at[k], widths[k], widths[k - 1], back, base, coefficient, starts[k - 1]
            )
        # First layer: the coefficient of each copy of a pixel, and of the pixel itself.
        for p in range(pixels):
            store(pixel_coefficient, p * LANES, zero)
        for g in range(groups):
            first_copy, end_copy = group_copies[g], group_copies[g + 1]
            width = end_copy - first_copy
            for c in range(first_copy, end_copy):
                store(copy_coefficient, c * LANES, zero)
            for i in range(group_neurons[g], group_neurons[g + 1]):
                o = i * LANES
                a = load(coefficient, o)
                negative = minimum(a, zero)
                positive = a - negative
                s = minimum(maximum(load(alpha, o), load(alpha_low, o)), load(alpha_high, o))
                chord = load(slope, o)
                linear = positive * s - load(beta, o) * load(sign, o)
                b = fma(negative, chord, linear)
                store(back, o, b)
                if hull_on and group_hull[g]:
                    unstable = less(zero, chord - chord * chord)
                    free = select(unstable, negative, zero)
                    store(hull_gain, o, free)
                    hull_active[i] = to_bits(less(free, zero)) != 0
                    constant = fma(b - free * chord, broadcast(bias[i]), constant)
                else:
                    constant = fma(b, broadcast(bias[i]), constant)
                    constant = fma(negative, load(rise, o), constant)
                row = group_weights[g] + (i - group_neurons[g]) * width
                for c in range(width):
                    oc = (first_copy + c) * LANES
                    store(
                        copy_coefficient,
                        oc,
                        fma(b, broadcast(weights[row + c]), load(copy_coefficient, oc)),
                    )
            for c in range(first_copy, end_copy):
                op = copy_pixel[c] * LANES
                store(
                    pixel_coefficient,
                    op,
                    load(pixel_coefficient, op) + load(copy_coefficient, c * LANES),
                )
        if step == 0:
            size = zero
            for p in range(pixels):
                size = size + absolute(load(pixel_coefficient, p * LANES))
            measured = size * broadcast(ONE / np.float32(pixels)) + broadcast(TINY)
            delta_scale = select(less(zero, load(scales, LANES)), load(scales, LANES), measured)
            store(scales, LANES, delta_scale)
            size = zero
            for i in range(neurons):
                size = size + absolute(load(coefficient, i * LANES))
            measured = size * broadcast(ONE / np.float32(neurons)) + broadcast(TINY)
            beta_scale = select(less(zero, load(scales, 0)), load(scales, 0), measured)
            store(scales, 0, beta_scale)
        # The box minimum of each group.
        value = constant
        for p in range(pixels):
            store(minimiser, p * LANES, zero)
        for g in range(groups):
            first_copy, end_copy = group_copies[g], group_copies[g + 1]
            width = end_copy - first_copy
            first_neuron, end_neuron = group_neurons[g], group_neurons[g + 1]
            use_hull = hull_on and group_hull[g]
            here = zero
            for c in range(width):
                pixel = copy_pixel[first_copy + c]
                q = fma(
                    load(pixel_coefficient, pixel * LANES),
                    broadcast(share[pixel]),
                    load(delta, (first_copy + c) * LANES),
                )
                if use_hull:
                    for i in range(first_neuron, end_neuron):
                        if hull_active[i]:
                            w = weights[group_weights[g] + (i - first_neuron) * width + c]
                            q = q - load(hull_gain, i * LANES) * load(slope, i * LANES) * broadcast(
                                w
                            )
                store(residual, c * LANES, q)
                here = fma(q, broadcast(mid[pixel]), here)
                here = here - absolute(q) * broadcast(rad[pixel])
            if use_hull:
                # Visit the subsets in Gray order: each differs from the last in one neuron.
                active = 0
                for i in range(first_neuron, end_neuron):
                    store(member, (i - first_neuron) * LANES, zero)
                    if hull_active[i]:
                        active += 1
                code = 0
                shift = zero
                for number in range(1, 1 << active):
                    flip = 0
                    rest = number
                    while rest & 1 == 0:
                        rest >>= 1
                        flip += 1
                    code ^= 1 << flip
                    neuron = first_neuron
                    seen = -1
                    for i in range(first_neuron, end_neuron):
                        if hull_active[i]:
                            seen += 1
                            if seen == flip:
                                neuron = i
                    change = load(hull_gain, neuron * LANES)
                    if code & (1 << flip) == 0:
                        change = zero - change
                    shift = fma(change, broadcast(bias[neuron]), shift)
                    row = group_weights[g] + (neuron - first_neuron) * width
                    candidate = shift
                    for c in range(width):
                        pixel = copy_pixel[first_copy + c]
                        q = fma(change, broadcast(weights[row + c]), load(residual, c * LANES))
                        store(residual, c * LANES, q)
                        candidate = fma(q, broadcast(mid[pixel]), candidate)
                        candidate = candidate - absolute(q) * broadcast(rad[pixel])
                    better = less(candidate, here)
                    if to_bits(better) != 0:
                        here = minimum(candidate, here)
                        seen = 0
                        for i in range(first_neuron, end_neuron):
                            if hull_active[i]:
                                inside = one if code & (1 << seen) else zero
                                om = (i - first_neuron) * LANES
                                store(member, om, select(better, inside, load(member, om)))
                                seen += 1
                # From the last subset back to the best one, lane by lane.
                seen = 0
                for i in range(first_neuron, end_neuron):
                    if hull_active[i]:
                        inside = one if code & (1 << seen) else zero
                        move = load(hull_gain, i * LANES) * (
                            load(member, (i - first_neuron) * LANES) - inside
                        )
                        row = group_weights[g] + (i - first_neuron) * width
                        for c in range(width):
                            store(
                                residual,
                                c * LANES,
                                fma(move, broadcast(weights[row + c]), load(residual, c * LANES)),
                            )
                        seen += 1
            value = value + here
            for c in range(width):
                pixel = copy_pixel[first_copy + c]
                q = load(residual, c * LANES)
                x = broadcast(mid[pixel]) + select(
                    less(q, zero), broadcast(rad[pixel]), broadcast(-rad[pixel])
                )
                store(copy_point, (first_copy + c) * LANES, x)
                op = pixel * LANES
                store(minimiser, op, fma(x, broadcast(share[pixel]), load(minimiser, op)))
            if use_hull:
                # What the hull adds to the activation beyond the chord at the common point.
                for i in range(first_neuron, end_neuron):
                    if hull_active[i]:
                        row = group_weights[g] + (i - first_neuron) * width
                        z = zero
                        for c in range(width):
                            z = fma(
                                load(copy_point, (first_copy + c) * LANES),
                                broadcast(weights[row + c]),
                                z,
                            )
                        o = i * LANES
                        inside = load(member, (i - first_neuron) * LANES)
                        extra = inside * (z + broadcast(bias[i])) - load(slope, o) * z
                        store(activation, o, extra)
        for lane in range(LANES):
            bound[lane] = ZERO
        store(bound, 0, value)
        going = less_equal(value, broadcast(np.float32(target)))
        if to_bits(going) == 0:
            last = True
        # Adam's constants for this step.
        power_first *= KEEP_FIRST
        power_second *= KEEP_SECOND
        fix1 = ONE / (ONE - power_first)
        fix2 = ONE / (ONE - power_second)
        alive = select(going, one, zero) * broadcast(decay)
        if last:
            alive = zero
        rate_alpha = alive * broadcast(np.float32(rates[0]))
        rate_beta = alive * broadcast(np.float32(rates[1])) * beta_scale
        rate_weight = alive * broadcast(np.float32(rates[2]))
        rate_delta = alive * broadcast(np.float32(rates[3])) * delta_scale
        decay *= np.float32(rates[4])
        # The relaxed minimiser forward; each neuron's multipliers move as it passes.
        for g in range(groups):
            first_copy, end_copy = group_copies[g], group_copies[g + 1]
            width = end_copy - first_copy
            use_hull = hull_on and group_hull[g]
            for i in range(group_neurons[g], group_neurons[g + 1]):
                o = i * LANES
                row = group_weights[g] + (i - group_neurons[g]) * width
                z = broadcast(bias[i])
                for c in range(width):
                    z = fma(
                        load(minimiser, copy_pixel[first_copy + c] * LANES),
                        broadcast(weights[row + c]),
                        z,
                    )
                a = load(coefficient, o)
                isneg = less(a, zero)
                old = load(alpha, o)
                s = minimum(maximum(old, load(alpha_low, o)), load(alpha_high, o))
                chord = load(slope, o)
                upper_value = fma(chord, z, load(rise, o))
                if use_hull and hull_active[i]:
                    hull_value = load(activation, o) + chord * (z - broadcast(bias[i]))
                    free = less(load(hull_gain, o), zero)
                    upper_value = select(free, hull_value, upper_value)
                store(activation, o, select(isneg, upper_value, s * z))
                if last:
                    true = maximum(z, zero)
                    relaxed = select(isneg, fma(chord, z, load(rise, o)), s * z)
                    store(scores, o, a * (true - relaxed))
                else:
                    move = _adam(
                        alpha1, alpha2, o, select(isneg, zero, a * z), rate_alpha, fix1, fix2
                    )
                    store(alpha, o, minimum(maximum(old + move, zero), one))
                    side = load(sign, o)
                    if to_bits(less(zero, side * side)) != 0:
                        move = _adam(beta1, beta2, o, zero - side * z, rate_beta, fix1, fix2)
                        moved = maximum(load(beta, o) + move, zero)
                        store(beta, o, select(less(zero, side * side), moved, zero))
        if not last and hull_on:
            for c in range(copies):
                if copy_is_home[c]:
                    store(delta, c * LANES, zero)
            for c in range(copies):
                if not copy_is_home[c]:
                    o, oh = c * LANES, copy_home[c] * LANES
                    gradient = load(copy_point, o) - load(copy_point, oh)
                    moved = load(delta, o) + _adam(
                        delta1, delta2, o, gradient, rate_delta, fix1, fix2
                    )
                    store(delta, o, moved)
                    store(delta, oh, load(delta, oh) - moved)
        for k in range(1, layers):
            base = starts[k]
            _linear(
                upper_transposed, upper_at[k], widths[k - 1], widths[k],
                activation, starts[k - 1], activation, base,
            )  # fmt: skip
            for i in range(widths[k]):
                o = (base + i) * LANES
                z = load(activation, o) + broadcast(bias[base + i])
                a = load(coefficient, o)
                isneg = less(a, zero)
                old = load(alpha, o)
                s = minimum(maximum(old, load(alpha_low, o)), load(alpha_high, o))
                relaxed = select(isneg, fma(load(slope, o), z, load(rise, o)), s * z)
                store(activation, o, relaxed)
                if last:
                    store(scores, o, a * (maximum(z, zero) - relaxed))
                else:
                    move = _adam(
                        alpha1, alpha2, o, select(isneg, zero, a * z), rate_alpha, fix1, fix2
                    )
                    store(alpha, o, minimum(maximum(old + move, zero), one))
                    side = load(sign, o)
                    if to_bits(less(zero, side * side)) != 0:
                        move = _adam(beta1, beta2, o, zero - side * z, rate_beta, fix1, fix2)
                        moved = maximum(load(beta, o) + move, zero)
                        store(beta, o, select(less(zero, side * side), moved, zero))
        if last:
            break
        if objectives > 1:
            # Gradient of the normalised weights: (g_m - mean) / total.
            mean = zero
            for m in range(objectives):
                s = load(offset, m * LANES)
                for i in range(top_width):
                    s = fma(
                        load(objective, (m * top_width + i) * LANES),
                        load(activation, (starts[top] + i) * LANES),
                        s,
                    )
                store(reached, m * LANES, s)
                mean = fma(s, load(weight, m * LANES) / total_weight, mean)
            for m in range(objectives):
                gradient = (load(reached, m * LANES) - mean) / total_weight
                moved = load(weight, m * LANES) + _adam(
                    weight1, weight2, m * LANES, gradient, rate_weight, fix1, fix2
                )
                store(weight, m * LANES, minimum(maximum(moved, broadcast(LEAST_WEIGHT)), one))
    return step
