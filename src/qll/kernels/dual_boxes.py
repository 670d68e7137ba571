"""CROWN over many boxes of one small ReLU graph, in float64: one box at a time, rows as a matrix.

The reference is `qll.bounds.crown.Crown`. Box by box, only neurons whose sign is open on *this* box
are bounded again, neurons that are off drop out of every product, and everything of a box stays in
the cache between the products. Every bound is less what rounding may have added to it
(`qll.bounds.rounding`): ``unit`` times the size of what was summed.

Layer k (from 0) reads the terms ``term_starts[k]`` to ``term_starts[k + 1]``; ``sources`` says of
each what it is a matrix of: the input (0) or the activations of hidden layer ``sources[t] - 1``.
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
def _pour(current, matrix, target, moved, add):  # type: ignore[no-untyped-def]
    """``target (+)= current @ matrix``."""
    if not add:
        np.dot(current, matrix, target)
        return
    count, width = target.shape
    product = moved[: count * width].reshape(count, width)
    np.dot(current, matrix, product)
    target += product


@_compile
def _backward(  # type: ignore[no-untyped-def]
    layer, term_starts, sources, matrices, counts, lines, reads, lower, upper, flow, given, moved,
    reach, unit, value, pixel, blame,
):  # fmt: skip
    """Add lower bounds to ``value`` (r,) of rows whose coefficients of hidden activations below
    ``layer``, without those that are off, are in ``flow`` where ``given`` says so, and of the input
    in ``pixel`` (r, inputs), which ends as the linear functions that were minimised. ``blame`` has
    no rows or r. Overwrites ``flow`` and clears ``given``."""
    count, size = pixel.shape
    for k in range(layer - 1, -1, -1):
        here = counts[k]
        if not given[k]:
            continue
        given[k] = False
        if here == 0:
            continue
        current = flow[k, : count * here].reshape(count, here)
        rise = lines[k, 1, :here]
        if blame.shape[0]:
            _blame(current, rise, lines[k, 4], reads[k], blame)
        _relax(
            current, lines[k, 0], rise, lines[k, 2], lines[k, 3], lines[k, 5], lines[k, 6], unit,
            value,
        )  # fmt: skip
        for t in range(term_starts[k], term_starts[k + 1]):
            below = counts[sources[t] - 1] if sources[t] else size
            if below == 0:
                continue
            matrix = matrices[t, : here * below].reshape(here, below)
            if sources[t] == 0:
                _pour(current, matrix, pixel, moved, True)
                continue
            target = flow[sources[t] - 1, : count * below].reshape(count, below)
            _pour(current, matrix, target, moved, given[sources[t] - 1])
            given[sources[t] - 1] = True
    for r in range(count):
        total, large = 0.0, 0.0
        for p in range(size):
            c = pixel[r, p]
            total += c * lower[p] if c > 0.0 else c * upper[p]
            large += abs(c) * reach[p]
        value[r] += total - unit * large


@_compile
def _sums(matrix, mid, rad, centre, spread, large):  # type: ignore[no-untyped-def]
    """Add what one term gives to the pre-activations from ``mid +- rad`` below."""
    for i in range(matrix.shape[0]):
        entries = matrix[i]
        middle, width, size = 0.0, 0.0, 0.0
        for j in range(entries.shape[0]):
            middle += entries[j] * mid[j]
            width += abs(entries[j]) * rad[j]
            # of the ranges at hand, which may be wider than what is known of the whole box
            size += abs(entries[j]) * (abs(mid[j]) + rad[j])
        centre[i] += middle
        spread[i] += width
        large[i] += size


@_compile
def _intersect(centre, spread, large, unit, low, high):  # type: ignore[no-untyped-def]
    for i in range(low.shape[0]):
        lost = spread[i] + unit * large[i]
        if centre[i] - lost > low[i]:  # not so for what is not a number
            low[i] = centre[i] - lost
        if centre[i] + lost < high[i]:
            high[i] = centre[i] + lost


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
    rows, constant, direct, large, bias, term_starts, sources, gathered, matrices, counts, lines,
    reads, lower, upper, flow, given, moved, reach, unit, value, pixel, blame,
):  # fmt: skip
    """Lower bounds of ``rows . z_L + direct . x + constant`` (of the size ``large``) from the
    relaxations of all hidden layers."""
    count, size = pixel.shape
    hidden = counts.shape[0]
    for r in range(count):
        value[r] = constant[r] - unit * large[r]
        for o in range(rows.shape[1]):
            value[r] += rows[r, o] * bias[o]
    pixel[:] = direct
    first = term_starts[hidden]
    for t in range(first, term_starts[hidden + 1]):
        below = counts[sources[t] - 1] if sources[t] else size
        if below == 0:
            continue
        matrix = gathered[t - first, : rows.shape[1] * below].reshape(rows.shape[1], below)
        if sources[t] == 0:
            _pour(rows, matrix, pixel, moved, True)
        else:
            target = flow[sources[t] - 1, : count * below].reshape(count, below)
            _pour(rows, matrix, target, moved, given[sources[t] - 1])
            given[sources[t] - 1] = True
    _backward(
        hidden, term_starts, sources, matrices, counts, lines, reads, lower, upper, flow, given,
        moved, reach, unit, value, pixel, blame,
    )  # fmt: skip


@_compile
def _mix(values, most, linear, half, leaves, unit, weight):  # type: ignore[no-untyped-def]
    """Into ``weight``: the mixture of the leaves' linear bounds (their least values over the box
    are ``values``) that is largest at its least point; that value is returned.

    Concave in the weights, so a few multiplicative steps find a good one. Leaves that are positive
    nowhere (where minus them is at least ``most`` >= 0) are left out: on no part of the box will
    they help, and a split for their sake is lost.
    """
    count, size = leaves.shape[0], half.shape[0]
    best, at, hopeful = -np.inf, 0, 0
    for m in range(count):
        if most[leaves[m]] < 0.0:
            hopeful += 1
            if values[leaves[m]] > best:
                best, at = values[leaves[m]], m
    weight[:] = 0.0
    weight[at] = 1.0
    if hopeful < 2:
        return values[leaves[at]]
    centre, each, trial = np.zeros(count), np.zeros(count), weight.copy()
    large = np.zeros(count)  # twice for the mixture's own coefficients
    for m in range(count):
        trial[m] = 0.5 * (trial[m] + 1.0 / hopeful) if most[leaves[m]] < 0.0 else 0.0
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
            if trial[m] > 0.0:
                largest = max(largest, abs(each[m] - value))
        for m in range(count):
            if trial[m] > 0.0:
                trial[m] *= np.exp((each[m] - value) / largest * rate)
        trial /= trial.sum()
        rate *= WEIGHT_DECAY
    return best


@_compile
def _gather(width, begin, end, at, widths, sources, weights, counts, live, size, gathered):  # type: ignore[no-untyped-def]
    """The columns of a layer's terms whose neurons are not off; whether it reads the input only,
    and the place in ``weights`` after them."""
    alone = True
    for t in range(begin, end):
        source = sources[t]
        below = counts[source - 1] if source else size
        matrix = gathered[t - begin, : width * below].reshape(width, below)
        if source:
            alone = False
            for i in range(width):
                for j in range(below):
                    matrix[i, j] = weights[at + i * widths[source] + live[source - 1, j]]
        else:
            matrix[:] = weights[at : at + width * size].reshape(width, size)
        at += width * widths[source]
    return alone, at


@_compile
def _ask(chosen, width, begin, end, sources, gathered, counts, flow, given, found):  # type: ignore[no-untyped-def]
    """The coefficients of the ``chosen`` neurons of a layer and of minus them: those of the input
    in ``found``, which is cleared first, those of activations in ``flow``."""
    open_, size = chosen.shape[0], found.shape[1]
    found[:] = 0.0
    for t in range(begin, end):
        source = sources[t]
        below = counts[source - 1] if source else size
        matrix = gathered[t - begin, : width * below].reshape(width, below)
        if source == 0:
            for c in range(open_):
                found[c] += matrix[chosen[c]]
                found[open_ + c] -= matrix[chosen[c]]
            continue
        block = flow[source - 1, : 2 * open_ * below].reshape(2 * open_, below)
        if not given[source - 1]:
            block[:] = 0.0
            given[source - 1] = True
        for c in range(open_):
            for j in range(below):
                block[c, j] += matrix[chosen[c], j]
                block[open_ + c, j] -= matrix[chosen[c], j]


@_compile
def _keep(live, width, begin, end, sources, gathered, counts, size, matrices):  # type: ignore[no-untyped-def]
    """Of a layer's terms the rows of its neurons that are not off."""
    here = live.shape[0]
    for t in range(begin, end):
        below = counts[sources[t] - 1] if sources[t] else size
        matrix = gathered[t - begin, : width * below].reshape(width, below)
        kept = matrices[t, : here * below].reshape(here, below)
        for c in range(here):
            kept[c] = matrix[live[c]]


