"""Smart constructors. The parser and the Python operators both go through here, which is why text
and Python build the same nodes.

    >>> from qll.formula.build import forall, indices, label, y
    >>> i, c = indices("i c")
    >>> robust = forall(c, "outputs",
    ...     label(c) >> forall(i, "outputs", y[c] >= y[i], where=[differ(i, c)]))
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeAlias

from qll.errors import FormulaError
from qll.formula.fold import fold, walk
from qll.formula.hard import ONE, Exact, exact, multiplied, nearest
from qll.formula.nodes import (
    Ball,
    Box,
    Compare,
    Connective,
    ConnectiveKind,
    Constant,
    Divide,
    Entry,
    Formula,
    Index,
    IndexBinder,
    IndexCondition,
    IndexOperator,
    IndexSet,
    Label,
    Linear,
    Node,
    Number,
    Parameter,
    PointBinder,
    Quantified,
    Quantity,
    QuantityReference,
    RegionPart,
    Scale,
    Source,
    Span,
    Sum,
    defines,
)

# --- quantities ---------------------------------------------------------------------------------


@defines
def quantity(value: Quantity | float | int) -> Quantity:
    if isinstance(value, Quantity):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Number(float(value))
    raise FormulaError(
        "this is not a quantity",
        expected="a number, an entry such as y[0], or a sum of them",
        found=f"{type(value).__name__}",
        fix="compare quantities first: only a comparison is a formula",
    )


def is_constant(value: Quantity) -> bool:
    """Speaks of no input and no output. A definition may, so a use of one counts as variable."""
    return not any(isinstance(node, Entry | QuantityReference) for node in walk(value))


def _terms(value: Quantity) -> tuple[Quantity, ...]:
    return value.parts if isinstance(value, Sum) else (value,)


@defines
def add(*values: Quantity, span: Span | None = None) -> Quantity:
    return Sum(tuple(term for value in values for term in _terms(value)), span=span)


@defines
def negate(value: Quantity, span: Span | None = None) -> Quantity:
    match value:
        case Number(v):
            return Number(-v, span=span)
        case Scale(Number(v), body):
            return Scale(Number(-v), body, span=span)
        case _:
            return Scale(Number(-1.0), value, span=span)


@defines
def multiply(left: Quantity, right: Quantity, span: Span | None = None) -> Quantity:
    if isinstance(left, Number) and isinstance(right, Number):
        value = left.value * right.value
        if _is_exact(value, left.value, right.value, ONE):
            return Number(value, span=span)
    if is_constant(left):
        return Scale(left, right, span=span)
    if is_constant(right):
        return Scale(right, left, span=span)
    raise FormulaError(
        "this multiplies two variables",
        expected="a constant times a quantity: quantities are affine",
        found="a product of two quantities that both depend on inputs or outputs",
        fix="rewrite the property with comparisons of affine quantities",
        where=str(span) if span else None,
    )


@defines
def divide(left: Quantity, right: Quantity, span: Span | None = None) -> Quantity:
    match left, right:
        case Number(over), Number(by) if by and _is_exact(over / by, over, ONE, by):
            return Number(over / by, span=span)
        case _, Number(by) if by and _is_exact(1.0 / by, ONE, ONE, by):
            return Scale(Number(1.0 / by), left, span=span)
        case _, Number(by) if by:
            return Divide(left, by, span=span)
        case _, Divide(body, divisor) if literal(body) is not None:  # a / (b / c)
            return divide(multiply(Number(divisor), left), body, span)
        case _, Scale(factor, body) if literal(right) is not None:
            return divide(divide(left, factor), body, span)
    raise FormulaError(
        "this division is not by a number",
        expected="a non-zero number as divisor",
        found="zero" if isinstance(right, Number) else "a quantity",
        fix="multiply both sides of the comparison instead",
        where=str(span) if span else None,
    )


def _is_exact(value: float, left: float | Fraction, right: float | Fraction, by: Any) -> bool:
    """Whether ``value`` is ``left * right / by`` without rounding; an infinity is left as it is."""
    if not all(map(math.isfinite, (left, right, by))):
        return True
    return math.isfinite(value) and Fraction(value) * Fraction(by) == Fraction(left) * Fraction(
        right
    )


def literal(value: Quantity) -> float | None:
    """The number that products and quotients of numbers stand for, rounded once; else None.

    >>> literal(divide(Number(4.0), Number(255.0)))
    0.01568627450980392
    """
    match value:
        case Number(number):
            return number
        case Scale() | Divide() if all(isinstance(n, Number | Scale | Divide) for n in walk(value)):
            return nearest(fold(value, _literal))
    return None


def _literal(node: Any, parts: list[Exact]) -> Exact:
    match node:
        case Number(value):
            return exact(value)
        case Divide(_, divisor):
            return multiplied(parts[0], 1 / Fraction(divisor))
        case _:
            return multiplied(*parts)


class Vector:
    """``y[i]``, ``y["cat"]``, ``x[0, 3, 4]``: entries of an input or output vector."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __getitem__(self, at: int | str | Index | tuple[int | Index, ...]) -> Entry:
        return Entry(
            self._source, tuple(_index(i) for i in (at if isinstance(at, tuple) else (at,)))
        )

    def __repr__(self) -> str:
        return self._source


y, x, x0, y0, x2, y2 = (Vector(s) for s in ("y", "x", "x0", "y0", "x2", "y2"))


def parameter(name: str) -> Parameter:
    return Parameter(name)


# --- formulas -----------------------------------------------------------------------------------

top, bottom, unit = Constant("top"), Constant("bottom"), Constant("unit")


def label(index: int | str | Index) -> Label:
    """Class ``index`` is a true label: ``label(3)``, ``label("cat")``, ``label(c)``."""
    return Label(_index(index))


