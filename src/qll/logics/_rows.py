"""Functions on rows that several logics state for the compiled path (``qll.kernels.formula`` says
what they may use). Plain numpy code; a row is one operand of several samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

# Rows of numbers: an array (n, samples) for numpy, a pointer to vectors when compiled.
Rows: TypeAlias = Any
RowFunction: TypeAlias = Callable[..., None]


def _hard_extreme(sign: float) -> RowFunction:
    """The maximum (sign 1) or minimum (-1); equal operands share the derivative, as in torch."""

    def connective(v: Rows, n: int, hardness: float, params: Rows, out: Rows, g: Rows) -> None:
        peak = v[0] * sign
        for i in range(1, n):
            peak = np.maximum(peak, v[i] * sign)
        count = np.where(v[0] * sign == peak, 1.0, 0.0)
        for i in range(1, n):
            count = count + np.where(v[i] * sign == peak, 1.0, 0.0)
        for i in range(n):
            g[i] = np.where(v[i] * sign == peak, 1.0, 0.0) / count
        out[0] = peak * sign

    return connective


maximum, minimum = _hard_extreme(1.0), _hard_extreme(-1.0)


def total(v: Rows, n: int, hardness: float, params: Rows, out: Rows, g: Rows) -> None:
    result = v[0]
    for i in range(1, n):
        result = result + v[i]
    for i in range(n):
        g[i] = 1.0
    out[0] = result


def product(v: Rows, n: int, hardness: float, params: Rows, out: Rows, g: Rows) -> None:
    """The derivative by one factor is the product of those before it and those after it."""
    result = v[0]
    g[0] = 1.0
    for i in range(1, n):
        g[i] = result
        result = result * v[i]
    after = v[n - 1]
    for i in range(n - 2, -1, -1):
        g[i] = g[i] * after
        after = after * v[i]
    out[0] = result


def difference(v: Rows, n: int, hardness: float, params: Rows, out: Rows, g: Rows) -> None:
    """``a -o b`` where it is ``b - a``."""
    out[0] = v[1] - v[0]
    g[0] = -1.0
    g[1] = 1.0


def itself(v: Rows, params: Rows, out: Rows, g: Rows) -> None:
    out[0] = v[0]
    g[0] = 1.0


def opposite(v: Rows, params: Rows, out: Rows, g: Rows) -> None:
    out[0] = -v[0]
    g[0] = -1.0


def one_minus(v: Rows, params: Rows, out: Rows, g: Rows) -> None:
    out[0] = 1.0 - v[0]
    g[0] = -1.0


def _excess(sign: float) -> RowFunction:
    """``a <= b`` as ``a - b`` (sign 1) or ``b - a`` (-1)."""

    def leq(a: Rows, b: Rows, n: int, params: Rows, v: Rows, da: Rows, db: Rows) -> None:
        for i in range(n):
            v[i] = (a[i] - b[i]) * sign
            da[i] = sign
            db[i] = -sign

    return leq


a_minus_b, b_minus_a = _excess(1.0), _excess(-1.0)


def positive_excess(a: Rows, b: Rows, n: int, params: Rows, v: Rows, da: Rows, db: Rows) -> None:
    """``a <= b`` as ``relu(a - b)``."""
    for i in range(n):
        gap = a[i] - b[i]
        slope = np.where(gap > 0.0, 1.0, 0.0)
        v[i] = np.maximum(0.0, gap)
        da[i] = slope
        db[i] = -slope
