"""Exact affine maps of a network's state: integers over a denominator for each row.

The *state* is one long vector: the input's entries, then those of every activation in the order in
which the network computes them. A value anywhere in the network is an affine function of the state
so far; residual sums, branches and concatenations need no more than that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qll.audit.pace import breathe, room

Array: TypeAlias = NDArray[np.float64]
MOST_ENTRIES = 1 << 22
ONE = -1  # the column of the bias


@dataclass(frozen=True, eq=False)
class Affine:
    """Entries ``rows[i][k] / below[i]``; missing ones are 0, and column ONE is the bias."""

    rows: list[dict[int, int]]
    below: list[int]

    def __len__(self) -> int:
        return len(self.rows)

    def after(self, first: Affine) -> Affine:
        """This map of the values that ``first`` gives."""
        terms = sum(len(first.rows[k]) for row in self.rows for k in row if k != ONE)
        room(terms <= MOST_ENTRIES, "a layer that is too large")
        rows, below = [], []
        for row, mine in zip(self.rows, self.below, strict=True):
            breathe()
            common = math.lcm(*{first.below[k] for k in row if k != ONE})
            total: dict[int, int] = {}
            for k, number in row.items():
                if k == ONE:
                    total[ONE] = total.get(ONE, 0) + number * common
                    continue
                scaled = number * (common // first.below[k])
                for column, other in first.rows[k].items():
                    total[column] = total.get(column, 0) + scaled * other
            rows.append(total)
            below.append(mine * common)
        return Affine(rows, below)

    def take(self, places: Iterable[int]) -> Affine:
        """Rows by number; 0 where it is negative."""
        chosen = [int(i) for i in places]
        return Affine(
            [self.rows[i] if i >= 0 else {} for i in chosen],
            [self.below[i] if i >= 0 else 1 for i in chosen],
        )

    def plus(self, other: Affine, sign: int = 1) -> Affine:
        rows, below = [], []
        for a, p, b, q in zip(self.rows, self.below, other.rows, other.below, strict=True):
            common = math.lcm(p, q)
            total = {k: n * (common // p) for k, n in a.items()}
            for k, n in b.items():
                total[k] = total.get(k, 0) + sign * n * (common // q)
            rows.append(total)
            below.append(common)
        return Affine(rows, below)

    def joined(self, other: Affine) -> Affine:
        return Affine(self.rows + other.rows, self.below + other.below)

    def at(self, state: list[int]) -> tuple[list[int], int]:
        """The values at a state of integers over its last number, as integers over that number
        times the second part."""
        scale = math.lcm(*self.below)
        return [
            sum(n * state[k] for k, n in row.items()) * (scale // below)  # ONE is the last
            for row, below in zip(self.rows, self.below, strict=True)
        ], scale

    @lru_cache(maxsize=64)  # noqa: B019 - claims about one network share its layers
    def blocks(self, starts: tuple[int, ...]) -> tuple[list[tuple[int, Array, Array]], Array]:
        """Of each source that is read its number, W and |W|, and the bias: every entry rounded
        once, off by at most 2^-53 of itself. ``starts`` are of the sources in the state."""
        bias, found = np.zeros(len(self)), dict[int, Array]()
        ends = np.array(starts)
        for i, (row, below) in enumerate(zip(self.rows, self.below, strict=True)):
            breathe()
            columns = np.array([k for k, n in row.items() if n and k != ONE], dtype=np.int64)
            values = np.array([row[int(k)] / below for k in columns])  # correctly rounded
            bias[i] = row.get(ONE, 0) / below
            tiny = [
                v for v in (*values, *([bias[i]] if row.get(ONE, 0) else [])) if abs(v) < 2.0**-500
            ]
            room(not tiny, "a weight that is too small")
            source = np.searchsorted(ends, columns, side="right") - 1
            for j in np.unique(source).tolist():
                if j not in found:
                    shape = len(self), starts[j + 1] - starts[j]
                    room(math.prod(shape) <= 16 * MOST_ENTRIES, "a layer that is too large")
                    found[j] = np.zeros(shape)
                found[j][i, columns[source == j] - starts[j]] = values[source == j]
        return [(j, w, np.abs(w)) for j, w in sorted(found.items())], bias


def over_common(values: list[Any]) -> tuple[list[int], int]:
    """Numbers as integers over a common denominator."""
    ratios = [v.as_integer_ratio() for v in values]
    below = math.lcm(*{d for _, d in ratios})
    return [n * (below // d) for n, d in ratios], below


def affine(places: Any, values: list[Any], bias: list[Any]) -> Affine:
    """From entries at different places (row, column) and a bias for each row."""
    entries: list[list[tuple[int, Any]]] = [[(ONE, b)] for b in bias]
    for (row, column), value in zip(places, values, strict=True):
        entries[row].append((column, value))
    rows, below = [], []
    for entry in entries:
        breathe()
        numbers, common = over_common([v for _, v in entry])
        rows.append({k: n for (k, _), n in zip(entry, numbers, strict=True)})
        below.append(common)
    return Affine(rows, below)


def diagonal(scale: Any, bias: Any, divisor: Any) -> Affine:
    """``(scale * x + bias) / divisor`` for each entry of x."""
    given = [[Fraction(float(v)) for v in t] for t in (scale, bias, divisor)]
    values, shift = ([v / d for v, d in zip(t, given[2], strict=True)] for t in given[:2])
    return affine(zip(range(len(values)), range(len(values))), values, shift)


def identity(start: int, width: int) -> Affine:
    """The entries of the state from ``start`` on."""
    return Affine([{start + i: 1} for i in range(width)], [1] * width)
