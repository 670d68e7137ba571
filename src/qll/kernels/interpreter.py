"""Value and gradient of a tape over the outputs, lane after lane (layouts: ``formula.Tape``)."""

from __future__ import annotations

import numpy as np

from qll.kernels.pointers import call_connective, call_leq, call_loss
from qll.kernels.simd import kernel

ATOM, CONSTANT = 0, 1
# Rows of the scratch array: values, local derivatives and adjoints of the nodes; sides, values and
# derivatives of the atoms; the sources y; the gradient by them.
LOCAL, ADJOINT, LEFT, RIGHT, ATOM_VALUE, BY_LEFT, BY_RIGHT, SOURCE, GRADIENT, SCRATCH_ROWS = range(
    1, 11
)


@kernel
def judge_lanes(  # type: ignore[no-untyped-def]
    chosen, lanes, stride, outputs, centre, rows, first_row, losses, scratch,
    patterns, nodes, hardness, atoms, offsets, sources, coefficients, functions, params,
):  # fmt: skip
    """Loss of each lane's formula; its gradient by the outputs replaces them in ``rows``.

    Output ``i`` of a lane is ``rows[(first_row + i) * stride + lane]``. A gradient is scaled to 1.
    The arrays come one by one: unpacking a tuple of them costs an atomic operation each.
    """
    width = len(scratch) // SCRATCH_ROWS
    local, adjoint, source, gradient = (
        LOCAL * width, ADJOINT * width, SOURCE * width, GRADIENT * width,
    )  # fmt: skip
    left, right, values = LEFT * width, RIGHT * width, ATOM_VALUE * width
    by_left, by_right = BY_LEFT * width, BY_RIGHT * width
    for lane in range(lanes):
        pattern = chosen[lane]
        first, count = patterns[pattern, 0], patterns[pattern, 1]
        first_atom, atom_count = patterns[pattern, 2], patterns[pattern, 3]
        for i in range(outputs):
            scratch[source + i] = rows[(first_row + i) * stride + lane]
            scratch[gradient + i] = 0.0
        if len(centre) > 0:
            for i in range(outputs):
                scratch[source + outputs + i] = centre[lane, i]
                scratch[gradient + outputs + i] = 0.0
        for a in range(atom_count):
            on_left, on_right = offsets[first_atom + a, 0], offsets[first_atom + a, 1]
            for t in range(atoms[first_atom + a], atoms[first_atom + a + 1]):
                value = scratch[source + sources[t]]
                on_left += coefficients[t, 0] * value
                on_right += coefficients[t, 1] * value
            scratch[left + a] = on_left
            scratch[right + a] = on_right
        call_leq(
            functions[0], scratch, left, scratch, right, atom_count, params, 0,
            scratch, values, scratch, by_left, scratch, by_right,
        )  # fmt: skip
        for n in range(count - 1, -1, -1):
            kind = nodes[first + n, 0]
            if kind == ATOM:
                scratch[n] = scratch[values + nodes[first + n, 3]]
            elif kind == CONSTANT:
                scratch[n] = hardness[first + n]
            else:
                child, children = nodes[first + n, 1], nodes[first + n, 2]
                scratch[n] = call_connective(
                    functions[kind], scratch, child, children, hardness[first + n], params, 0,
                    scratch, local + child,
                )  # fmt: skip
        losses[lane] = call_loss(functions[1], scratch[0], params, 0, scratch, adjoint)
        for n in range(count):
            own = scratch[adjoint + n]
            if nodes[first + n, 0] == ATOM:
                a = nodes[first + n, 3]
                by_a, by_b = own * scratch[by_left + a], own * scratch[by_right + a]
                for t in range(atoms[first_atom + a], atoms[first_atom + a + 1]):
                    scratch[gradient + sources[t]] += (
                        by_a * coefficients[t, 0] + by_b * coefficients[t, 1]
                    )
            else:
                child = nodes[first + n, 1]
                for c in range(child, child + nodes[first + n, 2]):
                    scratch[adjoint + c] = own * scratch[local + c]
        largest = 0.0
        for i in range(outputs):
            largest = max(largest, abs(scratch[gradient + i]))
        scale = 1.0 / largest if largest > 0.0 else 0.0
        for i in range(outputs):
            rows[(first_row + i) * stride + lane] = np.float32(scratch[gradient + i] * scale)
