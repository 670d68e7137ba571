"""Trees of the grammar to nodes."""

from __future__ import annotations

import difflib
import math
from typing import Any

from lark import v_args

from qll.errors import FormulaError
from qll.formula import build
from qll.formula.check import MAX_OUTPUTS, wrong_outputs
from qll.formula.domain import (
    ScaleMark,
)
from qll.formula.names import declared_twice
from qll.formula.nodes import (
    Connective,
    Constant,
    Definition,
    Entry,
    EntryKind,
    Formula,
    FormulaReference,
    Implies,
    Index,
    IndexBinder,
    IndexCondition,
    IndexSet,
    Label,
    NameDeclaration,
    Node,
    Not,
    Number,
    Parameter,
    ParameterDeclaration,
    Quantified,
    Quantity,
    QuantityReference,
    SetDeclaration,
    Span,
    Specification,
)
from qll.formula.trees_base import ASCII, unquoted
from qll.formula.trees_region import RegionTrees
from qll.registry import suggest

# What may be meant by a name that is not known, beside the names that are.
_WORDS = ("domain", "ball", "box", "range", "integer", "one_hot", "label", "forall", "exists")
MAX_INDICES = 1_000_000  # that all the ranges of one text may hold together


@v_args(meta=True)
class Builder(RegionTrees):
    """Trees to nodes. Children come before parents and left before right, so declarations are
    known when the expressions after them are built."""

    # --- declarations ---

    def _declare(self, name: str, span: Span) -> None:
        if name in self._parameters or name in self._sets or name in self._definitions:
            raise FormulaError(
                f"'{name}' is declared twice",
                expected="one declaration for each name",
                found=f"a second declaration of '{name}'",
                fix="rename one of them",
                where=str(span),
            )

    def outputs_declaration(self, meta: Any, items: list[Any]) -> None:
        if self._outputs is not None:
            raise declared_twice("outputs", self._span(meta))
        if isinstance(items[0], tuple):
            self._name("outputs", meta, items[0])
            self._outputs = len(items[0])
            return
        self._outputs = self._integer(items[0])
        if not 1 <= self._outputs <= MAX_OUTPUTS:
            raise wrong_outputs(self._outputs, str(self._span(meta)))

    def inputs_declaration(self, meta: Any, items: list[Any]) -> None:
        self._name("inputs", meta, items[0])

    def _name(self, kind: EntryKind, meta: Any, names: tuple[str, ...]) -> None:
        if kind in self._names:
            raise declared_twice(kind, self._span(meta))
        self._names[kind] = NameDeclaration(kind, names, span=self._span(meta))

    def declared_names(self, meta: Any, items: list[Any]) -> tuple[str, ...]:
        return tuple(unquoted(item) for item in items)

    def parameter_declaration(self, meta: Any, items: list[Any]) -> None:
        name, unit, default = str(items[0]), str(items[1]), build.literal(self._quantity(items[2]))
        span = self._span(meta)
        self._declare(name, span)
        if default is None:
            raise FormulaError(
                f"the default of parameter '{name}' is not a number",
                expected="a number such as 0.2 or 4/255",
                found="an expression with names in it",
                fix="write the number itself",
                where=str(span),
            )
        self._parameters[name] = ParameterDeclaration(name, unit, default, span=span)

    def set_declaration(self, meta: Any, items: list[Any]) -> None:
        name, span = str(items[0]), self._span(meta)
        self._declare(name, span)
        self._sets[name] = SetDeclaration(name, items[1], span=span)

    def definition(self, meta: Any, items: list[Any]) -> None:
        name, span = str(items[0]), self._span(meta)
        self._declare(name, span)
        arguments = tuple(items[1]) if len(items) == 3 else ()
        self._definitions[name] = Definition(name, arguments, items[-1], span=span)

    def name_list(self, meta: Any, items: list[Any]) -> tuple[str, ...]:
        return tuple(str(item) for item in items)

    def start(self, meta: Any, items: list[Any]) -> Specification:
        parts = [item for item in items if item is not None]
        formula = self._formula(parts[-1])
        binders = parts[0] if len(parts) == 2 else ()
        self._no_scale(formula, binders)
        return Specification(
            formula,
            binders,
            tuple(self._parameters.values()),
            tuple(self._sets.values()),
            tuple(self._definitions.values()),
            self._outputs,
            self._documentation,
            self._source,
            names=tuple(self._names.values()),
        )

    # --- formulas ---

    def linear_implication(self, meta: Any, items: list[Any]) -> Formula:
        return self._implication("linear", meta, items)

    def material_implication(self, meta: Any, items: list[Any]) -> Formula:
        return self._implication("material", meta, items)

    def _implication(self, kind: Any, meta: Any, items: list[Any]) -> Formula:
        return Implies(
            kind, self._formula(items[0]), self._formula(items[2]), span=self._span(meta)
        )

    def _nary(self, kind: Any, meta: Any, items: list[Any]) -> Formula:
        parts = tuple(self._formula(item) for item in items[::2])
        hardness = {item[0] for item in items[1::2]}
        if len(hardness) > 1:
            raise FormulaError(
                f"one '{kind}' has several hardnesses",
                expected="the same hardness at every sign of one connective",
                found=", ".join(
                    "none" if h is None else f"{h:g}" for h in sorted(hardness, key=str)
                ),
                fix="put parentheses around the parts that share a hardness",
                where=str(self._span(meta)),
            )
        return Connective(kind, parts, hardness.pop(), span=self._span(meta))

    def nary_or(self, meta: Any, items: list[Any]) -> Formula:
        return self._nary("or", meta, items)

    def nary_and(self, meta: Any, items: list[Any]) -> Formula:
        return self._nary("and", meta, items)

    def or_sign(self, meta: Any, items: list[Any]) -> tuple[float | None]:
        return (items[1] if len(items) == 2 else None,)

    and_sign = or_sign

    def nary_par(self, meta: Any, items: list[Any]) -> Formula:
        return Connective("par", tuple(self._formula(i) for i in items), span=self._span(meta))

    def nary_tensor(self, meta: Any, items: list[Any]) -> Formula:
        return Connective("tensor", tuple(self._formula(i) for i in items), span=self._span(meta))

    def negation(self, meta: Any, items: list[Any]) -> Formula:
        return Not(self._formula(items[1]), span=self._span(meta))

    def quantified(self, meta: Any, items: list[Any]) -> Formula:
        kind: Any = "exists" if str(items[0]) in ("exists", "∃") else "forall"
        rest = items[1:]
        hardness = rest.pop(0) if isinstance(rest[0], float) else None
        binders = rest[0]
        conditions = rest[1] if len(rest) == 3 else ()
        return Quantified(
            kind, binders, self._formula(rest[-1]), conditions, hardness, span=self._span(meta)
        )

    def hardness(self, meta: Any, items: list[Any]) -> float:
        value = build.literal(self._quantity(items[0]))
        if value is None:
            raise FormulaError(
                "this hardness is not a number",
                expected="a number > 0 or inf",
                found="an expression",
                fix="write the number itself, such as and[5]",
                where=str(self._span(meta)),
            )
        return value

    def compared(self, meta: Any, items: list[Any]) -> Formula:
        operands = [self._quantity(item) for item in items[::2]]
        return build.chain(operands, items[1::2], self._span(meta))

    def comparator(self, meta: Any, items: list[Any]) -> str:
        return ASCII.get(str(items[0]), str(items[0]))

    def group(self, meta: Any, items: list[Any]) -> Node:
        return items[0]  # type: ignore[no-any-return]

    def constant(self, meta: Any, items: list[Any]) -> Formula:
        kind: Any = ASCII.get(str(items[0]), str(items[0]))
        return Constant(kind, span=self._span(meta))

    def label(self, meta: Any, items: list[Any]) -> Formula:
        return Label(items[1], span=self._span(meta))

    def name(self, meta: Any, items: list[Any]) -> Node:
        name, span = str(items[0]), self._span(meta)
        if name in self._parameters:
            return Parameter(name, span=span)
        if name in self._smalls:
            raise FormulaError(
                f"'{name}' stands where no parameter that moves can",
                expected=f"'{name}' in x = ..., and x where the rule speaks of what it does",
                found=f"'{name}' in a quantity",
                fix="compare entries of x, such as x[0] - x0[0]",
                where=str(span),
            )
        if name == "scale" and name not in self._definitions:
            return ScaleMark(span=span)
        return self._reference(name, (), span)

    def call(self, meta: Any, items: list[Any]) -> Node:
        return self._reference(str(items[0]), items[1], self._span(meta))

    def _reference(self, name: str, arguments: tuple[Index, ...], span: Span) -> Node:
        if name not in self._definitions:
            known = sorted([*self._parameters, *self._definitions])
            near = suggest(name, known) if known else "declare it with 'parameter' or 'define'"
            if meant := difflib.get_close_matches(name, [*known, *_WORDS], n=1, cutoff=0.7):
                near = f"did you mean '{meant[0]}'? Else {near}" if meant[0] in _WORDS else near
            raise FormulaError(
                f"unknown name '{name}'",
                expected="a parameter or a definition that stands above",
                found=f"'{name}'",
                fix=f"{near}; an index such as i stands only inside y[...] or label(...)",
                where=str(span),
            )
        definition = self._definitions[name]
        if len(arguments) != len(definition.arguments):
            raise FormulaError(
                f"'{name}' is used with the wrong number of indices",
                expected=f"{len(definition.arguments)}",
                found=f"{len(arguments)}",
                fix=f"see its definition at {definition.span}",
                where=str(span),
            )
        node = QuantityReference if isinstance(definition.body, Quantity) else FormulaReference
        return node(name, arguments, span=span)

    # --- indices ---

    def binders(self, meta: Any, items: list[Any]) -> tuple[IndexBinder, ...]:
        return tuple(items)

    def binder(self, meta: Any, items: list[Any]) -> IndexBinder:
        names = items[0] if isinstance(items[0], tuple) else (str(items[0]),)
        return IndexBinder(names, items[-1], span=self._span(meta))

    def where(self, meta: Any, items: list[Any]) -> tuple[IndexCondition, ...]:
        return tuple(item for item in items if isinstance(item, IndexCondition))

    def index_condition(self, meta: Any, items: list[Any]) -> IndexCondition:
        return IndexCondition(items[1], items[0], items[2])

    def set_condition(self, meta: Any, items: list[Any]) -> IndexCondition:
        return IndexCondition("in" if len(items) == 3 else "not in", items[0], items[-1])

    index_comparator = comparator

    def named_set(self, meta: Any, items: list[Any]) -> IndexSet:
        return IndexSet(str(items[0]), span=self._span(meta))

    def range_set(self, meta: Any, items: list[Any]) -> IndexSet:
        first, last = self._integer(items[0]), self._integer(items[1])
        self._ranged += last - first + 1
        if self._ranged > MAX_INDICES:
            raise FormulaError(
                "this range is too long",
                expected=f"at most {MAX_INDICES:,} indices in all ranges",
                found=f"{first}..{last}",
                fix="use a shorter range",
                where=str(self._span(meta)),
            )
        return build.index_set(range(first, last + 1), self._span(meta))

    def literal_set(self, meta: Any, items: list[Any]) -> IndexSet:
        return build.index_set(items, self._span(meta))

    def set_item(self, meta: Any, items: list[Any]) -> tuple[int | str, ...]:
        return tuple(items)

    def member(self, meta: Any, items: list[Any]) -> int | str:
        return self._integer(items[0]) if items[0].type == "INT" else unquoted(items[0])

    def index_list(self, meta: Any, items: list[Any]) -> tuple[Index, ...]:
        return tuple(items)

    def index_literal(self, meta: Any, items: list[Any]) -> Index:
        return Index(None, self._integer(items[0]), span=self._span(meta))

    def index_quoted(self, meta: Any, items: list[Any]) -> Index:
        return Index(None, quoted=unquoted(items[0]), span=self._span(meta))

    def index_name(self, meta: Any, items: list[Any]) -> Index:
        return Index(str(items[0]), span=self._span(meta))

    def index_shifted(self, meta: Any, items: list[Any]) -> Index:
        offset = self._integer(items[2]) * (1 if str(items[1]) == "+" else -1)
        return Index(str(items[0]), offset, span=self._span(meta))

    # --- quantities ---

    def addition(self, meta: Any, items: list[Any]) -> Quantity:
        terms = [self._quantity(item) for item in items[::2]]
        for k, sign in enumerate(items[1::2], start=1):
            if str(sign) == "-":
                terms[k] = build.negate(terms[k])
        return build.add(*terms, span=self._span(meta))

    def multiplication(self, meta: Any, items: list[Any]) -> Quantity:
        left, right = self._quantity(items[0]), self._quantity(items[2])
        combine = build.divide if str(items[1]) == "/" else build.multiply
        return combine(left, right, self._span(meta))

    def minus(self, meta: Any, items: list[Any]) -> Quantity:
        return build.negate(self._quantity(items[1]), self._span(meta))

    def number(self, meta: Any, items: list[Any]) -> Quantity:
        text = str(items[0])
        infinite = text in ("inf", "∞")
        value = math.inf if infinite else float(text)
        if math.isinf(value) and not infinite:
            raise FormulaError(
                "this number is too large",
                expected="a number below 1e308",
                found=text if len(text) < 20 else f"{len(text)} digits",
                fix="write inf if that is meant",
                where=str(self._span(meta)),
            )
        return Number(value, span=self._span(meta))

    def entry(self, meta: Any, items: list[Any]) -> Quantity:
        source: Any = ASCII.get(str(items[0]), str(items[0]))
        return Entry(source, items[1], span=self._span(meta))
