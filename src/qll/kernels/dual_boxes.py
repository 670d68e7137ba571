"""CROWN over many boxes of one dense chain, in float64: one box at a time, its rows as a matrix.

The reference is `qll.bounds.crown.Crown`. Box by box, only neurons that are unstable on *this* box
are bounded again, and everything of a box stays in the cache between the matrix products.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from qll.kernels.cache import cached_in

with cached_in() as _cache:
    _compile = njit(nogil=True, cache=_cache, error_model="numpy", fastmath={"contract", "reassoc"})


@_compile
def _relax(block, chord, rise, line, value):  # type: ignore[no-untyped-def]
    """Replace each activation by its chord or lower line, in place; rises go to ``value``."""
    for r in range(block.shape[0]):
        row = block[r]
        total = 0.0
        for j in range(row.shape[0]):
            negative = min(row[j], 0.0)
            total += negative * rise[j]
            row[j] = (row[j] - negative) * line[j] + negative * chord[j]
        value[r] += total


@_compile
def _backward(  # type: ignore[no-untyped-def]
    rows, layer, weights, biases, chords, rises, lines, lower, upper, buffers, value, pixel
):
    """Lower bounds of ``rows . z_layer`` (layer counts from 0) into ``value`` (r,), and the linear
    functions of the input that were minimised into ``pixel`` (r, inputs)."""
    count = rows.shape[0]
    current = rows
    for r in range(count):
        value[r] = 0.0
    for k in range(layer, -1, -1):
        bias = biases[k]
        for r in range(count):
            total = 0.0
            line = current[r]
            for i in range(line.shape[0]):
                total += line[i] * bias[i]
            value[r] += total
        width = weights[k].shape[1]
        if k == 0:
            np.dot(current, weights[0], pixel)
        else:
            following = buffers[k & 1][: count * width].reshape(count, width)
            np.dot(current, weights[k], following)
            _relax(following, chords[k - 1], rises[k - 1], lines[k - 1], value)
            current = following
    for r in range(count):
        total = 0.0
        line = pixel[r]
        for p in range(line.shape[0]):
            c = line[p]
            total += c * lower[p] if c > 0.0 else c * upper[p]
        value[r] += total


@_compile
def crown_boxes(  # type: ignore[no-untyped-def]
    weights,  # per layer (n_k, n_k-1)
    biases,
    lows,  # scratch, per layer (n_k,)
    highs,
    chords,  # scratch: the relaxation of each neuron
    rises,
    lines,
    lower,  # (N, inputs)
    upper,
    rows,  # (m, outputs)
    constant,  # (m,)
    values,  # out (N, m)
    inputs,  # out (N, m, inputs)
):
    layers = len(weights)
    widest = rows.shape[0]
    size = lower.shape[1]
    for k in range(layers):
        widest = max(widest, weights[k].shape[0])
    buffers = np.zeros((2, 2 * widest * max(widest, size)))
    identity = np.zeros(2 * widest * widest)
    pixel = np.zeros(2 * widest * size)
    value = np.zeros(2 * widest)
    chosen = np.zeros(widest, dtype=np.int64)
    for n in range(lower.shape[0]):
        for k in range(layers - 1):
            weight, bias = weights[k], biases[k]
            low, high = lows[k], highs[k]
            chord, rise, line = chords[k], rises[k], lines[k]
            width, below = weight.shape
            count = 0
            for i in range(width):
                entries = weight[i]
                mid, rad = bias[i], 0.0
                if k == 0:
                    for j in range(below):
                        mid += entries[j] * 0.5 * (lower[n, j] + upper[n, j])
                        rad += abs(entries[j]) * 0.5 * (upper[n, j] - lower[n, j])
                else:
                    under_low, under_high = lows[k - 1], highs[k - 1]
                    for j in range(below):
                        a, b = max(under_low[j], 0.0), max(under_high[j], 0.0)
                        mid += entries[j] * 0.5 * (a + b)
                        rad += abs(entries[j]) * 0.5 * (b - a)
                low[i], high[i] = mid - rad, mid + rad
                if k > 0 and low[i] < 0.0 < high[i]:
                    chosen[count] = i
                    count += 1
            if count:
                block = identity[: 2 * count * width].reshape(2 * count, width)
                block[:] = 0.0
                for c in range(count):
                    block[c, chosen[c]] = 1.0
                    block[count + c, chosen[c]] = -1.0
                _backward(
                    block, k, weights, biases, chords, rises, lines, lower[n], upper[n], buffers,
                    value, pixel[: 2 * count * size].reshape(2 * count, size),
                )  # fmt: skip
                for c in range(count):
                    i = chosen[c]
                    low[i] = max(low[i], value[c])
                    high[i] = min(high[i], -value[count + c])
            for i in range(width):
                chord[i], rise[i], line[i] = 0.0, 0.0, 0.0
                if high[i] > 0.0:
                    if low[i] >= 0.0:
                        chord[i], line[i] = 1.0, 1.0
                    else:
                        chord[i] = high[i] / (high[i] - low[i])
                        rise[i] = -chord[i] * low[i]
                        line[i] = 1.0 if high[i] > -low[i] else 0.0
        _backward(
            rows, layers - 1, weights, biases, chords, rises, lines, lower[n], upper[n], buffers,
            value, inputs[n],
        )  # fmt: skip
        for m in range(rows.shape[0]):
            values[n, m] = value[m] + constant[m]
