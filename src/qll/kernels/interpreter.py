"""Loss and gradient of formulas over the outputs, ``WIDTH`` samples at a time.

Layouts: ``formula.Tape``. Samples with formulas of one structure (the same tree, over other
outputs: robustness for different classes, say) go through the logic's functions together, in one
*pass*. A sample's formula is the same for its whole attack, so the passes and their tables, lanes
innermost, are laid out once.
"""

from __future__ import annotations

import numpy as np

from qll.kernels.lanes import WIDTH, gather, read_numbers, scatter, write_numbers
from qll.kernels.pointers import call_connective, call_leq, call_loss
from qll.kernels.simd import kernel, never_inline

ATOM, CONSTANT = 0, 1
# Sections of the scratch array, rows of WIDTH numbers each: values, local derivatives and adjoints
# of the nodes; sides, values and derivatives of the atoms; the outputs; the gradient by them; the
# loss.
VALUE, LOCAL, ADJOINT, LEFT, RIGHT, ATOM_VALUE, BY_LEFT, BY_RIGHT, SOURCE, GRADIENT, LOSS = range(
    11
)
SECTIONS = 11
# Fields of a pass: first lane, lanes taken (bits), pattern that gives the structure, whether it is
# that of every lane.
PASS_FIELDS = 4


@kernel
def lay_out_passes(  # type: ignore[no-untyped-def]
    chosen, lanes, passes, term_sources, term_numbers, atom_numbers, table_widths,
    patterns, atoms, offsets, sources, coefficients,
):  # fmt: skip
    """Passes and tables for the lanes' patterns; returns how many passes there are."""
    never_inline()
    count = 0
    term_width, atom_width = table_widths[0], table_widths[1]
    for begin in range(0, lanes, WIDTH):
        waiting = (1 << min(WIDTH, lanes - begin)) - 1
        while waiting != 0:
            sample = 0
            while not (waiting >> sample) & 1:
                sample += 1
            model = chosen[begin + sample]
            taken, alike = 0, 1
            for k in range(WIDTH):
                used = model  # a lane of another structure computes something that is not used
                if (waiting >> k) & 1 and patterns[chosen[begin + k], 4] == patterns[model, 4]:
                    used = chosen[begin + k]
                    taken |= 1 << k
                    alike = alike if used == model else 0
                first_atom, atom_count = patterns[used, 2], patterns[used, 3]
                shift = atoms[first_atom]
                for a in range(atom_count):
                    place = 2 * count * atom_width + a * WIDTH + k
                    atom_numbers[place] = offsets[first_atom + a, 0]
                    atom_numbers[place + atom_width] = offsets[first_atom + a, 1]
                for t in range(shift, atoms[first_atom + atom_count]):
                    place = count * term_width + (t - shift) * WIDTH + k
                    term_sources[place] = sources[t] * WIDTH + k
                    place += count * term_width
                    term_numbers[place] = coefficients[t, 0]
                    term_numbers[place + term_width] = coefficients[t, 1]
            passes[count, 0], passes[count, 1] = begin, taken
            passes[count, 2], passes[count, 3] = model, alike
            waiting &= ~taken
            count += 1
    return count


