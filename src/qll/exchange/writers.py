"""A document as VNN-LIB text, version 1 or 2: what is read back asks exactly the same."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

from qll.errors import InputError
from qll.exchange.document import All, Assertion, Atom, Document, Some, Tensor, element_name
from qll.formula.hard import Slot


def write(document: Document, version: int, element: str | None = None) -> Iterator[str]:
    """Lines of text; ``element`` replaces the types of all tensors."""
    _require_writable(document, version)
    name = _Names(document, version)
    if version == 1:
        for tensor in document.tensors:
            letter = "X" if tensor.kind == "input" else "Y"
            yield from (f"(declare-const {letter}_{k} Real)" for k in range(tensor.size))
    else:
        yield f"(vnnlib-version <{'2.0' if document.version[0] == 1 else _version(document)}>)"
        for network in document.networks:
            yield f"(declare-network {network.name or 'f'}"
            if network.equal_to:
                yield f"  (equal-to {network.equal_to})"
            if network.isomorphic_to:
                yield f"  (isomorphic-to {network.isomorphic_to})"
            yield from (f"  {_declared(tensor, element)}" for tensor in network.tensors)
            yield ")"
    for assertion in (*document.bounds.atoms(), *document.assertions):
        yield f"(assert {_text(assertion, name)})"


def _version(document: Document) -> str:
    return ".".join(map(str, document.version))


def _require_writable(document: Document, version: int) -> None:
    plain = [t.kind for t in document.tensors] == ["input", "output"]
    if document.kept is not None or (version == 1 and not plain):
        raise InputError(
            "version 1 of VNN-LIB cannot say this",
            expected="one network with one input and one output",
            found=", ".join(t.name for t in document.tensors)[:80],
            fix="write it with --to vnnlib2",
        )


def _declared(tensor: Tensor, element: str | None) -> str:
    words = [f"declare-{tensor.kind}", tensor.name, element or tensor.element]
    words.append(f"[{','.join(map(str, tensor.shape))}]")
    if tensor.node is not None:
        words.append('"' + tensor.node.replace("\\", "\\\\").replace('"', '\\"') + '"')
    return f"({' '.join(words)}{' initialized' if tensor.initialized else ''})"


class _Names:
    def __init__(self, document: Document, version: int) -> None:
        self.document, self.version = document, version

    def __call__(self, slot: Slot) -> str:
        source, index = slot
        if self.version == 1:
            return f"{source.upper()}_{index}"
        for tensor in self.document.tensors:
            if tensor.source == source and 0 <= index - tensor.offset < tensor.size:
                return element_name(tensor, index - tensor.offset, self.version)
        raise IndexError(slot)


def _text(node: Assertion, name: _Names) -> str:
    match node:
        case Atom():
            return _comparison(node, name)
        case All(parts) | Some(parts):
            if not parts:  # true and false have no names
                return f"({'<=' if isinstance(node, All) else '>='} 0.0 1.0)"
            word = "and" if isinstance(node, All) else "or"
            return f"({word} {' '.join(_text(part, name) for part in parts)})"


def _comparison(atom: Atom, name: _Names) -> str:
    """``sum >= -constant``; numbers that no decimal has are multiplied away."""
    numbers = [atom.constant, *(c for _, c in atom.terms)]
    scale = Fraction(1)
    if any(decimal(v) is None for v in numbers):
        scale = Fraction(math.lcm(*(v.denominator for v in numbers)))
    sign, bound = ">" if atom.strict else ">=", atom.constant * -scale
    if len(atom.terms) == 1 and abs(atom.terms[0][1] * scale) == 1:
        ((slot, c),) = atom.terms
        if c < 0:
            sign, bound = sign.replace(">", "<"), -bound
        return f"({sign} {name(slot)} {decimal(bound)})"
    terms = [f"(* {decimal(c * scale)} {name(slot)})" for slot, c in atom.terms]
    left = "0.0" if not terms else terms[0] if len(terms) == 1 else f"(+ {' '.join(terms)})"
    return f"({sign} {left} {decimal(bound)})"


def decimal(value: Fraction) -> str | None:
    """A fraction as a decimal without exponent; None if it has no finite one.

    >>> decimal(Fraction(-1, 8)), decimal(Fraction(3)), decimal(Fraction(1, 3))
    ('-0.125', '3.0', None)
    """
    rest, twos, fives = value.denominator, 0, 0
    while rest % 2 == 0:
        rest, twos = rest // 2, twos + 1
    while rest % 5 == 0:
        rest, fives = rest // 5, fives + 1
    places = max(twos, fives, 1)
    if rest != 1:
        return None
    digits = str(abs(value.numerator) * 10**places // value.denominator).rjust(places + 1, "0")
    sign = "-" if value < 0 else ""
    return f"{sign}{digits[:-places]}.{digits[-places:]}"