@_compile
def _combine(weight, mine, rows, constant, direct, large, linear, mixture, mixed_linear):  # type: ignore[no-untyped-def]
    """The mixture of a conjunction's rows, its constant, its part that reads the input and its
    size, and into ``mixed_linear`` that of the linear functions that bound them."""
    one, one_large = np.zeros(1), np.zeros(1)
    one_direct = np.zeros((1, direct.shape[1]))
    mixture[:] = 0.0
    mixed_linear[:] = 0.0
    for m in range(mine.shape[0]):
        mixture[0] += weight[m] * rows[mine[m]]
        one[0] += weight[m] * constant[mine[m]]
        one_direct[0] += weight[m] * direct[mine[m]]
        one_large[0] += weight[m] * large[mine[m]]
        mixed_linear += weight[m] * linear[mine[m]]
    return one, one_direct, one_large


@_compile
def crown_boxes(  # type: ignore[no-untyped-def]
    widths,  # (layers + 1,): inputs, hidden layers, outputs
    term_starts,  # (layers + 1,)
    sources,  # (terms,)
    weights,  # all terms' (n_k, n_source), flat, so that one compilation serves any graph
    biases,  # all layers', flat
    lower,  # (N, inputs)
    upper,
    rows,  # (m, outputs)
    constant,  # (m,)
    direct,  # (m, inputs): with which the rows read the input themselves
    leaves,  # the rows of each conjunction, one after the other
    starts,  # (C + 1,): where each conjunction begins in them
    margin,  # a conjunction above it is refuted
    sizes,  # of the hidden neurons, over all the boxes
    reach,  # (inputs,) of the inputs
    large,  # (m,) of the rows
    unit,  # what of a size may be lost to rounding
    low,  # in: what is known of the hidden neurons (N, neurons); out: their bounds
    high,
    values,  # out (N, m): lower bounds of ``rows . z_L + direct . x + constant``
    linear,  # out (N, m, inputs): the linear functions that were minimised
    mixed,  # out (N, C): lower bounds of a mixture of each conjunction's rows
    mixtures,  # out (N, len(leaves)): its weights
    mixed_linear,  # out (N, C, inputs)
    blame,  # out (N, C, inputs): what the relaxation may have cost, by the inputs it is due to
):
    hidden, count, size = widths.shape[0] - 2, rows.shape[0], lower.shape[1]
    widest = max(count, widths.max())
    most_terms = 0
    for k in range(hidden + 1):
        most_terms = max(most_terms, term_starts[k + 1] - term_starts[k])
    flow = np.zeros((hidden, 2 * widest * widest))
    given = np.zeros(hidden, dtype=np.bool_)
    moved = np.zeros(2 * widest * widest)
    gathered = np.zeros((most_terms, widest * widest))
    matrices = np.zeros((sources.shape[0], widest * widest))
    counts = np.zeros(hidden, dtype=np.int64)
    live = np.zeros((hidden, widest), dtype=np.int64)
    lines = np.zeros((hidden, 7, widest))
    reads = np.zeros((hidden, widest, size))
    own = np.zeros((widest, size))
    pixel = np.zeros(2 * widest * size)
    value = np.zeros(2 * widest)
    chosen = np.zeros(widest, dtype=np.int64)
    mid, rad = np.zeros((hidden + 1, widest)), np.zeros((hidden + 1, widest))
    centre, spread, summed = np.zeros(widest), np.zeros(widest), np.zeros(widest)
    none = np.zeros((0, size))
    half = np.zeros(size)
    mixture = np.zeros((1, rows.shape[1]))
    pixels = np.zeros((1, size))
    several = starts.shape[0] - 1 < leaves.shape[0]  # some conjunction has more rows than one
    most, turned = np.full(count, -1.0), np.zeros((count, size))  # minus how large rows may be
    for n in range(lower.shape[0]):
        at, first = 0, 0  # places in weights and among the neurons
        for p in range(size):
            half[p] = 0.5 * (upper[n, p] - lower[n, p])
            mid[0, p], rad[0, p] = 0.5 * (lower[n, p] + upper[n, p]), half[p]
        for k in range(hidden + 1):
            width, begin, end = widths[k + 1], term_starts[k], term_starts[k + 1]
            alone, at = _gather(
                width, begin, end, at, widths, sources, weights, counts, live, size, gathered
            )
            bias = biases[first : first + width]
            if k == hidden:
                break
            least, largest = low[n, first : first + width], high[n, first : first + width]
            mine_large = sizes[first : first + width]
            first += width
            for i in range(width):
                centre[i], spread[i], summed[i] = bias[i], 0.0, abs(bias[i]) + mine_large[i]
            for t in range(begin, end):
                source = sources[t]
                below = counts[source - 1] if source else size
                matrix = gathered[t - begin, : width * below].reshape(width, below)
                _sums(matrix, mid[source], rad[source], centre, spread, summed)
            _intersect(centre, spread, summed, unit, least, largest)
            open_ = 0
            for i in range(width):
                if least[i] < 0.0 < largest[i]:
                    chosen[open_] = i
                    open_ += 1
            if open_:
                found = pixel[: 2 * open_ * size].reshape(2 * open_, size)
                _ask(
                    chosen[:open_], width, begin, end, sources, gathered, counts, flow, given, found
                )
                for c in range(open_):
                    lost = unit * mine_large[chosen[c]]
                    value[c], value[open_ + c] = bias[chosen[c]] - lost, -bias[chosen[c]] - lost
                if not alone:
                    _backward(
                        k, term_starts, sources, matrices, counts, lines, reads, lower[n],
                        upper[n], flow, given, moved, reach, unit, value[: 2 * open_], found, none,
                    )  # fmt: skip
                for c in range(open_):
                    i = chosen[c]
                    _share(own[i], found[c], half)
                    if alone:
                        continue
                    if value[c] > least[i]:
                        least[i] = value[c]
                    if -value[open_ + c] < largest[i]:
                        largest[i] = -value[open_ + c]
            here = _lines(
                least, largest, bias, mine_large, live[k], lines[k], mid[k + 1], rad[k + 1]
            )
            _keep(live[k, :here], width, begin, end, sources, gathered, counts, size, matrices)
            for c in range(here):
                reads[k, c] = own[live[k, c]]
            counts[k] = here
        _last(
            rows, constant, direct, large, bias, term_starts, sources, gathered, matrices, counts,
            lines, reads, lower[n], upper[n], flow, given, moved, reach, unit, values[n],
            linear[n], none,
        )  # fmt: skip
        if several:
            _last(
                -rows, -constant, -direct, large, bias, term_starts, sources, gathered, matrices,
                counts, lines, reads, lower[n], upper[n], flow, given, moved, reach, unit, most,
                turned, none,
            )  # fmt: skip
        for c in range(starts.shape[0] - 1):
            mine = leaves[starts[c] : starts[c + 1]]
            weight = mixtures[n, starts[c] : starts[c + 1]]
            mixed[n, c] = _mix(values[n], most, linear[n], half, mine, unit, weight)
            blame[n, c] = 0.0
            one, one_direct, one_large = _combine(
                weight, mine, rows, constant, direct, large, linear[n], mixture, mixed_linear[n, c]
            )
            if mixed[n, c] > margin:
                continue
            # The relaxation of the mixture is at least as tight as the mixture of relaxations.
            _last(
                mixture, one, one_direct, one_large, bias, term_starts, sources, gathered,
                matrices, counts, lines, reads, lower[n], upper[n], flow, given, moved, reach,
                unit, value[:1], pixels, blame[n, c : c + 1],
            )  # fmt: skip
            if value[0] >= mixed[n, c]:
                mixed[n, c] = value[0]
                mixed_linear[n, c] = pixels[0]
