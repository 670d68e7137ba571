"""Inputs that equal another one, or a power of two times it: one input, before all else.

``x[i] == x[j]`` between two networks is said of every pixel, and ``x[i] == -2 x[j]`` loses nothing
in floats. So the region keeps an interior, in every arithmetic. Other equations are solved later
(`qll.exchange.parts`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from qll.exchange.document import All, Assertion, Atom, Bounds, Document, Some

ONE = Fraction(1)
MOST_POWER = 1 << 64  # of two; sizes beyond it might overflow


@dataclass(frozen=True)
class Tied:
    """Input ``k`` is ``factors[k]`` times the input ``free[places[k]]``. No factor is less than 1
    in size: a product then has no more digits than what is multiplied."""

    free: tuple[int, ...]
    places: tuple[int, ...]
    factors: tuple[Fraction, ...]


def tied(document: Document) -> Tied | None:
    """None if there are none."""
    found = _Classes(document.inputs)
    above = {
        a.terms for a in document.assertions if isinstance(a, Atom) and not (a.constant or a.strict)
    }
    for terms in sorted(above):
        opposite = tuple((slot, -c) for slot, c in terms)
        if len(terms) == 2 and opposite in above and {s for (s, _), _ in terms} == {"x"}:
            ((_, i), c), ((_, j), d) = terms
            if _is_power(-d / c):
                found.join(i, j, -d / c)
    return found.result() if found.parent else None


def _is_power(value: Fraction) -> bool:
    sizes = abs(value.numerator), value.denominator
    return min(sizes) == 1 and max(sizes) <= MOST_POWER and max(sizes).bit_count() == 1


class _Classes:
    """Union and find, with factors."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.parent: dict[int, tuple[int, Fraction]] = {}  # k is so many times another

    def root(self, k: int) -> tuple[int, Fraction]:
        factor = ONE
        while k in self.parent:
            k, more = self.parent[k]
            factor *= more
        return k, factor

    def join(self, i: int, j: int, times: Fraction) -> None:
        """Input ``i`` is ``times`` input ``j``."""
        (first, one), (second, two) = self.root(i), self.root(j)
        between = times * two / one  # first is so many times second
        if first == second or max(abs(between), 1 / abs(between)) > MOST_POWER:
            return  # said before, or a contradiction but for 0: it stays an assertion
        if first < second:
            self.parent[second] = first, 1 / between
        else:
            self.parent[first] = second, between

    def result(self) -> Tied:
        members: dict[int, list[tuple[Fraction, int]]] = {}
        for k in range(self.count):
            root, factor = self.root(k)
            members.setdefault(root, []).append((factor, k))
        least = {root: min(own, key=lambda m: (abs(m[0]), m[1])) for root, own in members.items()}
        free = sorted(k for _, k in least.values())
        place = {k: at for at, k in enumerate(free)}
        places, factors = [0] * self.count, [ONE] * self.count
        for root, own in members.items():
            unit, chosen = least[root]
            for factor, k in own:
                places[k], factors[k] = place[chosen], factor / unit
        return Tied(tuple(free), tuple(places), tuple(factors))


def reduced(document: Document, ties: Tied) -> Document:
    """The same question of the free inputs."""
    bounds = Bounds()
    bounds.grow(len(ties.free))
    for index, (place, factor) in enumerate(zip(ties.places, ties.factors, strict=True)):
        for side, other in (("lower", "upper"), ("upper", "lower")):
            value = document.bounds.get(side, index)
            if value is not None:
                strict = document.bounds.is_strict(side, index)
                bounds.tighten(side if factor > 0 else other, place, value / factor, strict)
    assertions = tuple(_moved(a, ties) for a in document.assertions)
    return replace(document, bounds=bounds, assertions=assertions, kept=ties.free)


def _moved(node: Assertion, ties: Tied) -> Assertion:
    match node:
        case Atom(terms, constant, strict):
            total: dict[tuple[str, int], Fraction] = {}
            for (source, k), c in terms:
                if source == "x":
                    c, k = c * ties.factors[k], ties.places[k]
                total[source, k] = total.get((source, k), Fraction(0)) + c
            return Atom(tuple(sorted((s, c) for s, c in total.items() if c)), constant, strict)
        case All(parts):
            return All(tuple(_moved(part, ties) for part in parts))
        case Some(parts):
            return Some(tuple(_moved(part, ties) for part in parts))
