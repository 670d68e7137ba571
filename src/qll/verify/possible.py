"""Whether any network at all could satisfy a property: is there an output vector that does?

A conjunction that contradicts itself, or a condition that the data point violates whatever the
outputs are, makes every region around it hopeless; training on it would run for ever.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qll.errors import MissingExtra
from qll.formula.hard import Affine, HardForm, Max, Min

# Linear programmes before the question is given up as "not known to be impossible".
MOST_PROGRAMMES = 2_000


@dataclass
class _Count:
    left: int = MOST_PROGRAMMES


def possible(form: HardForm, outputs: int) -> bool:
    """False only if no output vector makes ``form`` hold, at a data point that is already put in:
    its variables are outputs ``y`` (and ``y0``, the same vector there)."""
    return _search([form], [], outputs, _Count())


def _search(open_parts: list[HardForm], chosen: list[Affine], outputs: int, count: _Count) -> bool:
    """Depth first over the choices at disjunctions, each prefix checked by a linear programme."""
    parts, held = list(open_parts), list(chosen)
    choices: list[Min] = []
    while parts:
        part = parts.pop()
        match part:
            case Affine():
                held.append(part)
            case Max(inner):
                parts.extend(inner)
            case Min():
                choices.append(part)
    if not _feasible(held, outputs, count):
        return False
    if not choices:
        return True
    first = min(choices, key=lambda choice: len(choice.parts))
    rest: list[HardForm] = [choice for choice in choices if choice is not first]
    return any(_search([*rest, option], held, outputs, count) for option in first.parts)


def _feasible(rows: list[Affine], outputs: int, count: _Count) -> bool:
    if any(not row.terms and row.constant > 0 for row in rows):
        return False
    held = [row for row in rows if row.terms]
    count.left -= 1
    if not held or count.left < 0:
        return True
    try:
        from scipy.optimize import linprog
    except ImportError as error:
        raise MissingExtra.of("scipy", "fast", "asking whether a property can be met") from error
    matrix = np.zeros((len(held), outputs))
    for k, row in enumerate(held):
        for (_, index), coefficient in row.floats[0]:
            matrix[k, index] += coefficient
    bounds = np.array([-row.floats[1] for row in held])
    found = linprog(np.zeros(outputs), A_ub=matrix, b_ub=bounds, bounds=(None, None))
    return bool(found.status != 2)  # only a proof of infeasibility counts
