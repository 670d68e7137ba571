"""``domain``: all points that a table's schema allows. Written out when a text is read, so that a
rule says in numbers what it was trained and proved on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from qll.errors import FormulaError
from qll.formula.nodes import Box, Entry, Index, Number, OneHot, RegionPart, Span, Whole


@dataclass(frozen=True)
class Domain:
    """Ends of every input, which of them are whole numbers, and the groups of which exactly one
    input is 1."""

    lower: Sequence[float]
    upper: Sequence[float]
    integers: Sequence[int] = ()
    groups: Sequence[Sequence[int]] = ()

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


OPEN = Domain((0.0,), (1.0,))
"""Stands in where a text is looked at before its data are known."""


def unknown_domain(span: Span) -> FormulaError:
    return FormulaError(
        "the domain is not known",
        expected="a table, whose schema has the range of every column",
        found="none",
        fix="pass --data with the table (in Python schema=...), or write box([...], [...])",
        where=str(span),
    )
