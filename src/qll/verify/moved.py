"""A network behind an affine map: its inputs, of one point or two, as functions of a few variables.

The coefficients are rational. Each row is stored over a divisor, and its numbers as sums of floats
(variables and a 1 stand in the first step as often as that needs), so that nothing is rounded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from qll.errors import InputError
from qll.formula.hard import Affine, is_stored, nearest, odd_part, summands
from qll.networks.joint import Joint
from qll.networks.matrices import Array
from qll.networks.program import AffineMap


@dataclass(frozen=True, eq=False)
class Moved(Joint):
    """``image`` has a function of ``("x", variable)`` for each entry, x first, then x2; ``names``
    are those of the variables, where they have some."""

    image: tuple[Affine, ...] = ()
    names: tuple[str, ...] = ()

    def expand(self, point: Array) -> Array:
        """The entries, each rounded once."""
        values = [Fraction(v) for v in np.asarray(point, dtype=np.float64).tolist()]
        found = [
            float(sum((c * values[k] for (_, k), c in row.terms), Fraction(row.constant)))
            for row in self.image
        ]
        return np.array(found).reshape(self.points, -1)

    def stored(self, witness: Array) -> Array:
        """The variables: the checker has the map."""
        return np.asarray(witness)

    @cached_property
    def _entrance(self) -> list[AffineMap]:
        rows = [_summands(row) for row in self.image]
        copies = max((len(c) for row in rows for c in row.terms.values()), default=1) or 1
        ones = max(len(row.constant) for row in rows) - 1
        first = np.vstack([np.tile(np.eye(self.variables), (copies, 1)),
                           np.zeros((max(ones, 0), self.variables))])  # fmt: skip
        bias = np.concatenate([np.zeros(copies * self.variables), np.ones(max(ones, 0))])
        matrix = np.zeros((len(rows), len(first)))
        constant, divisor = np.zeros(len(rows)), np.ones(len(rows))
        for i, row in enumerate(rows):
            divisor[i] = row.divisor
            for k, numbers in row.terms.items():
                for copy, number in enumerate(numbers):
                    matrix[i, copy * self.variables + k] = number
            constant[i] = row.constant[0] if row.constant else 0.0
            for at, number in enumerate(row.constant[1:]):
                matrix[i, copies * self.variables + at] = number
        plain = bool((divisor == 1).all())
        last = (1 if len(first) > self.variables else 0, matrix)
        steps = [AffineMap((last,), constant, None if plain else divisor)]
        if last[0]:
            steps.insert(0, AffineMap(((0, first),), bias))
        return steps

    def entrance(self) -> list[AffineMap]:
        return self._entrance


@dataclass(frozen=True)
class _Summands:
    terms: dict[int, list[float]]
    constant: list[float]
    divisor: float


def _summands(row: Affine) -> _Summands:
    if not is_stored(row):
        raise InputError(
            "an input's map has numbers that cannot be stored without rounding",
            expected="sizes between 1e-300 and 1e300, and divisors whose product is below 2^53",
            found=", ".join(f"{nearest(c):.6g}" for _, c in row.terms)[:80],
            fix="multiply by one number instead of dividing by several",
        )
    numbers = [*(c for _, c in row.terms), Fraction(row.constant)]
    odd = math.lcm(*(odd_part(c.denominator) for c in numbers))
    terms = {k: summands(c * odd) for (_, k), c in row.terms}
    return _Summands(terms, summands(Fraction(row.constant) * odd), float(odd))


def moved(
    networks: Sequence[Any], image: Sequence[Affine], variables: int, names: Any = ()
) -> Moved:
    entries = tuple(range(len(image)))
    return Moved(tuple(networks), entries, variables, tuple(image), tuple(names))
