"""What a violation implies on a domain: bounds of inputs and neurons, propagated to a fixed point.

Columns are the inputs and then the activations of all hidden neurons; row i is the pre-activation
of neuron i, in a network's own order, over the columns before it. A domain is what is known of
columns and rows, and that a violation needs ``objective <= 0`` in every row m of an obligation.
Bounds go up a row from its columns, down to each column from the row and the others, and across a
ReLU both ways (feasibility-based bound tightening; Savelsbergh 1994). An objective is looked at
twice: as a row over activations, and with each activation replaced by its line (CROWN), as a row
over the inputs, because in the difference of two activations of one input intervals see nothing.

Nothing here is believed: rounding is not accounted for, and a contradiction only says where a proof
is to be looked for.
"""

from __future__ import annotations

import numpy as np

from qll.kernels.cache import compiled

_compile = compiled()

# A bound that moves by less than this share of its first range is not passed on.
LEAST_MOVE = 1e-3
# What is called a contradiction must be one by this share of the range.
TOLERANCE = 1e-7
# Looks at the objectives, and rows that are looked at for each row there is.
MOST_ROUNDS = 30
MOST_VISITS = 20
# A row counts by BASE to the power of minus the steps in which its slack can be used up.
BASE = 5.0


@_compile
def _raise_column(c, value, low, high, scale):  # type: ignore[no-untyped-def]
    """1 if the lower bound has moved, 2 if nothing is left."""
    if value <= low[c] + LEAST_MOVE * scale[c]:
        return 0
    if value > high[c] + TOLERANCE * scale[c]:
        return 2
    low[c] = min(value, high[c])
    return 1


@_compile
def _lower_column(c, value, low, high, scale):  # type: ignore[no-untyped-def]
    if value >= high[c] - LEAST_MOVE * scale[c]:
        return 0
    if value < low[c] - TOLERANCE * scale[c]:
        return 2
    high[c] = max(value, low[c])
    return 1


@_compile
def _down(at, columns, weights, least, most, below, above, low, high, scale, moved):  # type: ignore[no-untyped-def]
    """Columns of a row in [below, above] whose terms add up to [least, most]: the number of columns
    that moved, written to ``moved``, or -1 if nothing is left."""
    count = 0
    for k in range(at[0], at[1]):
        c, w = columns[k], weights[k]
        if w == 0.0 or high[c] <= low[c]:
            continue
        if w > 0.0:
            top = (above - (least - w * low[c])) / w
            bottom = (below - (most - w * high[c])) / w
        else:
            bottom = (above - (least - w * high[c])) / w
            top = (below - (most - w * low[c])) / w
        first = _raise_column(c, bottom, low, high, scale)
        second = _lower_column(c, top, low, high, scale)
        if first == 2 or second == 2:
            return -1
        if first == 1 or second == 1:
            moved[count] = c
            count += 1
    return count


@_compile
def _relaxed(  # type: ignore[no-untyped-def]
    objective, constant, inputs, starts, columns, weights, bias, zlow, zhigh, coefficient
):
    """An objective as a row over the inputs: ``coefficient`` and the constant."""
    coefficient[:] = objective
    for i in range(bias.shape[0] - 1, -1, -1):
        a = coefficient[inputs + i]
        if a == 0.0 or zhigh[i] <= 0.0:
            continue
        slope = 1.0
        if zlow[i] < 0.0:
            if a > 0.0:
                slope = 1.0 if zhigh[i] > -zlow[i] else 0.0
            else:
                slope = zhigh[i] / (zhigh[i] - zlow[i])
                constant -= a * slope * zlow[i]
        b = a * slope
        if b != 0.0:
            constant += b * bias[i]
            for k in range(starts[i], starts[i + 1]):
                coefficient[columns[k]] += b * weights[k]
    return constant


