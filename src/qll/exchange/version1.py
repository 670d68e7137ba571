"""VNN-LIB 1: SMT-LIB with ``X_i`` for the inputs and ``Y_j`` for the outputs of one network."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from qll.errors import FormulaError
from qll.exchange.assertions import Gathered
from qll.exchange.document import MOST_ELEMENTS, Bounds, Declaration, Document, Tensor
from qll.exchange.expressions import Place, Reader
from qll.exchange.scanner import END, MOST_DEPTH, Scanner, described
from qll.formula.hard import Slot

_NAME = re.compile(r"([XY])_(\d{1,9})$", re.ASCII)
_DECLARED = re.compile(r"\s*\(declare-const\s+(?P<at>[XY])_(\d{1,9})\s+Real\s*\)", re.ASCII)
# Commands of SMT-LIB that ask for nothing but the answer.
_IGNORED = ("set-logic", "set-info", "set-option", "check-sat", "get-model", "exit")


@dataclass(eq=False)
class _Names:
    """Which of X_0, X_1, ... (or Y) are declared."""

    seen: bytearray = field(default_factory=bytearray)
    count: int = 0
    place: str = ""  # of the first declaration

    def add(self, index: int) -> bool:
        if index >= len(self.seen):
            self.seen.extend(bytes(index + 1 - len(self.seen)))
        fresh = not self.seen[index]
        self.seen[index] = 1
        self.count += fresh
        return fresh

    def __contains__(self, index: int) -> bool:
        return index < len(self.seen) and bool(self.seen[index])


class _Version1:
    def __init__(self, scanner: Scanner) -> None:
        self.scanner = scanner
        self.names = {"X": _Names(), "Y": _Names()}
        self.reader = Reader(scanner, self.resolve, smt=True)
        self.gathered = Gathered(self.reader, Bounds())

    def read(self, command: str) -> Document:
        self.statement(command)
        while True:
            for found in self.scanner.all_of(_DECLARED):
                self.declare(found.group(1), int(found.group(2)))
            self.gathered.read_simple()
            token = self.scanner.token()
            if not token:
                break
            if token != "(":  # noqa: S105
                raise self.error(
                    "a statement does not begin with a bracket", "'('", described(token)
                )
            self.statement(self.scanner.token())
        return self.document()

    def statement(self, command: str) -> None:
        if command == "assert":
            self.gathered.add(self.reader.assertion())
        elif command in ("declare-const", "declare-fun"):
            self.declaration(command)
        elif command in _IGNORED:
            self.skip()
            return
        else:
            known = "declare-const, declare-fun or assert"
            raise self.error("this is not a statement of VNN-LIB 1", known, described(command))
        self.reader.expect(")", f"'{command}'")

    def declaration(self, command: str) -> None:
        name = self.scanner.token()
        place = self.scanner.place()
        found = _NAME.match(name)
        if found is None:
            raise self.error("this name cannot be declared", "X_i or Y_j", described(name))
        if command == "declare-fun":
            self.reader.expect("(", "the declaration")
            self.reader.expect(")", "the declaration")
        kind = self.scanner.token()
        if kind.lower() != "real":
            raise self.error("this type is not known to VNN-LIB 1", "Real", described(kind))
        self.declare(found.group(1), int(found.group(2)), place)

    def declare(self, letter: str, index: int, place: Place | None = None) -> None:
        if index >= MOST_ELEMENTS:
            limit = f"a number below {MOST_ELEMENTS:,}"
            raise self.error("the number is too large", limit, f"{letter}_{index}", place)
        names = self.names[letter]
        if not names.count:
            line, column = place or self.scanner.place()
            names.place = f"{self.scanner.source}:{line}:{column}"
        if not names.add(index):
            raise self.error("a name is declared twice", "once", f"{letter}_{index} again", place)
        if letter == "X":
            self.gathered.bounds.grow(index + 1)

    def resolve(self, name: str) -> tuple[Slot, str]:
        found = _NAME.match(name)
        if found is None or int(found.group(2)) not in self.names[found.group(1)]:
            raise self.scanner.undeclared(name, "a declared X_i or Y_j")
        return ("x" if found.group(1) == "X" else "y", int(found.group(2))), "real"

    def skip(self) -> None:
        depth = 1
        while depth:
            token = self.scanner.token()
            if not token or depth > MOST_DEPTH:
                raise self.error("a statement is not complete", "')'", described(token))
            depth += {"(": 1, ")": -1}.get(token, 0)

    def document(self) -> Document:
        tensors = []
        kinds: tuple[tuple[str, Literal["input", "output"]], ...] = (
            ("X", "input"),
            ("Y", "output"),
        )
        for letter, kind in kinds:
            names = self.names[letter]
            if not names.count:
                raise self.error(f"no {kind} is declared", f"{letter}_0", END)
            if names.count != len(names.seen):
                missing = f"no {letter}_{names.seen.index(0)}"
                last = f"{letter}_{len(names.seen) - 1}"
                raise self.error(
                    f"the {kind}s are not declared one after the other",
                    f"{letter}_0 to {last}",
                    missing,
                )
            shape = (names.count,)
            tensors.append(Tensor(letter, kind, "Real", shape, 0, place=names.place))
        return Document(
            (1, 0),
            (Declaration("", tuple(tensors)),),
            self.gathered.bounds,
            self.gathered.finish(),
            self.scanner.source,
        )

    def error(
        self, what: str, expected: str, found: str, place: Place | None = None
    ) -> FormulaError:
        return self.scanner.error(what, expected, found, at=place)


def read_version1(scanner: Scanner, command: str) -> Document:
    """The first bracket and ``command`` have been read."""
    return _Version1(scanner).read(command)
