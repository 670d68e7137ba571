"""What a closed comparison means for inputs that have gaps between their values.

``not (x <= 18)`` is read as ``x >= 18``, and ``x > 18`` as well: on the reals they say the same but
for the boundary, and what is continuous does not depend on that. For a whole number the boundary is
a point, and the premise ``x <= 18 -> ...`` would leave it out. So both are written in the middle of
the gap: ``x >= 18.5``, which is the same set of whole numbers and has none on its boundary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from fractions import Fraction

from qll.formula.hard import Affine, Slot, is_finite
from qll.formula.nodes import Entry, Formula, Linear, Member, OneHot, PointBinder, Quantity, Whole

# The values an input may have, rising; None: every whole number.
Values = tuple[Fraction, ...] | None


def has_gaps(binders: Iterable[PointBinder]) -> bool:
    return any(isinstance(part, Whole | Member | OneHot) for b in binders for part in b.parts)


class Gaps:
    """What a region says that its inputs may be; an input that equals another has its values."""

    def __init__(
        self,
        binders: Iterable[PointBinder],
        slot_of: Callable[[Entry], Slot],
        number: Callable[[Quantity], float],
        constraints: Callable[[Formula], list[Affine]],
    ) -> None:
        self._held: dict[Slot, Values] = {}
        self._whole: set[str] = set()  # points of which every input is a whole number
        self._equal: dict[Slot, set[Slot]] = {}
        sides = set[tuple[Slot, Slot]]()
        for part in (part for binder in binders for part in binder.parts):
            match part:
                case Whole(point, entries):
                    self._whole |= set() if entries else {point}
                    self._held |= {slot_of(entry): None for entry in entries}
                case Member(entry, values):
                    numbers = sorted(Fraction(number(v)) for v in values)
                    self._held[slot_of(entry)] = tuple(numbers)
                case OneHot(entries):
                    both = Fraction(0), Fraction(1)
                    self._held |= {slot_of(entry): both for entry in entries}
                case Linear(formula):
                    sides |= {pair for side in constraints(formula) if (pair := _ordered(side))}
        for one, other in sides:
            if (other, one) in sides:
                self._equal.setdefault(one, set()).add(other)

    def values_of(self, slot: Slot) -> Values | bool:
        """False: any number."""
        seen, waiting = {slot}, [slot]
        while waiting:
            one = waiting.pop()
            if one in self._held:
                return self._held[one]
            if one[0] in self._whole:
                return None
            waiting += (new := self._equal.get(one, set()) - seen)
            seen |= new
        return False


def _ordered(side: Affine) -> tuple[Slot, Slot] | None:
    """The two inputs of which the first is at most the second, if that is what it says."""
    if side.constant or len(side.terms) != 2:
        return None
    (one, c), (other, d) = side.terms
    if c + d or "x0" in (one[0], other[0]):
        return None
    return (one, other) if c > 0 else (other, one)


def middle_of_gap(
    low: Affine, high: Affine, values_of: Callable[[Slot], Values | bool], *, strict: bool = False
) -> Fraction:
    """For ``low <= high`` (or ``<``): a number above what ``low - high`` is where that holds, and
    below what it is where it does not. 0 if an input of it may have values without gaps
    (``values_of`` says False), or if nothing is known of sums of several values.

    >>> from qll.formula.hard import affine
    >>> x = affine([(("x", 0), Fraction(2))])
    >>> middle_of_gap(x, affine((), 5), lambda slot: None)  # 2 x <= 5 for whole x: 4 or 6
    Fraction(0, 1)
    >>> middle_of_gap(x, affine((), 6), lambda slot: None)  # 2 x <= 6: 6 or 8
    Fraction(1, 1)
    >>> middle_of_gap(x, affine((), 6), lambda slot: None, strict=True)  # 2 x < 6: 4 or 6
    Fraction(-1, 1)
    """
    if not (is_finite(low.constant) and is_finite(high.constant)):
        return Fraction(0)
    total: dict[Slot, Fraction] = {}
    for sign, side in ((1, low), (-1, high)):
        for slot, c in side.terms:
            total[slot] = total.get(slot, Fraction(0)) + sign * c
    terms = [(slot, c) for slot, c in total.items() if c]
    constant = Fraction(low.constant) - Fraction(high.constant)
    allowed = [values_of(slot) for slot, _ in terms]
    if not terms or any(values is False for values in allowed):
        return Fraction(0)
    if len(terms) == 1 and isinstance(allowed[0], tuple):
        return _between([terms[0][1] * v + constant for v in allowed[0]], strict=strict)
    if any(isinstance(v, tuple) and any(n.denominator != 1 for n in v) for v in allowed):
        return Fraction(0)
    scale = math.lcm(*(c.denominator for _, c in terms))
    step = Fraction(math.gcd(*(int(c * scale) for _, c in terms)), scale)
    steps = math.floor(constant / step) + 1 if strict else math.ceil(constant / step)
    return constant - step * steps + step / 2


def _between(reached: list[Fraction], *, strict: bool) -> Fraction:
    holds = [v for v in reached if v < 0 or (v == 0 and not strict)]
    others = [v for v in reached if v > 0 or (v == 0 and strict)]
    if holds and others:
        return (max(holds) + min(others)) / 2
    return max(holds) + 1 if holds else min(others) - 1
