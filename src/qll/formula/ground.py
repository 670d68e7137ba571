"""Ground formulas: connectives and linear implications over atoms ``left <= right``.

What a specification becomes for one shape and one set of labels: no labels, no quantifiers, no
negation, no parameters. Constants are worked in as formulas are put together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from qll.errors import FormulaError
from qll.formula.fold import fold
from qll.formula.hard import Affine, Exact, Slot, added, affine, is_finite, is_usable
from qll.formula.nodes import Connective, ConnectiveKind, Constant, Formula, Implies, Span


@dataclass(frozen=True, repr=False)
class Atom(Formula):
    """``left <= right``. The sides stay as written: moving a term changes a fuzzy value."""

    left: Affine
    right: Affine
    span: Span | None = None


@dataclass(frozen=True, repr=False)
class Crisp(Formula):
    """A truth value made of labels alone. Beside a real degree a true one becomes ``unit``, or
    ``top`` where it is owed to a negated label (``strong``); a false one becomes ``bottom``."""

    truth: bool
    strong: bool = False
    span: Span | None = None


TOP, BOTTOM = Constant("top"), Constant("bottom")
DUAL: dict[str, ConnectiveKind] = {"and": "or", "or": "and", "tensor": "par", "par": "tensor"}
_ZERO = affine(())
UNIT_ATOM = Atom(_ZERO, _ZERO)  # value 0 by comparison: what the unit is in every logic
# False beyond doubt yet finite: a sigmoid of 1e4 is exactly 1 in floating point, of -1e4 exactly 0.
FALSE_ATOM = Atom(affine((), 1e4), affine((), -1e4))


def comparison(left: Affine, right: Affine, span: Span | None) -> Formula:
    """An atom; or a constant, where one side is infinite and the comparison is no question."""
    low, high = left.constant, right.constant
    numbers = [c for side in (left, right) for _, c in side.terms]
    for number in [*numbers, *(c for c in (low, high) if is_finite(c))]:
        if not is_usable(number):
            raise out_of_range("a number of this comparison", span)
    if math.isnan(low) or math.isnan(high):
        raise FormulaError(
            "this side of a comparison is inf - inf",
            expected="a number",
            found="an undefined difference",
            fix="remove one of the infinities",
            where=str(span) if span else None,
        )
    if low == -math.inf or high == math.inf:
        return TOP
    if low == math.inf or high == -math.inf:
        return BOTTOM
    return Atom(left, right)


def out_of_range(what: str, span: Span | None) -> FormulaError:
    return FormulaError(
        f"{what} is too large or too small",
        expected="0, or a size between 1e-307 and 8e307 once like terms are collected",
        found="a size beyond",
        fix="use numbers of a common size: both sides may be multiplied by one",
        where=str(span) if span else None,
    )


def degree(node: Formula) -> Formula:
    if not isinstance(node, Crisp):
        return node
    if not node.truth:
        return BOTTOM
    return TOP if node.strong else UNIT_ATOM


def is_decided(truth: bool, node: Formula) -> bool:
    """Decided already, by a constant or by labels."""
    if isinstance(node, Crisp):
        return node.truth == truth
    return node == (TOP if truth else BOTTOM)


def simplify(
    kind: ConnectiveKind,
    parts: list[Formula],
    hardness: float | None,
    *,
    top_is_unit: bool,
) -> Formula:
    """One connective with its constant parts worked in.

    ``and``/``or`` have neutral and absorbing constants in every logic. In ``tensor``/``par`` they
    depend on whether the logic's top is the unit of tensor (fuzzy, DL2) or beyond it (QLL, where
    top is -inf and absorbs everything but bottom).
    """
    crisp = [part for part in parts if isinstance(part, Crisp)]
    if len(crisp) == len(parts) and parts:
        truths = [part.truth for part in crisp]
        strong = [part.truth and part.strong for part in crisp]
        if kind in ("and", "tensor"):
            return Crisp(all(truths), strong=all(strong) if kind == "and" else any(strong))
        return Crisp(any(truths), strong=any(strong))
    operands = [degree(part) for part in parts]
    conjunctive = kind in ("and", "tensor")
    neutral, absorbing = (TOP, BOTTOM) if conjunctive else (BOTTOM, TOP)
    if absorbing in operands:
        return absorbing
    if neutral in operands and kind in ("tensor", "par") and not top_is_unit:
        return neutral
    rest = [part for part in operands if part != neutral]
    if kind in ("tensor", "par") and len(rest) > 1 and not top_is_unit:
        # 0 is neutral for both; elsewhere the unit is top, which decides a par, or no unit (STL)
        rest = [part for part in rest if part != UNIT_ATOM] or [UNIT_ATOM]
    if not rest:
        return neutral
    return rest[0] if len(rest) == 1 else Connective(kind, tuple(rest), hardness)


def has_empty_interior(node: Formula) -> bool:
    """Whether a ground premise cannot hold but on a boundary: ``f <= 0 and -f + k <= 0``, k >= 0.

    Pairs of opposite atoms are found, not every infeasible system; a verifier's premise that no
    point meets is still reported as vacuous there.
    """
    match node:
        case Atom(left, right):
            gap = difference(left, right)
            return not gap.terms and gap.constant > 0
        case Connective("and", parts):
            if any(has_empty_interior(part) for part in parts):
                return True
            gaps = [difference(a.left, a.right) for a in conjuncts(parts)]
            lowest: dict[tuple[tuple[Slot, Fraction], ...], Exact] = {}
            for gap in gaps:
                lowest[gap.terms] = max(lowest.get(gap.terms, gap.constant), gap.constant)
            for gap in gaps:
                opposite = tuple((slot, -c) for slot, c in gap.terms)
                if gap.terms and opposite in lowest and gap.constant + lowest[opposite] >= 0:
                    return True
            return False
        case Connective("or", parts):
            return all(has_empty_interior(part) for part in parts)
        case _:
            return False


def opposite(root: Formula) -> Formula:
    """The negation of a ground formula without linear implications, which are left as they are."""

    def visit(node: Any, parts: list[Formula]) -> Formula:
        match node:
            case Atom(left, right):
                return Atom(right, left)
            case Constant():
                return BOTTOM if node == TOP else TOP
            case Connective(kind):
                return Connective(DUAL[kind], tuple(parts))
            case _:
                return node  # type: ignore[no-any-return]

    return fold(root, visit)


def conjuncts(parts: Iterable[Formula]) -> list[Atom]:
    """The atoms of nested conjunctions (a disjunction among them says nothing by itself)."""
    found: list[Atom] = []
    stack = list(parts)
    while stack:
        node = stack.pop()
        if isinstance(node, Atom):
            found.append(node)
        elif isinstance(node, Connective) and node.kind == "and":
            stack.extend(node.parts)
    return found


def empty_premise(node: Formula) -> FormulaError:
    return FormulaError(
        "this premise can never hold, or only on a boundary",
        expected="a premise that holds on some open set of points",
        found="two comparisons that exclude each other",
        fix="correct the premise; an equation belongs into the region",
        where=str(node.span) if node.span else None,
    )


def flatten(root: Formula) -> Formula:
    """``and`` in ``and``, ``or`` in ``or``, at equal hardness: for logics that are associative."""

    def visit(node: Any, parts: list[Formula]) -> Formula:
        match node:
            case Connective(kind, _, hardness):
                flat: list[Formula] = []
                for part in parts:
                    if (
                        isinstance(part, Connective)
                        and part.kind == kind
                        and part.hardness == hardness
                    ):
                        flat.extend(part.parts)
                    else:
                        flat.append(part)
                return Connective(kind, tuple(flat), hardness)
            case Implies(kind):
                return Implies(kind, parts[0], parts[1])
            case _:
                return node  # type: ignore[no-any-return]

    return fold(root, visit)


def difference(left: Affine, right: Affine) -> Affine:
    """``left - right``: what QLL, DL2 and the hard reading make of an atom."""
    terms = [*left.terms, *((s, -c) for s, c in right.terms)]
    return affine(terms, added((left.constant, -right.constant)))
