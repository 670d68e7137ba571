"""The trust boundary for witnesses: whatever found a point, this decides what it is worth.

A witness counts only if it lies in the region and violates the condition both in rigorous
arithmetic on the stored weights and in ONNX Runtime. Where the two differ, or the violation cannot
be told from a tie, the answer is ``unknown: near-tie``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

import numpy as np

from qll.verify.condition import Array
from qll.verify.query import Query


class Worth(Enum):
    VIOLATION = "violation"
    NEAR_TIE = "near-tie"
    NOTHING = "nothing"


@dataclass(frozen=True)
class Judgement:
    worth: Worth
    value: tuple[float, float] | None = None  # the exact value lies between
    note: str = ""


def _violated(query: Query, value: Fraction) -> bool:
    return value >= 0 if query.tie_violates else value > 0


def judge(query: Query, x: Array) -> Judgement:
    """What the point ``x`` (input size,) shows about ``query``."""
    point = np.asarray(x, dtype=np.float64).reshape(-1)
    if not query.contains(point):
        return Judgement(Worth.NOTHING, note="outside the region")
    condition = query.compiled
    low, high = query.network.enclose(point)
    if np.isfinite(low).all() and np.isfinite(high).all():
        floor, ceiling = condition.exact_range(low, high, point)
    else:
        floor, ceiling = Fraction(-1), Fraction(1)  # nothing is known
    if not _violated(query, floor):
        if _violated(query, ceiling):
            if not query.form.is_piecewise_linear:  # nothing is exact: too near to tell
                note = f"the value lies between {float(floor):.3g} and {float(ceiling):.3g}"
                return Judgement(Worth.NEAR_TIE, (float(floor), float(ceiling)), note)
            exact = query.network.evaluate_exact(point)
            floor = ceiling = condition.exact_value(exact, point)
        if not _violated(query, floor):
            return Judgement(Worth.NOTHING, (float(floor), float(ceiling)), "satisfied")
    value = (float(floor), float(ceiling))
    replay = np.asarray(query.network.runtime(point[None]), dtype=np.float64).reshape(1, -1)
    replayed = float(condition.value(condition.leaf_values(replay, point[None]))[0])
    if not condition.is_violated(replayed):
        note = f"exact value {value[0]:.3g} but {replayed:.3g} in ONNX Runtime"
        return Judgement(Worth.NEAR_TIE, value, note)
    return Judgement(Worth.VIOLATION, value)
