"""Joint hulls in a step of `qll.kernels.dual_graph`: groups of first-layer neurons over copies of
their inputs.

The mathematics is that of `qll.bounds.dual`: of the coefficient of an input every copy takes its
share and its delta, and a group is minimised over its own copies, exactly, by its subsets. What no
group reads stays with the box. Groups are of at most ``BLOCK`` neurons (`qll.bounds.hulls`);
entry ``i`` of lane ``d`` of an array is at ``i * LANES + d``.
"""

from __future__ import annotations

import numpy as np

from qll.kernels.cache import compiled
from qll.kernels.dual_up import adam
from qll.kernels.simd import (
    LANES,
    absolute,
    broadcast,
    fma,
    kernel,
    less,
    load,
    minimum,
    select,
    store,
    to_bits,
)
from qll.kernels.tile import tile_dot, tile_fma, tile_load, tile_store, tile_zero

_exact = compiled()

BLOCK = 4  # that of `qll.bounds.blocks`, as a number that numba knows
ZERO, ONE = np.float32(0.0), np.float32(1.0)


@kernel
def minimise_groups(inputs, bias, box, lines, hulls, delta, work, room, bound):  # type: ignore[no-untyped-def]
    """The bound with the groups' minima added, and the chords of their neurons taken off; the
    minimiser of every copy, their mean for each input, and the lines that lead to the activations
    that belong to it."""
    neurons, starts, inputs_of, weights, share, _home = hulls
    mid, rad = box
    chord, rise, _free, lift = lines
    coefficient, _value, point, _row, _block_rows = work
    copy_point, residual, member, gain, taken = room
    zero, one = broadcast(ZERO), broadcast(ONE)
    for c in range(inputs_of.shape[0]):
        store(point, inputs_of[c] * LANES, zero)
    for g in range(starts.shape[0] - 1):
        first, width = starts[g], starts[g + 1] - starts[g]
        active = 0
        for t in range(BLOCK):
            i = neurons[g * BLOCK + t]
            free = zero
            line = zero
            if i >= 0:
                n = i * LANES
                line = load(chord, n)
                unstable = less(zero, line - line * line)
                a = load(coefficient, (inputs + i) * LANES)
                free = select(unstable, minimum(a, zero), zero)
                if to_bits(less(free, zero)) != 0:
                    active += 1
                    bound = bound - free * fma(line, broadcast(bias[i]), load(rise, n))
            store(gain, t * LANES, free)
            store(taken, t * LANES, zero - free * line)
            store(member, t * LANES, zero)
        tile = tile_load(BLOCK, taken, 0)
        here = zero
        for c in range(width):
            p = inputs_of[first + c] * LANES
            q = fma(
                load(coefficient, p), broadcast(share[first + c]), load(delta, (first + c) * LANES)
            )
            if active:
                q = tile_dot(tile, q, weights, (first + c) * BLOCK)
            store(residual, c * LANES, q)
            here = fma(q, load(mid, p), here)
            here = here - absolute(q) * load(rad, p)
        if active:
            # Subsets in Gray order: each differs from the last in one neuron.
            shift = zero
            code = 0
            for number in range(1, 1 << active):
                flip = 0
                rest = number
                while rest & 1 == 0:
                    rest >>= 1
                    flip += 1
                code ^= 1 << flip
                t, seen = -1, -1
                while seen < flip:
                    t += 1
                    if to_bits(less(load(gain, t * LANES), zero)) != 0:
                        seen += 1
                change = load(gain, t * LANES)
                if code & (1 << flip) == 0:
                    change = zero - change
                shift = fma(change, broadcast(bias[neurons[g * BLOCK + t]]), shift)
                candidate = shift
                for c in range(width):
                    p = inputs_of[first + c] * LANES
                    w = broadcast(weights[(first + c) * BLOCK + t])
                    q = fma(change, w, load(residual, c * LANES))
                    store(residual, c * LANES, q)
                    candidate = fma(q, load(mid, p), candidate)
                    candidate = candidate - absolute(q) * load(rad, p)
                better = less(candidate, here)
                if to_bits(better) != 0:
                    here = minimum(candidate, here)
                    seen = 0
                    for s in range(BLOCK):
                        if to_bits(less(load(gain, s * LANES), zero)) != 0:
                            inside = one if code & (1 << seen) else zero
                            store(
                                member,
                                s * LANES,
                                select(better, inside, load(member, s * LANES)),
                            )
                            seen += 1
            # From the last subset back to the best one, lane by lane.
            seen = 0
            for t in range(BLOCK):
                back = zero
                if to_bits(less(load(gain, t * LANES), zero)) != 0:
                    inside = one if code & (1 << seen) else zero
                    back = load(gain, t * LANES) * (load(member, t * LANES) - inside)
                    seen += 1
                store(taken, t * LANES, back)
            tile = tile_load(BLOCK, taken, 0)
            for c in range(width):
                q = tile_dot(tile, load(residual, c * LANES), weights, (first + c) * BLOCK)
                store(residual, c * LANES, q)
        bound = bound + here
        tile = tile_zero(BLOCK)
        for c in range(width):
            p = inputs_of[first + c] * LANES
            m, r = load(mid, p), load(rad, p)
            x = select(less(load(residual, c * LANES), zero), m + r, m - r)
            store(copy_point, (first + c) * LANES, x)
            store(point, p, fma(x, broadcast(share[first + c]), load(point, p)))
            tile = tile_fma(tile, x, weights, (first + c) * BLOCK)
        tile_store(tile, taken, 0)
        # In place of the chord's rise: with it the line through the mean of the copies gives what
        # the group's own minimiser gives.
        for t in range(BLOCK):
            i = neurons[g * BLOCK + t]
            if i >= 0:
                n = i * LANES
                z = load(taken, t * LANES)
                above = load(member, t * LANES) * (z + broadcast(bias[i]))
                line = load(chord, n)
                own = above - line * (z + broadcast(bias[i]))
                free = less(load(gain, t * LANES), zero)
                store(lift, n, select(free, own, load(rise, n)))
    return bound


