"""A query as a Vehicle specification: the property that no point satisfies it; and a logic of ours
as one that Vehicle compiles losses with.

Vehicle (0.28) has tensors of rank one here: networks take and give vectors in the order of the
document, and numbers are decimals or quotients of decimals, so that none is rounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING

from qll.errors import InputError
from qll.exchange.document import All, Assertion, Atom, Document, conjunction
from qll.formula.hard import Slot

if TYPE_CHECKING:
    from qll.logics import Logic

PROPERTY, LOGIC = "safe", "qll"


def lines(document: Document) -> Iterator[str]:
    """The ``.vcl`` of a document of networks with one input and one output each. Every declared
    network is a point, and those that are equal to another one are that one at another point."""
    if any([t.kind for t in n.tensors] != ["input", "output"] for n in document.networks):
        raise InputError(
            "a Vehicle specification is written for networks of one input and one output",
            expected="one input and one output",
            found=", ".join(t.name for t in document.tensors)[:80],
            fix="write it with --to vnnlib2",
        )
    text = _Text(document)
    for k, (network, number) in enumerate(zip(document.networks, text.numbers, strict=True)):
        if number != k:
            continue
        suffix = text.suffix(k)
        yield f"type Input{suffix} = Tensor Real [{network.tensors[0].size}]"
        yield f"type Output{suffix} = Tensor Real [{network.tensors[1].size}]"
        yield ""
        yield "@network"
        yield f"{text.network(k)} : Input{suffix} -> Output{suffix}"
        yield ""
    points = " ".join(text.points)
    takes = "".join(f"Input{text.suffix(number)} -> " for number in text.numbers)
    yield f"region : {takes}Bool"
    yield f"region {points} ="
    yield from _joined([text(atom) for atom in document.bounds.atoms()], "and")
    yield ""
    yield f"violated : {takes}Bool"
    yield f"violated {points} ="
    yield f"  {text(conjunction(document.assertions))}"
    yield ""
    yield "@property"
    yield f"{PROPERTY} : Bool"
    yield f"{PROPERTY} = forall {points} . region {points} => not (violated {points})"


def logic_lines(logic: Logic, name: str = LOGIC) -> Iterator[str]:
    """A logic as a declaration of a specification, to compile losses with: put it at the end of a
    ``.vcl`` and name it, ``vehicle compile loss --logic qll``."""
    yield f"{name} : DifferentiableTensorLogic"
    yield f"{name} ="
    for k, (field, text) in enumerate(logic.vehicle().items()):
        yield f"  {',' if k else '{'} {field} = {text}"
    yield "  }"


def _joined(parts: list[str], sign: str) -> Iterator[str]:
    for k, part in enumerate(parts):
        yield f"  {part}" if k == len(parts) - 1 else f"  {part} {sign}"


class _Text:
    """Assertions over ``x``, ``x2``, ... and ``f x``, ``f x2`` or ``g x2``."""

    def __init__(self, document: Document) -> None:
        names = [network.name for network in document.networks]
        self.document = document
        self.numbers = [names.index(n.equal_to or n.name) for n in document.networks]
        self.points = [f"x{self.suffix(k)}" for k in range(len(names))]

    def suffix(self, number: int) -> str:
        return "" if number == 0 else str(number + 1)

    def network(self, number: int) -> str:
        return f"f{self.suffix(self.numbers[number])}"

    def variable(self, slot: Slot) -> str:
        source, index = slot
        for k, network in enumerate(self.document.networks):
            for tensor in network.tensors:
                if tensor.source == source and 0 <= index - tensor.offset < tensor.size:
                    point = self.points[k]
                    vector = point if source == "x" else f"{self.network(k)} {point}"
                    return f"{vector} ! {index - tensor.offset}"
        raise IndexError(slot)

    def __call__(self, node: Assertion) -> str:
        if isinstance(node, Atom):
            return self.comparison(node)
        sign = " and " if isinstance(node, All) else " or "
        if not node.parts:
            return "True" if isinstance(node, All) else "False"
        return "(" + sign.join(self(part) for part in node.parts) + ")"

    def comparison(self, atom: Atom) -> str:
        end, sign = -Fraction(atom.constant), ">" if atom.strict else ">="
        if not atom.terms:
            return "True" if end < 0 or (end == 0 and not atom.strict) else "False"
        if len(atom.terms) == 1 and abs(atom.terms[0][1]) == 1:
            ((slot, factor),) = atom.terms
            sign = sign if factor > 0 else sign.replace(">", "<")
            return f"({self.variable(slot)} {sign} {_number(end * factor)})"
        total = " + ".join(self.term(slot, c) for slot, c in atom.terms)
        return f"({total} {sign} {_number(end)})"

    def term(self, slot: Slot, factor: Fraction) -> str:
        variable = f"({self.variable(slot)})"
        return variable if factor == 1 else f"{_number(factor)} * {variable}"


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
