"""Samples into lanes and back, whatever the width and however many samples there are."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba")

from qll.kernels.simd import LANES, aligned_floats
from qll.kernels.turns import BLOCK, empty_lanes, fill_lanes, lanes_in_turn


@pytest.mark.parametrize("width", [1, BLOCK - 1, BLOCK, 3 * BLOCK + 5])
@pytest.mark.parametrize("count", [1, BLOCK, LANES - 1, LANES])
def test_there_and_back(width: int, count: int) -> None:
    rng = np.random.default_rng(width * LANES + count)
    first, base = 2, 3
    points = rng.random((first + count + 1, width), dtype=np.float32)
    places = rng.permutation(width).astype(np.int32)
    lanes = aligned_floats((base + width + 1) * LANES)
    samples = np.zeros(LANES, dtype=np.int64)
    lanes_in_turn(first, count, width, samples)
    fill_lanes(points, places, lanes, base, samples)
    rows = lanes.reshape(-1, LANES)
    chosen = [first + (lane if lane < count else 0) for lane in range(LANES)]
    assert (rows[base + places] == points[chosen].T).all()
    assert not rows[:base].any() and not rows[base + width :].any()
    back = np.full_like(points, -1.0)
    empty_lanes(lanes, base, places, count, back, samples)
    inside = slice(first, first + count)
    assert (back[inside] == points[inside]).all()
    assert (back[:first] == -1.0).all() and (back[first + count :] == -1.0).all()
