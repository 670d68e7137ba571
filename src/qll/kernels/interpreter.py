"""Value and gradient of a tape over the outputs of one sample (layouts: ``formula.Tape``)."""

from __future__ import annotations

from qll.kernels.pointers import call_connective, call_leq, call_loss
from qll.kernels.simd import kernel

ATOM, CONSTANT = 0, 1
# Rows of the scratch array.
VALUE, LOCAL, ADJOINT, LEFT, RIGHT, ATOM_VALUE, BY_LEFT, BY_RIGHT = range(8)


@kernel
def evaluate(pattern, tape, y, gradient, scratch, outputs):  # type: ignore[no-untyped-def]
    """The loss of the pattern's formula at ``y``; its gradient by the first ``outputs`` of them.

    ``scratch`` is flat: eight rows of equal length.
    """
    patterns, nodes, hardness, atoms, offsets, sources, coefficients, functions, params = tape
    width = len(scratch) // 8
    first, count = patterns[pattern, 0], patterns[pattern, 1]
    first_atom, atom_count = patterns[pattern, 2], patterns[pattern, 3]
    for i in range(outputs):
        gradient[i] = 0.0
    if nodes[first, 0] == CONSTANT:
        return hardness[first]
    left, right, values = LEFT * width, RIGHT * width, ATOM_VALUE * width
    by_left, by_right = BY_LEFT * width, BY_RIGHT * width
    for a in range(atom_count):
        on_left, on_right = offsets[first_atom + a, 0], offsets[first_atom + a, 1]
        begin = atoms[first_atom + a, 0]
        for t in range(begin, begin + atoms[first_atom + a, 1]):
            on_left += coefficients[t, 0] * y[sources[t]]
            on_right += coefficients[t, 1] * y[sources[t]]
        scratch[left + a] = on_left
        scratch[right + a] = on_right
    call_leq(
        functions[0], scratch, left, scratch, right, atom_count, params, 0,
        scratch, values, scratch, by_left, scratch, by_right,
    )  # fmt: skip
    local, adjoint = LOCAL * width, ADJOINT * width
    for n in range(count - 1, -1, -1):
        kind = nodes[first + n, 0]
        if kind == ATOM:
            scratch[n] = scratch[values + nodes[first + n, 3]]
        else:
            child, children = nodes[first + n, 1], nodes[first + n, 2]
            scratch[n] = call_connective(
                functions[kind], scratch, child, children, hardness[first + n], params, 0,
                scratch, local + child,
            )  # fmt: skip
    result = call_loss(functions[1], scratch[0], params, 0, scratch, adjoint)
    for n in range(count):
        own = scratch[adjoint + n]
        if nodes[first + n, 0] == ATOM:
            if own != 0.0:
                a = nodes[first + n, 3]
                by_a, by_b = own * scratch[by_left + a], own * scratch[by_right + a]
                begin = atoms[first_atom + a, 0]
                for t in range(begin, begin + atoms[first_atom + a, 1]):
                    if sources[t] < outputs:
                        gradient[sources[t]] += (
                            by_a * coefficients[t, 0] + by_b * coefficients[t, 1]
                        )
        else:
            child = nodes[first + n, 1]
            for c in range(child, child + nodes[first + n, 2]):
                scratch[adjoint + c] = own * scratch[local + c]
    return result


@kernel
def evaluate_many(chosen, tape, y, values, gradients, scratch, outputs):  # type: ignore[no-untyped-def]
    """For references and tests: one row of ``y`` (samples, sources) after the other."""
    for s in range(len(chosen)):
        values[s] = evaluate(chosen[s], tape, y[s], gradients[s], scratch, outputs)
