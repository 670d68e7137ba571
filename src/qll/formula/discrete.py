"""What a closed comparison means for inputs that have gaps between their values.

``not (x <= 18)`` is read as ``x >= 18``, and ``x > 18`` as well: on the reals they say the same but
for the boundary, and what is continuous does not depend on that. For a whole number the boundary is
a point, and the premise ``x <= 18 -> ...`` would leave it out. So both are written in the middle of
the gap: ``x >= 18.5``, which is the same set of whole numbers and has none on its boundary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

from qll.formula.hard import Affine, Slot, is_finite

# The values an input may have, rising; None: every whole number.
Values = tuple[Fraction, ...] | None


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
