"""CROWN over many boxes of one dense chain, in float64: one box at a time, its rows as a matrix.

The reference is `qll.bounds.crown.Crown`. Box by box, only neurons whose sign is open on *this* box
are bounded again, neurons that are off drop out of every product, and everything of a box stays in
the cache between the products. Every bound is less what rounding may have added to it
(`qll.bounds.rounding`): ``unit`` times the size of what was summed.
"""

from __future__ import annotations

import numpy as np

from qll.kernels.cache import compiled

_compile = compiled(fastmath={"contract", "reassoc"})

# Steps of the ascent over the weights of a conjunction's rows, and their size.
WEIGHT_STEPS = 12
WEIGHT_RATE, WEIGHT_DECAY = 2.0, 0.8


@_compile
def _relax(block, chord, rise, line, bias, sizes, loose, unit, value):  # type: ignore[no-untyped-def]
    """Replace each activation by its chord or lower line, in place; constants go to ``value``."""
    for r in range(block.shape[0]):
        row = block[r]
        total, size = 0.0, 0.0
        for j in range(row.shape[0]):
            negative = min(row[j], 0.0)
            relaxed = row[j] * (line[j] if row[j] > 0.0 else chord[j])
            total += negative * rise[j] + relaxed * bias[j]
            size += abs(relaxed) * sizes[j] - negative * loose[j]
            row[j] = relaxed
        value[r] += total - unit * size


@_compile
def _blame(block, gap_above, gap_below, reads, blame):  # type: ignore[no-untyped-def]
    """What the relaxation of each neuron may cost each row, shared out to the inputs it reads."""
    for r in range(block.shape[0]):
        for j in range(block.shape[1]):
            a = block[r, j]
            cost = -a * gap_above[j] if a < 0.0 else a * gap_below[j]
            if cost > 0.0:
                for p in range(reads.shape[1]):
                    blame[r, p] += cost * reads[j, p]


@_compile
def _backward(  # type: ignore[no-untyped-def]
    current, layer, matrices, counts, lines, reads, lower, upper, buffers, reach, unit,
    value, pixel, blame,
):  # fmt: skip
    """Add lower bounds of ``current . a_layer`` (the activations of a hidden layer, counted from 0,
    without those that are off) to ``value`` (r,); the linear functions of the input that were
    minimised go to ``pixel`` (r, inputs). ``blame`` has no rows or r. Overwrites ``current``."""
    count, size = pixel.shape
    for k in range(layer, -1, -1):
        here = counts[k]
        if here == 0:
            pixel[:] = 0.0
            return
        rise = lines[k, 1, :here]
        if blame.shape[0]:
            _blame(current, rise, lines[k, 4], reads[k], blame)
        _relax(
            current, lines[k, 0], rise, lines[k, 2], lines[k, 3], lines[k, 5], lines[k, 6], unit,
            value,
        )  # fmt: skip
        below = counts[k - 1] if k else size
        matrix = matrices[k, : here * below].reshape(here, below)
        if k == 0:
            np.dot(current, matrix, pixel)
        elif below:
            following = buffers[k & 1, : count * below].reshape(count, below)
            np.dot(current, matrix, following)
            current = following
    for r in range(count):
        total, large = 0.0, 0.0
        for p in range(size):
            c = pixel[r, p]
            total += c * lower[p] if c > 0.0 else c * upper[p]
            large += abs(c) * reach[p]
        value[r] += total - unit * large


@_compile
def _interval(weight, bias, mid, rad, sizes, unit, low, high):  # type: ignore[no-untyped-def]
    """Intersect [low, high] with interval arithmetic from ``mid +- rad`` below."""
    for i in range(weight.shape[0]):
        entries = weight[i]
        centre, spread, large = 0.0, 0.0, abs(bias[i]) + sizes[i]
        for j in range(entries.shape[0]):
            centre += entries[j] * mid[j]
            spread += abs(entries[j]) * rad[j]
            # of the ranges at hand, which may be wider than what is known of the whole box
            large += abs(entries[j]) * (abs(mid[j]) + rad[j])
        least, most = centre + bias[i] - spread, centre + bias[i] + spread
        if least - unit * large > low[i]:  # not so for what is not a number
            low[i] = least - unit * large
        if most + unit * large < high[i]:
            high[i] = most + unit * large


@_compile
def _lines(low, high, bias, sizes, live, lines, mid, rad):  # type: ignore[no-untyped-def]
    """The neurons that are not off with their relaxations, and the ranges of their activations."""
    count = 0
    for i in range(low.shape[0]):
        if high[i] <= 0.0:
            continue
        live[count] = i
        lines[0, count], lines[1, count], lines[2, count] = 1.0, 0.0, 1.0
        lines[3, count], lines[4, count] = bias[i], 0.0
        lines[5, count], lines[6, count] = sizes[i], 0.0
        if low[i] < 0.0:
            lines[0, count] = high[i] / (high[i] - low[i])
            lines[1, count] = -lines[0, count] * low[i]
            lines[2, count] = 1.0 if high[i] > -low[i] else 0.0
            lines[4, count] = min(high[i], -low[i])
            lines[6, count] = high[i]
        least = max(low[i], 0.0)
        mid[count], rad[count] = 0.5 * (least + high[i]), 0.5 * (high[i] - least)
        count += 1
    return count