@_compile
def propagate(  # type: ignore[no-untyped-def]
    inputs, starts, columns, weights, bias, reader_starts, readers, scale,
    objectives, constants, low, high, zlow, zhigh, waiting,
):  # fmt: skip
    """Tighten ``low`` and ``high`` of the columns and ``zlow`` and ``zhigh`` of the rows in place;
    ``waiting`` marks the rows that something has changed for. False if nothing is left."""
    rows, count = bias.shape[0], objectives.shape[0]
    queue = np.empty(rows, dtype=np.int64)
    head, size = 0, 0
    for i in range(rows):
        if waiting[i]:
            queue[size] = i
            size += 1
    moved = np.empty(scale.shape[0], dtype=np.int64)
    coefficient = np.empty(scale.shape[0])
    everything = np.arange(scale.shape[0])
    span = np.zeros(2, dtype=np.int64)
    visits = 0
    for _ in range(MOST_ROUNDS):
        while size > 0 and visits < MOST_VISITS * rows:
            visits += 1
            i = queue[head]
            head = (head + 1) % rows
            size -= 1
            waiting[i] = False
            least = most = bias[i]
            for k in range(starts[i], starts[i + 1]):
                c, w = columns[k], weights[k]
                least += w * low[c] if w > 0.0 else w * high[c]
                most += w * high[c] if w > 0.0 else w * low[c]
            a = inputs + i
            zlow[i], zhigh[i] = max(zlow[i], least), min(zhigh[i], most)
            if high[a] < zhigh[i]:  # the activation is no less than the row
                zhigh[i] = high[a]
            if low[a] > 0.0 and low[a] > zlow[i]:
                zlow[i] = low[a]
            if zlow[i] > zhigh[i] + TOLERANCE * scale[a]:
                return False
            first = _raise_column(a, max(zlow[i], 0.0), low, high, scale)
            second = _lower_column(a, max(zhigh[i], 0.0), low, high, scale)
            if first == 2 or second == 2:
                return False
            number = 0
            if zhigh[i] < most or zlow[i] > least:
                span[0], span[1] = starts[i], starts[i + 1]
                number = _down(
                    span, columns, weights, least, most, zlow[i], zhigh[i], low, high, scale, moved
                )
                if number < 0:
                    return False
            if first == 1 or second == 1:
                moved[number] = a
                number += 1
            for n in range(number):
                c = moved[n]
                for k in range(reader_starts[c], reader_starts[c + 1]):
                    r = readers[k]
                    if not waiting[r]:
                        waiting[r] = True
                        queue[(head + size) % rows] = r
                        size += 1
                if c >= inputs and c != a and not waiting[c - inputs]:
                    waiting[c - inputs] = True
                    queue[(head + size) % rows] = c - inputs
                    size += 1
        before = size
        for m in range(count):
            for kind in range(2):
                if kind == 0:
                    constant = constants[m]
                    coefficient[:] = objectives[m]
                    last = scale.shape[0]
                else:
                    constant = _relaxed(
                        objectives[m], constants[m], inputs, starts, columns, weights, bias,
                        zlow, zhigh, coefficient,
                    )  # fmt: skip
                    last = inputs
                least = most = constant
                for c in range(last):
                    w = coefficient[c]
                    least += w * low[c] if w > 0.0 else w * high[c]
                    most += w * high[c] if w > 0.0 else w * low[c]
                span[0], span[1] = 0, last
                number = _down(
                    span, everything, coefficient, least, most, -np.inf, 0.0, low, high, scale,
                    moved,
                )  # fmt: skip
                if number < 0:
                    return False
                for n in range(number):
                    c = moved[n]
                    for k in range(reader_starts[c], reader_starts[c + 1]):
                        r = readers[k]
                        if not waiting[r]:
                            waiting[r] = True
                            queue[(head + size) % rows] = r
                            size += 1
                    if c >= inputs and not waiting[c - inputs]:
                        waiting[c - inputs] = True
                        queue[(head + size) % rows] = c - inputs
                        size += 1
        if size == before:
            break
    return True


@_compile
def _tension(starts, columns, weights, bias, low, high, zlow, zhigh, i):  # type: ignore[no-untyped-def]
    """How near a row is to fixing its columns: 0 where its bounds say no more than its columns."""
    least = most = bias[i]
    widest = 0.0
    for k in range(starts[i], starts[i + 1]):
        c, w = columns[k], weights[k]
        least += w * low[c] if w > 0.0 else w * high[c]
        most += w * high[c] if w > 0.0 else w * low[c]
        widest = max(widest, abs(w) * (high[c] - low[c]))
    if widest <= 0.0:
        return 0.0
    slack = np.inf
    if zhigh[i] < most - TOLERANCE * widest:
        slack = zhigh[i] - least
    if zlow[i] > least + TOLERANCE * widest:
        slack = min(slack, most - zlow[i])
    return BASE ** (-max(slack, 0.0) / widest)


@_compile
def look_ahead(  # type: ignore[no-untyped-def]
    candidates, inputs, starts, columns, weights, bias, reader_starts, readers, scale,
    objectives, constants, low, high, zlow, zhigh,
):  # fmt: skip
    """For each candidate neuron and each sign (off, on): what the split brings, or -1 where it
    leaves nothing. (candidates, 2)"""
    rows = bias.shape[0]
    before = np.empty(rows)
    for i in range(rows):
        before[i] = _tension(starts, columns, weights, bias, low, high, zlow, zhigh, i)
    found = np.zeros((candidates.shape[0], 2))
    for n in range(candidates.shape[0]):
        neuron = candidates[n]
        for side in range(2):
            new_low, new_high = low.copy(), high.copy()
            new_zlow, new_zhigh = zlow.copy(), zhigh.copy()
            waiting = np.zeros(rows, dtype=np.bool_)
            waiting[neuron] = True
            if side == 0:
                new_zhigh[neuron] = min(new_zhigh[neuron], 0.0)
            else:
                new_zlow[neuron] = max(new_zlow[neuron], 0.0)
            left = propagate(
                inputs, starts, columns, weights, bias, reader_starts, readers, scale,
                objectives, constants, new_low, new_high, new_zlow, new_zhigh, waiting,
            )  # fmt: skip
            if not left:
                found[n, side] = -1.0
                continue
            gain = 0.0
            for i in range(rows):
                unstable = zlow[i] < 0.0 and zhigh[i] > 0.0
                if unstable and (new_zlow[i] >= 0.0 or new_zhigh[i] <= 0.0):
                    gain += 0.05
                now = _tension(
                    starts, columns, weights, bias, new_low, new_high, new_zlow, new_zhigh, i
                )
                gain += max(now - before[i], 0.0)
            found[n, side] = gain
    return found
