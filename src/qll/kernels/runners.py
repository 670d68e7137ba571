"""What runs each kind of step of a plan, compiled when a network first has one.

An attack calls them by address: a kind of layer that few networks have costs nobody else the time
to compile it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import carray
from numpy.typing import NDArray

from qll.kernels.loops import run_patches, run_windows, step_runner, sum_of_parts, sum_of_taps
from qll.kernels.moves import move_runner
from qll.kernels.patches import HEIGHT as PATCH_HEIGHT
from qll.kernels.pointers import compile_function
from qll.kernels.pooled import picked_runner, run_pool
from qll.kernels.rows import (
    activate_rows,
    chosen_rows,
    clear_rows,
    largest_rows,
    scale_rows,
    sum_rows,
)
from qll.kernels.simd import TILE
from qll.kernels.steps import (
    ACTIVATE,
    CHOSEN,
    CLEAR,
    FIRST_RUNNER,
    LARGEST,
    MOVE,
    PATCHED,
    PICKED,
    PICKED_ROWS,
    POOL,
    RUNNERS,
    SCALE,
    SUM,
    WINDOWS,
)

Steps = NDArray[np.int64]
# Arrays are handed over as pointers. Their true lengths are not needed: nothing checks bounds.
_ROOM = 1 << 40
_FIELDS = 6

_STEPS: dict[int, Any] = {
    8: step_runner(8),
    4: step_runner(4),
    1: step_runner(1),
    WINDOWS: run_windows,
    PATCHED: run_patches,
    POOL: run_pool,
    PICKED: picked_runner(TILE),
    PICKED_ROWS: picked_runner(1),
    SUM: sum_rows,
    LARGEST: largest_rows,
    CHOSEN: chosen_rows,
    ACTIVATE: activate_rows,
    SCALE: scale_rows,
    CLEAR: clear_rows,
}
_MOVES: dict[int, Any] = {
    8: move_runner(8, sum_of_taps(8)),
    4: move_runner(4, sum_of_taps(4)),
    1: move_runner(1, sum_of_taps(1)),
    PATCHED: move_runner(PATCH_HEIGHT, sum_of_parts),
}


def _as_step(run: Any) -> Any:
    def step(  # type: ignore[no-untyped-def]
        numbers, blocks, taps, weights, biases, functions, params, source, base, target
    ):
        plan = (
            carray(blocks, _ROOM), carray(taps, _ROOM), carray(weights, _ROOM),
            carray(biases, _ROOM), carray(functions, _ROOM), carray(params, _ROOM),
        )  # fmt: skip
        run(carray(numbers, _FIELDS), plan, carray(source, _ROOM), base, carray(target, _ROOM))

    return step


def _as_move(run: Any) -> Any:
    def move(  # type: ignore[no-untyped-def]
        numbers, blocks, taps, weights, source, tile_room, points, rows, current, widths, varied,
        positive, negative, improved, reduced, better, back, signed, sizes, share,
    ):  # fmt: skip
        plan = carray(blocks, _ROOM), carray(taps, _ROOM), carray(weights, _ROOM)
        run(
            carray(numbers, _FIELDS), plan, carray(source, _ROOM), carray(tile_room, _ROOM),
            carray(points, _ROOM), rows, current, carray(widths, _ROOM), varied,
            carray(positive, _ROOM), carray(negative, _ROOM), improved, reduced,
            carray(better, _ROOM), carray(back, _ROOM), signed, carray(sizes, _ROOM), share,
        )  # fmt: skip

    return move


@cache
def _step_code(kind: int) -> Any:
    return compile_function(_as_step(_STEPS[kind]), "step")


@cache
def _move_code(kind: int) -> Any:
    return compile_function(_as_move(_MOVES[kind]), "move")


def step_addresses(steps: Steps) -> NDArray[np.int64]:
    """The table of runners with those of these steps."""
    table = np.zeros(RUNNERS, dtype=np.int64)
    for step in steps:
        kind = WINDOWS if step[0] == 4 and step[5] > 1 else int(step[0])
        table[FIRST_RUNNER + kind] = _step_code(kind).address
    return table


def attack_addresses(forward: Steps, backward: Steps) -> NDArray[np.int64]:
    """The table for an attack, where the last step moves the points."""
    table = step_addresses(np.concatenate([forward, backward[:-1]]))
    table[MOVE] = _move_code(int(backward[-1, 0])).address
    return table
