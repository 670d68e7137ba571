"""A document's cases in the terms of a query: a box of float64 ends, constraints, a condition.

Decimals are exact until here; ends that are no floats are rounded outward.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from qll.exchange.cases import Case, cases, require_bounds, substitute
from qll.exchange.document import All, Assertion, Atom, Document, Some, atoms, hard_form
from qll.exchange.rounding import Boxes, inexact_inputs
from qll.formula.hard import Affine, HardForm, negated

Array = NDArray[np.float64]
FIXED_NOTE = "inputs fixed at decimals that no float32 has were taken as the nearest one"


@dataclass(frozen=True, eq=False)
class Part:
    """One case in the terms of a query, whatever the network; ``closed``: it takes
    ties that a strict comparison does not."""

    case: Case
    lower: Array
    upper: Array
    condition: HardForm
    constraints: tuple[Affine, ...]
    tie_violates: bool
    closed: bool


def parts(
    document: Document, notes: dict[str, None], arithmetic: str | None = None
) -> Iterator[Part]:
    kind = type_of(arithmetic)
    boxes: Boxes | None = None
    for case in cases(document):
        require_bounds(case)
        boxes = boxes or Boxes(case)
        known = inexact_inputs(case, kind)
        condition: Assertion = case.condition
        constraints: tuple[Assertion, ...] = case.constraints
        if known:
            if arithmetic == "float32":
                notes[FIXED_NOTE] = None
            condition = substitute(condition, known)
            replaced = [substitute(c, known) for c in constraints]
            if not all(surely(c, [], []) for c in replaced if isinstance(c, Atom) and not c.terms):
                continue  # no point of the region is left
            constraints = tuple(c for c in replaced if not isinstance(c, Atom) or c.terms)
        strict = [atom.strict for atom in atoms(condition)]
        lower, upper = boxes.of(case)
        if arithmetic == "float32":  # where it is a number of that type that is meant
            for index, value in known.items():
                lower[index] = upper[index] = float(kind(float(value)))
        yield Part(
            case,
            lower,
            upper,
            hard_form(condition),
            tuple(_at_most(c) for c in constraints),
            tie_violates=not (strict and all(strict)),
            closed=any(strict) and not all(strict),
        )


def _at_most(atom: Assertion) -> Affine:
    form = negated(hard_form(atom))
    if not isinstance(form, Affine):
        raise TypeError("a constraint is one comparison")
    return form


def type_of(arithmetic: str | None) -> type[np.floating]:
    return np.float32 if arithmetic == "float32" else np.float64


def surely(node: Assertion, x: list[Fraction], y: list[tuple[Fraction, Fraction]]) -> bool:
    """Whether the assertion holds for all outputs between the ends."""
    match node:
        case Atom(terms, constant, strict):
            total = constant
            for (source, index), c in terms:
                total += c * (x[index] if source == "x" else y[index][0 if c > 0 else 1])
            return total > 0 if strict else total >= 0
        case All(parts):
            return all(surely(part, x, y) for part in parts)
        case Some(parts):
            return any(surely(part, x, y) for part in parts)
