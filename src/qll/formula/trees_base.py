"""What all trees of the grammar share: places in the text, sorts, and the state as it is read."""

from __future__ import annotations

from typing import Any

from lark import Token
from lark.visitors import Transformer_NonRecursive

from qll.errors import FormulaError
from qll.formula.domain import Domain
from qll.formula.nodes import (
    Definition,
    EntryKind,
    Formula,
    NameDeclaration,
    ParameterDeclaration,
    Quantity,
    SetDeclaration,
    Span,
)

MAX_DIGITS = 9  # of an index

ASCII = {
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


class Trees(Transformer_NonRecursive):  # type: ignore[type-arg]
    def __init__(self, name: str, documentation: str, domain: Domain | None = None) -> None:
        super().__init__()
        self._domain = domain
        self._source = name
        self._documentation = documentation
        self._parameters: dict[str, ParameterDeclaration] = {}
        self._sets: dict[str, SetDeclaration] = {}
        self._definitions: dict[str, Definition] = {}
        self._outputs: int | None = None
        self._names: dict[EntryKind, NameDeclaration] = {}
        self._ranged = 0
        self._smalls: dict[str, Span] = {}  # parameters that move, of the quantifier over points

    # --- places and sorts ---

    def _span(self, meta: Any) -> Span:
        return Span(self._source, getattr(meta, "line", 1), getattr(meta, "column", 1))

    def _integer(self, token: Token) -> int:
        if len(token) > MAX_DIGITS:
            raise FormulaError(
                "this integer is too large",
                expected=f"at most {MAX_DIGITS} digits",
                found=f"{len(token)}",
                fix="indices and numbers of outputs are small integers",
                where=str(Span(self._source, token.line or 1, token.column or 1)),
            )
        return int(token)

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


def unquoted(token: Token) -> str:
    return str(token)[1:-1] if token.type == "STRING" else str(token)
