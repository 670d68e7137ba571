"""The numbers by which a plan's tables say what a step does (``layers.py``, ``rows.py``)."""

from __future__ import annotations

BLOCK_FIELDS, TAP_FIELDS = 4, 3
# What a block starts from, and what is done to its sum at the end.
FROM_ZERO, FROM_BIAS, FROM_DESTINATION = 0, 1, 2
PLAIN, RELU, GATE = 0, 1, 2
# Steps that are not tiles, in the place of the tile's height.
SUM, LARGEST, CHOSEN, ACTIVATE, SCALE, CLEAR = 0, -1, -2, -3, -4, -5
# Tiles of four rows whose taps reach parts of them (``patches.py``).
PATCHED = -6
# Tiles of which the largest of up to four is kept, and tiles, or single rows, of the gradient of
# what such a layer reads (``pooled.py``).
POOL, PICKED, PICKED_ROWS = -7, -8, -9
# Tiles of four rows under windows of 3x3, whose height is 4: a runner of their own.
WINDOWS = -10
# Where the runner of a kind of steps stands among a plan's: behind that of its last step, which
# moves the points.
MOVE, FIRST_RUNNER, RUNNERS = 0, 11, 20
