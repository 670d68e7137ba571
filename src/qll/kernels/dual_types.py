"""What the dual kernels read and write, as named tuples, which numba reads by name."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

# Adam's decay rates and the floor of its denominator.
KEEP_FIRST = np.float32(0.9)
NEW_FIRST = np.float32(0.1)
KEEP_SECOND = np.float32(0.99)
NEW_SECOND = np.float32(0.01)
FLOOR = np.float32(1e-20)
# Least simplex weight before normalisation: no disjunct is given up for good.
LEAST_WEIGHT = np.float32(1e-4)
ZERO = np.float32(0.0)
ONE = np.float32(1.0)
TINY = np.float32(1e-30)


class Packed(NamedTuple):
    """A chain of layers (`qll.bounds.chain`): flat arrays, in one precision."""

    layers: int
    widths: Any
    starts: Any
    bias: Any
    upper: Any  # weights above the first layer, one after the other
    upper_transposed: Any
    upper_at: Any
    group_neurons: Any
    group_copies: Any
    group_weights: Any
    group_hull: Any
    weights: Any  # of the groups
    copy_pixel: Any
    copy_home: Any
    copy_is_home: Any
    share: Any


class Lanes(NamedTuple):
    """Bounds, splits and objectives of the domains in the lanes."""

    low: Any
    high: Any
    sign: Any
    objective: Any
    offset: Any
    objectives: int


class Variables(NamedTuple):
    """Multipliers, or their moments."""

    alpha: Any
    beta: Any
    weight: Any
    delta: Any


class Scratch(NamedTuple):
    """Buffers of an ascent: by neuron, by copy of an input, by input, by member of a group."""

    slope: Any  # of the chord
    rise: Any
    alpha_low: Any
    alpha_high: Any
    coefficient: Any
    back: Any
    activation: Any
    copy_coefficient: Any
    pixel_coefficient: Any
    copy_point: Any
    residual: Any
    member: Any
    hull_gain: Any
    hull_active: Any
    reached: Any  # value of each objective
