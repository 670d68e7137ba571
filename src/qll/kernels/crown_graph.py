"""CROWN's bounds of the neurons of any ReLU graph by its non-zeros, rigorous, many in lanes.

The reference is `qll.bounds.crown`. All lanes are rows over one box: the lines of a neuron are the
same in each of them, and neurons whose coefficients are 0 in all of them cost nothing. Lanes that
read the same columns, as the channels of one pixel do, share most of what they reach.
"""

from __future__ import annotations

import numpy as np

from qll.kernels.cache import compiled

_exact = compiled(fastmath={"contract"})  # products may be fused, sums are as they stand
_quick = compiled(fastmath={"contract", "nsz", "reassoc"})

ROWS = 16  # in lanes, float64: two registers of AVX-512, four of AVX2


@_quick
def _amount(values):  # type: ignore[no-untyped-def]
    """0 if and only if all of them are."""
    total = 0.0
    for d in range(ROWS):
        total += abs(values[d])
    return total


@_exact
def bound_rows(  # type: ignore[no-untyped-def]
    inputs, starts, columns, weights, bias, ends, mid, rad, low, high, sizes, unit, rows, signs
):
    """Lower bounds of ``signs`` times the pre-activations ``rows``, of which each reads nothing but
    the columns before the last of ``ends``, where the layers below end. Sums are short, one for
    each layer, and ``size`` collects what their error is measured in (`qll.bounds.rounding`)."""
    count = ends[-1]
    coefficient = np.zeros((inputs + count, ROWS))
    value, size = np.zeros(ROWS), np.zeros(ROWS)
    back, here = np.empty(ROWS), np.empty(ROWS)
    for d in range(rows.shape[0]):
        i, s = rows[d], signs[d]
        value[d] = s * bias[i]
        size[d] = sizes[i]
        for k in range(starts[i], starts[i + 1]):
            coefficient[columns[k], d] += s * weights[k]
    for layer in range(ends.shape[0] - 1, 0, -1):
        here[:] = 0.0
        for i in range(ends[layer] - 1, ends[layer - 1] - 1, -1):
            below, above = low[i], high[i]
            own = coefficient[inputs + i]
            if above <= 0.0 or _amount(own) == 0.0:
                continue
            slope, chord, rise, reach = 1.0, 1.0, 0.0, 0.0
            if below < 0.0:
                slope = 1.0 if above > -below else 0.0
                chord = above / (above - below)
                rise, reach = -chord * below, above
            for d in range(ROWS):
                negative = min(own[d], 0.0)
                b = (own[d] - negative) * slope + negative * chord
                back[d] = b
                here[d] += negative * rise + b * bias[i]
                size[d] += abs(b) * sizes[i] - negative * reach
            if _amount(back) == 0.0:
                continue
            for k in range(starts[i], starts[i + 1]):
                c, w = columns[k], weights[k]
                for d in range(ROWS):
                    coefficient[c, d] += w * back[d]
        for d in range(ROWS):
            value[d] += here[d]
    here[:] = 0.0
    for p in range(inputs):
        m, r = mid[p], rad[p]
        for d in range(ROWS):
            c = coefficient[p, d]
            here[d] += c * m - abs(c) * r
    for d in range(ROWS):
        value[d] += here[d] - unit * size[d]
    return value
