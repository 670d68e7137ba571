"""Terms and assertions, which both versions of VNN-LIB share: prefix notation, linear."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeAlias

from qll.errors import FormulaError
from qll.exchange.document import All, Assertion, Atom, Some, conjunction, disjunction, negation
from qll.exchange.scanner import MOST_DEPTH, Scanner, described
from qll.formula.hard import ZERO, Slot, is_usable

MOST_ATOMS = 20_000_000
MOST_DIGITS = 400
MOST_BITS = 1 << 12  # of a product of literals
_NUMBER = re.compile(r"([-+]?)(\d*)(?:\.(\d*))?(?:[eE]([-+]?\d{1,4}))?$", re.ASCII)
_BOUND = re.compile(
    r"\s*\(([<>]=)\s+(?P<at>[A-Za-z]\w{0,200}(?:\[[\d,]{1,200}\])?)\s+"
    r"(-?\d{1,30}(?:\.\d{1,30})?)\)",
    re.ASCII,
)
WHOLE = frozenset(f"{sign}int{size}" for sign in ("", "u") for size in (4, 8, 16, 32, 64))
_COMPARISONS = ("<=", ">=", "<", ">", "==", "=", "!=", "distinct")
_UNITS = {1: Fraction(1), -1: Fraction(-1)}
_REMEMBERED = 1 << 16

Place: TypeAlias = tuple[int, int]
Terms: TypeAlias = list[tuple[Slot, Fraction]]
Pairs: TypeAlias = tuple[tuple[Slot, Fraction], ...]


def number(text: str) -> Fraction | None:
    """A decimal literal, exactly; None if it is none, or not one that a float can be near to.

    >>> number("-1.5e-1"), number("1e9999"), number("X")
    (Fraction(-3, 20), None, None)
    """
    found = _NUMBER.match(text)
    if found is None or len(text) > MOST_DIGITS:
        return None
    sign, whole, part, exponent = found.group(1), found.group(2), found.group(3) or "", found[4]
    if not whole and not part:
        return None
    shift = int(exponent or 0) - len(part)
    if abs(shift) > MOST_DIGITS:
        return None
    value = Fraction(int(sign + whole + part) * 10 ** max(shift, 0), 10 ** max(-shift, 0))
    return value if is_usable(value) else None


@dataclass(eq=False)
class Reader:
    """Reads the assertions of one file. ``resolve`` says which element a name is, and its type."""

    scanner: Scanner
    resolve: Callable[[str], tuple[Slot, str]]
    smt: bool  # version 1 is SMT-LIB, with 'not' and '=>'; version 2 has neither
    atoms: int = 0
    _numbers: dict[str, Fraction] = field(default_factory=dict)
    _names: dict[str, tuple[Slot, str]] = field(default_factory=dict)
    _sides: dict[tuple[str, str], tuple[Pairs, str]] = field(default_factory=dict)
    _types: set[str] = field(default_factory=set)  # of the names in the present comparison
    _fraction: str = ""  # a literal in it that is not an integer

    def expect(self, wanted: str, what: str) -> None:
        found = self.scanner.token()
        if found != wanted:
            raise self.error(f"{what} is not complete", f"'{wanted}'", described(found))

    def error(self, what: str, expected: str, found: str, at: Place | None = None) -> FormulaError:
        return self.scanner.error(what, expected, found, at=at)

    # --- assertions ---

    def assertion(self) -> Assertion:
        """One Boolean expression, from its opening bracket to its closing one."""
        self.expect("(", "an assertion")
        return self._assertion(0)

    def _assertion(self, depth: int) -> Assertion:
        """The bracket has been read."""
        operator = self.scanner.token()
        place = self.scanner.place()
        if depth > MOST_DEPTH:
            raise self._too_deep()
        if operator in _COMPARISONS:
            return self._comparison(operator, place)
        if operator == "not" and self.smt:
            self.expect("(", "'not'")
            inner = self._assertion(depth + 1)
            self.expect(")", "'not'")
            return negation(inner)
        if operator not in ("and", "or") and not (operator == "=>" and self.smt):
            known = "and, or, <=, >=, <, >, ==, !=" + (", not, =>" if self.smt else "")
            raise self.error(
                "this is not an operator of assertions", f"one of {known}", described(operator)
            )
        parts = list[Assertion]()
        while True:
            for found in self.scanner.all_of(_BOUND):
                parts.append(self._bound(*found.groups()))
            if (token := self.scanner.token()) != "(":
                break
            parts.append(self._assertion(depth + 1))
        if token != ")":  # noqa: S105
            raise self.error(f"'{operator}' is not complete", "'(' or ')'", described(token))
        if not parts:
            raise self.error(f"'{operator}' has no operands", "at least one", "none", place)
        if operator == "and":
            return conjunction(parts)
        if operator == "=>":
            return disjunction([*(negation(p) for p in parts[:-1]), parts[-1]])
        return disjunction(parts)

    def _bound(self, operator: str, name: str, text: str) -> Atom:
        """``(<= X_3 0.5)`` at once: files of hundreds of megabytes consist of these."""
        self._count()
        known = self._sides.get((name, operator))
        if known is None:
            slot, kind = self.resolve(name)
            sign = _UNITS[1 if operator == ">=" else -1]
            if len(self._sides) >= _REMEMBERED:
                self._sides.clear()
            known = self._sides[name, operator] = ((slot, sign),), kind
        terms, kind = known
        whole, _, part = text.partition(".")
        if part and kind in WHOLE:
            raise self.not_whole(kind, text)
        digits = int(whole + part)
        return Atom(terms, Fraction(-digits if operator == ">=" else digits, 10 ** len(part)))

    def _count(self, place: Place | None = None) -> None:
        self.atoms += 1
        if self.atoms > MOST_ATOMS:
            raise self.error("the query is too long", f"{MOST_ATOMS:,} comparisons", "more", place)

    def not_whole(self, kind: str, text: str, place: Place | None = None) -> FormulaError:
        return self.error(f"a number is not a value of the type {kind}", "an integer", text, place)

    def _comparison(self, operator: str, place: Place) -> Assertion:
        self._types.clear()
        self._fraction = ""
        left, low = self._term(self.scanner.token(), 0)
        right, high = self._term(self.scanner.token(), 0)
        self.expect(")", f"the comparison '{operator}'")
        self._count(place)
        if self._fraction and (kinds := self._types & WHOLE):
            raise self.not_whole(min(kinds), self._fraction, place)
        if len(self._types) > 1:
            raise self.error(
                "elements of different types are compared",
                "one element type in a comparison",
                " and ".join(sorted(self._types)),
                place,
            )
        if operator in ("<=", "<"):
            return self._atom(right, high, left, low, operator == "<", place)
        if operator in (">=", ">"):
            return self._atom(left, low, right, high, operator == ">", place)
        strict = operator in ("!=", "distinct")
        above = self._atom(left, low, right, high, strict, place)
        below = Atom(tuple((s, -c) for s, c in above.terms), -above.constant, strict)
        return Some((above, below)) if strict else All((above, below))

    def _atom(
        self, more: Terms, high: Fraction, less: Terms, low: Fraction, strict: bool, place: Place
    ) -> Atom:
        """``more + high >= less + low``."""
        if (not more and len(less) == 1) or (not less and len(more) == 1):
            terms = tuple(more) or ((less[0][0], _short(-less[0][1])),)
        else:
            total: dict[Slot, Fraction] = dict.fromkeys((s for s, _ in (*more, *less)), ZERO)
            for slot, c in more:
                total[slot] += c
            for slot, c in less:
                total[slot] -= c
            terms = tuple(sorted((s, _short(c)) for s, c in total.items() if c))
        if terms and not terms[0][1]:
            terms = ()
        constant = high - low
        if not all(is_usable(c) for _, c in terms) or not is_usable(constant):
            raise self.error(
                "a number is too large or too small",
                "0, or a size between 1e-307 and 8e307",
                "another size",
                place,
            )
        return Atom(terms, constant, strict)

    # --- terms ---

    def _term(self, token: str, depth: int) -> tuple[Terms, Fraction]:
        """A linear expression: its terms, like ones not yet collected, and its constant."""
        if token != "(":  # noqa: S105
            return self._leaf(token)
        if depth > MOST_DEPTH:
            raise self._too_deep()
        operator = self.scanner.token()
        place = self.scanner.place()
        if operator not in ("+", "-", "*"):
            raise self.error(
                "this is not an operator of linear terms", "+, - or *", described(operator)
            )
        terms, constant = self._term(self.scanner.token(), depth + 1)
        count = 1
        while (token := self.scanner.token()) != ")":
            more, other = self._term(token, depth + 1)
            count += 1
            if operator == "*":
                terms, constant = self._product(terms, constant, more, other, place)
            else:
                sign = _UNITS[1 if operator == "+" else -1]
                terms += [(slot, sign * c) for slot, c in more] if sign < 0 else more
                constant = constant + sign * other
        if operator == "-" and count == 1:
            return [(slot, _short(-c)) for slot, c in terms], -constant
        return terms, constant

    def _product(
        self, terms: Terms, constant: Fraction, more: Terms, other: Fraction, place: Place
    ) -> tuple[Terms, Fraction]:
        if terms and more:
            raise self.scanner.error(
                "a product of two variables is not linear",
                "at most one factor with a variable",
                "two",
                "bound it by linear comparisons: no others can be decided",
                at=place,
            )
        factor, rest = (constant, more) if more else (other, terms)
        scaled, product = [(slot, c * factor) for slot, c in rest], constant * other
        for value in (product, *(c for _, c in scaled)):
            if value.denominator.bit_length() + value.numerator.bit_length() > MOST_BITS:
                raise self.error("a product is too large", "a number near a float", "more", place)
        return scaled, product

    def _leaf(self, token: str) -> tuple[Terms, Fraction]:
        if token in self._names:
            slot, kind = self._names[token]
            self._types.add(kind)
            return [(slot, _UNITS[1])], ZERO
        if token in self._numbers:
            value = self._numbers[token]
            self._fraction = self._fraction if value.denominator == 1 else token
            return [], value
        if not token or token == ")":  # noqa: S105
            raise self.error(
                "a term is missing", "a number or a declared element", described(token)
            )
        if token[0].isdigit() or token[0] in "+-.":
            read = number(token)
            if read is None:
                raise self.error(
                    "a number cannot be read",
                    f"a decimal of a float's size and at most {MOST_DIGITS} digits",
                    token,
                )
            if len(self._numbers) < _REMEMBERED:
                self._numbers[token] = read
            self._fraction = self._fraction if read.denominator == 1 else token
            return [], read
        slot, kind = self.resolve(token)
        if len(self._names) < _REMEMBERED:
            self._names[token] = slot, kind
        self._types.add(kind)
        return [(slot, _UNITS[1])], ZERO

    def _too_deep(self) -> FormulaError:
        return self.error("brackets are nested too deeply", f"at most {MOST_DEPTH} levels", "more")


def _short(value: Fraction) -> Fraction:
    """One object for all the coefficients 1 and -1."""
    return _UNITS.get(value, value) if value.denominator == 1 else value  # type: ignore[call-overload]
