"""A document of others as a closed rule of our own language: satisfied iff nothing satisfies it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import islice

import numpy as np

from qll.errors import InputError
from qll.exchange.document import Document
from qll.exchange.parts import Array, Part, parts
from qll.exchange.rounding import outward
from qll.formula.hard import Affine, HardForm, Max, Slot, affine, odd_part, summands
from qll.formula.parse import parse_specification
from qll.formula.question import canonical

MOST_CASES = 64
POINTS = (("x", "y"), ("x2", "y2"))


def rule_of(document: Document) -> str:
    """Its text. Of one network the rule is about x, of two about x and x2. Of several cases the
    region is their common box, and each is a premise: its own box and constraints."""
    sizes = _sizes(document)
    found = list(map(_rounded, islice(parts(document, {}, solved=False), MOST_CASES + 1)))
    if not 0 < len(found) <= MOST_CASES:
        raise InputError(
            "the query does not become one rule",
            expected=f"1 to {MOST_CASES} cases",
            found="none" if not found else "more",
            fix="decide it with qll verify",
        )
    names = _Names(sizes)
    lower = np.minimum.reduce([part.lower for part in found])
    upper = np.maximum.reduce([part.upper for part in found])
    common = found[0].constraints if len(found) == 1 else ()
    if len(found) == 1:
        body = text_of(found[0].condition, names)
    else:
        body = " and ".join(_premised(part, lower, upper, names) for part in found)
    regions = []
    for k, (name, _) in enumerate(POINTS[: len(document.networks)]):
        ends = (", ".join(repr(float(v)) for v in names.inputs(k, end)) for end in (lower, upper))
        said = [text_of(c, names) for c in common if names.last_point(c) == k]
        box = "box([{}], [{}])".format(*ends)
        regions.append(f"{name} in " + " and ".join([box, *said]))
    text = f"forall {', '.join(regions)}:\n  {body}\n"
    return canonical(parse_specification(text))


def _rounded(part: Part) -> Part:
    """Thresholds that no float64 equals, to the next one on the side of a stricter rule: decimals
    would be multiplied away by huge numbers, which a soft reading counts in."""

    def strict(form: HardForm) -> HardForm:
        if not isinstance(form, Affine):
            return type(form)(tuple(strict(inner) for inner in form.parts))
        return _near(form, "upper")

    constraints = tuple(_near(c, "lower") for c in part.constraints)
    return replace(part, condition=strict(part.condition), constraints=constraints)


def _near(form: Affine, side: str) -> Affine:
    if not isinstance(form.constant, Fraction) or any(_is_odd(c) for _, c in form.terms):
        return form
    return affine(form.terms, Fraction(outward(form.constant, side)))


def _is_odd(value: Fraction) -> bool:
    """Whether no float equals it, however long."""
    return value.denominator & (value.denominator - 1) != 0


def _sizes(document: Document) -> tuple[int, int]:
    """Inputs and outputs of a network; all have the same."""
    found = [[(t.kind, t.size) for t in network.tensors] for network in document.networks]
    plain = [kind for kind, _ in found[0]] == ["input", "output"]
    if not plain or len(found) > len(POINTS) or any(other != found[0] for other in found):
        raise InputError(
            "a rule speaks of a network with one input and one output, at one point or two",
            expected="one such network, or two of the same sizes",
            found=", ".join(t.name for t in document.tensors)[:80],
            fix="decide it with qll verify",
        )
    return found[0][0][1], found[0][1][1]


class _Names:
    """``x2[1]`` for the input of that number, counted over both points."""

    def __init__(self, sizes: tuple[int, int]) -> None:
        self.sizes = sizes

    def __call__(self, slot: Slot) -> str:
        source, index = slot
        kind = 0 if source == "x" else 1
        point, rest = divmod(index, self.sizes[kind])
        return f"{POINTS[point][kind]}[{rest}]"

    def inputs(self, point: int, values: Array) -> Iterator[float]:
        size = self.sizes[0]
        yield from values[point * size : (point + 1) * size].tolist()

    def last_point(self, constraint: Affine) -> int:
        """A region may speak of the points before its own."""
        return max((index // self.sizes[0] for (_, index), _ in constraint.terms), default=0)


def _premised(part: Part, lower: Array, upper: Array, names: _Names) -> str:
    ends = [
        f"{names(('x', int(k)))} {sign} {float(end[k])!r}"
        for sign, end, whole in ((">=", part.lower, lower), ("<=", part.upper, upper))
        for k in np.flatnonzero(end != whole)
    ]
    premise = " and ".join([*ends, *(f"({text_of(c, names)})" for c in part.constraints)]) or "top"
    return f"(({premise}) -> ({text_of(part.condition, names)}))"


# --- forms as text ---


def text_of(form: HardForm, named: Callable[[Slot], str] | None = None) -> str:
    """That the form is <= 0, in the language."""
    if isinstance(form, Affine):
        # Times a positive integer it says the same, and sums of floats are exact.
        numbers = [c for _, c in form.terms] + [Fraction(form.constant)]
        scale = math.lcm(*(odd_part(c.denominator) for c in numbers))
        terms = [("*" + (named or _entry)(slot), c) for slot, c in form.terms]
        parts = [
            f"{v!r}{name}" for name, c in [*terms, ("", numbers[-1])] for v in summands(c * scale)
        ]
        return f"{' + '.join(parts) or '0'} <= 0"
    if not form.parts:
        return "top" if isinstance(form, Max) else "bottom"
    sign = " and " if isinstance(form, Max) else " or "
    return sign.join(f"({text_of(part, named)})" for part in form.parts)


def _entry(slot: Slot) -> str:
    return f"{slot[0]}[{slot[1]}]"
