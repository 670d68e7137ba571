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