@_compile
def _share(reads, pixel, rad):  # type: ignore[no-untyped-def]
    """How much of a linear function's range over the box comes from each input."""
    total = 1e-300
    for p in range(rad.shape[0]):
        total += abs(pixel[p]) * rad[p]
    for p in range(rad.shape[0]):
        reads[p] = abs(pixel[p]) * rad[p] / total


@_compile
def _last(  # type: ignore[no-untyped-def]
    rows, constant, large, matrix, bias, hidden, matrices, counts, lines, reads, lower, upper,
    starting, buffers, reach, unit, value, pixel, blame,
):  # fmt: skip
    """Lower bounds of ``rows . z_L + constant`` (of the size ``large``) from the relaxations of all
    hidden layers."""
    count, below = rows.shape[0], matrix.shape[1]
    for r in range(count):
        value[r] = constant[r] - unit * large[r]
        for o in range(rows.shape[1]):
            value[r] += rows[r, o] * bias[o]
    if below == 0:
        pixel[:] = 0.0
    elif hidden == 0:
        np.dot(rows, matrix, pixel)
        for r in range(count):
            for p in range(pixel.shape[1]):
                c = pixel[r, p]
                value[r] += c * lower[p] if c > 0.0 else c * upper[p]
    else:
        block = starting[: count * below].reshape(count, below)
        np.dot(rows, matrix, block)
        _backward(
            block, hidden - 1, matrices, counts, lines, reads, lower, upper, buffers, reach, unit,
            value, pixel, blame,
        )  # fmt: skip


@_compile
def _mix(values, linear, half, leaves, unit, weight):  # type: ignore[no-untyped-def]
    """Into ``weight``: the mixture of the leaves' linear bounds (their least values over the box
    are ``values``) that is largest at its least point; that value is returned.

    Concave in the weights, so a few multiplicative steps find a good one.
    """
    count, size = leaves.shape[0], half.shape[0]
    best, at = -np.inf, 0
    for m in range(count):
        if values[leaves[m]] > best:
            best, at = values[leaves[m]], m
    weight[:] = 0.0
    weight[at] = 1.0
    if count == 1:
        return best
    centre, each, trial = np.zeros(count), np.zeros(count), weight.copy()
    large = np.zeros(count)  # twice for the mixture's own coefficients
    for m in range(count):
        trial[m] = 0.5 * (trial[m] + 1.0 / count)
        spread = 0.0
        for p in range(size):
            spread += abs(linear[leaves[m], p]) * half[p]
        centre[m] = values[leaves[m]] + spread
        large[m] = abs(values[leaves[m]]) + 4.0 * spread
    rate = WEIGHT_RATE
    for _ in range(WEIGHT_STEPS):
        each[:] = centre
        for p in range(size):
            total = 0.0
            for m in range(count):
                total += trial[m] * linear[leaves[m], p]
            side = half[p] if total < 0.0 else -half[p]
            if total != 0.0:
                for m in range(count):
                    each[m] += linear[leaves[m], p] * side
        value = (trial * each).sum() - unit * (trial * large).sum()
        if value > best:
            best = value
            weight[:] = trial
        largest = 1e-30
        for m in range(count):
            largest = max(largest, abs(each[m] - value))
        for m in range(count):
            trial[m] *= np.exp((each[m] - value) / largest * rate)
        trial /= trial.sum()
        rate *= WEIGHT_DECAY
    return best


