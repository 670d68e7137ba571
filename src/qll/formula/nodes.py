"""The nodes of the language: frozen dataclasses of two sorts.

A *quantity* is a number (an output, an input, a constant, an affine combination of them); a
*formula* is a degree of violation. Comparisons turn quantities into formulas, nothing turns a
formula into a quantity. Spans say where a node stood in the text and take no part in equality, so
that a formula built in Python equals the one read from text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from qll.errors import FormulaError


@dataclass(frozen=True)
class Span:
    """A place in a text: file (or ``<text>``), line and column, both from 1."""

    source: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}"


def _span() -> Span | None:
    return field(default=None, compare=False, repr=False, kw_only=True)


# What operators and ``repr`` do is defined by modules that import this one (`qll.formula.build`,
# `qll.formula.show`; the package imports both): they enter it here by name.
DEFINED: dict[str, Callable[..., Any]] = {}
Defined = TypeVar("Defined", bound=Callable[..., Any])


def defines(function: Defined) -> Defined:
    DEFINED[function.__name__] = function
    return function


class Text:
    """Its ``repr`` is what stands in a text, not the tree: ``parse`` reads it back."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(DEFINED["text"](self))


# --- indices ------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Index(Text):
    """An integer, an index variable plus an integer, or the declared name of an output or input:
    ``3``, ``i + 1``, ``"cat"``."""

    name: str | None
    offset: int = 0
    quoted: str | None = None
    span: Span | None = _span()


@dataclass(frozen=True, repr=False)
class IndexSet(Text):
    """A named set (declared, or ``outputs`` / ``inputs``) or the tuples themselves: of integers and
    of declared names of outputs or inputs."""

    name: str | None = None
    items: tuple[tuple[int | str, ...], ...] = ()
    span: Span | None = _span()


IndexOperator = Literal["==", "!=", "<", "<=", ">", ">=", "in", "not in"]


@dataclass(frozen=True, repr=False)
class IndexCondition(Text):
    """One condition of a ``where``: it compares indices, never tensors."""

    operator: IndexOperator
    left: Index
    right: Index | IndexSet


@dataclass(frozen=True, repr=False)
class IndexBinder(Text):
    names: tuple[str, ...]
    domain: IndexSet
    span: Span | None = _span()


# --- quantities ---------------------------------------------------------------------------------

Source = Literal["y", "x", "x0", "y0", "x2", "y2"]
SOURCES: tuple[Source, ...] = ("y", "x", "x0", "y0", "x2", "y2")
INPUT_SOURCES: frozenset[str] = frozenset({"x", "x0", "x2"})


class Node(Text):
    """Root of everything in a formula. Operators build what `qll.formula.build` says."""

    __slots__ = ()
    span: Span | None

    def __bool__(self) -> bool:
        raise _truth_of(self)


class Quantity(Node):
    __slots__ = ()

    def __add__(self, other: Quantity | float) -> Quantity:
        return _quantity("add", self, other)

    def __radd__(self, other: float) -> Quantity:
        return _quantity("add", other, self)

    def __sub__(self, other: Quantity | float) -> Quantity:
        return _quantity("add", self, _quantity("negate", other))

    def __rsub__(self, other: float) -> Quantity:
        return _quantity("add", other, _quantity("negate", self))

    def __mul__(self, other: Quantity | float) -> Quantity:
        return _quantity("multiply", self, other)

    def __rmul__(self, other: float) -> Quantity:
        return _quantity("multiply", other, self)

    def __truediv__(self, other: Quantity | float) -> Quantity:
        return _quantity("divide", self, other)

    def __neg__(self) -> Quantity:
        return _quantity("negate", self)

    def __le__(self, other: Quantity | float) -> Formula:
        return Compare("<=", self, _quantity("quantity", other))

    def __ge__(self, other: Quantity | float) -> Formula:
        return Compare(">=", self, _quantity("quantity", other))

    def __lt__(self, other: Quantity | float) -> Formula:
        return Compare("<", self, _quantity("quantity", other))

    def __gt__(self, other: Quantity | float) -> Formula:
        return Compare(">", self, _quantity("quantity", other))


