"""Text to nodes."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from lark import Lark, Token, Tree, UnexpectedCharacters, UnexpectedEOF, UnexpectedToken, v_args
from lark.exceptions import LarkError, VisitError
from lark.visitors import Transformer_NonRecursive

from qll.errors import FormulaError
from qll.formula import build
from qll.formula.check import check
from qll.formula.nodes import (
    Ball,
    Box,
    Connective,
    Constant,
    Definition,
    Entry,
    Formula,
    FormulaReference,
    Implies,
    Index,
    IndexBinder,
    IndexCondition,
    IndexSet,
    Label,
    Linear,
    Node,
    Not,
    Number,
    Parameter,
    ParameterDeclaration,
    PointBinder,
    Quantified,
    Quantity,
    QuantityReference,
    SetDeclaration,
    Span,
    Specification,
)
from qll.registry import suggest

# A hostile or generated text fails with a message instead of exhausting memory or the stack.
MAX_CHARACTERS = 1_000_000
MAX_DEPTH = 150

_ASCII = {
    "≤": "<=",
    "≥": ">=",
    "≠": "!=",
    "·": "*",
    "⊤": "top",
    "⊥": "bottom",
    "𝟙": "unit",
    "x₀": "x0",
    "x₂": "x2",
    "y₀": "y0",
    "y₂": "y2",
}


def parse_specification(
    text: str, *, name: str = "<text>", outputs: int | None = None
) -> Specification:
    """Read a whole ``.qll`` text: declarations, region, formula.

    ``outputs`` fixes the number of outputs, so that indices are checked at once.
    """
    _check_size(text, name)
    try:
        tree = _grammar().parse(text)
    except UnexpectedEOF as error:
        raise _unexpected_end(text, name) from error
    except UnexpectedToken as error:
        if error.token.type == "$END":
            raise _unexpected_end(text, name) from error
        raise _unexpected(
            name, error.line, error.column, f"'{error.token}'", error.accepts or error.expected
        ) from error
    except UnexpectedCharacters as error:
        raise _unexpected(
            name, error.line, error.column, f"'{error.char}'", error.allowed or set()
        ) from error
    _check_depth(tree, name)
    try:
        specification = _Builder(name, _documentation(text)).transform(tree)
    except VisitError as error:
        if isinstance(error.orig_exc, FormulaError):
            raise error.orig_exc from None
        raise
    except LarkError as error:  # pragma: no cover - the grammar leaves no other case
        raise FormulaError(
            "this text cannot be read",
            expected="a property",
            found=str(error).splitlines()[0],
            fix="see 'qll show' for examples of the language",
            where=name,
        ) from error
    check(specification, outputs=outputs)
    return specification  # type: ignore[no-any-return]


@cache
def _grammar() -> Lark:
    text = resources.files("qll.formula").joinpath("grammar.lark").read_text(encoding="utf-8")
    return Lark(
        text, parser="lalr", lexer="contextual", propagate_positions=True, maybe_placeholders=False
    )


def _documentation(text: str) -> str:
    """The comment block at the top of the file is what the property is for."""
    lines: list[str] = []
    for line in text.lstrip().splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("#").strip())
    return "\n".join(lines)


def _check_size(text: str, name: str) -> None:
    if len(text) > MAX_CHARACTERS:
        raise FormulaError(
            "this text is too long",
            expected=f"at most {MAX_CHARACTERS:,} characters",
            found=f"{len(text):,}",
            fix="use index sets and finite quantifiers instead of writing every case",
            where=name,
        )


def _check_depth(tree: Tree[Token], name: str) -> None:
    stack: list[tuple[Tree[Token], int]] = [(tree, 0)]
    while stack:
        node, depth = stack.pop()
        if depth > MAX_DEPTH:
            raise FormulaError(
                "this formula is nested too deeply",
                expected=f"at most {MAX_DEPTH} levels",
                found="more",
                fix="name parts of it with 'define', or write a flat conjunction",
                where=f"{name}:{node.meta.line}:{node.meta.column}",
            )
        stack.extend((child, depth + 1) for child in node.children if isinstance(child, Tree))


_READABLE = {
    "LPAR": "'('", "RPAR": "')'", "LSQB": "'['", "RSQB": "']'", "LBRACE": "'{'", "RBRACE": "'}'",
    "COLON": "':'", "COMMA": "','", "EQUAL": "'='", "SEMICOLON": "';'", "__ANON_0": "'..'",
    "NAME": "a name", "INT": "an integer", "DECIMAL": "a number", "POINT": "an input such as x",
    "OUTPUT": "an output such as y", "LE": "a comparison", "GE": "a comparison",
    "LT": "a comparison", "GT": "a comparison", "EQ": "a comparison", "NE": "'!='",
    "PLUS": "an operator", "MINUS": "an operator", "TIMES": "an operator", "DIVIDE": "an operator",
    "LIMP": "'-o'", "IMP": "'->'", "AND": "'and'", "OR": "'or'", "_TENSOR": "'tensor'",
    "_PAR": "'par'", "NOT": "'not'", "IN": "'in'", "_WHERE": "'where'", "$END": "the end",
    "FORALL": "'forall'", "EXISTS": "'exists'", "TOP": "a constant", "BOTTOM": "a constant",
    "UNIT": "a constant", "LABEL": "'label'", "INFINITY": "a number", "BALL": "'ball'",
    "BOX": "'box'", "RANGE": "'range'", "_SET": "a declaration", "_DEFINE": "a declaration",
    "_PARAMETER": "a declaration", "_OUTPUTS": "a declaration",
}  # fmt: skip


def _expected(terminals: Any) -> str:
    words = sorted({_READABLE.get(str(t), str(t)) for t in terminals})
    if "'not'" in words and "a name" in words:
        return "a formula or a quantity"
    return " or ".join(words) if words else "something else"


def _unexpected(name: str, line: int, column: int, found: str, terminals: Any) -> FormulaError:
    return FormulaError(
        "this does not follow the grammar",
        expected=_expected(terminals),
        found=found,
        fix="see docs/language.md, or 'qll show' for properties to start from",
        where=f"{name}:{line}:{column}",
    )


def _unexpected_end(text: str, name: str) -> FormulaError:
    lines = text.splitlines() or [""]
    return FormulaError(
        "the text ends before the formula does",
        expected="a formula",
        found="the end of the text",
        fix="complete the formula, or close the open parenthesis",
        where=f"{name}:{len(lines)}:{len(lines[-1]) + 1}",
    )


@v_args(meta=True)
class _Builder(Transformer_NonRecursive):  # type: ignore[type-arg]
    """Trees to nodes. Children come before parents and left before right, so declarations are
    known when the expressions after them are built."""

    def __init__(self, name: str, documentation: str) -> None:
        super().__init__()
        self._name = name
        self._documentation = documentation
        self._parameters: dict[str, ParameterDeclaration] = {}
        self._sets: dict[str, SetDeclaration] = {}
        self._definitions: dict[str, Definition] = {}
        self._outputs: int | None = None

    # --- places and sorts ---

    def _span(self, meta: Any) -> Span:
        return Span(self._name, getattr(meta, "line", 1), getattr(meta, "column", 1))

    def _quantity(self, node: Any) -> Quantity:
        if isinstance(node, Quantity):
            return node
        raise FormulaError(
            "this is a formula where a quantity should stand",
            expected="a number, an entry such as y[0], or a sum of them",
            found="a formula",
            fix="compare and add quantities only; combine formulas with and, or, not, -o, ->",
            where=str(node.span),
        )

    def _formula(self, node: Any) -> Formula:
        if isinstance(node, Formula):
            return node
        raise FormulaError(
            "this is a quantity where a formula should stand",
            expected="a comparison, a label, a constant or a combination of them",
            found="a quantity",
            fix="compare it with something: 'y[i] >= 0' says that label i is predicted",
            where=str(node.span),
        )

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
        self._outputs = int(items[0])

    def parameter_declaration(self, meta: Any, items: list[Any]) -> None:
        name, unit, default = str(items[0]), str(items[1]), self._quantity(items[2])
        span = self._span(meta)
        self._declare(name, span)
        if not isinstance(default, Number):
            raise FormulaError(
                f"the default of parameter '{name}' is not a number",
                expected="a number such as 0.2 or 4/255",
                found="an expression with names in it",
                fix="write the number itself",
                where=str(span),
            )
        self._parameters[name] = ParameterDeclaration(name, unit, default.value, span=span)

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
        return Specification(
            formula,
            binders,
            tuple(self._parameters.values()),
            tuple(self._sets.values()),
            tuple(self._definitions.values()),
            self._outputs,
            self._documentation,
            self._name,
        )

    # --- regions ---

    def point_quantifier(self, meta: Any, items: list[Any]) -> tuple[PointBinder, ...]:
        return tuple(item for item in items if isinstance(item, PointBinder))

    def point_binder(self, meta: Any, items: list[Any]) -> PointBinder:
        point = _ASCII.get(str(items[0]), str(items[0]))
        parts = tuple(item for item in items[1:] if not isinstance(item, Token))
        return PointBinder(point, parts, span=self._span(meta))  # type: ignore[arg-type]

    def ball(self, meta: Any, items: list[Any]) -> Ball:
        centre = _ASCII.get(str(items[1]), str(items[1]))
        return Ball(centre, self._quantity(items[2]), span=self._span(meta))  # type: ignore[arg-type]

    def box(self, meta: Any, items: list[Any]) -> Box:
        return Box(items[1], items[2], str(items[0]), span=self._span(meta))  # type: ignore[arg-type]

    def bound(self, meta: Any, items: list[Any]) -> tuple[Quantity, ...]:
        return tuple(self._quantity(item) for item in items)

    def linear(self, meta: Any, items: list[Any]) -> Linear:
        return Linear(self._formula(items[0]), span=self._span(meta))

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
        value = items[0]
        if not isinstance(value, Number):
            raise FormulaError(
                "this hardness is not a number",
                expected="a number > 0 or inf",
                found="an expression",
                fix="write the number itself, such as and[5]",
                where=str(self._span(meta)),
            )
        return value.value

    def compared(self, meta: Any, items: list[Any]) -> Formula:
        operands = [self._quantity(item) for item in items[::2]]
        return build.chain(operands, items[1::2], self._span(meta))

    def comparator(self, meta: Any, items: list[Any]) -> str:
        return _ASCII.get(str(items[0]), str(items[0]))

    def group(self, meta: Any, items: list[Any]) -> Node:
        return items[0]  # type: ignore[no-any-return]

    def constant(self, meta: Any, items: list[Any]) -> Formula:
        kind: Any = _ASCII.get(str(items[0]), str(items[0]))
        return Constant(kind, span=self._span(meta))

    def label(self, meta: Any, items: list[Any]) -> Formula:
        return Label(items[1], span=self._span(meta))

    def name(self, meta: Any, items: list[Any]) -> Node:
        name, span = str(items[0]), self._span(meta)
        if name in self._parameters:
            return Parameter(name, span=span)
        return self._reference(name, (), span)

    def call(self, meta: Any, items: list[Any]) -> Node:
        return self._reference(str(items[0]), items[1], self._span(meta))

    def _reference(self, name: str, arguments: tuple[Index, ...], span: Span) -> Node:
        if name not in self._definitions:
            known = sorted([*self._parameters, *self._definitions])
            near = suggest(name, known) if known else "declare it with 'parameter' or 'define'"
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
        first, last = int(items[0]), int(items[1])
        if last - first > MAX_CHARACTERS:
            raise FormulaError(
                "this range is too long",
                expected=f"at most {MAX_CHARACTERS:,} indices",
                found=f"{first}..{last}",
                fix="use a shorter range",
                where=str(self._span(meta)),
            )
        return build.index_set(range(first, last + 1), self._span(meta))

    def literal_set(self, meta: Any, items: list[Any]) -> IndexSet:
        return build.index_set(items, self._span(meta))

    def set_item(self, meta: Any, items: list[Any]) -> tuple[int, ...]:
        return tuple(int(item) for item in items)

    def index_list(self, meta: Any, items: list[Any]) -> tuple[Index, ...]:
        return tuple(items)

    def index_literal(self, meta: Any, items: list[Any]) -> Index:
        return Index(None, int(items[0]), span=self._span(meta))

    def index_name(self, meta: Any, items: list[Any]) -> Index:
        return Index(str(items[0]), span=self._span(meta))

    def index_shifted(self, meta: Any, items: list[Any]) -> Index:
        offset = int(items[2]) if str(items[1]) == "+" else -int(items[2])
        return Index(str(items[0]), offset, span=self._span(meta))

    # --- quantities ---

    def addition(self, meta: Any, items: list[Any]) -> Quantity:
        left, right = self._quantity(items[0]), self._quantity(items[2])
        if str(items[1]) == "-":
            right = build.negate(right)
        return build.add(left, right, span=self._span(meta))

    def multiplication(self, meta: Any, items: list[Any]) -> Quantity:
        left, right = self._quantity(items[0]), self._quantity(items[2])
        combine = build.divide if str(items[1]) == "/" else build.multiply
        return combine(left, right, self._span(meta))

    def minus(self, meta: Any, items: list[Any]) -> Quantity:
        return build.negate(self._quantity(items[1]), self._span(meta))

    def number(self, meta: Any, items: list[Any]) -> Quantity:
        text = str(items[0])
        value = float("inf") if text in ("inf", "∞") else float(text)
        return Number(value, span=self._span(meta))

    def entry(self, meta: Any, items: list[Any]) -> Quantity:
        source: Any = _ASCII.get(str(items[0]), str(items[0]))
        return Entry(source, items[1], span=self._span(meta))