@_compile
def crown_boxes(  # type: ignore[no-untyped-def]
    widths,  # (layers + 1,): inputs, hidden layers, outputs
    weights,  # all layers' (n_k, n_k-1), flat, so that one compilation serves any depth
    biases,  # all layers', flat
    lower,  # (N, inputs)
    upper,
    rows,  # (m, outputs)
    constant,  # (m,)
    leaves,  # the rows of each conjunction, one after the other
    starts,  # (C + 1,): where each conjunction begins in them
    margin,  # a conjunction above it is refuted
    sizes,  # of the hidden neurons, over all the boxes
    reach,  # (inputs,) of the inputs
    large,  # (m,) of the rows
    unit,  # what of a size may be lost to rounding
    low,  # in: what is known of the hidden neurons (N, neurons); out: their bounds
    high,
    values,  # out (N, m): lower bounds of ``rows . z_L + constant``
    linear,  # out (N, m, inputs): the linear functions that were minimised
    mixed,  # out (N, C): lower bounds of a mixture of each conjunction's rows
    mixtures,  # out (N, len(leaves)): its weights
    mixed_linear,  # out (N, C, inputs)
    blame,  # out (N, C, inputs): what the relaxation may have cost, by the inputs it is due to
):
    hidden, count, size = widths.shape[0] - 2, rows.shape[0], lower.shape[1]
    widest = max(count, widths.max())
    buffers = np.zeros((2, 2 * widest * widest))
    starting = np.zeros(2 * widest * widest)
    gathered = np.zeros(widest * widest)
    matrices = np.zeros((hidden, widest * widest))
    counts = np.zeros(hidden, dtype=np.int64)
    live = np.zeros((hidden, widest), dtype=np.int64)
    lines = np.zeros((hidden, 7, widest))
    reads = np.zeros((hidden, widest, size))
    own = np.zeros((widest, size))
    pixel = np.zeros(2 * widest * size)
    value = np.zeros(2 * widest)
    chosen = np.zeros(widest, dtype=np.int64)
    mid, rad = np.zeros(widest), np.zeros(widest)
    none = np.zeros((0, size))
    half = np.zeros(size)
    mixture = np.zeros((1, rows.shape[1]))
    one, one_large, pixels = np.zeros(1), np.zeros(1), np.zeros((1, size))
    for n in range(lower.shape[0]):
        below, at, first = size, 0, 0  # places in weights and among the neurons
        for p in range(size):
            half[p] = 0.5 * (upper[n, p] - lower[n, p])
            mid[p], rad[p] = 0.5 * (lower[n, p] + upper[n, p]), half[p]
        for k in range(hidden + 1):
            # The columns of this layer whose neurons are not off.
            width = widths[k + 1]
            matrix = gathered[: width * below].reshape(width, below)
            for i in range(width):
                for j in range(below):
                    matrix[i, j] = weights[at + i * widths[k] + (live[k - 1, j] if k else j)]
            bias = biases[first : first + width]
            if k == hidden:
                break
            least, most = low[n, first : first + width], high[n, first : first + width]
            mine_large = sizes[first : first + width]
            at, first = at + width * widths[k], first + width
            _interval(matrix, bias, mid[:below], rad[:below], mine_large, unit, least, most)
            if k == 0:
                for i in range(width):
                    _share(own[i], matrix[i], half)
            else:
                open_ = 0
                for i in range(width):
                    if least[i] < 0.0 < most[i]:
                        chosen[open_] = i
                        open_ += 1
                if open_ and below:
                    block = starting[: 2 * open_ * below].reshape(2 * open_, below)
                    for c in range(open_):
                        i = chosen[c]
                        lost = unit * mine_large[i]
                        value[c], value[open_ + c] = bias[i] - lost, -bias[i] - lost
                        for j in range(below):
                            block[c, j], block[open_ + c, j] = matrix[i, j], -matrix[i, j]
                    found = pixel[: 2 * open_ * size].reshape(2 * open_, size)
                    _backward(
                        block, k - 1, matrices, counts, lines, reads, lower[n], upper[n], buffers,
                        reach, unit, value[: 2 * open_], found, none,
                    )  # fmt: skip
                    for c in range(open_):
                        i = chosen[c]
                        if value[c] > least[i]:
                            least[i] = value[c]
                        if -value[open_ + c] < most[i]:
                            most[i] = -value[open_ + c]
                        _share(own[i], found[c], half)
            here = _lines(least, most, bias, mine_large, live[k], lines[k], mid, rad)
            kept = matrices[k, : here * below].reshape(here, below)
            for c in range(here):
                kept[c] = matrix[live[k, c]]
                reads[k, c] = own[live[k, c]]
            counts[k] = below = here
        _last(
            rows, constant, large, matrix, bias, hidden, matrices, counts, lines, reads,
            lower[n], upper[n], starting, buffers, reach, unit, values[n], linear[n], none,
        )  # fmt: skip
        for c in range(starts.shape[0] - 1):
            mine = leaves[starts[c] : starts[c + 1]]
            weight = mixtures[n, starts[c] : starts[c + 1]]
            mixed[n, c] = _mix(values[n], linear[n], half, mine, unit, weight)
            blame[n, c] = 0.0
            mixture[:] = 0.0
            one[0] = one_large[0] = 0.0
            for p in range(size):
                mixed_linear[n, c, p] = 0.0
            for m in range(mine.shape[0]):
                mixture[0] += weight[m] * rows[mine[m]]
                one[0] += weight[m] * constant[mine[m]]
                one_large[0] += weight[m] * large[mine[m]]
                mixed_linear[n, c] += weight[m] * linear[n, mine[m]]
            if mixed[n, c] > margin:
                continue
            # The relaxation of the mixture is at least as tight as the mixture of relaxations.
            _last(
                mixture, one, one_large, matrix, bias, hidden, matrices, counts, lines, reads,
                lower[n], upper[n], starting, buffers, reach, unit, value[:1], pixels,
                blame[n, c : c + 1],
            )  # fmt: skip
            if value[0] >= mixed[n, c]:
                mixed[n, c] = value[0]
                mixed_linear[n, c] = pixels[0]
