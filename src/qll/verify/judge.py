"""The trust boundary for witnesses: whatever found a point, this decides what it is worth.

A witness counts only if it lies in the region and violates the condition both in rigorous
arithmetic on the stored weights and in ONNX Runtime. Where the two differ, or the violation cannot
be told from a tie, the answer is ``unknown: near-tie``. A query that asks for ``real`` arithmetic
by name is judged by that alone. In ``float32`` a witness is a float32 input at which every
evaluation violates the condition, whatever the order of its sums; it is replayed in several, and by
ONNX Runtime, all the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from qll.networks.orders import RESTATED, SEVERAL, Replay
from qll.verify.arithmetic import outputs_at, radii
from qll.verify.condition import Array
from qll.verify.query import Query

_known: WeakKeyDictionary[Any, Replay] = WeakKeyDictionary()


class Worth(Enum):
    VIOLATION = "violation"
    NEAR_TIE = "near-tie"
    NOTHING = "nothing"


@dataclass(frozen=True)
class Judgement:
    worth: Worth
    value: tuple[float, float] | None = None  # the exact value lies between
    note: str = ""
    exact: tuple[Fraction, ...] | None = None  # the point that was judged, where it is no floats


def _violated(query: Query, value: Fraction) -> bool:
    return value >= 0 if query.tie_violates else value > 0


def judge(query: Query, x: Array, *, final: bool = False) -> Judgement:
    """What the point ``x`` (input size,) shows about ``query``. In float32 a violation is proved
    for all evaluations; some are run as well where the judgement is ``final``."""
    point = np.asarray(x, dtype=np.float64).reshape(-1)
    if not query.contains(point):
        exact = query.settled(point)
        outside = Judgement(Worth.NOTHING, note="outside the region")
        return outside if exact is None else _judge_exactly(query, exact)
    condition = query.compiled
    low, high = query.network.enclose(point)
    if query.in_float32:
        return _judge_float32(query, point, low, high, final)
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
    replayed = float(condition.value(condition.leaf_values(_run(query, point), point[None]))[0])
    if query.arithmetic is None and not condition.is_violated(replayed):
        note = f"exact value {value[0]:.3g} but {replayed:.3g} in ONNX Runtime"
        return Judgement(Worth.NEAR_TIE, value, note)
    return Judgement(Worth.VIOLATION, value)


def _judge_exactly(query: Query, exact: tuple[Fraction, ...]) -> Judgement:
    """At a point of fractions, which the network is evaluated at without rounding; at run time it
    is rounded."""
    if not query.form.is_piecewise_linear:
        return Judgement(Worth.NOTHING, note="nothing is exact at a point that floats do not have")
    network: Any = query.network
    value = query.compiled.exact_value(network.evaluate_exact.at(exact), exact)
    value_ = (float(value), float(value))
    if not _violated(query, value):
        return Judgement(Worth.NOTHING, value_, "satisfied")
    point, condition = np.array([float(v) for v in exact]), query.compiled
    replayed = float(condition.value(condition.leaf_values(_run(query, point), point[None]))[0])
    if query.arithmetic is None and not condition.is_violated(replayed):
        note = f"exact value {value_[0]:.3g} but {replayed:.3g} in ONNX Runtime"
        return Judgement(Worth.NEAR_TIE, value_, note)
    return Judgement(Worth.VIOLATION, value_, exact=exact)


def _run(query: Query, point: Array) -> Array:
    return np.asarray(query.network.runtime(point[None]), dtype=np.float64).reshape(1, -1)


def _judge_float32(query: Query, point: Array, low: Array, high: Array, final: bool) -> Judgement:
    condition = query.compiled
    error = radii(query.network, point, point, condition.outputs)
    ends = outputs_at(query.network, point, low, high)
    if not all(np.isfinite(t).all() for t in (error, low, high, *ends)):
        return Judgement(Worth.NEAR_TIE, note="float32 may overflow")
    # Around the real value of a leaf, and by the outputs one by one, on the numbers that there are.
    real, each = condition.leaf_ranges(low, high, point), condition.leaf_ranges(*ends, point)
    away = [Fraction(float(e)) for e in error]
    lows = [max(a, b - e) for a, b, e in zip(each[0], real[0], away, strict=True)]
    highs = [min(a, b + e) for a, b, e in zip(each[1], real[1], away, strict=True)]
    floor, ceiling = condition.of_leaves(lows), condition.of_leaves(highs)
    value = (float(floor), float(ceiling))
    if not _violated(query, ceiling):
        return Judgement(Worth.NOTHING, value, "satisfied")
    if not _violated(query, floor):
        note = f"between {value[0]:.3g} and {value[1]:.3g}, by the order in which float32 sums"
        return Judgement(Worth.NEAR_TIE, value, note)
    for answer in [_run(query, point)[0], *_replays(query, point)] if final else []:
        exact = condition.exact_value([Fraction(float(v)) for v in answer], point)
        if not _violated(query, exact):
            note = f"proved to be at least {value[0]:.3g} but {float(exact):.3g} when replayed"
            return Judgement(Worth.NEAR_TIE, value, note)
    return Judgement(Worth.VIOLATION, value)


def _replays(query: Query, point: Array) -> list[Array]:
    """The outputs in several orders of summation, where the program holds the file's operators."""
    program = getattr(query.network, "program", None)
    network: Any = query.network
    runs = getattr(network, "networks", (network,))  # one for each point
    if program is None or any(getattr(run, "graph", None) is None for run in runs):
        return []
    import onnx

    models = [onnx.ModelProto.FromString(run.source) for run in runs]
    if {node.op_type for model in models for node in model.graph.node} & RESTATED:
        return []
    if query.network not in _known:
        _known[query.network] = Replay(program)
    return [_known[query.network](point, order).astype(np.float64) for order in SEVERAL]
