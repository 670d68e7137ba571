"""How far the soft value of a formula may be from the hard one, and the hard form itself.

Bottom-up pairs ``(a, b)`` with ``hard in [soft - a, soft + b]``: an n-ary ``and`` at hardness p
exceeds the maximum by at most ``log(n) / p``, an n-ary ``or`` is below the minimum by as much,
implication adds the slacks crosswise, tensor and par add them.
"""

from __future__ import annotations

import math
from typing import Any

from qll.errors import FormulaError
from qll.formula.fold import fold
from qll.formula.ground import Atom, difference, out_of_range
from qll.formula.hard import (
    MAX_FORM_LEAVES,
    SATISFIED,
    VIOLATED,
    HardForm,
    Max,
    Min,
    leaves,
    negated,
    plus,
)
from qll.formula.nodes import Connective, Constant, Formula, Implies

Slack = tuple[float, float]


def slack(root: Formula, hardness: float, atom: Slack = (0.0, 0.0)) -> Slack:
    """``(a, b)`` of a ground formula; ``atom`` is the slack of a comparison by itself."""

    def visit(node: Any, parts: list[Slack]) -> Slack:
        match node:
            case Atom():
                return atom
            case Constant():
                return (0.0, 0.0)
            case Connective(kind, _, own):
                above, below = max(p[0] for p in parts), max(p[1] for p in parts)
                if kind in ("tensor", "par"):
                    return (sum(p[0] for p in parts), sum(p[1] for p in parts))
                extra = math.log(len(parts)) / (hardness if own is None else own)
                return (above + extra, below) if kind == "and" else (above, below + extra)
            case Implies():
                (a_left, b_left), (a_right, b_right) = parts
                return (a_right + b_left, b_right + a_left)
        raise TypeError(f"no slack for {type(node).__name__}")

    return fold(root, visit)


def hard_form(root: Formula) -> HardForm:
    """The max/min tree of a ground formula: satisfied iff its value is <= 0."""

    def visit(node: Any, parts: list[HardForm]) -> HardForm:
        match node:
            case Atom(left, right):
                return difference(left, right)
            case Constant(kind):
                return SATISFIED if kind == "top" else VIOLATED
            case Connective("and"):
                return Max(tuple(parts))
            case Connective("or"):
                return Min(tuple(parts))
            case Connective():
                total = parts[0]
                for part in parts[1:]:
                    total = _add(total, part, node)
                return total
            case Implies():
                return _add(parts[1], negated(parts[0]), node)
        raise TypeError(f"no hard form for {type(node).__name__}")

    return fold(root, visit)


def _add(left: HardForm, right: HardForm, node: Formula) -> HardForm:
    size = leaves(left) * leaves(right)
    if size > MAX_FORM_LEAVES:
        raise FormulaError(
            "this linear connective multiplies out to too many cases",
            expected=f"at most {MAX_FORM_LEAVES:,}",
            found=f"{size:,}",
            fix="use '->', 'and' or 'or' between formulas that have many parts",
            where=str(node.span) if node.span else None,
        )
    try:
        return plus(left, right)
    except OverflowError as error:
        raise out_of_range("the sum of quotients in this connective", node.span) from error