def equal(left: Quantity | float, right: Quantity | float) -> Formula:
    """``left == right`` (Python's own ``==`` compares nodes)."""
    return Compare("==", quantity(left), quantity(right))


@defines
def extend(kind: ConnectiveKind, left: Formula, right: Formula) -> Formula:
    """``a & b & c`` is one ternary conjunction, as ``a and b and c`` is in text.

    Python cannot see parentheses on the left, so a conjunction there is extended; to keep
    ``(a and b) and c`` nested, write ``all_of(all_of(a, b), c)``.
    """
    if isinstance(left, Connective) and left.kind == kind and left.hardness is None:
        return Connective(kind, (*left.parts, right))
    return Connective(kind, (left, right))


def all_of(*parts: Formula, hardness: float | None = None) -> Formula:
    return Connective("and", parts, hardness)


def any_of(*parts: Formula, hardness: float | None = None) -> Formula:
    return Connective("or", parts, hardness)


def tensor(*parts: Formula) -> Formula:
    return Connective("tensor", parts)


def par(*parts: Formula) -> Formula:
    return Connective("par", parts)


def chain(operands: Sequence[Quantity], comparators: Sequence[str], span: Span | None) -> Formula:
    """``a <= b <= c``: the conjunction of its neighbours."""
    links: list[Formula] = [
        Compare(operator, left, right, span=span)  # type: ignore[arg-type]
        for operator, left, right in zip(comparators, operands[:-1], operands[1:], strict=True)
    ]
    return links[0] if len(links) == 1 else Connective("and", tuple(links), span=span)


# --- index sets and finite quantifiers ----------------------------------------------------------

# One index, the declared name of an output or input, or a tuple of them.
Member: TypeAlias = int | str | tuple[int | str, ...]


def _index(value: int | str | Index) -> Index:
    if isinstance(value, Index):
        return value
    return Index(None, quoted=value) if isinstance(value, str) else Index(None, int(value))


def indices(names: str) -> tuple[Index, ...]:
    """``i, j = indices("i j")``"""
    return tuple(Index(name) for name in names.split())


def index_set(items: Iterable[Member], span: Span | None = None) -> IndexSet:
    """``index_set([0, 2])``, ``index_set(["cat", "dog"])``, ``index_set([(0, 5), (1, 4)])``."""
    return IndexSet(None, tuple(i if isinstance(i, tuple) else (i,) for i in items), span=span)


def _domain(over: str | IndexSet | Iterable[Member]) -> IndexSet:
    if isinstance(over, str):
        return IndexSet(over)
    return over if isinstance(over, IndexSet) else index_set(over)


def condition(
    left: Index, operator: IndexOperator, right: int | str | Index | IndexSet
) -> IndexCondition:
    return IndexCondition(operator, left, right if isinstance(right, IndexSet) else _index(right))


def differ(left: Index, right: int | str | Index) -> IndexCondition:
    """``left != right``, for ``where``."""
    return condition(left, "!=", right)


def _quantified(
    kind: str,
    names: Index | Sequence[Index],
    over: str | IndexSet | Iterable[Member],
    body: Formula,
    where: Sequence[IndexCondition],
    hardness: float | None,
) -> Formula:
    bound = (names,) if isinstance(names, Index) else tuple(names)
    binder = IndexBinder(tuple(i.name or "" for i in bound), _domain(over))
    return Quantified(kind, (binder,), body, tuple(where), hardness)  # type: ignore[arg-type]


def forall(
    names: Index | Sequence[Index],
    over: str | IndexSet | Iterable[Member],
    body: Formula,
    *,
    where: Sequence[IndexCondition] = (),
    hardness: float | None = None,
) -> Formula:
    return _quantified("forall", names, over, body, where, hardness)


def exists(
    names: Index | Sequence[Index],
    over: str | IndexSet | Iterable[Member],
    body: Formula,
    *,
    where: Sequence[IndexCondition] = (),
    hardness: float | None = None,
) -> Formula:
    return _quantified("exists", names, over, body, where, hardness)


# --- regions ------------------------------------------------------------------------------------


def ball(
    radius: Quantity | float | Sequence[Quantity | float] | Mapping[int | str, Quantity | float],
    centre: str = "x0",
    norm: str = "",
) -> Ball:
    """One radius, one for each input, or of some by index or name: ``ball({"age": 2})``; in another
    norm than that of the largest entry: ``ball(0.5, norm="l2")``."""
    if norm:
        return Ball(centre, _bound(radius), (), norm)  # type: ignore[arg-type]
    if isinstance(radius, Mapping):
        sizes, at = tuple(map(quantity, radius.values())), tuple(map(_index, radius))
        return Ball(centre, sizes, at)  # type: ignore[arg-type]
    return Ball(centre, _bound(radius))  # type: ignore[arg-type]


def _bound(value: Quantity | float | Sequence[Quantity | float]) -> tuple[Quantity, ...]:
    values = value if isinstance(value, Sequence) else (value,)
    return tuple(quantity(v) for v in values)


def box(
    lower: Quantity | float | Sequence[Quantity | float],
    upper: Quantity | float | Sequence[Quantity | float],
) -> Box:
    return Box(_bound(lower), _bound(upper))


def valid_range(lower: Quantity | float, upper: Quantity | float) -> Box:
    return Box(_bound(lower), _bound(upper), "range")


def every(point: str, *parts: RegionPart | Formula) -> PointBinder:
    """``every("x", ball(0.2), valid_range(0, 1))``: the outer quantifier over a region."""
    return PointBinder(
        point,  # type: ignore[arg-type]
        tuple(part if isinstance(part, RegionPart) else Linear(part) for part in parts),
    )


def sort_of(node: Node) -> str:
    return "quantity" if isinstance(node, Quantity) else "formula"
