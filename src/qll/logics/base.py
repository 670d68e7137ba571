"""The record of a logic: truth domain, direction, connectives, loss, and the laws it claims.

Connectives reduce the leading axis: operands are stacked as ``(n, ...)``. ``where`` marks the
operands that are there (True) in a padded stack; a masked operand takes no part in value or
gradient. Sign, scale and sigmoid belong to the logic, so nothing outside asks what kind it is.
"""

from __future__ import annotations

import enum
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from qll.errors import LogicError
from qll.formula.ground import flatten
from qll.formula.nodes import Formula
from qll.registry import Registry


class Direction(enum.Enum):
    LOWER_IS_TRUER = -1
    HIGHER_IS_TRUER = 1


class Negation(enum.Enum):
    OPERATION = "an operation on truth values"
    PUSHED_INWARD = "defined on formulas only, pushed to the comparisons"


class Law(enum.Enum):
    """Laws of the connectives that a logic may claim; tests check exactly those it claims."""

    ASSOCIATIVE = "and, or are associative"
    COMMUTATIVE = "and, or are commutative"
    MONOTONE = "and, or are monotone in every operand"
    UNITS = "top is neutral for and, bottom for or"
    IDEMPOTENT = "a and a = a = a or a"
    INVOLUTIVE = "not not a = a"
    DE_MORGAN = "not (a and b) = not a or not b"
    RESIDUATED = "a tensor b -o c = a -o (b -o c)"
    SOUND = "the Boolean reading holds iff the value is true"
    SHADOW_LIFTING = "partial derivatives are strictly positive at non-extremal values"


LOGICS: Registry[type[Logic]] = Registry("logic", "qll.logics")


class Logic(ABC):
    """Base of the records. A subclass is a frozen dataclass whose fields are its parameters."""

    name: ClassVar[str]
    direction: ClassVar[Direction]
    domain: ClassVar[tuple[float, float]]
    top: ClassVar[float]
    bottom: ClassVar[float]
    unit: ClassVar[float]
    negation: ClassVar[Negation] = Negation.OPERATION
    # A fuzzy or DL2 top is neutral for tensor; QLL's top lies beyond its unit.
    top_is_unit: ClassVar[bool] = True
    # ``a <= b`` depends on a - b alone, so that a bound of the difference serves.
    reads_differences: ClassVar[bool] = True
    # Degrees have a unit: comparisons are made in that of what they compare.
    counts_in_units: ClassVar[bool] = True
    laws: ClassVar[frozenset[Law]] = frozenset()

    @property
    def hardness(self) -> float:
        """The parameter that hardens ``and``/``or``; NaN for a logic without one."""
        return math.nan

    def harden(self, hardness: float) -> Logic:
        """The same logic at another hardness."""
        raise LogicError(
            f"{self.name} has no hardness",
            expected="a logic with a hardness: qll, stl, yager",
            found=self.name,
            fix="leave the hardness out, or choose another logic",
        )

    # --- readings ---

    @abstractmethod
    def leq(self, a: Tensor, b: Tensor) -> Tensor:
        """``a <= b`` for quantities."""

    @abstractmethod
    def conj(
        self, xs: Tensor, *, hardness: float | None = None, where: Tensor | None = None
    ) -> Tensor:
        """What ``and`` is trained as."""

    @abstractmethod
    def disj(
        self, xs: Tensor, *, hardness: float | None = None, where: Tensor | None = None
    ) -> Tensor:
        """What ``or`` is trained as."""

    @abstractmethod
    def loss(self, value: Tensor) -> Tensor:
        """The number that training minimises."""

    @abstractmethod
    def implies(self, a: Tensor, b: Tensor) -> Tensor:
        """``a -o b`` between degrees."""

    def tensor(self, xs: Tensor, *, where: Tensor | None = None) -> Tensor:
        return self.conj(xs, where=where)

    def par(self, xs: Tensor, *, where: Tensor | None = None) -> Tensor:
        return self.disj(xs, where=where)

    def meet(self, xs: Tensor) -> Tensor:
        """The non-linear conjunction of the paper's table, where it is not the trained one."""
        return self.conj(xs)

    def join(self, xs: Tensor) -> Tensor:
        return self.disj(xs)

    def negate(self, a: Tensor) -> Tensor:
        raise LogicError(
            f"{self.name} has no negation of a degree",
            expected="a formula whose negations stand at comparisons",
            found="a negation of a truth value",
            fix="write 'not' in the formula: it is pushed to the comparisons",
        )

    def slack(self, root: Formula) -> tuple[float, float]:
        """``(a, b)`` with the hard value in ``[soft - a, soft + b]``, for a ground formula."""
        raise LogicError(
            f"{self.name} has no bound between its soft and its hard value",
            expected="a logic with such a bound: qll",
            found=self.name,
            fix="pass logic=qll.QLL(p=5)",
        )

    def prepare(self, root: Formula) -> Formula:
        """The ground formula as this logic evaluates it: flat, where nesting does not matter."""
        return flatten(root) if Law.ASSOCIATIVE in self.laws else root

    def kernel(self) -> tuple[Mapping[str, Callable[..., None]], tuple[float, ...]] | None:
        """Scalar functions for the compiled path (see ``qll.kernels.formula``); None: autograd."""
        return None

    # --- the record as text ---

    def vehicle(self) -> Mapping[str, str]:
        """The fields of this logic as a ``DifferentiableTensorLogic`` of Vehicle (0.28)."""
        raise LogicError(
            f"{self.name} is not written as a logic of Vehicle",
            expected="a logic that is: qll",
            found=self.name,
            fix="export qll:5; Vehicle has a DL2 of its own",
        )

    @classmethod
    def from_text(cls, arguments: str) -> Logic:
        """``5`` or ``p=5,comparison=relu``: values in the order of the fields, or by name."""
        known = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
        values: dict[str, Any] = {}
        for position, item in enumerate(part for part in arguments.split(",") if part):
            key, _, text = item.rpartition("=")
            name = key.strip() or (list(known)[position] if position < len(known) else "")
            if name not in known:
                raise LogicError(
                    f"{cls.name} has no parameter '{name or item}'",
                    expected=f"parameters: {', '.join(known) or 'none'}",
                    found=f"'{item}'",
                    fix=f"write {cls.name}" + (f":{'VALUE'}" if known else ""),
                )
            values[name] = _number(text.strip())
        return cls(**values)

    def spec(self) -> str:
        """The text that ``logic`` reads back to this record: ``qll:5``."""
        plain: list[str] = []
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if value != field.default or not plain:
                text = repr(value).removesuffix(".0") if isinstance(value, float) else str(value)
                plain.append(text if not plain else f"{field.name}={text}")
        return ":".join([self.name, ",".join(plain)]) if plain else self.name


