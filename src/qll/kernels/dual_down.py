"""The way down of a step of `qll.kernels.dual.ascend`: objectives, layers, and the box minimum.

Every part reads the packed network and the buffers by name (`qll.kernels.dual_types`);
entry ``i`` of lane ``d`` of an array is at ``i * LANES + d``.
"""

from __future__ import annotations

import numpy as np

from qll.kernels.dual_types import ONE, TINY, ZERO
from qll.kernels.simd import (
    LANES,
    TILE,
    absolute,
    broadcast,
    fma,
    kernel,
    less,
    load,
    maximum,
    minimum,
    part,
    select,
    store,
    to_bits,
)
from qll.kernels.tile import tile_fma, tile_store, tile_zero


@kernel
def linear(weights, at, rows, columns, source, source_at, target, target_at):  # type: ignore[no-untyped-def]
    """target[c] = sum_r weights[r, c] source[r] for all columns (a multiple of TILE)."""
    for c in range(0, columns, TILE):
        tile = tile_zero(TILE)
        for r in range(rows):
            tile = tile_fma(
                tile, load(source, (source_at + r) * LANES), weights, at + r * columns + c
            )
        tile_store(tile, target, (target_at + c) * LANES)


@part
def sum_weights(weight, objectives):  # type: ignore[no-untyped-def]
    total = broadcast(ZERO)
    for m in range(objectives):
        total = total + load(weight, m * LANES)
    return total


@part
def mix_objectives(network, domain, weight, total_weight, scratch):  # type: ignore[no-untyped-def]
    """The mixture of objectives as coefficients of the last activations; its constant."""
    layers, widths, starts = network.layers, network.widths, network.starts
    objective, offset, objectives = domain.objective, domain.offset, domain.objectives
    coefficient = scratch.coefficient
    zero = broadcast(ZERO)
    top = layers - 1
    top_width = widths[top]
    constant = zero
    for m in range(objectives):
        constant = fma(load(weight, m * LANES) / total_weight, load(offset, m * LANES), constant)
    for i in range(top_width):
        c = zero
        for m in range(objectives):
            c = fma(
                load(weight, m * LANES) / total_weight,
                load(objective, (m * top_width + i) * LANES),
                c,
            )
        store(coefficient, (starts[top] + i) * LANES, c)
    return constant


@part
def pull_upper(network, domain, variables, scratch, constant):  # type: ignore[no-untyped-def]
    """Backward through the upper layers."""
    layers, widths, starts, bias, upper = (
        network.layers,
        network.widths,
        network.starts,
        network.bias,
        network.upper,
    )
    upper_at = network.upper_at
    sign, alpha, beta = domain.sign, variables.alpha, variables.beta
    slope, rise, alpha_low, alpha_high = (
        scratch.slope,
        scratch.rise,
        scratch.alpha_low,
        scratch.alpha_high,
    )
    coefficient, back = scratch.coefficient, scratch.back
    zero = broadcast(ZERO)
    for k in range(layers - 1, 0, -1):
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
        linear(upper, upper_at[k], widths[k], widths[k - 1], back, base, coefficient, starts[k - 1])
    return constant


@part
def pull_first(network, domain, variables, scratch, constant, hull_on):  # type: ignore[no-untyped-def]
    """The first layer: the coefficient of each copy of a pixel, and of the pixel itself."""
    bias, weights, share, copy_pixel = (
        network.bias, network.weights, network.share, network.copy_pixel,
    )  # fmt: skip
    group_neurons, group_copies = network.group_neurons, network.group_copies
    group_weights, group_hull = network.group_weights, network.group_hull
    sign, alpha, beta = domain.sign, variables.alpha, variables.beta
    slope, rise, alpha_low, alpha_high = (
        scratch.slope,
        scratch.rise,
        scratch.alpha_low,
        scratch.alpha_high,
    )
    coefficient, back, copy_coefficient, pixel_coefficient = (
        scratch.coefficient, scratch.back, scratch.copy_coefficient, scratch.pixel_coefficient,
    )  # fmt: skip
    hull_gain, hull_active = scratch.hull_gain, scratch.hull_active
    groups, pixels = group_hull.shape[0], share.shape[0]
    zero = broadcast(ZERO)
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
            kept = positive * s - load(beta, o) * load(sign, o)
            b = fma(negative, chord, kept)
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
    return constant


@part
def measure(network, scratch, scales):  # type: ignore[no-untyped-def]
    """The units of beta and delta, where they are not known: mean sizes of the coefficients."""
    neurons, pixels = network.starts[network.layers], network.share.shape[0]
    coefficient, pixel_coefficient = scratch.coefficient, scratch.pixel_coefficient
    zero = broadcast(ZERO)
    size = zero
    for p in range(pixels):
        size = size + absolute(load(pixel_coefficient, p * LANES))
    measured = size * broadcast(ONE / np.float32(pixels)) + broadcast(TINY)
    known = load(scales, LANES)
    store(scales, LANES, select(less(zero, known), known, measured))
    size = zero
    for i in range(neurons):
        size = size + absolute(load(coefficient, i * LANES))
    measured = size * broadcast(ONE / np.float32(neurons)) + broadcast(TINY)
    known = load(scales, 0)
    store(scales, 0, select(less(zero, known), known, measured))


@part
def best_subset(network, box, scratch, g, here):  # type: ignore[no-untyped-def]
    """The least of the box minima of a group's subsets; ``residual`` becomes that of the best."""
    bias, group_neurons, group_copies, group_weights = (
        network.bias,
        network.group_neurons,
        network.group_copies,
        network.group_weights,
    )
    weights, copy_pixel = network.weights, network.copy_pixel
    mid, rad = box
    residual, member, hull_gain, hull_active = (
        scratch.residual,
        scratch.member,
        scratch.hull_gain,
        scratch.hull_active,
    )
    first_copy, end_copy = group_copies[g], group_copies[g + 1]
    width = end_copy - first_copy
    first_neuron, end_neuron = group_neurons[g], group_neurons[g + 1]
    zero, one = broadcast(ZERO), broadcast(ONE)
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
            back = load(hull_gain, i * LANES) * (load(member, (i - first_neuron) * LANES) - inside)
            row = group_weights[g] + (i - first_neuron) * width
            for c in range(width):
                store(
                    residual,
                    c * LANES,
                    fma(back, broadcast(weights[row + c]), load(residual, c * LANES)),
                )
            seen += 1
    return here


@part
def minimise(network, box, delta, scratch, constant, minimiser, hull_on):  # type: ignore[no-untyped-def]
    """The box minimum of each group, its minimisers, and their mean for each pixel."""
    bias, weights, share, copy_pixel = (
        network.bias, network.weights, network.share, network.copy_pixel,
    )  # fmt: skip
    group_neurons, group_copies = network.group_neurons, network.group_copies
    group_weights, group_hull = network.group_weights, network.group_hull
    mid, rad = box
    slope, activation, pixel_coefficient = (
        scratch.slope,
        scratch.activation,
        scratch.pixel_coefficient,
    )
    copy_point, residual, member = scratch.copy_point, scratch.residual, scratch.member
    hull_gain, hull_active = scratch.hull_gain, scratch.hull_active
    groups, pixels = group_hull.shape[0], share.shape[0]
    zero = broadcast(ZERO)
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
                        q = q - load(hull_gain, i * LANES) * load(slope, i * LANES) * broadcast(w)
            store(residual, c * LANES, q)
            here = fma(q, broadcast(mid[pixel]), here)
            here = here - absolute(q) * broadcast(rad[pixel])
        if use_hull:
            here = best_subset(network, box, scratch, g, here)
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
    return value
