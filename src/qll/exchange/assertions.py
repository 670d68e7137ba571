"""The assertions of a file as they are read: bounds of single inputs apart from all else."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fractions import Fraction

from qll.exchange.document import All, Assertion, Atom, Bounds
from qll.exchange.expressions import WHOLE, Reader
from qll.exchange.scanner import END

# (assert (<= X_3 0.5)) and (assert (<= X[0,3] 0.5)): most of most files.
_SIMPLE = re.compile(
    r"\s*\(assert\s+\(([<>]=)\s+(?P<at>[A-Za-z]\w{0,200}(?:\[[\d,]{1,200}\])?)\s+"
    r"(-?\d{1,30}\.\d{1,30})\)\s*\)",
    re.ASCII,
)


@dataclass(eq=False)
class Gathered:
    reader: Reader
    bounds: Bounds
    others: list[Assertion] = field(default_factory=list)
    count: int = 0

    def read_simple(self) -> None:
        """All bounds of the plainest form that stand here, without building anything."""
        resolve = self.reader.resolve
        for found in self.reader.scanner.all_of(_SIMPLE):
            operator, name, text = found.groups()
            (source, index), kind = resolve(name)
            if kind in WHOLE:
                raise self.reader.not_whole(kind, text)
            side = "lower" if operator == ">=" else "upper"
            self.count += 1
            if source == "x" and self.bounds.tighten_text(side, index, text):
                continue
            sign = Fraction(1 if side == "lower" else -1)
            self._take(Atom((((source, index), sign),), -sign * Fraction(text)))

    def add(self, assertion: Assertion) -> None:
        self.count += 1
        for part in assertion.parts if isinstance(assertion, All) else (assertion,):
            self._take(part)

    def _take(self, part: Assertion) -> None:
        if not self.bounds.take(part):
            self.others.append(part)

    def finish(self) -> tuple[Assertion, ...]:
        if not self.count:
            raise self.reader.error("nothing is asserted", "at least one 'assert'", END)
        return tuple(self.others)
