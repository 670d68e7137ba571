"""The dual bound of any ReLU graph by its non-zeros: an ascent over lanes of domains, and a check.

The mathematics is that of `qll.bounds.dual`, without copies of inputs. Columns are the inputs and
then the hidden activations in the network's own order; row i is the pre-activation of neuron i over
the columns before it, so that one walk down the rows passes coefficients to the inputs, and one
walk up carries the minimiser through the relaxed network. The second gives all gradients: that of
a row's coefficient is its value there. Time is that of two sparse products a step, for all lanes.
"""

from __future__ import annotations

import numpy as np

from qll.kernels.cache import compiled

_fast = compiled(fastmath={"contract", "nsz", "reassoc"})
_exact = compiled()

LANES = 16  # domains at once: one register of AVX-512, two of AVX2
# Adam's decay rates, as in the reference.
FIRST, SECOND = 0.9, 0.99
LEAST_WEIGHT = np.float32(1e-4)
TINY = np.float32(1e-20)


@_fast
def _down(  # type: ignore[no-untyped-def]
    inputs, starts, columns, weights, bias, mid, rad, top, objective, offset,
    chord, rise, sign, alpha, beta, share, coefficient, value, point,
):  # fmt: skip
    """Coefficients of all columns, the bounds and their minimisers."""
    zero = np.float32(0.0)
    coefficient[:] = zero
    value[:] = zero
    for m in range(share.shape[0]):
        for d in range(LANES):
            value[d] += share[m, d] * offset[m, d]
        for t in range(top.shape[0]):
            for d in range(LANES):
                coefficient[top[t], d] += share[m, d] * objective[m, t, d]
    back = np.empty(LANES, dtype=np.float32)
    here = np.empty(LANES, dtype=np.float32)
    for i in range(bias.shape[0] - 1, -1, -1):
        some = zero
        for d in range(LANES):
            a = coefficient[inputs + i, d]
            negative, positive = min(a, zero), max(a, zero)
            b = positive * alpha[i, d] + negative * chord[i, d] - beta[i, d] * sign[i, d]
            here[d] = negative * rise[i, d] + b * bias[i]
            back[d] = b
            some += abs(b)
        if some == zero:
            continue
        for d in range(LANES):
            value[d] += here[d]
        for k in range(starts[i], starts[i + 1]):
            c, w = columns[k], weights[k]
            for d in range(LANES):
                coefficient[c, d] += w * back[d]
    for p in range(inputs):
        for d in range(LANES):
            c = coefficient[p, d]
            x = mid[p] - rad[p] if c > zero else mid[p] + rad[p]
            point[p, d] = x
            value[d] += c * x


@_fast
def _up(  # type: ignore[no-untyped-def]
    inputs, starts, columns, weights, bias, chord, rise, alpha, still, coefficient, point, row
):
    """Values of all columns and rows at the minimisers, through the lines that were taken."""
    zero = np.float32(0.0)
    z = np.empty(LANES, dtype=np.float32)
    for i in range(bias.shape[0]):
        if still[i]:  # off in all lanes, and not split: nobody asks
            for d in range(LANES):
                point[inputs + i, d] = zero
                row[i, d] = zero
            continue
        for d in range(LANES):
            z[d] = bias[i]
        for k in range(starts[i], starts[i + 1]):
            c, w = columns[k], weights[k]
            for d in range(LANES):
                z[d] += w * point[c, d]
        for d in range(LANES):
            row[i, d] = z[d]
            above = coefficient[inputs + i, d] > zero
            line = alpha[i, d] * z[d] if above else chord[i, d] * z[d] + rise[i, d]
            point[inputs + i, d] = line


