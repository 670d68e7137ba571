"""A query as a Vehicle specification: the property that no point satisfies it.

Vehicle (0.28) has tensors of rank one here: networks take and give vectors in the order of the
document, and numbers are decimals or quotients of decimals, so that none is rounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from qll.errors import InputError
from qll.exchange.document import All, Assertion, Atom, Document, conjunction

NETWORK, PROPERTY = "f", "safe"


def lines(document: Document) -> Iterator[str]:
    """The ``.vcl`` of a document of one network with one input and one output."""
    if [t.kind for t in document.tensors] != ["input", "output"]:
        raise InputError(
            "a Vehicle specification is written for one network",
            expected="one network with one input and one output",
            found=", ".join(t.name for t in document.tensors)[:80],
            fix="write it with --to vnnlib2",
        )
    source, target = document.tensors
    yield f"type Input = Tensor Real [{source.size}]"
    yield f"type Output = Tensor Real [{target.size}]"
    yield ""
    yield "@network"
    yield f"{NETWORK} : Input -> Output"
    yield ""
    region = [_text(atom) for atom in document.bounds.atoms()]
    yield "region : Input -> Bool"
    yield "region x ="
    yield from _joined(region, "and")
    yield ""
    yield "violated : Input -> Bool"
    yield "violated x ="
    yield f"  {_text(conjunction(document.assertions))}"
    yield ""
    yield "@property"
    yield f"{PROPERTY} : Bool"
    yield f"{PROPERTY} = forall x . region x => not (violated x)"


def _joined(parts: list[str], sign: str) -> Iterator[str]:
    for k, part in enumerate(parts):
        yield f"  {part}" if k == len(parts) - 1 else f"  {part} {sign}"


def _text(node: Assertion) -> str:
    if isinstance(node, Atom):
        if not node.terms:
            holds = node.constant > 0 or (node.constant == 0 and not node.strict)
            return "True" if holds else "False"
        total = " + ".join(_term(slot, c) for slot, c in node.terms)
        return f"({total} {'>' if node.strict else '>='} {_number(-Fraction(node.constant))})"
    sign = " and " if isinstance(node, All) else " or "
    if not node.parts:
        return "True" if isinstance(node, All) else "False"
    return "(" + sign.join(_text(part) for part in node.parts) + ")"


def _term(slot: tuple[str, int], factor: Fraction) -> str:
    name, index = slot
    variable = f"x ! {index}" if name == "x" else f"{NETWORK} x ! {index}"
    return f"{_number(factor)} * ({variable})"


def _number(value: Fraction) -> str:
    """A decimal if the number is one, else a quotient of two."""
    value = Fraction(value)
    rest, places = value.denominator, 0
    while rest % 2 == 0 or rest % 5 == 0:
        rest //= 10 if rest % 10 == 0 else 5 if rest % 5 == 0 else 2
        places += 1
    if rest != 1:
        return f"({_number(Fraction(value.numerator))} / {value.denominator}.0)"
    whole = str(abs(value.numerator) * (10**places // value.denominator)).rjust(places + 1, "0")
    text = f"{whole[: len(whole) - places]}.{whole[len(whole) - places :] or '0'}"
    return f"(-{text})" if value < 0 else text
