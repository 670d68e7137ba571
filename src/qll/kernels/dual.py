"""The dual bound of a chain of ReLU layers and its ascent, ``LANES`` domains at a time.

The mathematics is that of `qll.bounds.dual` (read that first; tests hold this file to it): for the
multipliers of 32 domains that share one box, the least value of ``sum_m weight_m g_m`` over it,
its gradient by one forward sweep of the relaxed minimiser, and Adam on all multipliers, without
leaving the caches. Everything per domain lies in lanes: entry ``i`` of lane ``d`` of an array is at
``i * LANES + d``. Widths are padded to a multiple of ``TILE``; padded neurons have low = high = -1.
"""

from __future__ import annotations

import numpy as np

from qll.kernels.dual_down import (
    measure,
    minimise,
    mix_objectives,
    pull_first,
    pull_upper,
    sum_weights,
)
from qll.kernels.dual_types import KEEP_FIRST, KEEP_SECOND, ONE, TINY, ZERO
from qll.kernels.dual_up import move_copies, move_weights, push_first, push_upper
from qll.kernels.simd import (
    LANES,
    broadcast,
    kernel,
    less_equal,
    load,
    maximum,
    select,
    store,
    to_bits,
)


@kernel
def relax(low, high, slope, rise, alpha_low, alpha_high, count):  # type: ignore[no-untyped-def]
    """The upper chord ``slope * z + rise`` of each neuron and the range of its lower slope."""
    zero, one = broadcast(ZERO), broadcast(ONE)
    for i in range(count):
        o = i * LANES
        below, above = load(low, o), load(high, o)
        off = less_equal(above, zero)
        on = less_equal(zero, below)
        chord = above / maximum(above - below, broadcast(TINY))
        s = select(off, zero, select(on, one, chord))
        store(slope, o, s)
        store(rise, o, select(off, zero, select(on, zero, zero - s * below)))
        store(alpha_low, o, select(off, zero, select(on, one, zero)))
        store(alpha_high, o, select(off, zero, one))


@kernel
def ascend(  # type: ignore[no-untyped-def]
    steps,  # updates; the bound is computed once more after the last
    begin,  # steps already taken with these moments
    hull_on,  # joint hulls in the first layer, or chords
    target,  # lanes above it stop moving
    rates,  # (alpha, beta, weight, delta, decay per step)
    network,  # `Packed` of `qll.kernels.dual_types`
    box,  # (mid, rad)
    domain,  # `Lanes`
    variables,  # `Variables`
    first,  # their moments
    second,
    scratch,  # `Scratch`
    scales,  # (2 * LANES,) units of beta and delta; where 0, measured here and written
    bound,  # out: (LANES,)
    minimiser,  # out: (inputs * LANES,)
    scores,  # out: (neurons * LANES,) branching scores: what each relaxation loses there
):
    layers, starts = network.layers, network.starts
    low, high = domain.low, domain.high
    slope, rise, alpha_low, alpha_high = (
        scratch.slope,
        scratch.rise,
        scratch.alpha_low,
        scratch.alpha_high,
    )
    objectives = domain.objectives
    relax(low, high, slope, rise, alpha_low, alpha_high, starts[layers])
    zero, one = broadcast(ZERO), broadcast(ONE)
    power_first = KEEP_FIRST ** np.float32(begin)
    power_second = KEEP_SECOND ** np.float32(begin)
    decay = np.float32(rates[4]) ** np.float32(begin)
    for step in range(steps + 1):
        total_weight = sum_weights(variables.weight, objectives)
        constant = mix_objectives(network, domain, variables.weight, total_weight, scratch)
        constant = pull_upper(network, domain, variables, scratch, constant)
        constant = pull_first(network, domain, variables, scratch, constant, hull_on)
        if step == 0:
            measure(network, scratch, scales)
        value = minimise(network, box, variables.delta, scratch, constant, minimiser, hull_on)
        store(bound, 0, value)
        going = less_equal(value, broadcast(np.float32(target)))
        last = step == steps or to_bits(going) == 0
        # Adam's constants for this step.
        power_first *= KEEP_FIRST
        power_second *= KEEP_SECOND
        fix1 = ONE / (ONE - power_first)
        fix2 = ONE / (ONE - power_second)
        alive = select(going, one, zero) * broadcast(decay)
        if last:
            alive = zero
        rate_alpha = alive * broadcast(np.float32(rates[0]))
        rate_beta = alive * broadcast(np.float32(rates[1])) * load(scales, 0)
        rate_weight = alive * broadcast(np.float32(rates[2]))
        rate_delta = alive * broadcast(np.float32(rates[3])) * load(scales, LANES)
        decay *= np.float32(rates[4])
        # The relaxed minimiser forward; each neuron's multipliers move as it passes.
        moves = (rate_alpha, rate_beta)
        push_first(
            network, domain.sign, variables, first, second, scratch, minimiser, scores,
            moves, fix1, fix2, hull_on, last,
        )  # fmt: skip
        if not last and hull_on:
            move_copies(
                network, variables.delta, first.delta, second.delta, scratch, rate_delta, fix1, fix2
            )
        push_upper(
            network, domain.sign, variables, first, second, scratch, scores, moves, fix1, fix2, last
        )
        if last:
            break
        if objectives > 1:
            move_weights(
                network, domain, variables.weight, first.weight, second.weight, scratch,
                total_weight, rate_weight, fix1, fix2,
            )  # fmt: skip
    return step