@kernel
def judge_lanes(  # type: ignore[no-untyped-def]
    pass_count, passes, term_sources, term_numbers, atom_numbers, table_widths,
    lanes, stride, outputs, centre, rows, first_row, losses, scratch,
    patterns, nodes, hardness, atoms, functions, params,
):  # fmt: skip
    """Loss of each lane's formula; its gradient by the outputs replaces them in ``rows``.

    Output ``i`` of a lane is ``rows[(first_row + i) * stride + lane]``. A gradient is scaled to 1.
    The arrays come one by one: unpacking a tuple of them costs an atomic operation each.
    """
    never_inline()
    section = len(scratch) // SECTIONS
    local, adjoint = LOCAL * section, ADJOINT * section
    left, right, values = LEFT * section, RIGHT * section, ATOM_VALUE * section
    by_left, by_right = BY_LEFT * section, BY_RIGHT * section
    source, gradient, loss = SOURCE * section, GRADIENT * section, LOSS * section
    term_width, atom_width = table_widths[0], table_widths[1]
    loaded = -1
    for p in range(pass_count):
        begin, taken, model, alike = passes[p, 0], passes[p, 1], passes[p, 2], passes[p, 3]
        size = min(WIDTH, lanes - begin)
        if begin != loaded:
            # A later pass of the same lanes still needs outputs that the first has replaced.
            for i in range(outputs):
                for k in range(size):
                    scratch[source + i * WIDTH + k] = rows[(first_row + i) * stride + begin + k]
            if len(centre) > 0:
                for i in range(outputs):
                    for k in range(size):
                        scratch[source + (outputs + i) * WIDTH + k] = centre[begin + k, i]
            loaded = begin
        first, count = patterns[model, 0], patterns[model, 1]
        first_atom, atom_count = patterns[model, 2], patterns[model, 3]
        shift = atoms[first_atom]
        at_sources, at_terms, at_atoms = p * term_width, 2 * p * term_width, 2 * p * atom_width
        for a in range(atom_count):
            row = a * WIDTH
            on_left = read_numbers(atom_numbers, at_atoms + row)
            on_right = read_numbers(atom_numbers, at_atoms + atom_width + row)
            for t in range(atoms[first_atom + a] - shift, atoms[first_atom + a + 1] - shift):
                term = t * WIDTH
                if alike:
                    value = read_numbers(scratch, source + term_sources[at_sources + term])
                else:
                    value = gather(scratch, source, term_sources, at_sources + term)
                on_left += read_numbers(term_numbers, at_terms + term) * value
                on_right += read_numbers(term_numbers, at_terms + term_width + term) * value
            write_numbers(scratch, left + row, on_left)
            write_numbers(scratch, right + row, on_right)
        call_leq(
            functions[0], scratch, left, scratch, right, atom_count, params, 0,
            scratch, values, scratch, by_left, scratch, by_right,
        )  # fmt: skip
        for n in range(count - 1, -1, -1):
            kind = nodes[first + n, 0]
            if kind == ATOM:
                place = values + nodes[first + n, 3] * WIDTH
                write_numbers(scratch, n * WIDTH, read_numbers(scratch, place))
            elif kind == CONSTANT:
                for k in range(WIDTH):
                    scratch[n * WIDTH + k] = hardness[first + n]
            else:
                child, children = nodes[first + n, 1] * WIDTH, nodes[first + n, 2]
                call_connective(
                    functions[kind], scratch, child, children, hardness[first + n], params, 0,
                    scratch, n * WIDTH, scratch, local + child,
                )  # fmt: skip
        call_loss(functions[1], scratch, 0, params, 0, scratch, loss, scratch, adjoint)
        for i in range(gradient, gradient + 2 * outputs * WIDTH):
            scratch[i] = 0.0
        for n in range(count):
            own = adjoint + n * WIDTH
            if nodes[first + n, 0] == ATOM:
                a = nodes[first + n, 3]
                adjoint_here = read_numbers(scratch, own)
                by_a = adjoint_here * read_numbers(scratch, by_left + a * WIDTH)
                by_b = adjoint_here * read_numbers(scratch, by_right + a * WIDTH)
                for t in range(atoms[first_atom + a] - shift, atoms[first_atom + a + 1] - shift):
                    term = t * WIDTH
                    part = by_a * read_numbers(term_numbers, at_terms + term)
                    part += by_b * read_numbers(term_numbers, at_terms + term_width + term)
                    if alike:
                        place = gradient + term_sources[at_sources + term]
                        write_numbers(scratch, place, part + read_numbers(scratch, place))
                    else:
                        part += gather(scratch, gradient, term_sources, at_sources + term)
                        scatter(scratch, gradient, term_sources, at_sources + term, part)
            else:
                child = nodes[first + n, 1] * WIDTH
                adjoint_here = read_numbers(scratch, own)
                for c in range(child, child + nodes[first + n, 2] * WIDTH, WIDTH):
                    part = adjoint_here * read_numbers(scratch, local + c)
                    write_numbers(scratch, adjoint + c, part)
        largest = np.abs(read_numbers(scratch, gradient))
        for i in range(1, outputs):
            largest = np.maximum(largest, np.abs(read_numbers(scratch, gradient + i * WIDTH)))
        # Where the gradient is 0 everywhere, it is 0 at any scale.
        scale = 1.0 / np.where(largest > 0.0, largest, 1.0)
        for i in range(outputs):
            place = gradient + i * WIDTH
            write_numbers(scratch, place, read_numbers(scratch, place) * scale)
        for k in range(size):
            if (taken >> k) & 1:
                losses[begin + k] = scratch[loss + k]
                for i in range(outputs):
                    rows[(first_row + i) * stride + begin + k] = np.float32(
                        scratch[gradient + i * WIDTH + k]
                    )
