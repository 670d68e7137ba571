"""A reader of plain VNN-LIB files: a box on the inputs and linear atoms on inputs and outputs.

Taken: ``declare-const X_i/Y_j Real``, ``assert`` of ``<=`` and ``>=`` between linear terms, ``and``
and ``or``. A violation is an assignment that satisfies every assertion, ties included.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TypeAlias

import numpy as np

from qll.errors import InputError
from qll.formula.hard import ONE, ZERO, Affine, HardForm, Max, Min, Slot, affine
from qll.verify.condition import Array

Expression: TypeAlias = "str | list[Expression]"
_TOKEN = re.compile(r"\(|\)|[^\s()]+")
_NAME = re.compile(r"([XY])_(\d+)$")
MOST_TOKENS = 5_000_000
MOST_DEPTH = 100
MOST_INDEX = 10_000_000


@dataclass(frozen=True, eq=False)
class Specification:
    """The condition's value is > 0 or = 0 exactly at the assignments the file asks for."""

    lower: Array
    upper: Array
    condition: HardForm


def read_vnnlib(path: Path) -> Specification:
    try:
        return parse_vnnlib(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot read {path}",
            expected="a readable VNN-LIB file",
            found=str(error),
            fix="check the path",
        ) from error
    except InputError as error:
        raise error.at(str(path)) from error


def parse_vnnlib(text: str) -> Specification:
    statements = _parse(text)
    inputs = 0
    bounds: dict[int, list[float]] = {}
    formulas: list[HardForm] = []
    for statement in statements:
        match statement:
            case ["declare-const", str(name), "Real"]:
                kind, index = _slot(name)
                if kind == "x":
                    inputs = max(inputs, index + 1)
            case ["assert", body]:
                form = _formula(body)
                if isinstance(form, Affine) and len(form.terms) == 1 and form.terms[0][0][0] == "x":
                    _bound(form, bounds)
                else:
                    formulas.append(form)
            case _:
                raise _bad("a statement that we do not read", str(statement)[:80])
    lower, upper = np.full(inputs, -np.inf), np.full(inputs, np.inf)
    for index, (low, high) in bounds.items():
        if index >= inputs:
            raise _bad("a bound on an input that is not declared", f"X_{index}")
        lower[index], upper[index] = low, high
    # Every assertion must hold: the least of the slacks is >= 0.
    condition = formulas[0] if len(formulas) == 1 else Min(tuple(formulas))
    return Specification(lower, upper, condition)


def _bound(form: Affine, bounds: dict[int, list[float]]) -> None:
    """``coefficient * x + constant >= 0`` as an end of the box."""
    ((_, index), coefficient) = form.terms[0]
    ends = bounds.setdefault(index, [-np.inf, np.inf])
    end = float(-Fraction(form.constant) / coefficient)
    if coefficient > 0:
        ends[0] = max(ends[0], end)
    else:
        ends[1] = min(ends[1], end)


def _formula(body: Expression) -> HardForm:
    match body:
        case ["and", *parts]:
            return Min(tuple(_formula(part) for part in parts))
        case ["or", *parts]:
            return Max(tuple(_formula(part) for part in parts))
        case [">=", left, right]:
            return _difference(left, right)
        case ["<=", left, right]:
            return _difference(right, left)
    raise _bad("an assertion that we do not read", str(body)[:80])


def _difference(greater: Expression, smaller: Expression) -> Affine:
    terms, constant = _linear(greater, ONE)
    more, other = _linear(smaller, -ONE)
    return affine(terms + more, constant + other)


def _linear(term: Expression, sign: Fraction) -> tuple[list[tuple[Slot, Fraction]], Fraction]:
    match term:
        case str(text):
            if _NAME.match(text):
                return [(_slot(text), sign)], ZERO
            return [], sign * _number(text)
        case ["+", *parts]:
            found = [_linear(part, sign) for part in parts]
        case ["-", only]:
            return _linear(only, -sign)
        case ["-", head, *parts]:
            found = [_linear(head, sign), *(_linear(part, -sign) for part in parts)]
        case ["*", str(left), right] if not _NAME.match(left):
            return _linear(right, sign * _number(left))
        case ["*", left, str(right)] if not _NAME.match(right):
            return _linear(left, sign * _number(right))
        case _:
            raise _bad("a term that is not linear", str(term)[:80])
    return [t for terms, _ in found for t in terms], sum((c for _, c in found), ZERO)


def _slot(name: str) -> Slot:
    match = _NAME.match(name)
    if match is None:
        raise _bad("a name that is neither an input nor an output", name[:80])
    digits = match.group(2)
    if len(digits) > len(str(MOST_INDEX)) or int(digits) > MOST_INDEX:
        raise _bad("a number of an input or output that is too large", name[:80])
    return match.group(1).lower(), int(digits)


def _number(text: str) -> Fraction:
    try:
        value = float(text)
    except ValueError as error:
        raise _bad("a number that cannot be read", text[:80]) from error
    if not math.isfinite(value):
        raise _bad("a number that is not finite", text[:80])
    return Fraction(value)


def _parse(text: str) -> list[Expression]:
    stack: list[list[Expression]] = [[]]
    lines = (line.split(";", 1)[0] for line in text.splitlines())
    for count, token in enumerate(t for line in lines for t in _TOKEN.findall(line)):
        if count > MOST_TOKENS:
            raise _bad("a file that is too long", f"more than {MOST_TOKENS} tokens")
        if token == "(":  # noqa: S105
            stack.append([])
            if len(stack) > MOST_DEPTH:
                raise _bad("brackets nested too deeply", f"more than {MOST_DEPTH} levels")
        elif token == ")":  # noqa: S105
            if len(stack) < 2:
                raise _bad("a closing bracket without its opening one", "')'")
            done = stack.pop()
            stack[-1].append(done)
        else:
            stack[-1].append(token)
    if len(stack) != 1:
        raise _bad("a bracket that is not closed", "the end of the file")
    return stack[0]


def _bad(what: str, found: str) -> InputError:
    return InputError(
        f"the VNN-LIB text has {what}",
        expected="declarations of X_i and Y_j, and assertions of linear <= and >= with and, or",
        found=found,
        fix="rewrite the property in this fragment",
    )