def logic(text: str | Logic) -> Logic:
    """``qll:5``, ``stl:2``, ``dl2``, ``yager:2``, ``goedel`` …; a record passes through."""
    if isinstance(text, Logic):
        return text
    name, _, arguments = text.partition(":")
    joined = re.fullmatch(r"([a-z]+?)([\d.]+|inf)", name.strip().lower())
    if joined is not None and joined[1] in LOGICS and name.strip().lower() not in LOGICS:
        raise LogicError(
            f"unknown logic '{name}'",
            expected="a logic, a colon and its number",
            found=f"'{name}'",
            fix=f"write {joined[1]}:{joined[2]}",
        )
    return LOGICS[name.strip().lower()].from_text(arguments)


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def positive(value: float, logic_name: str, parameter: str, *, infinite: bool = True) -> float:
    """Checks a hardness-like parameter."""
    good = isinstance(value, float | int) and value > 0 and (infinite or math.isfinite(value))
    if not good:
        shown = f"{value:g}" if isinstance(value, float | int) else repr(value)
        raise LogicError(
            f"{parameter} of {logic_name} is out of range",
            expected=f"a number > 0{' or inf' if infinite else ''}",
            found=shown,
            fix=f"pass {parameter}=5, say",
        )
    return float(value)


def choice(value: str, logic_name: str, parameter: str, options: Iterable[str]) -> str:
    options = list(options)
    if value not in options:
        raise LogicError(
            f"{parameter} of {logic_name} is unknown",
            expected=" or ".join(f"'{o}'" for o in options),
            found=f"{value!r}",
            fix=f"pass {parameter}={options[0]!r}",
        )
    return value


def fill(xs: Tensor, where: Tensor | None, value: float) -> Tensor:
    return xs if where is None else torch.where(where, xs, value)


def resolve(total: Tensor, value: float) -> Tensor:
    """``inf - inf`` between truth values becomes ``value`` instead of NaN.

    Operands are truth values, so a NaN here has no other origin.
    """
    if not bool(torch.isnan(total.detach()).any()):
        return total
    return torch.where(torch.isnan(total), value, total)


def with_parameter(record: Logic, name: str, value: float) -> Logic:
    return replace(record, **{name: value})  # type: ignore[type-var]
