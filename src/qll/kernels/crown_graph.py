"""Rigorous bounds of the neurons of any ReLU graph by its non-zeros, many of them in lanes.

The reference is `qll.bounds.crown`. All lanes are rows over one box, so that a neuron's lines are
the same in each of them but for its lower slope. Lanes that read the same columns, as the channels
of one pixel do, share most of the rows that they depend on; others are not looked at.
"""

from __future__ import annotations

import numpy as np

from qll.kernels.cache import compiled
from qll.kernels.lanes import WIDTH, read_numbers, write_numbers

_exact = compiled()  # sums are as they stand; products may be fused


@_exact
def bound_rows(  # type: ignore[no-untyped-def]
    network, ends, mid, rad, low, high, alpha, sizes, unit, targets, signs, rows, read
):
    """Lower bounds of ``signs`` times the pre-activations ``targets``, which depend on the ``rows``
    and ``read`` the inputs (`qll.kernels.dual_graph.reached`), with slopes ``alpha`` in [0, 1].
    Sums are short, one for each of the layers that end at ``ends``, and ``size`` collects what
    their error is measured in (`qll.bounds.rounding`)."""
    inputs, starts, columns, weights, bias = network
    coefficient = np.zeros((inputs + ends[-1]) * WIDTH)
    first, own_size = np.zeros(WIDTH), np.zeros(WIDTH)
    for d in range(targets.shape[0]):
        i, s = targets[d], signs[d]
        first[d], own_size[d] = s * bias[i], sizes[i]
        for k in range(starts[i], starts[i + 1]):
            coefficient[columns[k] * WIDTH + d] += s * weights[k]
    value, size = read_numbers(first, 0), read_numbers(own_size, 0)
    here = value * 0.0
    layer = ends.shape[0] - 1
    for at in range(rows.shape[0] - 1, -1, -1):
        i = rows[at]
        while i < ends[layer - 1]:
            value = value + here
            here = here * 0.0
            layer -= 1
        own = read_numbers(coefficient, (inputs + i) * WIDTH)
        negative = np.minimum(own, 0.0)
        below, above = low[i], high[i]
        b = own
        if below < 0.0:
            chord = above / (above - below)
            b = (own - negative) * read_numbers(alpha, i * WIDTH) + negative * chord
            here = here - negative * (chord * below)
            size = size - negative * above
        here = here + b * bias[i]
        size = size + (np.maximum(b, 0.0) - np.minimum(b, 0.0)) * sizes[i]
        for k in range(starts[i], starts[i + 1]):
            o = columns[k] * WIDTH
            write_numbers(coefficient, o, read_numbers(coefficient, o) + b * weights[k])
    value = value + here
    here = here * 0.0
    for p in read:
        c = read_numbers(coefficient, p * WIDTH)
        here = here + (c * mid[p] - (np.maximum(c, 0.0) - np.minimum(c, 0.0)) * rad[p])
    found = np.empty(WIDTH)
    write_numbers(found, 0, value + here - size * unit)
    return found
