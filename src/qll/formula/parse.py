"""Text to nodes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

from lark import Lark, Token, Tree, UnexpectedCharacters, UnexpectedEOF, UnexpectedToken
from lark.exceptions import LarkError, VisitError

from qll.errors import FormulaError
from qll.formula.check import MAX_DEPTH, check
from qll.formula.domain import OPEN, Domain
from qll.formula.names import declare
from qll.formula.nodes import Specification
from qll.formula.trees import Builder

# A hostile or generated text fails with a message, in seconds, instead of exhausting memory.
MAX_CHARACTERS = 200_000


def parse_specification(
    text: str,
    *,
    name: str = "<text>",
    outputs: int | Sequence[str] | None = None,
    inputs: Sequence[str] = (),
    domain: Domain | None = None,
    checked: bool = True,
) -> Specification:
    """Read a whole ``.qll`` text: declarations, region, formula.

    ``outputs`` fixes the number of outputs, so that indices are checked at once, or gives their
    names, as ``inputs`` does those of the inputs. ``domain`` is what
    the word stands for in a region. Not ``checked``, names and the domain may be open still.
    """
    _check_size(text, name)
    try:
        tree = _grammar().parse(text)
    except UnexpectedEOF as error:
        raise _unexpected_end(text, name) from error
    except UnexpectedToken as error:
        if error.token.type == "$END":
            raise _unexpected_end(text, name) from error
        terminals = error.accepts or error.expected
        place = f"{name}:{error.line}:{error.column}"
        raise _unexpected(text, place, f"'{error.token}'", terminals) from error
    except UnexpectedCharacters as error:
        place = f"{name}:{error.line}:{error.column}"
        raise _unexpected(text, place, f"'{error.char}'", ()) from error
    _check_depth(tree, name)
    try:
        known = domain if checked else domain or OPEN
        specification = Builder(name, documentation(text), known).transform(tree)
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
    if outputs is not None and not isinstance(outputs, int):
        specification = declare(specification, "outputs", outputs)
        outputs = len(outputs)
    if inputs:
        specification = declare(specification, "inputs", inputs)
    if checked:
        check(specification, outputs=outputs)
    return specification  # type: ignore[no-any-return]


@cache
def _grammar() -> Lark:
    text = resources.files("qll.formula").joinpath("grammar.lark").read_text(encoding="utf-8")
    return Lark(
        text, parser="lalr", lexer="contextual", propagate_positions=True, maybe_placeholders=False
    )


def documentation(text: str) -> str:
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
                fix="write flat conjunctions and sums",
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
    "BOX": "'box'", "RANGE": "'range'", "INTEGER": "'integer'", "ONE_HOT": "'one_hot'",
    "_SET": "a declaration", "_DEFINE": "a declaration",
    "_PARAMETER": "a declaration", "_OUTPUTS": "a declaration", "_INPUTS": "a declaration",
    "STRING": "a name in quotes", "DOMAIN": "'domain'", "NORM": "'l1' or 'l2'",
}  # fmt: skip


def _expected(terminals: Any) -> str:
    words = sorted({_READABLE.get(str(t), str(t)) for t in terminals})
    if "'not'" in words and "a name" in words:
        return "a formula or a quantity"
    return " or ".join(words) if words else "a word or a sign of the language"


# What other languages write, and what it is here; sought in a text that could not be read.
_SLIPS = {
    r"=>": "write >= for 'at least', -> for 'implies'",
    r"=<": "write <=",
    r"&&?": "write and",
    r"\|\|?": "write or",
    r"\bfor all\b": "write forall, one word",
    r"\bargmax\b": "say which output is the greatest: forall i in outputs: y[2] >= y[i]",
    r"![^=]": "write not",
    r"\*\*|\^": "quantities are linear: there are no powers",
}
_UNEQUAL = (
    'write not (y[0] == y[1]) of two quantities, and x["fuel=petrol"] == 0 of a category that has '
    "another value; != tells indices apart"
)


def _fix(text: str) -> str | None:
    code = re.sub(r"#.*", "", text)
    return next((said for slip, said in _SLIPS.items() if re.search(slip, code)), None)


def _value_of(text: str, found: str) -> str:
    """The input of a value, in the reader's own words where they are those of a comparison."""
    word = found.strip("'").strip('"')
    compared = rf'(\w+)\["([^"\n]+)"\]\s*[=!]=\s*"{re.escape(word)}"'
    held = re.search(compared, text)
    return 'x["fuel=petrol"]' if held is None else f'{held[1]}["{held[2]}={word}"]'


def _unexpected(text: str, place: str, found: str, terminals: Any) -> FormulaError:
    if '"' in found and "DECIMAL" in set(map(str, terminals)):
        # A value of a category, as a table has it.
        return FormulaError(
            "a word stands where a number should",
            expected="a number: values of categories are numbers in a rule",
            found=found,
            fix=f"write {_value_of(text, found)} == 1 for a value of its own input, or the number "
            "of the value; 'qll data FILE' shows them",
            where=place,
        )
    unequal = _UNEQUAL if found == "'!='" else None
    return FormulaError(
        "this does not follow the grammar",
        expected=_expected(terminals),
        found=found,
        fix=unequal
        or _fix(text)
        or "see docs/language.md, or 'qll show' for properties to start from",
        where=place,
    )


def _unexpected_end(text: str, name: str) -> FormulaError:
    lines = text.splitlines() or [""]
    if not re.sub(r"#.*", "", text).strip():
        return FormulaError(
            "there is no formula",
            expected="a formula",
            found="comments alone" if text.strip() else "an empty text",
            fix="write one, such as y[0] >= y[1]; 'qll show NAME' prints one to start from",
            where=f"{name}:1:1",
        )
    return FormulaError(
        "the text ends before the formula does",
        expected="a formula",
        found="the end of the text",
        fix=_fix(text) or "complete the formula, or close the open parenthesis",
        where=f"{name}:{len(lines)}:{len(lines[-1]) + 1}",
    )