@_fast
def ascend(  # type: ignore[no-untyped-def]
    steps, taken, target, rates, inputs, starts, columns, weights, bias, mid, rad, top,
    objective, offset, low, high, sign, alpha, beta, weight, moments, scale,
    best, best_alpha, best_beta, best_weight, best_coefficient, best_point,
):  # fmt: skip
    """Up to ``steps`` steps of Adam after ``taken`` ones: the best bounds go to ``best``, with what
    belongs to them. ``scale`` is the unit of beta; where it is 0 it is measured and written.
    Returns how many were taken: fewer if every lane has reached ``target``."""
    neurons, count = bias.shape[0], weight.shape[0]
    zero, one = np.float32(0.0), np.float32(1.0)
    chord, rise = np.zeros_like(low), np.zeros_like(low)
    free = np.zeros_like(low)
    still = np.ones(neurons, dtype=np.bool_)
    for i in range(neurons):
        for d in range(LANES):
            if high[i, d] > zero:
                still[i] = False
                if low[i, d] >= zero:
                    chord[i, d] = alpha[i, d] = one
                else:
                    chord[i, d] = high[i, d] / (high[i, d] - low[i, d])
                    rise[i, d] = -chord[i, d] * low[i, d]
                    free[i, d] = one
            else:
                alpha[i, d] = zero
            if sign[i, d] != zero:
                still[i] = False
            else:
                beta[i, d] = zero
    columns_all = inputs + neurons
    coefficient = np.empty((columns_all, LANES), dtype=np.float32)
    point = np.empty((columns_all, LANES), dtype=np.float32)
    row = np.empty((neurons, LANES), dtype=np.float32)
    value = np.empty(LANES, dtype=np.float32)
    share = np.empty_like(weight)
    speed = np.empty(LANES, dtype=np.float32)
    alpha_first, alpha_second, beta_first, beta_second, weight_first, weight_second = moments
    for step in range(steps + 1):
        for d in range(LANES):
            total = zero
            for m in range(count):
                total += weight[m, d]
            for m in range(count):
                share[m, d] = weight[m, d] / total
        _down(
            inputs, starts, columns, weights, bias, mid, rad, top, objective, offset,
            chord, rise, sign, alpha, beta, share, coefficient, value, point,
        )  # fmt: skip
        going = False
        for d in range(LANES):
            speed[d] = one if value[d] <= target else zero
            going = going or value[d] <= target
            if value[d] > best[d]:
                best[d] = value[d]
                for i in range(neurons):
                    best_alpha[i, d], best_beta[i, d] = alpha[i, d], beta[i, d]
                for m in range(count):
                    best_weight[m, d] = weight[m, d]
                for c in range(columns_all):
                    best_coefficient[c, d] = coefficient[c, d]
                for p in range(inputs):
                    best_point[p, d] = point[p, d]
        if step == steps or not going:
            return step
        for d in range(LANES):
            if scale[d] == zero:
                for i in range(neurons):
                    scale[d] += abs(coefficient[inputs + i, d])
                scale[d] = scale[d] / np.float32(neurons) + np.float32(1e-30)
        _up(
            inputs, starts, columns, weights, bias, chord, rise, alpha, still, coefficient,
            point, row,
        )  # fmt: skip
        number = taken + step
        decay = np.float32(rates[3] ** number)
        first_fix = np.float32(1.0 / (1.0 - FIRST ** (number + 1)))
        second_fix = np.float32(1.0 / (1.0 - SECOND ** (number + 1)))
        f, s = np.float32(FIRST), np.float32(SECOND)
        for i in range(neurons):
            if still[i]:
                continue
            for d in range(LANES):
                g = max(coefficient[inputs + i, d], zero) * row[i, d] * free[i, d]
                alpha_first[i, d] = f * alpha_first[i, d] + (one - f) * g
                alpha_second[i, d] = s * alpha_second[i, d] + (one - s) * g * g
                move = alpha_first[i, d] * first_fix
                move = move / (np.sqrt(alpha_second[i, d] * second_fix) + TINY)
                rate = np.float32(rates[0]) * decay * speed[d] * free[i, d]
                alpha[i, d] = min(max(alpha[i, d] + rate * move, zero), one)
                g = -sign[i, d] * row[i, d]
                beta_first[i, d] = f * beta_first[i, d] + (one - f) * g
                beta_second[i, d] = s * beta_second[i, d] + (one - s) * g * g
                move = beta_first[i, d] * first_fix
                move = move / (np.sqrt(beta_second[i, d] * second_fix) + TINY)
                rate = np.float32(rates[1]) * decay * speed[d] * scale[d] * abs(sign[i, d])
                beta[i, d] = max(beta[i, d] + rate * move, zero)
        if count > 1:
            for m in range(count):
                for d in range(LANES):
                    g = offset[m, d]
                    for t in range(top.shape[0]):
                        g += objective[m, t, d] * point[top[t], d]
                    weight_first[m, d] = f * weight_first[m, d] + (one - f) * g
                    weight_second[m, d] = s * weight_second[m, d] + (one - s) * g * g
                    move = weight_first[m, d] * first_fix
                    move = move / (np.sqrt(weight_second[m, d] * second_fix) + TINY)
                    rate = np.float32(rates[2]) * decay * speed[d]
                    weight[m, d] = min(max(weight[m, d] + rate * move, LEAST_WEIGHT), one)
    return steps


@_exact
def bound_of(  # type: ignore[no-untyped-def]
    inputs, starts, columns, weights, bias, ends, mid, rad, top, objective, offset,
    low, high, sign, alpha, beta, weight, sizes, objective_sizes, unit,
):  # fmt: skip
    """The bound of one domain in float64, less what rounding may have added: the number that the
    engine believes. Multipliers are projected to the allowed ones. As in `qll.kernels.dual_check`,
    sums are short, one for each layer (``ends`` are where they end), and ``size`` collects what the
    error is measured in (`qll.bounds.rounding`)."""
    total = 0.0
    for m in range(weight.shape[0]):
        total += max(np.float64(weight[m]), 1e-4)
    value, size = 0.0, 0.0
    coefficient = np.zeros(inputs + bias.shape[0])
    for m in range(weight.shape[0]):
        w = max(np.float64(weight[m]), 1e-4) / total
        value += w * offset[m]
        size += w * objective_sizes[m]
        for t in range(top.shape[0]):
            coefficient[top[t]] += w * objective[m, t]
    for layer in range(ends.shape[0] - 1, 0, -1):
        here = 0.0
        for i in range(ends[layer] - 1, ends[layer - 1] - 1, -1):
            a, below, above = coefficient[inputs + i], low[i], high[i]
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
                split = max(np.float64(beta[i]), 0.0)
                b -= split * sign[i]
                size += split * sizes[i]
            size += abs(b) * sizes[i]
            if a < 0.0 and unstable:
                size -= a * above
                here += a * rise
            here += b * bias[i]
            if b != 0.0:
                for k in range(starts[i], starts[i + 1]):
                    coefficient[columns[k]] += b * weights[k]
        value += here
    here = 0.0
    for p in range(inputs):
        here += coefficient[p] * mid[p] - abs(coefficient[p]) * rad[p]
    return value + here - unit * size
