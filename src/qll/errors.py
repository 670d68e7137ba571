"""One exception root. Every message has three parts: what is wrong and where, what was expected
against what was found, and how to fix it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

MOST_SHOWN = 4000  # characters of one part of a message


class QllError(Exception):
    """Root of everything the library raises on bad input.

    >>> print(QllError("threshold 'delta' is outside its domain", where="robust.qll:3:14",
    ...                expected="a probability in (0, 1)", found="1.7", fix="pass delta=0.7"))
    robust.qll:3:14: threshold 'delta' is outside its domain.
    Expected a probability in (0, 1), found 1.7.
    Fix: pass delta=0.7.
    """

    def __init__(
        self, what: str, *, expected: str, found: str, fix: str, where: str | None = None
    ) -> None:
        self.what = what
        self.expected = expected
        self.found = found
        self.fix = fix
        self.where = where
        super().__init__(self.render())

    def render(self) -> str:
        place = f"{self.where}: " if self.where else ""
        what, expected, found, fix = map(_cut, (self.what, self.expected, self.found, self.fix))
        return f"{place}{what}.\nExpected {expected}, found {found}.\nFix: {fix}."

    def at(self, where: str) -> QllError:
        """The same error with a place, for callers that know where and callees that know what."""
        return type(self)(
            self.what, expected=self.expected, found=self.found, fix=self.fix, where=where
        )

    def __reduce__(self) -> tuple[Callable[..., QllError], tuple[Any, ...]]:
        """Errors come back whole from other processes."""
        return _rebuild, (type(self), self.what, self.expected, self.found, self.fix, self.where)


def _cut(text: str) -> str:
    """What a file holds may be longer than anybody reads."""
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN // 2]}...{text[-200:]}"


def _rebuild(
    kind: type[QllError], what: str, expected: str, found: str, fix: str, where: str | None
) -> QllError:
    return kind(what, expected=expected, found=found, fix=fix, where=where)


class FormulaError(QllError):
    """The text or the nodes of a formula are wrong."""


class LogicError(QllError):
    """A logic cannot do what was asked of it, or its parameters are out of range."""


class InputError(QllError):
    """A tensor, array or option has the wrong shape, type or value."""


class NetworkError(QllError):
    """A network cannot be read, or has an operator, shape or weight that we do not take."""


class DataError(QllError):
    """A data set is missing, damaged or does not fit."""


class RunError(QllError):
    """Training, attack or verification cannot go on (non-finite loss, no space, a lock)."""


class MissingExtra(QllError):
    """An optional dependency is needed and not installed."""

    @classmethod
    def of(cls, package: str, extra: str, purpose: str) -> MissingExtra:
        return cls(
            f"{purpose} needs the package '{package}'",
            expected=f"'{package}' to be installed",
            found="no such module",
            fix=f"pip install 'qll[{extra}]'",
        )
