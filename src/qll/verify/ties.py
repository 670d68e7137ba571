"""Boxes on which nothing satisfies an assertion, shown in rational arithmetic: for ties.

Where the extreme value of a network is exactly the threshold (``|x| > 1`` on [-1, 1], an output of
a ReLU that is to be negative), bounds in floats miss it by their rounding, however small the boxes
are. Here every value of a small network of ReLUs lies between two affine functions of the inputs
with rational coefficients. An unstable ReLU is at most its chord, whose slope is rounded up to a
few bits, and at least 0 or its argument; all three hold for any box (Wang et al. 2018).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from typing import TypeAlias

from qll.exchange.document import All, Assertion, Atom, Some
from qll.formula.hard import ZERO, Affine
from qll.networks.activations import RELU
from qll.networks.matrices import entries, rows_of
from qll.networks.program import Activate, AffineMap, Program

Box: TypeAlias = tuple[tuple[Fraction, Fraction], ...]
Row: TypeAlias = tuple[Fraction, ...]  # coefficients of the inputs, then the constant

# Products for one box, some tenths of a second in fractions.
MOST_PRODUCTS = 300_000
SLOPE_BITS = 12
MOST_PAIRED = 12  # comparisons of which two are added
# What an unstable ReLU is at least: the nearer of 0 and its argument, always 0, always its argument
LOWER = ("near", "zero", "same")


@dataclass(frozen=True)
class _Between:
    """A value is no less than ``low`` and no more than ``high``, anywhere on the box."""

    low: Row
    high: Row


class Refuter:
    """Of one network; ``image`` are the inputs that assertions speak of, if they are not its own:
    functions of its own (`qll.verify.moved`)."""

    def __init__(self, program: Program, image: Sequence[Affine] | None = None) -> None:
        self.size = program.widths[0]
        self._steps = [
            step if isinstance(step, Activate) else _Rows(step) for step in program.steps
        ]
        units = [self._unit(k) for k in range(self.size)]
        if image is None:
            self._inputs = [_Between(row, row) for row in units]
        else:
            rows = [
                _sum(
                    [(c, units[k]) for (_, k), c in form.terms], Fraction(form.constant), self.size
                )
                for form in image
            ]
            self._inputs = [_Between(row, row) for row in rows]

    @staticmethod
    def fits(program: Program) -> bool:
        """Whether the network is small enough, and has no other activations."""
        products = 0
        for step in program.steps:
            if isinstance(step, AffineMap):
                products += sum(entries(matrix).size for _, matrix in step.terms)
            elif step.function != RELU:
                return False
        return products * (program.widths[0] + 1) <= MOST_PRODUCTS

    def _unit(self, k: int) -> Row:
        return tuple(Fraction(int(j == k)) for j in range(self.size + 1))

    def refutes(self, box: Box, node: Assertion, seconds: float) -> bool:
        """Whether no point of the box satisfies the assertion, as far as halves of it show that
        within the time."""
        end = time.monotonic() + seconds
        widths = [high - low for low, high in box]
        open_ = [box]
        while open_:
            part = open_.pop()
            if self._is_impossible(part, node, end):
                continue
            shares = [
                (high - low) / width if width else ZERO
                for (low, high), width in zip(part, widths, strict=True)
            ]
            if time.monotonic() > end or not any(shares):
                return False
            open_ += _halves(part, shares.index(max(shares)))
        return True

    def _is_impossible(self, box: Box, node: Assertion, end: float) -> bool:
        for lower in LOWER:
            if time.monotonic() > end:
                return False
            if _fails(node, box, self._inputs, self._outputs(box, lower)):
                return True
        return False

    def _outputs(self, box: Box, lower: str) -> list[_Between]:
        units = [self._unit(k) for k in range(self.size)]
        values = [[_Between(row, row) for row in units]]
        for step in self._steps:
            if isinstance(step, Activate):
                values.append([_relu(value, box, lower) for value in values[step.source]])
            else:
                values.append(step.apply(values, self.size))
        return values[-1]


class _Rows:
    """An affine step with exact weights, zeros left out."""

    def __init__(self, step: AffineMap) -> None:
        self.bias = [Fraction(v) for v in step.bias.tolist()]
        divisor = [1.0] * step.width if step.divisor is None else step.divisor.tolist()
        self.over = [1 / Fraction(v) for v in divisor]
        self.terms: list[list[tuple[int, int, Fraction]]] = [[] for _ in self.bias]
        for source, matrix in step.terms:
            for row, (columns, weights) in zip(self.terms, rows_of(matrix), strict=True):
                row += [
                    (source, k, Fraction(w)) for k, w in zip(columns, weights, strict=True) if w
                ]

    def apply(self, values: list[list[_Between]], size: int) -> list[_Between]:
        found = []
        for terms, bias, over in zip(self.terms, self.bias, self.over, strict=True):
            low, high = [], []
            for source, k, weight in terms:
                value, factor = values[source][k], weight * over
                low.append((factor, value.low if factor > 0 else value.high))
                high.append((factor, value.high if factor > 0 else value.low))
            least = _sum(low, bias * over, size)
            same = all(a is b for (_, a), (_, b) in zip(low, high, strict=True))
            found.append(_Between(least, least if same else _sum(high, bias * over, size)))
        return found


def _sum(terms: Sequence[tuple[Fraction, Row]], constant: Fraction, size: int) -> Row:
    total = [ZERO] * size + [constant]
    for factor, row in terms:
        for k, c in enumerate(row):
            if c:
                total[k] += factor * c
    return tuple(total)


def _most(row: Row, box: Box) -> Fraction:
    ends = zip(row, box, strict=False)
    return sum((c * (high if c > 0 else low) for c, (low, high) in ends if c), row[-1])


def _least(row: Row, box: Box) -> Fraction:
    ends = zip(row, box, strict=False)
    return sum((c * (low if c > 0 else high) for c, (low, high) in ends if c), row[-1])


def _relu(value: _Between, box: Box, lower: str) -> _Between:
    least, most = _least(value.low, box), _most(value.high, box)
    if least >= 0:
        return value
    zero = (ZERO,) * len(value.low)
    if most <= 0:
        return _Between(zero, zero)
    below = _least(value.high, box)
    high = value.high
    if below < 0:  # s (z - below) is 0 at `below` and no less than `most` at `most`
        slope = Fraction(-((-most * (1 << SLOPE_BITS)) // (most - below)), 1 << SLOPE_BITS)
        high = (*(slope * c for c in high[:-1]), slope * (high[-1] - below))
    above = _most(value.low, box)
    keeps = above > 0 and (lower == "same" or (lower == "near" and above > -least))
    return _Between(value.low if keeps else zero, high)


def _fails(node: Assertion, box: Box, x: list[_Between], y: list[_Between]) -> bool:
    """Whether no point of the box satisfies it."""
    match node:
        case Atom(_, _, strict):
            return _is_refuted(_at_most(node, x, y, len(box)), box, strict=strict)
        case All():
            atoms, others = _flat(node)
            if any(_fails(part, box, x, y) for part in others):
                return True
            rows = [(_at_most(atom, x, y, len(box)), atom.strict) for atom in atoms]
            if any(_is_refuted(row, box, strict=strict) for row, strict in rows):
                return True
            pairs = combinations(rows, 2) if len(rows) <= MOST_PAIRED else ()
            return any(_exclude(one, other, box) for one, other in pairs)
        case Some(parts):
            return all(_fails(part, box, x, y) for part in parts)


def _flat(node: All) -> tuple[list[Atom], list[Assertion]]:
    atoms, others = list[Atom](), list[Assertion]()
    for part in node.parts:
        if isinstance(part, All):
            more = _flat(part)
            atoms, others = atoms + more[0], others + more[1]
        elif isinstance(part, Atom):
            atoms.append(part)
        else:
            others.append(part)
    return atoms, others


def _at_most(atom: Atom, x: list[_Between], y: list[_Between], size: int) -> Row:
    """A function of the inputs that the sum of the atom does not exceed."""
    parts = []
    for (source, k), c in atom.terms:
        value = (x if source == "x" else y)[k]
        parts.append((c, value.high if c > 0 else value.low))
    return _sum(parts, atom.constant, size)


def _is_refuted(row: Row, box: Box, *, strict: bool) -> bool:
    most = _most(row, box)
    return most <= 0 if strict else most < 0


def _exclude(one: tuple[Row, bool], other: tuple[Row, bool], box: Box) -> bool:
    """Whether two comparisons cannot both hold: a positive combination of them, from which an input
    is gone, holds nowhere."""
    (first, first_strict), (second, second_strict) = one, other
    factors = {-a / b for a, b in zip(first[:-1], second[:-1], strict=True) if a * b < 0}
    for factor in factors:
        row = tuple(a + factor * b for a, b in zip(first, second, strict=True))
        if _is_refuted(row, box, strict=first_strict or second_strict):
            return True
    return False


def _halves(box: Box, k: int) -> list[Box]:
    low, high = box[k]
    middle = (low + high) / 2
    return [(*box[:k], ends, *box[k + 1 :]) for ends in ((low, middle), (middle, high))]
