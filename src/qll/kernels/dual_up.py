"""The way up of a step of `qll.kernels.dual.ascend`: the minimiser forward, and Adam's moves.

Every part reads the packed network and the buffers by name (`qll.kernels.dual_types`);
entry ``i`` of lane ``d`` of an array is at ``i * LANES + d``.
"""

from __future__ import annotations

from qll.kernels.dual_down import linear
from qll.kernels.dual_types import (
    FLOOR,
    KEEP_FIRST,
    KEEP_SECOND,
    LEAST_WEIGHT,
    NEW_FIRST,
    NEW_SECOND,
    ONE,
    ZERO,
)
from qll.kernels.simd import (
    LANES,
    broadcast,
    fma,
    kernel,
    less,
    load,
    maximum,
    minimum,
    part,
    select,
    square_root,
    store,
    to_bits,
)


@kernel
def adam(first, second, offset, gradient, rate, fix_first, fix_second):  # type: ignore[no-untyped-def]
    """The step of one entry; its moments are updated in place."""
    m = fma(broadcast(KEEP_FIRST), load(first, offset), broadcast(NEW_FIRST) * gradient)
    v = fma(
        broadcast(KEEP_SECOND), load(second, offset), broadcast(NEW_SECOND) * gradient * gradient
    )
    store(first, offset, m)
    store(second, offset, v)
    bottom = square_root(v * broadcast(fix_second)) + broadcast(FLOOR)
    return rate * (m * broadcast(fix_first)) / bottom


@part
def move(alpha, beta, alpha_moments, beta_moments, side, o, gradient, z, rates, fix1, fix2):  # type: ignore[no-untyped-def]
    """A step of the multipliers of one neuron; beta's only where some lane splits it."""
    zero, one = broadcast(ZERO), broadcast(ONE)
    step = adam(alpha_moments[0], alpha_moments[1], o, gradient, rates[0], fix1, fix2)
    store(alpha, o, minimum(maximum(load(alpha, o) + step, zero), one))
    split = less(zero, side * side)
    if to_bits(split) != 0:
        step = adam(beta_moments[0], beta_moments[1], o, zero - side * z, rates[1], fix1, fix2)
        store(beta, o, select(split, maximum(load(beta, o) + step, zero), zero))


@part
def push_first(  # type: ignore[no-untyped-def]
    network, sign, variables, first, second, scratch, minimiser, scores,
    rates, fix1, fix2, hull_on, last,
):  # fmt: skip
    """The first layer at the relaxed minimiser."""
    bias, group_neurons, group_copies, group_weights = (
        network.bias,
        network.group_neurons,
        network.group_copies,
        network.group_weights,
    )
    group_hull, weights, copy_pixel = network.group_hull, network.weights, network.copy_pixel
    alpha, beta = variables.alpha, variables.beta
    slope, rise, alpha_low, alpha_high = (
        scratch.slope,
        scratch.rise,
        scratch.alpha_low,
        scratch.alpha_high,
    )
    coefficient, activation = scratch.coefficient, scratch.activation
    hull_gain, hull_active = scratch.hull_gain, scratch.hull_active
    zero = broadcast(ZERO)
    for g in range(group_hull.shape[0]):
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
            s = minimum(maximum(load(alpha, o), load(alpha_low, o)), load(alpha_high, o))
            chord = load(slope, o)
            upper_value = fma(chord, z, load(rise, o))
            relaxed = select(isneg, upper_value, s * z)
            if use_hull and hull_active[i]:
                hull_value = load(activation, o) + chord * (z - broadcast(bias[i]))
                free = less(load(hull_gain, o), zero)
                upper_value = select(free, hull_value, upper_value)
            store(activation, o, select(isneg, upper_value, s * z))
            if last:
                store(scores, o, a * (maximum(z, zero) - relaxed))
            else:
                move(
                    alpha, beta, (first.alpha, second.alpha), (first.beta, second.beta),
                    load(sign, o), o, select(isneg, zero, a * z), z, rates, fix1, fix2,
                )  # fmt: skip


@part
def move_copies(network, delta, first, second, scratch, rate, fix1, fix2):  # type: ignore[no-untyped-def]
    """A step of delta; the home copy of a pixel holds minus the sum of the others."""
    copy_home, copy_is_home, copy_point = (
        network.copy_home,
        network.copy_is_home,
        scratch.copy_point,
    )
    copies = copy_home.shape[0]
    zero = broadcast(ZERO)
    for c in range(copies):
        if copy_is_home[c]:
            store(delta, c * LANES, zero)
    for c in range(copies):
        if not copy_is_home[c]:
            o, oh = c * LANES, copy_home[c] * LANES
            gradient = load(copy_point, o) - load(copy_point, oh)
            moved = load(delta, o) + adam(first, second, o, gradient, rate, fix1, fix2)
            store(delta, o, moved)
            store(delta, oh, load(delta, oh) - moved)


@part
def push_upper(  # type: ignore[no-untyped-def]
    network, sign, variables, first, second, scratch, scores, rates, fix1, fix2, last
):  # fmt: skip
    """The upper layers at the relaxed minimiser."""
    layers, widths, starts, bias = network.layers, network.widths, network.starts, network.bias
    upper_transposed, upper_at = network.upper_transposed, network.upper_at
    alpha, beta = variables.alpha, variables.beta
    slope, rise, alpha_low, alpha_high = (
        scratch.slope,
        scratch.rise,
        scratch.alpha_low,
        scratch.alpha_high,
    )
    coefficient, activation = scratch.coefficient, scratch.activation
    zero = broadcast(ZERO)
    for k in range(1, layers):
        base = starts[k]
        linear(
            upper_transposed, upper_at[k], widths[k - 1], widths[k],
            activation, starts[k - 1], activation, base,
        )  # fmt: skip
        for i in range(widths[k]):
            o = (base + i) * LANES
            z = load(activation, o) + broadcast(bias[base + i])
            a = load(coefficient, o)
            isneg = less(a, zero)
            s = minimum(maximum(load(alpha, o), load(alpha_low, o)), load(alpha_high, o))
            relaxed = select(isneg, fma(load(slope, o), z, load(rise, o)), s * z)
            store(activation, o, relaxed)
            if last:
                store(scores, o, a * (maximum(z, zero) - relaxed))
            else:
                move(
                    alpha, beta, (first.alpha, second.alpha), (first.beta, second.beta),
                    load(sign, o), o, select(isneg, zero, a * z), z, rates, fix1, fix2,
                )  # fmt: skip


@part
def move_weights(  # type: ignore[no-untyped-def]
    network, domain, weight, first, second, scratch, total_weight, rate, fix1, fix2
):  # fmt: skip
    """A step of the objectives' weights; of normalised ones the gradient is (g - mean) / total."""
    starts, top = network.starts, network.layers - 1
    top_width = network.widths[top]
    objective, offset, objectives = domain.objective, domain.offset, domain.objectives
    activation, reached = scratch.activation, scratch.reached
    mean = broadcast(ZERO)
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
        moved = load(weight, m * LANES) + adam(first, second, m * LANES, gradient, rate, fix1, fix2)
        store(weight, m * LANES, minimum(maximum(moved, broadcast(LEAST_WEIGHT)), broadcast(ONE)))
