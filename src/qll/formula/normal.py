"""One normal form of what is asked: however a set of inputs is written, the same box comes out.

A violation of a formula needs certain atoms of the input to hold (the premise of ``->``), and lies
in the region (comparisons beside ``ball`` and ``box``). What these say of one input alone is folded
into the box; an equation between two inputs makes them one variable; what is left is kept as linear
constraints. A premise that is a disjunction, and a conjunction of rules with premises of their own,
become several cases, each with a box of its own. All of it is exact: ends that no float has are
rounded outward, so that the box holds every violation, and inward for the points of a search.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from qll.errors import InputError
from qll.formula.hard import Affine, HardForm, Max, Min, affine, is_stored, negated

# Cases of one question; beyond it disjunctions stay in the formula.
MOST_CASES = 64
# Integers beyond it are not all floats.
MOST_INTEGER = 1 << 53


def substitute(form: HardForm, values: Mapping[str, Any]) -> HardForm:
    """The form with the slots of the given sources (``x0``, ``y0``) replaced by constants."""
    match form:
        case Affine(terms, constant):
            if not any(source in values for (source, _), _ in terms):
                return form
            kept = []
            for (source, index), coefficient in terms:
                if source in values:
                    constant += coefficient * _exact(values[source][index])
                else:
                    kept.append(((source, index), coefficient))
            return affine(kept, constant)
        case Max(parts):
            return Max(tuple(substitute(part, values) for part in parts))
        case Min(parts):
            return Min(tuple(substitute(part, values) for part in parts))


def _exact(value: Any) -> Fraction:
    return value if isinstance(value, Fraction) else Fraction(float(value))


def through(form: HardForm, image: Mapping[str, Sequence[Affine]]) -> HardForm:
    """The form where entries of the given sources are functions of something else."""
    match form:
        case Affine(terms, constant):
            found: list[tuple[Any, Any]] = []
            for (source, k), c in terms:
                if source not in image:
                    found.append(((source, k), c))
                    continue
                row = image[source][k]
                found += [(slot, c * factor) for slot, factor in row.terms]
                constant += c * Fraction(row.constant)
            return affine(found, constant)
        case Max(parts):
            return Max(tuple(through(part, image) for part in parts))
        case Min(parts):
            return Min(tuple(through(part, image) for part in parts))


def rename(form: HardForm, slots: Mapping[str, Any]) -> HardForm:
    """The form over other slots: ``slots[source](index)`` is the new one."""
    match form:
        case Affine(terms, constant):
            return affine([(slots[s](k) if s in slots else (s, k), c) for (s, k), c in terms],
                          constant)  # fmt: skip
        case Max(parts):
            return Max(tuple(rename(part, slots) for part in parts))
        case Min(parts):
            return Min(tuple(rename(part, slots) for part in parts))


# --- cases ---


def cases(form: HardForm) -> list[HardForm]:
    """Forms of which one is violated wherever ``form`` is, and nowhere else; each has premises on
    inputs that are conjunctions, as far as `MOST_CASES` allows."""
    found = _split(form)
    return found if len(found) <= MOST_CASES else [form]


def _split(form: HardForm) -> list[HardForm]:
    if isinstance(form, Max) and len(form.parts) > 1:
        # Rules without a premise of their own stay together.
        alone = [part for part in form.parts if not _speaks(part)]
        apart = [part for part in form.parts if _speaks(part)]
        if not apart:
            return [form]
        rest: list[HardForm] = [Max(tuple(alone))] if alone else []
        return rest + [case for part in apart for case in _split(part)]
    needed = demands(form)
    for at, part in enumerate(needed):
        if isinstance(part, Max) and part.parts and _speaks(part):
            others = needed[:at] + needed[at + 1 :]
            options = [Min((*demands(option), *others)) for option in part.parts]
            found: list[HardForm] = []
            for option in options:
                found += _split(option)
                if len(found) > MOST_CASES:
                    break
            return found
    return [form]


def _speaks(form: HardForm) -> bool:
    """Whether some part of it is an atom of one input alone."""
    if isinstance(form, Affine):
        return is_axis(form)
    return any(_speaks(part) for part in form.parts)


def is_axis(form: HardForm) -> bool:
    return isinstance(form, Affine) and len(form.terms) == 1 and form.terms[0][0][0] == "x"


def demands(form: HardForm) -> list[HardForm]:
    """Forms that are all violated wherever ``form`` is."""
    if isinstance(form, Min):
        return [needed for part in form.parts for needed in demands(part)]
    if isinstance(form, Max) and len(form.parts) == 1:
        return demands(form.parts[0])
    return [form]


# --- the box ---


@dataclass(frozen=True)
class Folded:
    """``lower``/``upper`` hold every violation, ``least``/``most`` are the ends that points may
    have; ``constraints`` and ``form`` are what the box does not say. ``is_empty``: there is no
    violation, whatever a network computes."""

    lower: list[float]
    upper: list[float]
    least: list[float]
    most: list[float]
    constraints: tuple[Affine, ...]
    form: HardForm
    is_empty: bool


def fold(
    lower: Sequence[float],
    upper: Sequence[float],
    form: HardForm,
    constraints: Sequence[Affine] = (),
    integers: Sequence[bool] | None = None,
    *,
    tie_violates: bool = False,
) -> Folded:
    """The box, cut by what the constraints (``<= 0``) and the premises of the form say of single
    inputs ``("x", k)``, and rounded to integers where an input is one.

    >>> from qll.formula.hard import affine
    >>> premise, rule = affine([(("x", 0), 1)], -0.5), affine([(("y", 0), 1)])
    >>> found = fold([0.0], [1.0], Min((premise, rule)))
    >>> found.lower, found.upper, found.form == rule
    ([0.5], [1.0], True)
    """
    ends = _Ends(list(lower), list(upper), integers)
    kept = []
    for constraint in constraints:
        if is_axis(constraint):
            ends.need(negated(constraint), strict=False)
        elif constraint.terms:
            kept.append(constraint)
        elif constraint.constant > 0:
            ends.is_empty = True
    rest: list[HardForm] = []
    for part in demands(form):
        if is_axis(part):
            ends.need(part, strict=not tie_violates)
        else:
            rest.append(part)
    left: HardForm = form
    if rest:
        left = rest[0] if len(rest) == 1 else Min(tuple(rest))
    ends.round()
    return Folded(ends.lower, ends.upper, ends.least, ends.most, tuple(kept), left, ends.is_empty)


class _Ends:
    def __init__(
        self, lower: list[float], upper: list[float], integers: Sequence[bool] | None
    ) -> None:
        self.lower, self.upper = lower, upper
        self.least, self.most = list(lower), list(upper)
        self.integers = integers
        self.is_empty = False
        self.strict: set[tuple[int, Fraction]] = set()  # ends that are not taken

    def need(self, form: HardForm, *, strict: bool) -> None:
        """``form > 0`` (``>= 0``, unless ``strict``) for a form of one input."""
        if not isinstance(form, Affine):  # `is_axis` was asked
            raise TypeError("an atom of one input is not affine")
        ((_, k), coefficient) = form.terms[0]
        end = -Fraction(form.constant) / coefficient
        if self.integers is not None and self.integers[k]:
            if coefficient > 0:
                whole = math.floor(end) + 1 if strict else math.ceil(end)
            else:
                whole = math.ceil(end) - 1 if strict else math.floor(end)
            end, strict = Fraction(whole), False
        if strict:
            self.strict.add((k, end))
        if coefficient > 0:
            low, inner = rounded(end, up=False), rounded(end, up=True)
            if strict and inner == end:
                inner = math.nextafter(inner, math.inf)
            self.lower[k] = max(self.lower[k], low)
            self.least[k] = max(self.least[k], inner)
        else:
            high, inner = rounded(end, up=True), rounded(end, up=False)
            if strict and inner == end:
                inner = math.nextafter(inner, -math.inf)
            self.upper[k] = min(self.upper[k], high)
            self.most[k] = min(self.most[k], inner)

    def round(self) -> None:
        for k, whole in enumerate(self.integers or ()):
            if whole:
                self.lower[k] = self.least[k] = _integer(self.lower[k], math.ceil)
                self.upper[k] = self.most[k] = _integer(self.upper[k], math.floor)
        if any(low > high for low, high in zip(self.lower, self.upper, strict=True)):
            self.is_empty = True
        # A point that is all there is of an input, and that a premise excludes.
        self.is_empty |= any(self.lower[k] == self.upper[k] == end for k, end in self.strict)


def _integer(value: float, rounded: Any) -> float:
    if not abs(value) < MOST_INTEGER:
        raise InputError(
            "the range of an integer input is too large",
            expected="integers below 2^53, which are all floats",
            found=f"an end of {value:g}",
            fix="bound the input by a smaller box",
        )
    return float(rounded(value))


def rounded(value: Fraction, *, up: bool) -> float:
    """The nearest float that is not below (``up``) or not above."""
    try:
        near = float(value)
    except OverflowError:
        near = math.inf if value > 0 else -math.inf
    if math.isinf(near):
        beyond = (near > 0) == up
        return near if beyond else math.nextafter(near, 0.0)
    if up:
        return near if near >= value else math.nextafter(near, math.inf)
    return near if near <= value else math.nextafter(near, -math.inf)


# --- equations ---


@dataclass(frozen=True)
class Ties:
    """``home[k]`` is the variable that entry k (all of x, then all of x2) has become."""

    home: tuple[int, ...]
    count: int

    @property
    def is_trivial(self) -> bool:
        return self.count == len(self.home)


def tie(constraints: Sequence[Affine], inputs: int, points: int = 1) -> tuple[Ties, list[Affine]]:
    """Entries that the constraints say are equal become one variable; and the other constraints,
    over ``("x", variable)``.

    >>> from qll.formula.hard import affine
    >>> same = affine([(("x", 0), 1), (("x2", 0), -1)])
    >>> tie([same, negated(same)], 2, 2)[0].home
    (0, 1, 0, 2)
    """
    size = inputs * points
    root = list(range(size))

    def find(k: int) -> int:
        while root[k] != k:
            root[k] = root[root[k]]
            k = root[k]
        return k

    def place(slot: tuple[str, int]) -> int:
        return slot[1] + (inputs if slot[0] == "x2" else 0)

    said = set(constraints)
    for constraint in constraints:
        if len(constraint.terms) == 2 and constraint.constant == 0:
            (one, a), (other, b) = constraint.terms
            if a == -b and negated(constraint) in said:
                first, second = sorted((find(place(one)), find(place(other))))
                root[second] = first
    number: dict[int, int] = {}
    home = tuple(number.setdefault(find(k), len(number)) for k in range(size))
    left = []
    for constraint in constraints:
        moved = affine(
            [(("x", home[place(slot)]), c) for slot, c in constraint.terms], constraint.constant
        )
        if moved.terms or moved.constant > 0:
            left.append(moved)
    return Ties(home, len(number)), left


def eliminate(
    constraints: Sequence[Affine], count: int, kept: Sequence[bool]
) -> tuple[list[Affine], list[int], list[Affine]] | None:
    """Equations among the constraints, solved: each variable as a function of those that are left
    (``("x", place in the list of them)``), which these are, and the other constraints over them.
    Variables that are ``kept`` stay as they are, and so do equations of nothing else, those whose
    solution no prover could store, and those that would leave no variable. None: there is nothing
    to solve.

    >>> from qll.formula.hard import affine
    >>> sum_ = affine([(("x", 0), 1), (("x", 1), 2)], -3)
    >>> rows, left, rest = eliminate([sum_, negated(sum_)], 2, [False, False])
    >>> left, rows[1].terms, rows[1].constant, rest
    ([0], ((('x', 0), Fraction(-1, 2)),), Fraction(3, 2), [])
    """
    said, solved = set(constraints), dict[int, Affine]()
    gone = set[Affine]()
    for constraint in constraints:
        if constraint in gone or negated(constraint) not in said or len(constraint.terms) < 2:
            continue  # what is said of one input alone is for the box
        row = _solved_by(constraint, solved)
        free = [(abs(c), k) for (_, k), c in row.terms if not kept[k]]
        if not free or len(solved) == count - 1:
            continue
        _, pivot = max(free)
        factor = dict(row.terms)[("x", pivot)]
        value = affine([(s, -c / factor) for s, c in row.terms if s != ("x", pivot)],
                       -Fraction(row.constant) / factor)  # fmt: skip
        more = {k: _solved_by(held, {pivot: value}) for k, held in solved.items()}
        if not all(map(is_stored, (value, *more.values()))):
            continue
        solved = {**more, pivot: value}
        gone |= {constraint, negated(constraint)}  # type: ignore[arg-type]
    if not solved:
        return None
    left = [k for k in range(count) if k not in solved]
    place = {"x": [affine([(("x", left.index(k)), 1)]) if k not in solved else affine(())
                   for k in range(count)]}  # fmt: skip
    own: list[Any] = [
        through(solved[k], place) if k in solved else place["x"][k] for k in range(count)
    ]
    rest: list[Any] = [through(c, {"x": own}) for c in constraints if c not in gone]
    return own, left, rest


def _solved_by(form: Affine, solved: Mapping[int, Affine]) -> Affine:
    terms, constant = list[tuple[Any, Any]](), Fraction(form.constant)
    for (source, k), c in form.terms:
        if k in solved:
            terms += [(slot, c * factor) for slot, factor in solved[k].terms]
            constant += c * Fraction(solved[k].constant)
        else:
            terms.append(((source, k), c))
    return affine(terms, constant)


__all__ = [
    "MOST_CASES", "Folded", "Ties", "cases", "demands", "eliminate", "fold", "is_axis", "rename",
    "rounded", "substitute", "through", "tie",
]  # fmt: skip
