"""A document as cases: a box, linear constraints on inputs, and what is left to the outputs.

A disjunction that speaks of inputs is split, because every box is a question of its own; one that
speaks of outputs only stays whole. The document is satisfiable iff some case is. Numbers are exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

from qll.errors import InputError
from qll.exchange.document import (
    All,
    Assertion,
    Atom,
    Document,
    Some,
    atoms,
    conjunction,
    disjunction,
)
from qll.formula.hard import ZERO, Slot

# Cases from products of disjunctions; one disjunction alone may have as many as it likes.
MOST_PRODUCTS = 1000
# Rounds in which constraints tighten bounds that are there: they may converge for ever.
MOST_TURNS = 4


@dataclass(frozen=True)
class Side:
    """One end of an input's interval."""

    value: Fraction
    strict: bool = False


Sides = dict[tuple[int, str], Side]  # of an input: "lower", "upper"


@dataclass(frozen=True, eq=False)
class Case:
    """``sides`` are what this case adds to the document's bounds."""

    document: Document
    sides: Sides = field(default_factory=dict)
    constraints: tuple[Atom, ...] = ()  # over inputs
    conditions: tuple[Assertion, ...] = ()  # over outputs, too

    def side(self, index: int, side: str) -> Side | None:
        own = self.sides.get((index, side))
        if own is not None:
            return own
        value = self.document.bounds.get(side, index)
        return None if value is None else Side(value, self.document.bounds.is_strict(side, index))

    @property
    def condition(self) -> Assertion:
        return conjunction(self.conditions)

    def is_empty_at(self, index: int) -> bool:
        low, high = self.side(index, "lower"), self.side(index, "upper")
        if low is None or high is None:
            return False
        return low.value > high.value or (low.value == high.value and (low.strict or high.strict))

    def fixed(self, index: int) -> Fraction | None:
        """The value of an input that can have only one."""
        low, high = self.side(index, "lower"), self.side(index, "upper")
        same = low is not None and high is not None and low.value == high.value
        return low.value if same and low is not None else None

    def with_part(self, part: Assertion) -> Case | None:
        """Where ``part`` holds as well; None if that is nowhere, whatever the outputs are."""
        sides, constraints, conditions = dict(self.sides), [], []
        touched = set()
        for piece in part.parts if isinstance(part, All) else (part,):
            if not isinstance(piece, Atom) or not piece.speaks_of_inputs_only:
                conditions.append(piece)
            elif not piece.terms:
                if piece.constant < 0 or (piece.strict and piece.constant == 0):
                    return None
            elif len(piece.terms) == 1:
                index, side, found = bound_of(piece)
                known = sides.get((index, side)) or self.side(index, side)
                if known is None or _is_tighter(side, found, known):
                    sides[index, side] = found
                    touched.add(index)
            else:
                constraints.append(piece)
        found_case = replace(
            self,
            sides=sides,
            constraints=(*self.constraints, *constraints),
            conditions=(*self.conditions, *conditions),
        )
        return None if any(found_case.is_empty_at(k) for k in touched) else found_case


def propagated(case: Case) -> Case | None:
    """With the bounds that constraints give an input by the ends of the others, exactly: a region
    that is thin in the box, or a point, is then seen to be. None if nothing is left."""
    found = replace(case, sides=dict(case.sides))
    turns, more = 0, bool(case.constraints)
    while more and turns < MOST_TURNS:
        more, gained = False, False
        for atom in case.constraints:
            for index, side, end in _implied(found, atom):
                known = found.side(index, side)
                if known is not None and not _is_tighter(side, end, known):
                    continue
                gained = gained or known is None
                found.sides[index, side] = end
                more = True
                if found.is_empty_at(index):
                    return None
        turns += not gained  # bounds of inputs that had none are looked for to the end
    return found


def _implied(case: Case, atom: Atom) -> list[tuple[int, str, Side]]:
    """``sum + constant >= 0``: an input's share is no less than what the others leave to it."""
    parts = []
    for (_, k), c in atom.terms:
        parts.append((k, c, case.side(k, "upper" if c > 0 else "lower")))
    open_ = [k for k, _, end in parts if end is None]
    if len(open_) > 1:
        return []
    most = atom.constant + sum((c * end.value for _, c, end in parts if end is not None), ZERO)
    strict = sum(end.strict for _, _, end in parts if end is not None)
    found = []
    for k, c, end in parts:
        if open_ and end is not None:
            continue
        own = ZERO if end is None else c * end.value
        others = strict - (0 if end is None else end.strict)
        side = "lower" if c > 0 else "upper"
        found.append((k, side, Side((own - most) / c, atom.strict or others > 0)))
    return found


def bound_of(atom: Atom) -> tuple[int, str, Side]:
    """``c * x + constant >= 0`` as an end of x."""
    (((_, index), coefficient),) = atom.terms
    side = "lower" if coefficient > 0 else "upper"
    return index, side, Side(-atom.constant / coefficient, atom.strict)


def _is_tighter(side: str, found: Side, known: Side) -> bool:
    if found.value == known.value:
        return found.strict and not known.strict
    return (found.value > known.value) == (side == "lower")


def cases(document: Document) -> Iterator[Case]:
    """Every way to fulfil the inputs' part of the document; the outputs' part is in each case."""
    whole = Case(document)
    start: Case | None = whole
    if any(whole.is_empty_at(index) for index in document.bounds.narrow()):
        return
    splits = []
    for assertion in _between(document.assertions):
        if isinstance(assertion, Some) and _splits(assertion):
            splits.append(assertion)
        elif start is not None:
            start = start.with_part(assertion)
    yield from _split(start, splits)


