"""Nodes to text: what ``parse`` reads back to the same nodes, in ASCII or Unicode, and LaTeX."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Literal

from qll.formula.fold import fold
from qll.formula.ground import Atom, Crisp
from qll.formula.hard import Affine
from qll.formula.nodes import (
    Ball,
    Box,
    Compare,
    Connective,
    Constant,
    Definition,
    Divide,
    Entry,
    FormulaReference,
    Implies,
    Index,
    IndexBinder,
    IndexCondition,
    IndexSet,
    Label,
    Linear,
    Member,
    NameDeclaration,
    Node,
    Not,
    Number,
    OneHot,
    Parameter,
    ParameterDeclaration,
    PointBinder,
    Quantified,
    Quantity,
    QuantityReference,
    RegionPart,
    Scale,
    SetDeclaration,
    Specification,
    Sum,
    Whole,
    defines,
)
from qll.formula.vectors import Image, Perturbed, Signs, Small, Vector, vector_text

Style = Literal["ascii", "unicode", "latex"]
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class _Signs:
    """One column of the table of signs; everything else is common to the three styles."""

    words: dict[str, str]
    subscript: str  # how an entry is written, with {name} and {index}
    times: str
    infinity: str
    hardness: str
    group: tuple[str, str]
    such_that: str


_ASCII_WORDS = {
    "and": "and", "or": "or", "tensor": "tensor", "par": "par", "not": "not ", "linear": "-o",
    "material": "->", "forall": "forall", "exists": "exists", "in": "in", "not in": "not in",
    "<=": "<=", ">=": ">=", "<": "<", ">": ">", "==": "==", "!=": "!=", "top": "top",
    "bottom": "bottom", "unit": "unit", "label": "label", "x0": "x0", "x2": "x2", "y0": "y0",
    "y2": "y2",
}  # fmt: skip
_UNICODE_WORDS = _ASCII_WORDS | {
    "and": "∧", "or": "∨", "tensor": "⊗", "par": "⊕", "not": "¬", "linear": "⊸", "material": "→",
    "forall": "∀", "exists": "∃", "in": "∈", "<=": "≤", ">=": "≥", "!=": "≠", "top": "⊤",
    "bottom": "⊥", "unit": "𝟙", "x0": "x₀", "x2": "x₂", "y0": "y₀", "y2": "y₂",
}  # fmt: skip
_LATEX_WORDS = {
    "and": r"\land", "or": r"\lor", "tensor": r"\otimes", "par": r"\oplus", "not": r"\lnot ",
    "linear": r"\multimap", "material": r"\rightarrow", "forall": r"\bigwedge",
    "exists": r"\bigvee", "in": r"\in", "not in": r"\notin", "<=": r"\le", ">=": r"\ge", "<": "<",
    ">": ">", "==": "=", "!=": r"\ne", "top": r"\top", "bottom": r"\bot", "unit": r"\mathbf{1}",
    "label": r"\hat{y}", "x0": r"\hat{x}", "x2": "x'", "y0": r"f(\hat{x})", "y2": "y'",
}  # fmt: skip

_ROUND = ("(", ")")
_SIGNS: dict[Style, _Signs] = {
    "ascii": _Signs(_ASCII_WORDS, "{name}[{index}]", "*", "inf", "[{p}]", _ROUND, " where "),
    "unicode": _Signs(_UNICODE_WORDS, "{name}[{index}]", "·", "∞", "[{p}]", _ROUND, " where "),
    "latex": _Signs(
        _LATEX_WORDS,
        "{name}_{{{index}}}",
        r" \cdot ",
        r"\infty",
        "^{{{p}}}",
        (r"\left(", r"\right)"),
        r",\ ",
    ),
}

# Binding strength, loosest first, as in the grammar.
_IMPLICATION, _OR, _AND, _PAR, _TENSOR, _PREFIX, _COMPARISON, _SUM, _PRODUCT, _UNARY, _ATOM = range(
    11
)
_CONNECTIVE_LEVEL = {"or": _OR, "and": _AND, "par": _PAR, "tensor": _TENSOR}


@dataclass(frozen=True)
class _Piece:
    text: str
    level: int
    open_right: bool = False  # ends in a quantifier's body, which would swallow what follows


def number(value: float, style: Style = "ascii") -> str:
    """Shortest text that reads back to the same float."""
    if value in (float("inf"), float("-inf")):
        return ("-" if value < 0 else "") + _SIGNS[style].infinity
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    text = repr(value)
    if "e" in text and style == "latex":
        mantissa, exponent = text.split("e")
        return rf"{mantissa} \cdot 10^{{{int(exponent)}}}"
    if "e" in text and "." not in text.split("e")[0]:
        return text
    return text


class _Printer:
    def __init__(self, style: Style) -> None:
        self.style: Style = style
        self.signs = _SIGNS[style]
        self.words = self.signs.words

    def group(self, piece: _Piece, level: int, *, last: bool = True) -> str:
        """``piece`` as an operand that must bind at least as tightly as ``level``."""
        if piece.level < level or (piece.open_right and not last):
            return f"{self.signs.group[0]}{piece.text}{self.signs.group[1]}"
        return piece.text

    def hardness(self, value: float | None) -> str:
        return "" if value is None else self.signs.hardness.format(p=number(value, self.style))

    def name(self, text: str) -> str:
        if self.style == "latex":
            greek = {"epsilon": r"\varepsilon", "delta": r"\delta", "alpha": r"\alpha"}
            plain = text.replace("_", r"\_")
            return greek.get(text, plain if len(text) == 1 else rf"\mathit{{{plain}}}")
        return text

    def index(self, value: Index) -> str:
        if value.quoted is not None:
            return _text(value.quoted) if self.style == "latex" else f'"{value.quoted}"'
        if value.name is None:
            return str(value.offset)
        if value.offset == 0:
            return value.name
        return f"{value.name} {'+' if value.offset > 0 else '-'} {abs(value.offset)}"

    def member(self, value: int | str) -> str:
        """Of a set, or declared: a name that is one word needs no quotes."""
        if isinstance(value, int):
            return str(value)
        if self.style == "latex":
            return _text(value)
        return value if _WORD.fullmatch(value) else f'"{value}"'

    def index_set(self, value: IndexSet) -> str:
        if value.name is not None:
            if self.style == "latex":
                return rf"\mathrm{{{value.name}}}".replace("_", r"\_")
            return value.name
        items = value.items
        flat = [item[0] for item in items]
        if (
            all(len(item) == 1 for item in items)
            and len(items) > 2
            and isinstance(flat[0], int)
            and flat == list(range(flat[0], flat[0] + len(flat)))
        ):
            if self.style == "latex":
                return rf"\{{{flat[0]}, \dots, {flat[-1]}\}}"
            return f"{flat[0]}..{flat[-1]}"
        inner = ", ".join(
            self.member(item[0]) if len(item) == 1 else f"({', '.join(map(self.member, item))})"
            for item in items
        )
        return rf"\{{{inner}\}}" if self.style == "latex" else f"{{{inner}}}"

    def binder(self, value: IndexBinder) -> str:
        names = value.names[0] if len(value.names) == 1 else f"({', '.join(value.names)})"
        return f"{names} {self.words['in']} {self.index_set(value.domain)}"

    def condition(self, value: IndexCondition) -> str:
        right = (
            self.index(value.right)
            if isinstance(value.right, Index)
            else self.index_set(value.right)
        )
        return f"{self.index(value.left)} {self.words[value.operator]} {right}"

    def entry(self, name: str, indices: tuple[Index, ...]) -> str:
        return self.signs.subscript.format(
            name=self.words.get(name, name), index=", ".join(map(self.index, indices))
        )

    def visit(self, node: Any, parts: list[_Piece]) -> _Piece:
        words = self.words
        match node:
            case Number(value):
                return _Piece(number(value, self.style), _ATOM if value >= 0 else _UNARY)
            case Parameter(name):
                return _Piece(self.name(name), _ATOM)
            case Entry(source, indices):
                return _Piece(self.entry(source, indices), _ATOM)
            case Sum():
                return _Piece(self._sum(node, parts), _SUM)
            case Scale(factor, _):
                body = self.group(parts[1], _UNARY)
                # A minus before a number or a product of one would be read as part of it.
                plain = not isinstance(node.body, Number | Scale)
                if isinstance(factor, Number) and factor.value == -1.0 and plain:
                    return _Piece(f"-{body}", _UNARY)
                if isinstance(factor, Number) and parts[0].level == _UNARY:
                    return _Piece(f"{parts[0].text}{self.signs.times}{body}", _PRODUCT)
                return _Piece(f"{self.group(parts[0], _PRODUCT)}{self.signs.times}{body}", _PRODUCT)
            case Divide(_, divisor):
                body = self.group(parts[0], _PRODUCT)
                return _Piece(f"{body}/{number(divisor, self.style)}", _PRODUCT)
            case QuantityReference(name, arguments) | FormulaReference(name, arguments):
                inner = ", ".join(map(self.index, arguments))
                return _Piece(
                    f"{self.name(name)}({inner})" if arguments else self.name(name), _ATOM
                )
            case Compare(operator):
                left, right = self.group(parts[0], _SUM), self.group(parts[1], _SUM)
                return _Piece(f"{left} {words[operator]} {right}", _COMPARISON)
            case Constant(kind):
                return _Piece(words[kind], _ATOM)
            case Label(at):
                if self.style == "latex":
                    return _Piece(self.entry("label", (at,)), _ATOM)
                return _Piece(f"label({self.index(at)})", _ATOM)
            case Not():
                piece = parts[0]
                return _Piece(
                    f"{words['not']}{self.group(piece, _PREFIX)}", _PREFIX, piece.open_right
                )
            case Connective(kind, (), _):  # refused by `check`, but shown
                return _Piece(f"{words[kind]}()", _ATOM)
            case Connective(kind, _, hardness):
                level = _CONNECTIVE_LEVEL[kind]
                sign = f" {words[kind]}{self.hardness(hardness)} "
                texts = [
                    self.group(piece, level + 1, last=k == len(parts) - 1)
                    for k, piece in enumerate(parts)
                ]
                open_right = parts[-1].open_right and parts[-1].level > level
                return _Piece(sign.join(texts), level if len(parts) > 1 else _ATOM, open_right)
            case Atom(low, high):
                return _Piece(f"{_affine(low)} {words['<=']} {_affine(high)}", _COMPARISON)
            case Crisp(truth):
                return _Piece(words["top" if truth else "bottom"], _ATOM)
            case Implies(kind, _, _):
                left = self.group(parts[0], _OR, last=False)
                right = self.group(parts[1], _IMPLICATION)
                return _Piece(f"{left} {words[kind]} {right}", _IMPLICATION, parts[1].open_right)
            case Quantified(kind, binders, _, conditions, hardness):
                return self._quantified(kind, binders, parts[0], conditions, hardness)
        raise TypeError(f"no printer for {type(node).__name__}")

    def _quantified(
        self,
        kind: str,
        binders: tuple[IndexBinder, ...],
        body: _Piece,
        conditions: tuple[IndexCondition, ...],
        hardness: float | None,
    ) -> _Piece:
        joiner = ", " if self.style == "latex" else f" {self.words['and']} "
        where = (
            self.signs.such_that + joiner.join(map(self.condition, conditions))
            if conditions
            else ""
        )
        bound = ", ".join(map(self.binder, binders))
        if self.style == "latex":
            sign = f"{self.words[kind]}{self.hardness(hardness)}"
            return _Piece(f"{sign}_{{{bound}{where}}} {self.group(body, _PREFIX)}", _PREFIX, False)
        text = f"{self.words[kind]}{self.hardness(hardness)} {bound}{where}: {body.text}"
        return _Piece(text, _PREFIX, True)

    def _sum(self, node: Sum, parts: list[_Piece]) -> str:
        text = self.group(parts[0], _PRODUCT)
        for term, piece in zip(node.parts[1:], parts[1:], strict=True):
            match term:
                case Number(value) if value < 0:
                    text += f" - {number(-value, self.style)}"
                case Scale(Number(-1.0), Divide()):  # "-(y[0]/3)": no brackets after a minus
                    start, end = len(self.signs.group[0]) + 1, len(self.signs.group[1])
                    text += f" - {piece.text[start:-end]}"
                case Scale(Number(value), body) if value < 0 and (
                    value != -1.0 or not isinstance(body, Number | Scale)
                ):
                    text += f" - {piece.text[1:]}"
                case _:
                    text += f" + {self.group(piece, _PRODUCT)}"
        return text


def _text(name: str) -> str:
    """A declared name in LaTeX.

    >>> print(_text("T-shirt & top"))
    \\text{T-shirt \\& top}
    """
    escaped = re.sub(r"[&%$#_{}]", r"\\\g<0>", name)
    return rf"\text{{{escaped}}}"


def _affine(value: Affine) -> str:
    """A side of an atom, for whoever looks at a ground formula.

    >>> from fractions import Fraction
    >>> _affine(Affine(((("y", 0), Fraction(-1, 3)), (("x", 2), Fraction(1))), Fraction(0)))
    '-1/3*y[0] + x[2]'
    """
    terms = [("" if c == 1 else f"{c}*") + f"{source}[{at}]" for (source, at), c in value.terms]
    return " + ".join([*terms, *([] if terms and value.constant == 0 else [f"{value.constant}"])])


def show(node: Node, style: Style = "ascii") -> str:
    """One formula or quantity as text."""
    return fold(node, _Printer(style).visit).text


def _bound(values: tuple[Quantity, ...], style: Style) -> str:
    texts = [show(value, style) for value in values]
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"


def _radii(values: tuple[Quantity, ...], at: tuple[Index, ...], style: Style) -> str:
    printer = _Printer(style)
    listed = [f"{printer.index(k)}: {show(v, style)}" for k, v in zip(at, values, strict=True)]
    inside = ", ".join(listed)
    return rf"\{{{inside}\}}" if style == "latex" else f"{{{inside}}}"


def _vector(vector: Vector, style: Style) -> str:
    words = _SIGNS[style].words
    signs = Signs(lambda q: show(q, style), _Printer(style).index, lambda p: words.get(p, p))
    if style == "latex":
        signs = replace(signs, times=r" \cdot ", braces=(r"\{", r"\}"))
    return vector_text(vector, signs)


def _part(part: RegionPart, style: Style) -> str:
    words = _SIGNS[style].words
    match part:
        case Image(body):
            return _vector(body, style)
        case Perturbed(kind, centre, amount):
            name = rf"\mathrm{{{kind}}}" if style == "latex" else kind
            return f"{name}({words.get(centre, centre)}, {show(amount, style)})"
        case Ball(centre, radius, at, norm):
            sizes = _radii(radius, at, style) if at else _bound(radius, style)
            if style == "latex":
                power = rf"^{{\ell_{norm[1]}}}" if norm else ""
                return rf"B{power}_{{{sizes}}}({words.get(centre, centre)})"
            return f"ball({words.get(centre, centre)}, {sizes}{f', {norm}' if norm else ''})"
        case Box(lower, upper, kind):
            if style == "latex":
                return rf"\left[{_bound(lower, style)}, {_bound(upper, style)}\right]"
            return f"{kind}({_bound(lower, style)}, {_bound(upper, style)})"
        case Linear(formula):
            text = show(formula, style)
            return text if isinstance(formula, Compare) else f"({text})"
        case Whole(point, entries):
            which = ", ".join(show(e, style) for e in entries) or words.get(point, point)
            return rf"\mathrm{{integer}}({which})" if style == "latex" else f"integer({which})"
        case OneHot(entries):
            which = ", ".join(show(e, style) for e in entries)
            return rf"\mathrm{{one\_hot}}({which})" if style == "latex" else f"one_hot({which})"
        case Member(entry, values):
            listed = ", ".join(show(v, style) for v in values)
            inside = rf"\{{{listed}\}}" if style == "latex" else f"{{{listed}}}"
            return f"{show(entry, style)} {words['in']} {inside}"
    raise TypeError(f"no printer for {type(part).__name__}")


def _binder(binder: PointBinder, style: Style) -> str:
    words = _SIGNS[style].words
    joiner = r" \cap " if style == "latex" else f" {words['and']} "
    head, parts, point = "", list(binder.parts), words.get(binder.point, binder.point)
    image = parts[0]
    if isinstance(image, Image):
        del parts[0]
        for small in image.smalls:
            head += f"{_small(small, style)}, "
        said = [_vector(image.body, style), *(_part(part, style) for part in parts)]
        return f"{head}{point} = {joiner.join(said)}"
    return f"{point} {words['in']} {joiner.join(_part(part, style) for part in parts)}"


def _small(small: Small, style: Style) -> str:
    ends = f"[{show(small.lower, style)}, {show(small.upper, style)}]"
    return f"{small.name} {_SIGNS[style].words['in']} {ends}"


def _declaration(declared: Any, style: Style) -> str:
    printer = _Printer(style)
    match declared:
        case NameDeclaration(kind, names):
            return f"{kind} {', '.join(map(printer.member, names))}"
        case ParameterDeclaration(name, unit, default):
            return f"parameter {name}: {unit} = {number(default)}"
        case SetDeclaration(name, domain):
            return f"set {name} = {printer.index_set(domain)}"
        case Definition(name, arguments, body):
            given = f"({', '.join(arguments)})" if arguments else ""
            return f"define {name}{given} = {show(body, style)}"
    raise TypeError(f"no printer for {type(declared).__name__}")


@defines
def text(part: Any) -> str:
    """Any part of a specification as it stands in a text: its ``repr``."""
    printer = _Printer("ascii")
    match part:
        case Node():
            return show(part)
        case Specification():
            return show_specification(part).rstrip("\n")
        case Index():
            return printer.index(part)
        case IndexSet():
            return printer.index_set(part)
        case IndexBinder():
            return printer.binder(part)
        case IndexCondition():
            return printer.condition(part)
        case Vector():
            return _vector(part, "ascii")
        case Small():
            return _small(part, "ascii")
        case RegionPart():
            return _part(part, "ascii")
        case PointBinder():
            return _binder(part, "ascii")
    return _declaration(part, "ascii")


def show_specification(specification: Specification, style: Style = "ascii") -> str:
    """The whole property. In ASCII and Unicode it parses back to the same nodes."""
    if style == "latex":
        return _latex(specification)
    lines = [f"# {line}".rstrip() for line in specification.documentation.splitlines()]
    if specification.outputs is not None and "outputs" not in {d.kind for d in specification.names}:
        lines.append(f"outputs {specification.outputs}")
    declared = (
        *specification.names,
        *specification.parameters,
        *specification.sets,
        *specification.definitions,
    )
    lines += [_declaration(item, style) for item in declared]
    if lines and not lines[-1].startswith("#"):
        # A body that starts with '(' or '-' would otherwise continue the last declaration.
        lines[-1] += ";" if specification.binders == () else ""
    indent = ""
    if specification.binders:
        forall = _SIGNS[style].words["forall"]
        lines.append(f"{forall} {', '.join(_binder(b, style) for b in specification.binders)}:")
        indent = "  "
    lines.append(indent + show(specification.formula, style))
    return "\n".join(lines) + "\n"


def _latex(specification: Specification) -> str:
    lines = [
        rf"\mathit{{{d.name}}}({', '.join(d.arguments)}) &:= {show(d.body, 'latex')} \\".replace(
            "()", ""
        )
        for d in specification.definitions
    ]
    head = ""
    if specification.binders:
        bound = ", ".join(_binder(b, "latex") for b in specification.binders)
        head = rf"\forall {bound}\colon\quad "
    body = show(specification.formula, "latex")
    if not lines:
        return f"{head}{body}\n"
    return "\\begin{aligned}\n" + "\n".join(lines) + f"\n&{head}{body}\n\\end{{aligned}}\n"
