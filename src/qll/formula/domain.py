"""``domain``: all points that a table's schema allows. Written out when a text is read, so that a
rule says in numbers what it was trained and proved on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qll.errors import FormulaError
from qll.formula import build
from qll.formula.fold import fold, rebuild, walk
from qll.formula.nodes import (
    Box,
    Divide,
    Entry,
    Index,
    Number,
    OneHot,
    Quantity,
    RegionPart,
    Scale,
    Span,
    Whole,
)


@dataclass(frozen=True)
class Domain:
    """Ends of every input, which of them are whole numbers, the groups of which exactly one input
    is 1, and what counts as a step of each input."""

    lower: Sequence[float]
    upper: Sequence[float]
    integers: Sequence[int] = ()
    groups: Sequence[Sequence[int]] = ()
    scales: Sequence[float] = ()

    def parts(self, point: str, span: Span) -> tuple[RegionPart, ...]:
        """The region of ``point`` that it stands for."""
        for k, ends in enumerate(zip(self.lower, self.upper, strict=True)):
            if not all(math.isfinite(end) for end in ends):
                raise FormulaError(
                    f"the domain has no end for input {k}",
                    expected="a range for every column",
                    found=f"{ends[0]:g} to {ends[1]:g}",
                    fix="give the column a range in the schema",
                    where=str(span),
                )
        lower, upper = (tuple(Number(float(e)) for e in ends) for ends in (self.lower, self.upper))
        parts: list[RegionPart] = [Box(lower, upper, span=span)]
        hot = {k for group in self.groups for k in group}
        whole = _entries(point, [k for k in self.integers if k not in hot])
        if whole:
            parts.append(Whole(whole[0].source, whole, span=span))  # type: ignore[arg-type]
        parts += [OneHot(_entries(point, group), span=span) for group in self.groups]
        return tuple(parts)


def _entries(point: str, places: Sequence[int]) -> tuple[Entry, ...]:
    return tuple(Entry(point, (Index(None, k),)) for k in places)  # type: ignore[arg-type]


@dataclass(frozen=True)
class DomainMark:
    """Where ``domain`` stands in a text, until it is known of which point."""

    span: Span


@dataclass(frozen=True, repr=False)
class ScaleMark(Quantity):
    """Where ``scale`` stands in a text: a number for each input, once they are known."""

    span: Span | None = None


def spread_scale(values: tuple[Quantity, ...], domain: Domain | None) -> tuple[Quantity, ...]:
    """The quantity for each input, where it speaks of ``scale``; as it was otherwise."""
    marks = [node for value in values for node in walk(value) if isinstance(node, ScaleMark)]
    if not marks:
        return values
    if domain is None or not domain.scales:
        raise _unknown_scale(marks[0].span)
    if len(values) > 1:
        raise misplaced_scale(marks[0].span)

    def at(scale: float) -> Quantity:
        def visit(node: Any, parts: list[Any]) -> Any:
            match node:
                case ScaleMark():
                    return Number(scale)
                case Scale():
                    return build.multiply(*parts)
                case Divide(_, divisor):
                    return build.divide(parts[0], Number(divisor))
            return rebuild(node, parts)

        found: Quantity = fold(values[0], visit)
        return found

    return tuple(at(float(scale)) for scale in domain.scales)


OPEN = Domain((0.0,), (1.0,), scales=(1.0,))
"""Stands in where a text is looked at before its data are known."""


def unknown_domain(span: Span) -> FormulaError:
    return FormulaError(
        "the domain is not known",
        expected="a table, whose schema has the range of every column",
        found="none",
        fix="pass --data with the table (in Python schema=...), or write box([...], [...])",
        where=str(span),
    )


def _unknown_scale(span: Span | None) -> FormulaError:
    return FormulaError(
        "the scale of the inputs is not known",
        expected="a table, whose schema has the scale of every column",
        found="none",
        fix="pass --data with the table (in Python schema=...), write the radii as a list, or "
        "declare a parameter that is called 'scale'",
        where=str(span) if span else None,
    )


def misplaced_scale(span: Span | None) -> FormulaError:
    return FormulaError(
        "'scale' is a number for each input, and stands where one number does",
        expected="'scale' in a radius or in an end of a box: ball(x0, 0.1 * scale)",
        found="'scale' elsewhere",
        fix='write the number itself, or name the inputs: ball(x0, {"age": 2})',
        where=str(span) if span else None,
    )
