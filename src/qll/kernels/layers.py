"""Running a network plan, forward and backward, for ``LANES`` samples at once.

A plan is a list of steps; each is run by compiled code that is called by its address, so that of
all kinds of steps (``runners.py``) those alone are compiled that a network has. A row is ``LANES``
floats.

Layout of a step (int64): height, blocks, first block, start, finish, reads input (0; 1; for patches
of ``n`` channels under a window of 3x3, 1 + n). A height below 1 is another kind of step.
Layout of a block (int32): destination row, first tap, end of taps, first bias.
Layout of a tap (int32): source row, first weight, rows.
"""

from __future__ import annotations

from qll.kernels.pointers import call_move, call_step
from qll.kernels.simd import kernel
from qll.kernels.steps import FIRST_RUNNER, MOVE, WINDOWS


@kernel
def run_step(step, plan, source, base, target):  # type: ignore[no-untyped-def]
    blocks, taps, weights, biases, functions, params, runners = plan
    kind = WINDOWS if step[0] == 4 and step[5] > 1 else step[0]
    call_step(
        runners[FIRST_RUNNER + kind], step, 0, blocks, 0, taps, 0, weights, 0, biases, 0,
        functions, 0, params, 0, source, 0, base, target, 0,
    )  # fmt: skip


@kernel
def run_forward(steps, plan, points, base, rows):  # type: ignore[no-untyped-def]
    """The outputs of the points whose rows begin at ``base``; everything else lands in ``rows``."""
    for s in range(len(steps)):
        if steps[s, 5]:
            run_step(steps[s], plan, points, base, rows)
        else:
            run_step(steps[s], plan, rows, 0, rows)


@kernel
def run_backward(steps, plan, rows):  # type: ignore[no-untyped-def]
    """All but the last backward step; gradients overwrite the activations they were gated by."""
    for s in range(len(steps) - 1):
        run_step(steps[s], plan, rows, 0, rows)


@kernel
def run_move(  # type: ignore[no-untyped-def]
    steps, plan, rows, tile_room, points, inputs, current, widths, varied, best_positive,
    best_negative, improved, reduced, better, back, signed, sizes, share,
):  # fmt: skip
    """The last backward step, by which the points move."""
    blocks, taps, weights, runners = plan[0], plan[1], plan[2], plan[6]
    call_move(
        runners[MOVE], steps[len(steps) - 1], 0, blocks, 0, taps, 0, weights, 0, rows, 0,
        tile_room, 0, points, 0, inputs, current, widths, 0, varied, best_positive, 0,
        best_negative, 0, improved, reduced, better, 0, back, 0, signed, sizes, 0, share,
    )  # fmt: skip


@kernel
def run_input_gradient(steps, plan, rows, gradient):  # type: ignore[no-untyped-def]
    """The last backward step with the gradient itself, for references and tests."""
    run_step(steps[len(steps) - 1], plan, rows, 0, gradient)
