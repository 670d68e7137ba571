"""The dual bound of one domain in float64, in plain loops: the number that the engine believes.

The same mathematics as `qll.bounds.dual`, written once more without lanes. Multipliers may be any
finite numbers: they are projected to the allowed ones here, so the result is always a bound. What
rounding may have added is taken off (`qll.bounds.rounding` has the analysis): sums are kept short,
one for each layer, and ``size`` collects what the error is measured in.
"""

from __future__ import annotations

import numpy as np

from qll.kernels.cache import compiled

_compile = compiled()


@_compile
def bound_of(  # type: ignore[no-untyped-def]
    network, mid, rad, low, high, sign, objective, offset, alpha, beta, weight, delta, hull_on,
    sizes, reach, objective_sizes, unit,
):  # fmt: skip
    (
        layers, widths, starts, bias, upper, _transposed, upper_at,
        group_neurons, group_copies, group_weights, group_hull, weights,
        copy_pixel, copy_home, copy_is_home, share,
    ) = network  # fmt: skip
    pixels, copies = share.shape[0], copy_pixel.shape[0]
    neurons = starts[layers]
    top = layers - 1
    total = 0.0
    for m in range(weight.shape[0]):
        total += max(np.float64(weight[m]), 1e-4)
    value, size = 0.0, 0.0
    coefficient = np.zeros(neurons)
    for m in range(weight.shape[0]):
        w = max(np.float64(weight[m]), 1e-4) / total
        value += w * offset[m]
        size += w * objective_sizes[m]
        for i in range(widths[top]):
            coefficient[starts[top] + i] += w * objective[m, i]
    back = np.zeros(neurons)
    free = np.zeros(neurons)
    chords = np.zeros(neurons)
    for k in range(top, -1, -1):
        base = starts[k]
        here = 0.0
        for i in range(base, base + widths[k]):
            a, below, above = coefficient[i], low[i], high[i]
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
                b -= max(np.float64(beta[i]), 0.0) * sign[i]
            back[i] = b
            chords[i] = chord
            size += abs(b) * sizes[i]
            if a < 0.0 and unstable:
                size -= a * above
                if k == 0 and hull_on:
                    free[i] = a  # settled per group below
                    size -= 2.0 * a * sizes[i]
                else:
                    here += a * rise
            here += b * bias[i]
        value += here
        if k > 0:
            below_width = widths[k - 1]
            for i in range(widths[k]):
                b = back[base + i]
                if b != 0.0:
                    row = upper_at[k] + i * below_width
                    for j in range(below_width):
                        coefficient[starts[k - 1] + j] += b * upper[row + j]
    own = np.zeros(copies)
    pixel = np.zeros(pixels)
    here = 0.0
    for g in range(group_hull.shape[0]):
        first, width = group_copies[g], group_copies[g + 1] - group_copies[g]
        for i in range(group_neurons[g], group_neurons[g + 1]):
            row = group_weights[g] + (i - group_neurons[g]) * width
            if hull_on and free[i] < 0.0:
                if group_hull[g]:
                    here -= free[i] * chords[i] * bias[i]
                else:
                    here += free[i] * (-chords[i] * low[i])
                    free[i] = 0.0
            for c in range(width):
                own[first + c] += back[i] * weights[row + c]
        for c in range(first, first + width):
            pixel[copy_pixel[c]] += own[c]
    value += here
    tied = np.zeros(copies)
    for c in range(copies):
        if not copy_is_home[c]:
            d = np.float64(delta[c])
            tied[c] += d
            tied[copy_home[c]] -= d
            size += 2.0 * abs(d) * reach[copy_pixel[c]]
    here = 0.0
    for g in range(group_hull.shape[0]):
        first, width = group_copies[g], group_copies[g + 1] - group_copies[g]
        begin, end = group_neurons[g], group_neurons[g + 1]
        members = np.empty(end - begin, dtype=np.int64)
        count = 0
        q = np.empty(width)
        for c in range(width):
            p = copy_pixel[first + c]
            q[c] = pixel[p] * share[p] + tied[first + c]
        for i in range(begin, end):
            if free[i] < 0.0:
                members[count] = i
                count += 1
                row = group_weights[g] + (i - begin) * width
                for c in range(width):
                    q[c] -= free[i] * chords[i] * weights[row + c]
        least = np.inf
        for subset in range(1 << count):
            candidate = 0.0
            for c in range(width):
                r = q[c]
                for n in range(count):
                    if subset & (1 << n):
                        i = members[n]
                        r += free[i] * weights[group_weights[g] + (i - begin) * width + c]
                p = copy_pixel[first + c]
                candidate += r * mid[p] - abs(r) * rad[p]
            for n in range(count):
                if subset & (1 << n):
                    candidate += free[members[n]] * bias[members[n]]
            if not np.isfinite(candidate):
                return np.nan  # a minimum of the other subsets alone is no bound
            least = min(least, candidate)
        here += least
    return value + here - unit * size
