"""Balls in the norms l1 and l2, which are no boxes: judged in rational numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from qll.formula.hard import Affine


@dataclass(frozen=True)
class Round:
    """The values of ``rows``, functions of the variables, have a norm of at most ``radius``."""

    kind: str
    rows: tuple[Affine, ...]
    radius: float

    def holds(self, point: Sequence[Any]) -> bool:
        """Of values of the variables: exact."""
        total = Fraction(0)
        for row in self.rows:
            value = sum((c * Fraction(point[k]) for (_, k), c in row.terms), Fraction(row.constant))
            total += value * value if self.kind == "l2" else abs(value)
        return total <= (Fraction(self.radius) ** 2 if self.kind == "l2" else Fraction(self.radius))

    @property
    def plain(self) -> tuple[list[int], list[float]] | None:
        """The variables that are within the radius of a centre, and that; None where the rows say
        more than a difference of one variable each."""
        at, centre = list[int](), list[float]()
        for row in self.rows:
            if len(row.terms) != 1 or row.terms[0][1] != 1 or row.terms[0][0][1] in at:
                return None
            at.append(row.terms[0][0][1])
            centre.append(-float(row.constant))
        return at, centre