def _between(assertions: Iterable[Assertion]) -> list[Assertion]:
    """Several ``!=`` of one sum say that it lies in an interval between two of the numbers: as one
    disjunction of so many intervals these are fewer cases than one by one."""
    found: list[Assertion] = []
    apart: dict[tuple[tuple[Slot, Fraction], ...], list[Fraction]] = {}
    for assertion in assertions:
        atom = _unequal(assertion)
        if atom is None:
            found.append(assertion)
            continue
        scale = atom.terms[0][1]
        terms = tuple((slot, c / scale) for slot, c in atom.terms)
        apart.setdefault(terms, []).append(-atom.constant / scale)
    for terms, values in apart.items():
        turned = tuple((slot, -c) for slot, c in terms)
        ends = sorted(set(values))
        above = [Atom(terms, -value, strict=True) for value in ends]
        below = [Atom(turned, value, strict=True) for value in ends]
        inner = [All((low, high)) for low, high in zip(above, below[1:], strict=False)]
        found.append(Some((below[0], *inner, above[-1])))
    return found


def _unequal(node: Assertion) -> Atom | None:
    """``sum > v`` of ``sum > v or sum < v``."""
    if not isinstance(node, Some) or len(node.parts) != 2:
        return None
    one, other = node.parts
    if not isinstance(one, Atom) or not one.strict or not one.terms:
        return None
    turned = tuple((slot, -c) for slot, c in one.terms)
    return one if other == Atom(turned, -one.constant, strict=True) else None


def _chosen(case: Case, splits: list[Some]) -> tuple[Case | None, list[Some]]:
    """Which disjunctions to split: the short ones, while their product is small. Of the others, the
    case gets what all their parts agree on, and keeps the rest as a condition."""
    chosen, product = list[Some](), 1
    found: Case | None = case
    for split in sorted(splits, key=lambda some: len(some.parts)):
        product *= len(split.parts)
        if not chosen or product <= MOST_PRODUCTS:
            chosen.append(split)
        elif found is not None:
            found = found.with_part(conjunction([*_hull(split), split]))
    return found, chosen


def _split(start: Case | None, splits: list[Some]) -> Iterator[Case]:
    """The products, one at a time: a million boxes are not kept at once."""
    case, splits = (None, []) if start is None else _chosen(start, splits)
    if case is None:
        return
    if not splits:
        yield case
        return
    first, rest = splits[0], splits[1:]
    last: Case | None = None
    either: list[Assertion] = []  # what `last` asks of the outputs, in one way or another
    for part in first.parts:
        found = case.with_part(part)
        if found is None:
            continue
        known, new = len(case.conditions), found.conditions[len(case.conditions) :]
        inner = [p for p in new if isinstance(p, Some) and _splits(p)]
        if inner or rest:  # disjunctions within the part, and those still to come
            kept = (*found.conditions[:known], *(p for p in new if not _splits(p)))
            yield from _split(replace(found, conditions=kept), [*inner, *rest])
            continue
        # Parts that differ only in what they say of the outputs are one case.
        if last is not None and last.sides == found.sides and last.constraints == found.constraints:
            either.append(found.condition)
            continue
        if last is not None:
            yield replace(last, conditions=(disjunction(either),))
        last, either = found, [found.condition]
    if last is not None:
        yield replace(last, conditions=(disjunction(either),))


def _splits(node: Assertion) -> bool:
    return isinstance(node, Some) and any(a.speaks_of_inputs_only for a in atoms(node))


def _hull(some: Some) -> list[Atom]:
    """Bounds that hold in every part, because every part has one."""
    common: Sides | None = None
    for part in some.parts:
        own: Sides = {}
        for piece in part.parts if isinstance(part, All) else (part,):
            if isinstance(piece, Atom) and len(piece.terms) == 1 and piece.speaks_of_inputs_only:
                index, side, found = bound_of(piece)
                known = own.get((index, side))
                if known is None or _is_tighter(side, found, known):
                    own[index, side] = found
        if common is None:
            common = own
        else:
            common = {
                key: own[key] if _is_tighter(key[1], side, own[key]) else side
                for key, side in common.items()
                if key in own
            }
    found_atoms = []
    for (index, side), end in (common or {}).items():
        sign = Fraction(1 if side == "lower" else -1)
        found_atoms.append(Atom(((("x", index), sign),), -sign * end.value, end.strict))
    return found_atoms


def substitute(node: Assertion, values: Mapping[int, Fraction]) -> Assertion:
    """The assertion with some inputs replaced by their values."""
    match node:
        case Atom(terms, constant, strict):
            if not any(source == "x" and k in values for (source, k), _ in terms):
                return node
            known = sum((c * values[k] for (s, k), c in terms if s == "x" and k in values), ZERO)
            kept = tuple(t for t in terms if t[0][0] != "x" or t[0][1] not in values)
            return Atom(kept, constant + known, strict)
        case All(parts):
            return All(tuple(substitute(part, values) for part in parts))
        case Some(parts):
            return Some(tuple(substitute(part, values) for part in parts))


def unbounded(document: Document, index: int, side: str) -> InputError:
    name = document.name_of(("x", index))
    return InputError(
        f"the input {name} has no {side} bound",
        expected="bounds on every input",
        found="an unbounded region",
        fix=f"assert a bound of {name}, such as the range of its data",
        where=document.place_of(("x", index)),
    )
