"""Floats around exact numbers: outwards for what is proved, inwards for what is shown."""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Mapping
from dataclasses import replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from qll.exchange.cases import Case, Side, substitute
from qll.exchange.document import All, Assertion, Atom, Document, Some

Array = NDArray[np.float64]
FIXED_NOTE = "inputs fixed at decimals that no float32 has were taken as the nearest one"
# Multiples of 2^-10 below this are their own shortest decimals, so nothing has to be compared.
_PLAIN = 1e5


def nearest(value: Fraction, dtype: type[np.floating]) -> float:
    """The float of the type that is nearest to it; infinite where it is beyond them all."""
    try:
        with np.errstate(over="ignore"):
            return float(dtype(float(value)))
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def outward(value: Fraction, side: str) -> float:
    """The nearest float, or the next one if that lies within: no point is lost."""
    near = nearest(value, np.float64)
    if math.isinf(near):
        return near if (near > 0) == (side == "upper") else math.nextafter(near, 0.0)
    exact = Fraction(near)
    if side == "lower":
        return near if exact <= value else math.nextafter(near, -math.inf)
    return near if exact >= value else math.nextafter(near, math.inf)


def inward(side: str, end: Side, dtype: type[np.floating]) -> float:
    """The first float of the type that lies within, or beyond the end if the end is open."""
    towards = np.inf if side == "lower" else -np.inf
    most = Fraction(float(np.finfo(dtype).max))
    near = dtype(float(min(max(end.value, -most), most)))
    while not _within(side, end, Fraction(float(near))):
        with np.errstate(over="ignore"):
            near = np.nextafter(near, dtype(towards), dtype=dtype)
        if not np.isfinite(near):
            break
    return float(near)


def _within(side: str, end: Side, value: Fraction) -> bool:
    if value == end.value:
        return not end.strict
    return (value > end.value) == (side == "lower")


class Boxes:
    """The boxes of a document's cases as float64 arrays around the exact ones. Inputs that can have
    only one value get the float nearest to it, so that a fixed input stays fixed. Inputs without an
    end have an infinite one."""

    def __init__(self, case: Case) -> None:
        bounds = case.document.bounds
        self.lower = _outward(bounds.lower, "lower")
        self.upper = _outward(bounds.upper, "upper")
        for (side, index), value in bounds.other.items():
            getattr(self, side)[index] = outward(value, side)
        self._fix(Case(case.document), bounds.narrow())

    def of(self, case: Case) -> tuple[Array, Array]:
        lower, upper = self.lower.copy(), self.upper.copy()
        for (index, side), end in case.sides.items():
            (lower if side == "lower" else upper)[index] = outward(end.value, side)
        for index in {index for index, _ in case.sides}:
            value = case.fixed(index)
            if value is not None:
                lower[index] = upper[index] = nearest(value, np.float64)
        return lower, upper

    def _fix(self, case: Case, indices: object) -> None:
        for index in indices:  # type: ignore[attr-defined]
            value = case.fixed(index)
            if value is not None:
                self.lower[index] = self.upper[index] = nearest(value, np.float64)


def _outward(values: array[float], side: str) -> Array:
    """The floats stand for their shortest decimals, which are at most half a step away."""
    found = np.array(values, dtype=np.float64)
    plain = (np.abs(found) < _PLAIN) & (found * 1024 == np.floor(found * 1024))
    none = -np.inf if side == "lower" else np.inf
    beyond = np.nextafter(found, none)
    return np.where(np.isnan(found), none, np.where(plain, found, beyond))


def inexact_inputs(case: Case, dtype: type[np.floating] = np.float64) -> dict[int, Fraction]:
    """Fixed inputs whose value no float of the type has."""
    narrow = set(case.document.bounds.narrow()) | {index for index, _ in case.sides}
    found = {index: case.fixed(index) for index in narrow}
    return {k: v for k, v in found.items() if v is not None and not _has(v, dtype)}


def _has(value: Fraction, dtype: type[np.floating]) -> bool:
    near = nearest(value, dtype)
    return math.isfinite(near) and Fraction(near) == value


def at_float32(case: Case) -> tuple[Case | None, dict[int, Fraction]]:
    """The case with the float32 numbers that its fixed decimals stand for, in all that it says, and
    these numbers; None where float32 has none so large, or an open end leaves no point."""
    values = {k: nearest(v, np.float32) for k, v in inexact_inputs(case, np.float32).items()}
    if not all(map(math.isfinite, values.values())) or any(map(case.is_empty_at, values)):
        return None, {}
    known = {k: Fraction(v) for k, v in values.items()}
    sides = {(k, side): Side(v) for k, v in known.items() for side in ("lower", "upper")}
    return replace(case, sides={**case.sides, **sides}), known


def with_float32(document: Document) -> Document:
    """The document with the float32 numbers that its fixed inputs stand for; itself if they are
    such numbers."""
    case, known = at_float32(Case(document))
    if case is None or not known:
        return document
    bounds, decimals = document.bounds.copy(), inexact_inputs(Case(document), np.float32)
    for index, value in known.items():
        bounds.fix(index, value)
    assertions = tuple(_compared(part, decimals) for part in document.assertions)
    return replace(document, bounds=bounds, assertions=assertions)


def _compared(node: Assertion, decimals: Mapping[int, Fraction]) -> Assertion:
    """With the truth of what compares a fixed input alone with a number: both are the file's."""
    match node:
        case Atom(terms):
            return substitute(node, decimals) if len(terms) == 1 else node
        case All(parts):
            return All(tuple(_compared(part, decimals) for part in parts))
        case Some(parts):
            return Some(tuple(_compared(part, decimals) for part in parts))


def within(case: Case, point: Array, dtype: type[np.floating]) -> Array:
    """The point moved, as little as it can be, to floats of the type within the exact box; where
    there is none, it stays."""
    with np.errstate(over="ignore"):
        moved = point.astype(dtype).astype(np.float64)
    lower, upper = Boxes(case).of(case)
    near = (moved <= np.nextafter(lower, np.inf)) | (moved >= np.nextafter(upper, -np.inf))
    for index in np.flatnonzero(near):
        if case.fixed(int(index)) is not None:
            moved[index] = point[index]
            continue
        low, high = (case.side(int(index), side) for side in ("lower", "upper"))
        if low is None or high is None:
            continue
        least, most = inward("lower", low, dtype), inward("upper", high, dtype)
        value = min(max(moved[index], least), most)
        moved[index] = value if least <= most else point[index]
    return moved


def has_gap(case: Case, lower: Array, upper: Array, known: Collection[int]) -> bool:
    """Whether some input, other than those of ``known`` values, lies between two neighbouring
    float32 numbers, within the box or around it: there is then no point in float32."""
    with np.errstate(over="ignore"):
        low, high = lower.astype(np.float32), upper.astype(np.float32)
    # Ends that round to the same number or to neighbours: the only ones to look at.
    near = np.flatnonzero(np.nextafter(low, np.float32(np.inf)) >= high)
    for index in map(int, near):
        ends = [case.side(index, side) for side in ("lower", "upper")]
        if index in known or None in ends:
            continue
        least, most = (
            inward(side, end, np.float32)
            for side, end in zip(("lower", "upper"), ends, strict=True)
            if end is not None
        )
        if least > most:
            return True
    return False
