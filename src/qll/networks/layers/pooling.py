"""What both poolings share: the entries under each window."""

from __future__ import annotations

import math

import numpy as np

from qll.errors import NetworkError
from qll.networks.layers.base import Indices, Shape, misfit
from qll.networks.windows import Window


def check_channels(operand: Shape) -> None:
    if len(operand) < 3 or operand[0] != 1:
        raise misfit("a pooling layer does not fit its tensor", "(1, channels, ...)", operand)


def check_windows(counts: Indices) -> None:
    if not np.all(counts > 0):
        raise NetworkError(
            "a pooling window lies wholly in the padding",
            expected="at least one input entry in every window",
            found="none in some",
            fix="use less padding than half the kernel",
        )


def channel_taps(window: Window, shape: Shape) -> Indices:
    """(channels * places, kernel entries), each channel over its own entries."""
    spatial = math.prod(shape[2:])
    taps = window.taps(shape[2:])
    offsets = np.arange(shape[1])[:, None, None] * spatial
    return np.where(taps >= 0, taps + offsets, -1).reshape(-1, taps.shape[1])
