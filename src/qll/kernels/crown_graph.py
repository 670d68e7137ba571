"""Rigorous bounds of the neurons of any ReLU graph by its non-zeros, many of them in lanes.

The reference is `qll.bounds.crown`. All lanes are rows over one box, so that a neuron's lines are
the same in each of them but for its lower slope. Lanes that read the same columns, as the channels
of one pixel do, share most of the rows that they depend on; others are not looked at.
"""

from __future__ import annotations

import numpy as np

from qll.kernels.cache import compiled
from qll.kernels.lanes import WIDTH, read_numbers, write_numbers

BLOCK = 4  # that of `qll.bounds.blocks`, as a number that numba knows
_exact = compiled()  # sums are as they stand; products may be fused


@_exact
def bound_rows(  # type: ignore[no-untyped-def]
    network, ends, mid, rad, low, high, alpha, sizes, unit, own, targets, signs, asked
):
    """Lower bounds of ``signs`` times the pre-activations ``targets``, whose rows are in ``own``
    (starts, columns, weights) and which depend on what is ``asked``
    (`qll.kernels.dual_graph.reached`), with slopes ``alpha`` in [0, 1]. Sums are short, one for
    each of the layers that end at ``ends``, and ``size`` collects what their error is measured in
    (`qll.bounds.rounding`)."""
    inputs, _members, firsts, columns, weights, bias = network
    row_starts, row_columns, row_weights, row_bias = own
    blocks, slots, _rows, read = asked
    coefficient = np.zeros((inputs + ends[-1]) * WIDTH)
    first, own_size = np.zeros(WIDTH), np.zeros(WIDTH)
    for d in range(targets.shape[0]):
        i, s = targets[d], signs[d]
        first[d], own_size[d] = s * row_bias[i], sizes[i]
        for k in range(row_starts[i], row_starts[i + 1]):
            coefficient[row_columns[k] * WIDTH + d] += s * row_weights[k]
    value, size = read_numbers(first, 0), read_numbers(own_size, 0)
    zero = read_numbers(np.zeros(WIDTH), 0)
    here = zero
    layer = ends.shape[0] - 1
    block_rows = np.zeros(BLOCK * WIDTH)
    for at in range(blocks.shape[0] - 1, -1, -1):
        block = blocks[at]
        for t in range(BLOCK):
            i = slots[at * BLOCK + t]
            if i < 0:
                write_numbers(block_rows, t * WIDTH, zero)
                continue
            while i < ends[layer - 1]:
                value = value + here
                here = zero
                layer -= 1
            a = read_numbers(coefficient, (inputs + i) * WIDTH)
            negative = np.minimum(a, 0.0)
            below, above = low[i], high[i]
            b = a
            if below < 0.0:
                chord = above / (above - below)
                b = (a - negative) * read_numbers(alpha, i * WIDTH) + negative * chord
                here = here - negative * (chord * below)
                size = size - negative * above
            here = here + b * bias[i]
            size = size + (np.maximum(b, 0.0) - np.minimum(b, 0.0)) * sizes[i]
            write_numbers(block_rows, t * WIDTH, b)
        b0, b1 = read_numbers(block_rows, 0), read_numbers(block_rows, WIDTH)
        b2, b3 = read_numbers(block_rows, 2 * WIDTH), read_numbers(block_rows, 3 * WIDTH)
        for k in range(firsts[block], firsts[block + 1]):
            o, w = columns[k] * WIDTH, k * BLOCK
            c = read_numbers(coefficient, o)
            c = c + b0 * weights[w] + b1 * weights[w + 1]
            write_numbers(coefficient, o, c + b2 * weights[w + 2] + b3 * weights[w + 3])
    value = value + here
    here = zero
    for p in read:
        c = read_numbers(coefficient, p * WIDTH)
        here = here + (c * mid[p] - (np.maximum(c, 0.0) - np.minimum(c, 0.0)) * rad[p])
    found = np.empty(WIDTH)
    write_numbers(found, 0, value + here - size * unit)
    return found
