"""Is there a point in a region of several linear constraints? One, exactly, or that there is none.

A rule about no point at all holds, and says nothing. Floats find the point that is furthest inside;
rational arithmetic decides. Where constraints are equations, nothing is inside of them: the
equations among them are then solved exactly, near that point. If there is none, the multipliers of
the linear programme combine the constraints to one that the whole box breaks (Farkas).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol, TypeAlias

import numpy as np

from qll import limits
from qll.formula.hard import Affine
from qll.verify.condition import Array

Point: TypeAlias = tuple[Fraction, ...]

# What a linear programme in floats is off by: constraints that are tight, inputs at their ends.
NEAR = 1e-7
# Fractions of at most this denominator are tried in place of floats that are near them.
SIMPLE = 1000


@dataclass(frozen=True)
class Member:
    """A ``point`` of the region, or that it is ``empty``, or neither is known."""

    point: Point | None = None
    empty: bool = False


class Constrained(Protocol):
    """The region of a query (`qll.verify.query.Query`)."""

    @property
    def lower(self) -> Array: ...

    @property
    def upper(self) -> Array: ...

    @property
    def constraints(self) -> Sequence[Affine]: ...

    @property
    def integers(self) -> Any: ...

    @property
    def in_float32(self) -> bool: ...

    def contains(self, x: Sequence[float] | Array) -> bool: ...


def find_member(query: Constrained) -> Member:
    """Of the region of a query without choices (see `Query.cases`)."""
    low, high = query.lower, query.upper
    middle = low + (high - low) / 2
    for guess in (low, high, middle, np.floor(middle)):
        if query.contains(guess):
            return Member(tuple(map(Fraction, guess.tolist())))
    if query.in_float32:
        return Member()
    solved = _furthest(query)
    if solved is None:
        return Member()
    point, depth, weights = solved
    if depth > 0 and _refutes(query, weights):
        return Member(empty=True)
    tight = [c for c, v in zip(query.constraints, _values(query, point), strict=True) if v > -NEAR]
    simple = tuple(Fraction(v).limit_denominator(SIMPLE) for v in point.tolist())
    for near in (tuple(map(Fraction, point.tolist())), simple):
        for trial in (near, _on(tight, near, low, high)):
            if trial is not None and _allows(query, trial):
                return Member(trial)
    return Member()


def settle(query: Constrained, near: Array, equations: Sequence[Affine]) -> Point | None:
    """A point of the region, in fractions, next to one that solves its ``equations`` in floats."""
    start = tuple(map(Fraction, np.clip(near, query.lower, query.upper).tolist()))
    values = _values(query, near)
    tight = [c for c, v in zip(query.constraints, values, strict=True) if v > -NEAR]
    for chosen in (equations, tight):
        trial = _on(chosen, start, query.lower, query.upper)
        if trial is not None and _allows(query, trial):
            return trial
    return None


def _furthest(query: Constrained) -> tuple[Array, float, Array] | None:
    """The point of the box where the worst constraint is least, its value there, and the weights of
    the constraints that hold it up."""
    try:
        from scipy.optimize import linprog
    except ImportError:
        return None
    rows = np.zeros((len(query.constraints), query.lower.size + 1))
    ends = np.zeros(len(rows))
    for i, constraint in enumerate(query.constraints):
        terms, ends[i] = constraint.floats
        for (_, k), c in terms:
            rows[i, k] = c
        scale = max(1e-300, float(np.abs(rows[i]).max()))
        rows[i], ends[i] = rows[i] / scale, ends[i] / scale
    rows[:, -1] = -1.0
    cost = np.append(np.zeros(query.lower.size), 1.0)
    bounds = [*zip(query.lower, query.upper, strict=True), (None, None)]
    with np.errstate(all="ignore"):
        found: Any = linprog(cost, A_ub=rows, b_ub=-ends, bounds=bounds, method="highs")
    if found.status != 0:
        return None
    point = np.clip(found.x[:-1], query.lower, query.upper)
    return point, float(found.fun), np.maximum(0.0, -found.ineqlin.marginals)


def _values(query: Constrained, point: Array) -> list[float]:
    """Of the constraints, each by its largest coefficient."""
    found = []
    for constraint in query.constraints:
        terms, constant = constraint.floats
        scale = max((abs(c) for _, c in terms), default=1.0)
        found.append((sum(c * float(point[k]) for (_, k), c in terms) + constant) / scale)
    return found


def _refutes(query: Constrained, weights: Array) -> bool:
    """Whether the combination of the constraints is positive in the whole box, exactly."""
    total: dict[int, Fraction] = {}
    constant = Fraction(0)
    for constraint, weight in zip(query.constraints, weights.tolist(), strict=True):
        scale = max((abs(c) for _, c in constraint.terms), default=Fraction(1))
        share = Fraction(weight) / scale
        constant += share * Fraction(constraint.constant)
        for (_, k), c in constraint.terms:
            total[k] = total.get(k, Fraction(0)) + share * c
    return least_of(total, constant, query.lower, query.upper) > 0


def _on(tight: Sequence[Affine], near: Point, low: Array, high: Array) -> Point | None:
    """A point on all of the ``tight`` constraints: inputs that are inside their ends solve for
    them, the others stay where they are."""
    point = list(near)
    rows: list[dict[int, Fraction]] = []
    for constraint in tight:
        row = {k: Fraction(c) for (_, k), c in constraint.terms}
        row[-1] = Fraction(constraint.constant)
        rows.append(row)
    free = {
        k
        for row in rows
        for k in row
        if k >= 0 and low[k] + NEAR < float(point[k]) < high[k] - NEAR
    }
    solved: list[tuple[int, dict[int, Fraction]]] = []
    for row in rows:
        limits.check()
        for pivot, other in solved:
            if row.get(pivot):
                _subtract(row, other, row[pivot] / other[pivot])
        pivots = [k for k, c in row.items() if k in free and c]
        if not pivots:
            continue  # it says no more than the others, or it contradicts them: judged at the end
        pivot = max(pivots, key=lambda k: abs(row[k]))
        free.discard(pivot)
        for _, other in solved:
            if other.get(pivot):
                _subtract(other, row, other[pivot] / row[pivot])
        solved.append((pivot, row))
    for pivot, row in solved:
        rest = sum((c * (1 if k == -1 else point[k]) for k, c in row.items() if k != pivot),
                   Fraction(0))  # fmt: skip
        point[pivot] = -rest / row[pivot]
    return tuple(point)


def _subtract(row: dict[int, Fraction], other: dict[int, Fraction], times: Fraction) -> None:
    for k, c in other.items():
        row[k] = row.get(k, Fraction(0)) - times * c


def _allows(query: Constrained, point: Point) -> bool:
    ends = zip(point, query.lower.tolist(), query.upper.tolist(), strict=True)
    if not all(low <= v <= high for v, low, high in ends):
        return False
    whole = np.zeros(len(point), bool) if query.integers is None else query.integers
    if any(point[k].denominator != 1 for k in np.flatnonzero(whole)):
        return False
    return all(
        sum((c * point[k] for (_, k), c in constraint.terms), Fraction(constraint.constant)) <= 0
        for constraint in query.constraints
    )


def least_of(
    terms: Mapping[int, Fraction], constant: Fraction, lower: Array, upper: Array
) -> Fraction:
    """The exact minimum over the box of a function of its entries."""
    total = constant
    for k, c in terms.items():
        total += c * Fraction(float(lower[k] if c > 0 else upper[k]))
    return total
