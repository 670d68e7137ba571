"""Random starting points by a counter: the number of (seed, run, input) is a hash of the three.

So any lane of any thread makes its own numbers, a run does not depend on how samples are grouped,
and the torch reference gets the same ones from numpy.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

GOLDEN = np.uint32(0x9E3779B9)
MIX_1 = np.uint32(0x85EBCA6B)
MIX_2 = np.uint32(0xC2B2AE35)
# 24 bits: every multiple of 2^-24 in [0, 1) is a float32.
SCALE = np.float32(2.0**-24)


def run_keys(seed: int, runs: int) -> NDArray[np.uint32]:
    """One key a run, from a generator of numpy's: independent for all seeds and runs."""
    return np.random.SeedSequence(seed).generate_state(runs, np.uint32).astype(np.uint32)


def uniform_numbers(keys: NDArray[np.uint32], inputs: int) -> NDArray[np.float32]:
    """(runs, inputs) numbers in [0, 1): the reference of the kernel's own."""
    with np.errstate(over="ignore"):
        x = np.arange(1, inputs + 1, dtype=np.uint32)[None, :] * GOLDEN ^ keys[:, None]
        x = (x ^ (x >> np.uint32(16))) * MIX_1
        x = (x ^ (x >> np.uint32(13))) * MIX_2
        x = x ^ (x >> np.uint32(16))
    return (x >> np.uint32(8)).astype(np.float32) * SCALE
