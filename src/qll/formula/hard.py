"""The hard value of a formula: a max/min tree of affine functions.

At hardness p = inf every formula, however its connectives nest, is a maximum and minimum of affine
functions of the quantities, and the property holds at a point iff that value is <= 0. This is the
form that a verifier, a bound and an exact replay read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# A variable of the hard form: where it comes from ("y", "x", "x0", "y0", "x2", "y2") and its
# index in that vector, flattened.
Slot = tuple[str, int]


@dataclass(frozen=True)
class Affine:
    """``constant + sum(coefficient * slot)``; the leaf of a hard form. Satisfied iff <= 0."""

    terms: tuple[tuple[Slot, float], ...]
    constant: float


@dataclass(frozen=True)
class Max:
    """Satisfied iff every part is: a conjunction."""

    parts: tuple[HardForm, ...]


@dataclass(frozen=True)
class Min:
    """Satisfied iff some part is: a disjunction."""

    parts: tuple[HardForm, ...]


HardForm = Affine | Max | Min


def sources(form: HardForm) -> frozenset[str]:
    """Which of ``y, x, x0, y0, x2, y2`` the form speaks of."""
    found: set[str] = set()
    stack: list[HardForm] = [form]
    while stack:
        node = stack.pop()
        match node:
            case Affine(terms):
                found.update(source for (source, _), _ in terms)
            case Max(parts) | Min(parts):
                stack.extend(parts)
    return frozenset(found)


def affine(terms: Iterable[tuple[Slot, float]], constant: float = 0.0) -> Affine:
    """Like terms collected, zero coefficients dropped, in order: equal functions are equal."""
    total: dict[Slot, float] = {}
    for slot, coefficient in terms:
        total[slot] = total.get(slot, 0.0) + coefficient
    return Affine(tuple(sorted((s, c) for s, c in total.items() if c != 0.0)), constant)


# Products of branches in sums of maxima: beyond this the form is refused rather than built.
MAX_FORM_LEAVES = 200_000
SATISFIED, VIOLATED = Max(()), Min(())  # the forms of top and bottom


def negated(form: HardForm) -> HardForm:
    match form:
        case Affine(terms, constant):
            return Affine(tuple((s, -c) for s, c in terms), -constant)
        case Max(parts):
            return Min(tuple(negated(p) for p in parts))
        case Min(parts):
            return Max(tuple(negated(p) for p in parts))


def plus(left: HardForm, right: HardForm) -> HardForm:
    """Addition distributes over max and min, so a sum of forms is a form."""
    match left, right:
        case Affine(), Affine():
            return affine((*left.terms, *right.terms), left.constant + right.constant)
        case Max(parts), _:
            return Max(tuple(plus(p, right) for p in parts))
        case Min(parts), _:
            return Min(tuple(plus(p, right) for p in parts))
        case _, Max(parts):
            return Max(tuple(plus(left, p) for p in parts))
        case _, Min(parts):
            return Min(tuple(plus(left, p) for p in parts))
    raise TypeError("not a hard form")


def leaves(form: HardForm) -> int:
    match form:
        case Affine():
            return 1
        case Max(parts) | Min(parts):
            return sum(leaves(p) for p in parts)
