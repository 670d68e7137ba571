"""What a file asks: tensors that it declares, bounds of inputs, and assertions over all of them.

All inputs of all networks, in the order of declaration, are one vector ``x``; all outputs and
hidden nodes are one vector ``y``. Numbers are exact: ``0.1`` is a tenth. The question is whether
some ``x`` fulfils every bound and every assertion, ``y`` being what the networks compute.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal, TypeAlias

from qll.formula.hard import MOST_NORMAL, Affine, HardForm, Max, Min, Slot

REAL = "real"
MOST_ELEMENTS = 1 << 24  # of all declared tensors


@dataclass(frozen=True, slots=True)
class Atom:
    """``constant + sum(coefficient * slot) >= 0``, or ``> 0``; like terms are collected."""

    terms: tuple[tuple[Slot, Fraction], ...]
    constant: Fraction
    strict: bool = False

    @property
    def affine(self) -> Affine:
        return Affine(self.terms, self.constant)

    @property
    def speaks_of_inputs_only(self) -> bool:
        return all(source == "x" for (source, _), _ in self.terms)


@dataclass(frozen=True, slots=True)
class All:
    parts: tuple[Assertion, ...]


@dataclass(frozen=True, slots=True)
class Some:
    parts: tuple[Assertion, ...]


Assertion: TypeAlias = Atom | All | Some
TRUE, FALSE = All(()), Some(())


@dataclass(frozen=True)
class Tensor:
    """A declared input, hidden node or output; its elements are ``offset`` and on in x or y."""

    name: str
    kind: Literal["input", "hidden", "output"]
    element: str  # the type, as the file writes it
    shape: tuple[int, ...]
    offset: int
    node: str | None = None  # the ONNX name of a hidden node
    initialized: bool = False
    place: str = field(default="", compare=False, repr=False)

    @property
    def source(self) -> str:
        return "x" if self.kind == "input" else "y"

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def is_real(self) -> bool:
        return self.element.lower() == REAL


@dataclass(frozen=True)
class Declaration:
    """A declared network; version 1 has one, without a name."""

    name: str
    tensors: tuple[Tensor, ...]
    equal_to: str | None = None
    isomorphic_to: str | None = None

    def of_kind(self, kind: str) -> tuple[Tensor, ...]:
        return tuple(t for t in self.tensors if t.kind == kind)


@dataclass(eq=False)
class Bounds:
    """The least and the greatest value of every input, exact, in 16 bytes an input.

    A float stands for the shortest decimal that denotes it, which is what files are written with;
    other numbers, and which bounds are strict, are kept aside. NaN: no bound.
    """

    lower: array[float] = field(default_factory=lambda: array("d"))
    upper: array[float] = field(default_factory=lambda: array("d"))
    other: dict[tuple[str, int], Fraction] = field(default_factory=dict)
    strict: set[tuple[str, int]] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self.lower)

    def grow(self, size: int) -> None:
        for side in (self.lower, self.upper):
            side.extend([math.nan] * (size - len(side)))

    def get(self, side: str, index: int) -> Fraction | None:
        value = getattr(self, side)[index]
        if math.isnan(value):
            return None
        return self.other.get((side, index)) or Fraction(repr(value))

    def missing(self, side: str) -> Iterator[int]:
        """The inputs without this end."""
        return (k for k, value in enumerate(getattr(self, side)) if math.isnan(value))

    def narrow(self) -> Iterator[int]:
        """The inputs that may have one value or none; all others have many."""
        ends = enumerate(zip(self.lower, self.upper, strict=True))
        return (k for k, (low, high) in ends if low >= high)

    def is_strict(self, side: str, index: int) -> bool:
        return (side, index) in self.strict

    def tighten_text(self, side: str, index: int, text: str) -> bool:
        """The usual case at full speed: a bound written as a float is, where there is none or one
        that was written so; shortest decimals are ordered as their floats. False: not that."""
        values = self.lower if side == "lower" else self.upper
        value, known = float(text), values[index]
        if repr(value) != text:
            return False
        if known == known:
            if (side, index) in self.other or (side, index) in self.strict:
                return False
            value = max(known, value) if side == "lower" else min(known, value)
        values[index] = value
        return True

    def tighten(self, side: str, index: int, value: Fraction, strict: bool = False) -> None:
        known = self.get(side, index)
        if known is not None and known != value and (known > value) == (side == "lower"):
            return
        if known is not None and known == value:
            if strict:
                self.strict.add((side, index))
            return
        near = float(value)
        self.strict.discard((side, index))
        self.other.pop((side, index), None)
        if Fraction(repr(near)) != value:
            self.other[side, index] = value
        if strict:
            self.strict.add((side, index))
        getattr(self, side)[index] = near

    def copy(self) -> Bounds:
        return Bounds(self.lower[:], self.upper[:], dict(self.other), set(self.strict))

    def fix(self, index: int, value: Fraction) -> None:
        """At this value, whatever the bounds were."""
        for side, ends in (("lower", self.lower), ("upper", self.upper)):
            self.other.pop((side, index), None)
            self.strict.discard((side, index))
            ends[index] = math.nan
            self.tighten(side, index, value)

    def take(self, part: Assertion) -> bool:
        """A comparison of one input with a number is a bound; False: it is something else."""
        if not isinstance(part, Atom) or len(part.terms) != 1 or part.terms[0][0][0] != "x":
            return False
        ((_, index), coefficient) = part.terms[0]
        value = -part.constant / coefficient
        if abs(value) > MOST_NORMAL:
            return False
        self.tighten("lower" if coefficient > 0 else "upper", index, value, part.strict)
        return True

    def atoms(self) -> Iterator[Atom]:
        """The bounds as assertions."""
        for index in range(len(self)):
            slot = ("x", index)
            low, high = self.get("lower", index), self.get("upper", index)
            if low is not None:
                yield Atom(((slot, Fraction(1)),), -low, self.is_strict("lower", index))
            if high is not None:
                yield Atom(((slot, Fraction(-1)),), high, self.is_strict("upper", index))


@dataclass(frozen=True, eq=False)
class Document:
    version: tuple[int, int]
    networks: tuple[Declaration, ...]
    bounds: Bounds
    assertions: tuple[Assertion, ...]  # besides the bounds
    source: str = "<text>"
    kept: tuple[int, ...] | None = None  # which declared inputs x has, if not all

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(t for network in self.networks for t in network.tensors)

    def _size(self, source: str) -> int:
        return sum(t.size for t in self.tensors if t.source == source)

    @property
    def inputs(self) -> int:
        return self._size("x") if self.kept is None else len(self.kept)

    @property
    def outputs(self) -> int:
        """Of hidden nodes as well."""
        return self._size("y")

    def name_of(self, slot: Slot) -> str:
        """As the file writes it: ``X_3`` or ``X[0,3]``."""
        source, index = slot
        if source == "x" and self.kept is not None:
            index = self.kept[index]
        for tensor in self.tensors:
            if tensor.source == source and 0 <= index - tensor.offset < tensor.size:
                return element_name(tensor, index - tensor.offset, self.version[0])
        raise IndexError(slot)

    def place_of(self, slot: Slot) -> str:
        """Where the tensor is declared that it belongs to."""
        source, index = slot
        if source == "x" and self.kept is not None:
            index = self.kept[index]
        own = [t for t in self.tensors if t.source == source and 0 <= index - t.offset < t.size]
        return (own[0].place if own else "") or self.source

    def holds(self, x: list[Fraction], y: list[Fraction]) -> bool:
        """Whether everything is fulfilled at exact values."""
        found = all(fulfilled(atom, x, y) for atom in self.bounds.atoms())
        return found and all(fulfilled(a, x, y) for a in self.assertions)


def element_name(tensor: Tensor, index: int, version: int) -> str:
    if version == 1:
        return f"{tensor.name}_{index}"
    if not tensor.shape:
        return tensor.name
    position = []
    for size in reversed(tensor.shape):
        index, rest = divmod(index, size)
        position.append(str(rest))
    return f"{tensor.name}[{','.join(reversed(position))}]"


def fulfilled(node: Assertion, x: list[Fraction], y: list[Fraction]) -> bool:
    """Whether it holds at exact values."""
    match node:
        case Atom(terms, constant, strict):
            total = constant
            for (source, index), c in terms:
                total += c * (x if source == "x" else y)[index]
            return total > 0 if strict else total >= 0
        case All(parts):
            return all(fulfilled(part, x, y) for part in parts)
        case Some(parts):
            return any(fulfilled(part, x, y) for part in parts)


def hard_form(node: Assertion) -> HardForm:
    """The closed reading: >= 0 exactly where the assertion holds, strict comparisons made closed.
    (So it is *violated*, where ties violate, at what the file asks for.)"""
    match node:
        case Atom():
            return node.affine
        case All(parts):
            return Min(tuple(hard_form(part) for part in parts))
        case Some(parts):
            return Max(tuple(hard_form(part) for part in parts))


def conjunction(parts: Iterable[Assertion]) -> Assertion:
    flat: list[Assertion] = []
    for part in parts:
        flat.extend(part.parts if isinstance(part, All) else (part,))
    return flat[0] if len(flat) == 1 else All(tuple(flat))


def disjunction(parts: Iterable[Assertion]) -> Assertion:
    flat: list[Assertion] = []
    for part in parts:
        flat.extend(part.parts if isinstance(part, Some) else (part,))
    return flat[0] if len(flat) == 1 else Some(tuple(flat))


def negation(node: Assertion) -> Assertion:
    match node:
        case Atom(terms, constant, strict):
            return Atom(tuple((s, -c) for s, c in terms), -constant, not strict)
        case All(parts):
            return disjunction(negation(part) for part in parts)
        case Some(parts):
            return conjunction(negation(part) for part in parts)


def atoms(node: Assertion) -> Iterator[Atom]:
    stack = [node]
    while stack:
        top = stack.pop()
        if isinstance(top, Atom):
            yield top
        else:
            stack.extend(reversed(top.parts))
