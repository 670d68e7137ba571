"""Numbers as records hold them: JSON has words, truths and numbers without end in their place."""

from __future__ import annotations

import math
from typing import Any, TypeGuard

_MOST = 1 << 63  # no count is larger, and floats hold it


def is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < _MOST


def is_number(value: Any) -> TypeGuard[float]:
    """Also one without end, and none (NaN)."""
    return isinstance(value, float) or (type(value) is int and abs(value) < _MOST)


def is_finite(value: Any) -> TypeGuard[float]:
    return is_number(value) and math.isfinite(value)


def same_epsilon(a: float | None, b: float | None) -> bool:
    """Six digits are written of one, as in 0.0156863 for 4/255."""
    if a is None or b is None:
        return a is b
    return math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-12)


def read_epsilon(text: str) -> float | None:
    """As a number or a fraction.

    >>> read_epsilon("4/255") == 4 / 255, read_epsilon("wide")
    (True, None)
    """
    top, _, bottom = text.partition("/")
    try:
        return float(top) / float(bottom or 1)
    except (ValueError, ZeroDivisionError):
        return None
