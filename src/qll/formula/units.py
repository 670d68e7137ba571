"""Units of parameters. A threshold given as a probability becomes a logit here and nowhere else."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from qll.errors import FormulaError
from qll.registry import suggest


@dataclass(frozen=True)
class Unit:
    name: str
    domain: str
    contains: Callable[[float], bool]
    convert: Callable[[float], float]
    advice: str


def _logit(probability: float) -> float:
    return math.log(probability / (1.0 - probability))


def _same(value: float) -> float:
    return value


UNITS = {
    unit.name: unit
    for unit in (
        Unit(
            "probability",
            "a probability in (0, 1)",
            lambda v: 0.0 < v < 1.0,
            _logit,
            "pass a value between 0 and 1, or declare it as a logit",
        ),
        Unit("logit", "a finite number", math.isfinite, _same, "pass a finite number"),
        Unit("number", "a finite number", math.isfinite, _same, "pass a finite number"),
        Unit(
            "input",
            "a distance >= 0 in raw input units",
            lambda v: math.isfinite(v) and v >= 0.0,
            _same,
            "pass a finite number that is not negative",
        ),
        Unit(
            "rate",
            "a rate >= 0",
            lambda v: math.isfinite(v) and v >= 0.0,
            _same,
            "pass a finite number that is not negative",
        ),
    )
}


def unit(name: str, where: str | None = None) -> Unit:
    if name not in UNITS:
        raise FormulaError(
            f"unknown unit '{name}'",
            expected="a unit of the language",
            found=f"'{name}'",
            fix=suggest(name, sorted(UNITS)),
            where=where,
        )
    return UNITS[name]


def convert(name: str, unit_name: str, value: float, where: str | None = None) -> float:
    """The number that the formula sees for a parameter given in its unit."""
    kind = unit(unit_name, where)
    if not kind.contains(value):
        raise FormulaError(
            f"parameter '{name}' is outside its domain",
            expected=kind.domain,
            found=f"{value:g}",
            fix=kind.advice,
            where=where,
        )
    return kind.convert(value)