@kernel
def move_copies(hulls, delta, first, second, copy_point, rate, fix_first, fix_second):  # type: ignore[no-untyped-def]
    """A step of delta; the first copy of an input holds minus the sum of the others."""
    _neurons, _starts, _inputs_of, _weights, _share, home = hulls
    zero = broadcast(ZERO)
    for c in range(home.shape[0]):
        if home[c] == c:
            store(delta, c * LANES, zero)
    for c in range(home.shape[0]):
        if home[c] != c:
            o, h = c * LANES, home[c] * LANES
            gradient = load(copy_point, o) - load(copy_point, h)
            moved = load(delta, o) + adam(first, second, o, gradient, rate, fix_first, fix_second)
            store(delta, o, moved)
            store(delta, h, load(delta, h) - moved)


@_exact
def groups_of(  # type: ignore[no-untyped-def]
    neurons, starts, inputs_of, weights, share, home, bias, mid, rad, reach, delta, pixel, free,
    chords,
):  # fmt: skip
    """The groups' minima in float64 for coefficients ``pixel`` of the inputs and ``free`` of the
    neurons, as in `qll.kernels.dual_check`, and what their ties add to the size of the error."""
    size = 0.0
    tied = np.zeros(home.shape[0])
    for c in range(home.shape[0]):
        if home[c] != c:
            d = np.float64(delta[c])
            tied[c] += d
            tied[home[c]] -= d
            size += 2.0 * abs(d) * reach[inputs_of[c]]
    value = 0.0
    members = np.empty(BLOCK, dtype=np.int64)
    for g in range(starts.shape[0] - 1):
        first, end = starts[g], starts[g + 1]
        count = 0
        for t in range(BLOCK):
            i = neurons[g * BLOCK + t]
            if i >= 0 and free[i] < 0.0:
                members[count] = t
                count += 1
                value -= free[i] * chords[i] * bias[i]
        q = np.empty(end - first)
        for c in range(first, end):
            q[c - first] = pixel[inputs_of[c]] * share[c] + tied[c]
            for n in range(count):
                i = neurons[g * BLOCK + members[n]]
                q[c - first] -= free[i] * chords[i] * weights[c * BLOCK + members[n]]
        least = np.inf
        for subset in range(1 << count):
            candidate = 0.0
            for c in range(first, end):
                r = q[c - first]
                for n in range(count):
                    if subset & (1 << n):
                        i = neurons[g * BLOCK + members[n]]
                        r += free[i] * weights[c * BLOCK + members[n]]
                p = inputs_of[c]
                candidate += r * mid[p] - abs(r) * rad[p]
            for n in range(count):
                if subset & (1 << n):
                    i = neurons[g * BLOCK + members[n]]
                    candidate += free[i] * bias[i]
            if not np.isfinite(candidate):
                return np.nan, size  # a minimum of the other subsets alone is no bound
            least = min(least, candidate)
        value += least
    return value, size