def _quantity(name: str, *operands: Quantity | float) -> Quantity:
    whole = DEFINED["quantity"]
    found: Quantity = DEFINED[name](*(whole(operand) for operand in operands))
    return found


class Formula(Node):
    __slots__ = ()

    def __and__(self, other: Formula) -> Formula:
        found: Formula = DEFINED["extend"]("and", self, other)
        return found

    def __or__(self, other: Formula) -> Formula:
        found: Formula = DEFINED["extend"]("or", self, other)
        return found

    def __invert__(self) -> Formula:
        return Not(self)

    def __rshift__(self, other: Formula) -> Formula:
        """``a >> b`` is the linear implication ``a -o b``."""
        return Implies("linear", self, other)

    def implies(self, other: Formula) -> Formula:
        """Material implication, ``not self or other``."""
        return Implies("material", self, other)


def _truth_of(node: Node) -> FormulaError:
    return FormulaError(
        "a formula has no truth value in Python",
        expected="'&', '|', '~' and separate comparisons",
        found="'and', 'or', 'not', 'if' or a chained comparison",
        fix="write (a <= b) & (b <= c) instead of a <= b <= c, and ~a instead of not a",
    )


@dataclass(frozen=True, repr=False)
class Number(Quantity):
    value: float
    span: Span | None = _span()


@dataclass(frozen=True, repr=False)
class Parameter(Quantity):
    name: str
    span: Span | None = _span()


@dataclass(frozen=True, repr=False)
class Entry(Quantity):
    """One entry of an input or output vector: ``y[i]``, ``x[0, 3, 4]``."""

    source: Source
    indices: tuple[Index, ...]
    span: Span | None = _span()


@dataclass(frozen=True, repr=False)
class Sum(Quantity):
    parts: tuple[Quantity, ...]
    span: Span | None = _span()


@dataclass(frozen=True, repr=False)
class Scale(Quantity):
    """A constant times a quantity. The factor speaks of no input and no output."""

    factor: Quantity
    body: Quantity
    span: Span | None = _span()


@dataclass(frozen=True, repr=False)
class Divide(Quantity):
    """A quantity over a number that is not 0, where the quotient is not a float: ``y[0]/3``."""

    body: Quantity
    divisor: float
    span: Span | None = _span()


@dataclass(frozen=True, repr=False)
class QuantityReference(Quantity):
    """Use of a definition whose body is a quantity."""

    name: str
    arguments: tuple[Index, ...]
    span: Span | None = _span()


# --- formulas -----------------------------------------------------------------------------------

Comparator = Literal["<=", ">=", "<", ">", "=="]
ConnectiveKind = Literal["and", "or", "tensor", "par"]
ConstantKind = Literal["top", "bottom", "unit"]


@dataclass(frozen=True, repr=False)
class Compare(Formula):
    operator: Comparator
    left: Quantity
    right: Quantity
    span: Span | None = _span()


@dataclass(frozen=True, repr=False)
class Constant(Formula):
    kind: ConstantKind
    span: Span | None = _span()


@dataclass(frozen=True, repr=False)
class Label(Formula):
    """Class ``index`` is a true label of the data point. Crisp: rewritten away before tensors."""

    index: Index
    span: Span | None = _span()


@dataclass(frozen=True, repr=False)
class Not(Formula):
    body: Formula
    span: Span | None = _span()


@dataclass(frozen=True, repr=False)
class Connective(Formula):
    """n-ary; ``hardness`` (and/or only) overrides that of the logic."""

    kind: ConnectiveKind
    parts: tuple[Formula, ...]
    hardness: float | None = None
    span: Span | None = _span()


@dataclass(frozen=True, repr=False)
class Implies(Formula):
    """``linear``: by degrees, the paper's; ``material``: ``not left or right``."""

    kind: Literal["linear", "material"]
    left: Formula
    right: Formula
    span: Span | None = _span()


@dataclass(frozen=True, repr=False)
class Quantified(Formula):
    """A finite quantifier: unfolds to one n-ary connective over all bindings."""

    kind: Literal["forall", "exists"]
    binders: tuple[IndexBinder, ...]
    body: Formula
    conditions: tuple[IndexCondition, ...] = ()
    hardness: float | None = None
    span: Span | None = _span()


