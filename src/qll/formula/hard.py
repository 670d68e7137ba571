"""The hard value of a formula: a max/min tree of affine functions.

At hardness p = inf every formula, however its connectives nest, is a maximum and minimum of affine
functions of the quantities, and the property holds at a point iff that value is <= 0. This is the
form that a verifier, a bound and an exact replay read.

Numbers are fractions: like terms are collected without rounding, so that ``1e30*y[0] + y[0] -
1e30*y[0]`` is ``y[0]``. Whoever needs floats rounds once, each coefficient to the nearest one, and
accounts for it; `Affine.floats` is for readings, which prove nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TypeAlias

from qll.errors import FormulaError

# A constant of a quantity: exact, or an infinity (or their undefined difference) as a float.
Exact: TypeAlias = Fraction | float
ZERO, ONE = Fraction(0), Fraction(1)
LEAST_NORMAL, MOST_NORMAL = Fraction(2) ** -1022, Fraction(2) ** 1023
DIGITS, LEAST_BIT = 53, 1074  # of a float's odd part; 2^-1074 is the least one
MOST_BITS = 1 << 14  # of a denominator: sums of hostile quotients are refused, not worked out

# A variable of the hard form: where it comes from ("y", "x", "x0", "y0", "x2", "y2") and its
# index in that vector, flattened.
Slot = tuple[str, int]


@dataclass(frozen=True)
class Affine:
    """``constant + sum(coefficient * slot)``; the leaf of a hard form. Satisfied iff <= 0."""

    terms: tuple[tuple[Slot, Fraction], ...]
    constant: Exact

    @cached_property
    def floats(self) -> tuple[tuple[tuple[Slot, float], ...], float]:
        """Terms and constant, each rounded to the nearest float."""
        return tuple((slot, nearest(c)) for slot, c in self.terms), nearest(self.constant)

    @property
    def is_usable(self) -> bool:
        """Whether every number is finite and has a float that is off by at most 2^-53 of it."""
        return all(is_usable(c) for c in (self.constant, *(c for _, c in self.terms)))


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


def compares_outputs(form: HardForm) -> bool:
    """Whether all that is said of outputs is which of two is larger."""
    if not isinstance(form, Affine):
        return all(map(compares_outputs, form.parts))
    if all(source == "x" for (source, _), _ in form.terms):
        return True
    pair = len(form.terms) == 2 and all(source == "y" for (source, _), _ in form.terms)
    return pair and form.constant == 0 and form.terms[0][1] == -form.terms[1][1]


def affine(terms: Iterable[tuple[Slot, Exact]], constant: Exact = ZERO) -> Affine:
    """Like terms collected, zero coefficients dropped, in order: equal functions are equal.

    >>> affine([(("y", 0), 1e30), (("y", 0), 1.0), (("y", 0), -1e30)]).terms
    ((('y', 0), Fraction(1, 1)),)
    """
    total: dict[Slot, Fraction] = {}
    for slot, coefficient in terms:
        if not is_finite(coefficient):
            raise FormulaError(
                f"a coefficient of {slot[0]}[{slot[1]}] is not finite",
                expected="a number",
                found=f"{coefficient}",
                fix="check the numbers that the condition is made of",
            )
        value = Fraction(coefficient)
        total[slot] = _short(total[slot] + value) if slot in total else value
    return Affine(tuple(sorted((s, c) for s, c in total.items() if c)), exact(constant))


def exact(value: Exact) -> Exact:
    """A number as a fraction; infinities and NaN as they are."""
    return Fraction(value) if is_finite(value) else value


def is_finite(value: Exact) -> bool:
    return isinstance(value, Fraction) or math.isfinite(value)


def _short(value: Fraction) -> Fraction:
    if value.denominator.bit_length() > MOST_BITS:
        raise OverflowError("a fraction of too many digits")
    return value


def added(values: Iterable[Exact]) -> Exact:
    """The sum: without rounding, infinite if a part is, NaN for inf - inf."""
    total, beyond = ZERO, 0.0
    for value in values:
        if isinstance(value, Fraction):
            total = _short(total + value)
        else:
            beyond += value
    return total if beyond == 0.0 else beyond


def multiplied(left: Exact, right: Exact) -> Exact:
    """The product: without rounding; 0 times an infinity is NaN."""
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return left * right
    signs = [float((v > 0) - (v < 0)) if isinstance(v, Fraction) else v for v in (left, right)]
    return signs[0] * signs[1]


def nearest(value: Exact) -> float:
    """The nearest float; beyond the largest one an infinity."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def odd_part(value: int) -> int:
    """Of a denominator: 1 where the fraction is dyadic."""
    return value >> ((value & -value).bit_length() - 1)


def summands(value: Fraction) -> list[float]:
    """Floats whose sum is a dyadic fraction, exactly.

    >>> summands(Fraction(1) + Fraction(1, 1 << 60))
    [1.0, 8.673617379884035e-19]
    """
    found: list[float] = []
    while value:
        found.append(float(value))
        if not found[-1]:
            raise OverflowError("a number that is too small for a float")
        value -= Fraction(found[-1])
    return found


def is_stored(form: Affine) -> bool:
    """Whether its numbers are sums of floats over one divisor that is a float."""
    numbers = [*(c for _, c in form.terms), Fraction(form.constant)]
    odd = math.lcm(*(odd_part(c.denominator) for c in numbers))
    return odd.bit_length() <= DIGITS and all(
        (c * odd).denominator <= 1 << LEAST_BIT and abs(c * odd) <= MOST_NORMAL for c in numbers
    )


def is_usable(value: Exact) -> bool:
    """0, or finite and normal as a float: rounding it errs by at most 2^-53 of it."""
    size = -value if value < 0 else value
    return size == 0 or LEAST_NORMAL <= size <= MOST_NORMAL


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
            return affine((*left.terms, *right.terms), added((left.constant, right.constant)))
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
