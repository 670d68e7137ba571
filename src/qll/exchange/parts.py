"""A document's cases in the terms of a query: a box of float64 ends, constraints, a condition.

Decimals are exact until here; ends that are no floats are rounded outward.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from qll.exchange.cases import Case, cases, propagated, substitute, unbounded
from qll.exchange.document import All, Assertion, Atom, Document, Some, atoms, hard_form
from qll.exchange.rounding import FIXED_NOTE, Boxes, at_float32, has_gap, inexact_inputs
from qll.formula.hard import Affine, HardForm, negated
from qll.formula.normal import Ties

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Part:
    """One case in the terms of a query, whatever the network; ``closed``: it takes
    ties that a strict comparison does not. Where equations between inputs were solved, all else is
    about the inputs ``left``, and ``image`` has every input as a function of those."""

    case: Case
    lower: Array
    upper: Array
    condition: HardForm
    constraints: tuple[Affine, ...]
    tie_violates: bool
    closed: bool
    # Inputs whose value no float has: the box has the nearest one. In float32 it is the value.
    known: dict[int, Fraction]
    left: tuple[int, ...]
    image: tuple[Affine, ...] | None = None


def parts(
    document: Document,
    notes: dict[str, None],
    arithmetic: str | None = None,
    *,
    solved: bool = True,
) -> Iterator[Part]:
    """``solved``: equations between inputs are, for one of them (not in float32, where only some
    points of a line are numbers)."""
    boxes: Boxes | None = None
    for whole in cases(document):
        boxes = boxes or Boxes(whole)
        case, condition, known = _with_known(whole, type_of(arithmetic))
        if case is None:
            continue  # no point of the region is left
        strict = [atom.strict for atom in atoms(condition)]
        lower, upper = boxes.of(case)
        if arithmetic == "float32" and has_gap(case, lower, upper, known):
            continue
        if known and arithmetic == "float32":  # where it is a number of that type that is meant
            notes[FIXED_NOTE] = None
        found = Part(
            case,
            lower,
            upper,
            hard_form(condition),
            tuple(_at_most(c) for c in case.constraints),
            tie_violates=not (strict and all(strict)),
            closed=any(strict) and not all(strict),
            known=known,
            left=tuple(range(document.inputs)),
        )
        if found.constraints and solved and arithmetic != "float32":
            found = _solved(found)
        _require_bounds(found)
        yield found


def _with_known(
    case: Case, kind: type[np.floating]
) -> tuple[Case | None, Assertion, dict[int, Fraction]]:
    """The case with fixed inputs that no float of the type has replaced by their values, and with
    the bounds that constraints imply, which may fix others; None if no point is left."""
    if kind is np.float32:
        single, known = at_float32(case)
        if single is None:
            return None, case.condition, {}
        if known:
            return _replaced(single, known), substitute(case.condition, known), known
    found = propagated(case)
    known = {}
    while found is not None and (more := inexact_inputs(found, kind)).keys() - known.keys():
        if kind is np.float32:
            return None, found.condition, {}  # there is no such number
        known = more
        replaced = tuple(substitute(c, known) for c in found.constraints)
        found = replace(found, constraints=()).with_part(All(replaced))
        found = None if found is None else propagated(found)
    condition = case.condition if found is None else substitute(found.condition, known)
    return found, condition, known


def _replaced(case: Case, known: dict[int, Fraction]) -> Case | None:
    replaced = [substitute(c, known) for c in case.constraints]
    kept = tuple(c for c in replaced if isinstance(c, Atom) and c.terms)
    rest = [c for c in replaced if isinstance(c, Atom) and not c.terms]
    return replace(case, constraints=kept) if surely(All(tuple(rest)), [], []) else None


def _solved(part: Part) -> Part:
    """Over fewer inputs, by the equations between them."""
    # With the parser of our own language: not for the many queries without constraints.
    from qll.formula.asked import MOST_SOLVED, Asked, without_equations

    lower, upper = part.lower.tolist(), part.upper.tolist()
    count = len(lower)
    if count > MOST_SOLVED:
        return part
    ties = Ties(tuple(range(count)), count)
    asked = Asked(1, ties, lower, upper, None, part.constraints, ((),), part.condition)
    found = without_equations(asked)
    if found.image is None:
        return part
    return replace(
        part,
        lower=np.array(found.lower),
        upper=np.array(found.upper),
        condition=found.form,
        constraints=found.constraints,
        left=tuple(int(name[2:-1]) for name in found.names),
        image=found.image,
    )


def _require_bounds(part: Part) -> None:
    """Every input has both ends, or the question is not one that we can decide."""
    for side in ("lower", "upper"):
        ends = getattr(part, side)
        for index in np.flatnonzero(~np.isfinite(ends)):
            raise unbounded(part.case.document, part.left[index], side)


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