@dataclass(frozen=True, repr=False)
class FormulaReference(Formula):
    """Use of a definition whose body is a formula."""

    name: str
    arguments: tuple[Index, ...]
    span: Span | None = _span()


# --- regions ------------------------------------------------------------------------------------


class RegionPart(Text):
    __slots__ = ()
    span: Span | None


@dataclass(frozen=True, repr=False)
class Ball(RegionPart):
    """A ball in raw input units around ``x0`` (or, for ``x2``, around ``x``): one radius, one for
    each input, or one for each of those ``at`` which it is given; the others stay. In the norms
    ``l1`` and ``l2`` there is one radius, and the centre is ``x0``."""

    centre: Literal["x0", "x"]
    radius: tuple[Quantity, ...]
    at: tuple[Index, ...] = ()
    norm: Literal["", "l1", "l2"] = ""
    span: Span | None = _span()


@dataclass(frozen=True, repr=False)
class Box(RegionPart):
    """Every coordinate between two constants, or between two lists of constants."""

    lower: tuple[Quantity, ...]
    upper: tuple[Quantity, ...]
    kind: Literal["box", "range"] = "box"  # "range" is the valid range of the data
    span: Span | None = _span()


@dataclass(frozen=True, repr=False)
class Linear(RegionPart):
    """A linear constraint on the inputs: a comparison, or a ``forall`` over comparisons."""

    formula: Formula
    span: Span | None = _span()


@dataclass(frozen=True, repr=False)
class Whole(RegionPart):
    """``integer(x)``: every input is a whole number; ``integer(x[3], x[4])``: these are."""

    point: Literal["x", "x2"]
    entries: tuple[Entry, ...] = ()
    span: Span | None = _span()


@dataclass(frozen=True, repr=False)
class Member(RegionPart):
    """``x[3] in {0, 1}``: an input that has one of these values."""

    entry: Entry
    values: tuple[Quantity, ...]
    span: Span | None = _span()


@dataclass(frozen=True, repr=False)
class OneHot(RegionPart):
    """``one_hot(x[3], x[4], x[5])``: one of these inputs is 1, the others are 0."""

    entries: tuple[Entry, ...]
    span: Span | None = _span()


@dataclass(frozen=True, repr=False)
class PointBinder(Text):
    """The outer quantifier: ``forall x in <parts>``."""

    point: Literal["x", "x2"]
    parts: tuple[RegionPart, ...]
    span: Span | None = _span()


# --- the whole file -----------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class ParameterDeclaration(Text):
    name: str
    unit: str
    default: float
    span: Span | None = _span()


EntryKind = Literal["outputs", "inputs"]


@dataclass(frozen=True, repr=False)
class NameDeclaration(Text):
    """``outputs cat, dog`` or ``inputs weight, year``: what the entries are called, in order."""

    kind: EntryKind
    names: tuple[str, ...]
    span: Span | None = _span()


@dataclass(frozen=True, repr=False)
class SetDeclaration(Text):
    name: str
    domain: IndexSet
    span: Span | None = _span()


@dataclass(frozen=True, repr=False)
class Definition(Text):
    name: str
    arguments: tuple[str, ...]
    body: Node
    span: Span | None = _span()


@dataclass(frozen=True, repr=False)
class Specification(Text):
    """One property as written: declarations, the region, the formula. ``outputs`` is their number,
    which follows from their ``names`` where these are declared."""

    formula: Formula
    binders: tuple[PointBinder, ...] = ()
    parameters: tuple[ParameterDeclaration, ...] = ()
    sets: tuple[SetDeclaration, ...] = ()
    definitions: tuple[Definition, ...] = ()
    outputs: int | None = None
    documentation: str = field(default="", compare=False)
    name: str = field(default="<text>", compare=False)
    names: tuple[NameDeclaration, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        if self.outputs is None:
            for declared in self.names:
                if declared.kind == "outputs":
                    object.__setattr__(self, "outputs", len(declared.names))
