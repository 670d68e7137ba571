"""Tokens of an s-expression file with their line and column, read a piece at a time.

A file may be hundreds of megabytes long and need not be what its name says: memory is bounded by
one piece of text, however long a line, a comment or a token is, and bytes that are no text are read
as characters that no token has.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from qll.errors import FormulaError

PIECE = 1 << 18  # characters that are read at once
MOST_TOKEN = 2048
MOST_SHOWN = 60
MOST_DEPTH = 100  # of brackets in one statement

# A name takes its indices with it: X[0, 3] is one token.
_TOKEN = re.compile(
    r"""[()]|"(?:[^"\\\n]|\\.)*"|[^\s()\[\];"]+(?:\[[\d,\s]*\])?|\[[\d,\s]*\]""", re.ASCII
)
_SPACE = re.compile(r"\s*", re.ASCII)
END = "the end of the file"
COPY = "check that the file is VNN-LIB and was copied whole"
_GZIP = b"\x1f\x8b"
BYTE_ORDER = "\ufeff"  # editors of some systems put it at the beginning


class Scanner:
    """``token()`` gives one token after the other, '' at the end of the file."""

    def __init__(self, stream: IO[str], source: str) -> None:
        self.source = source
        self._stream = stream
        self._text = ""
        self._next = 0  # where in the text the next token may begin
        self._begin = 0  # where the last one began
        self._ended = False
        # The place of character `_counted` of the text; counted on from there.
        self._counted, self._line, self._column = 0, 1, 1

    def token(self) -> str:
        while True:
            self._next = _SPACE.match(self._text, self._next).end()  # type: ignore[union-attr]
            # A token of allowed length is whole in the text before it is looked at.
            if len(self._text) - self._next < MOST_TOKEN and self._more():
                continue
            if not self._text.startswith(";", self._next):
                break
            self._skip_line()
        self._begin = self._next
        found = _TOKEN.match(self._text, self._next)
        if found is None:
            if self._next == len(self._text):
                return ""
            character = self._text[self._next]
            if character == "[":
                raise self._indices()
            raise self.error(
                "a character has no meaning here", "brackets, names and numbers", repr(character)
            )
        if found.end() - self._next > MOST_TOKEN:
            raise self.error("a word is too long", f"at most {MOST_TOKEN:,} characters", "more")
        self._next = found.end()
        if self._text.startswith("[", self._next):  # which the name would have taken with it
            self._begin = self._next
            raise self._indices()
        return found.group()

    def _indices(self) -> FormulaError:
        inside = self._text[self._next : self._next + MOST_SHOWN].partition("]")
        wanted = "whole numbers from 0 on, with commas between them"
        return self.error("indices or sizes cannot be read", wanted, inside[0] + inside[1])

    def _skip_line(self) -> None:
        while (end := self._text.find("\n", self._next)) < 0:  # a comment as long as it likes
            self._next = len(self._text)
            if not self._more():
                return
        self._next = end

    def undeclared(self, name: str, known: str) -> FormulaError:
        fix = "correct the name, or declare it before the first assertion"
        return self.error("a name is not declared", known, described(name), fix)

    def all_of(self, pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
        """What ``pattern`` finds from here on, one directly after the other: the short cut for the
        many statements of one simple kind. A match must be shorter than a token may be; its group
        ``at`` is the place of an error."""
        while True:
            if len(self._text) - self._next < MOST_TOKEN and not self._ended:
                self._more()
            found = pattern.match(self._text, self._next)
            if found is None:
                return
            self._begin, self._next = found.start("at"), found.end()
            yield found

    def place(self) -> tuple[int, int]:
        """Line and column, from 1, of the token that was read last."""
        return self._place(self._begin)

    def _place(self, end: int) -> tuple[int, int]:
        if end <= self._counted:  # places are asked for in order
            return self._line, self._column
        lines = self._text.count("\n", self._counted, end)
        if lines:
            self._line += lines
            self._column = end - self._text.rfind("\n", self._counted, end)
        else:
            self._column += end - self._counted
        self._counted = end
        return self._line, self._column

    def error(
        self,
        what: str,
        expected: str,
        found: str,
        fix: str = "",
        *,
        at: tuple[int, int] | None = None,
    ) -> FormulaError:
        line, column = self.place() if at is None else at
        return FormulaError(
            what,
            expected=expected,
            found=found[:80],
            fix=fix or (COPY if found == END else "correct the query at this place"),
            where=f"{self.source}:{line}:{column}",
        )

    def _more(self) -> bool:
        """Drop what was read, append the next piece."""
        if self._ended:
            return False
        try:
            piece = self._stream.read(PIECE)
        except (OSError, EOFError, zlib.error) as error:
            line, column = self._place(len(self._text))
            raise unreadable(f"{self.source}:{line}:{column}", str(error)) from error
        self._place(self._next)
        self._text = self._text[self._next :] + piece
        self._counted -= self._next
        self._next = self._begin = 0
        self._ended = not piece
        return bool(piece)


@contextmanager
def open_text(path: Path) -> Iterator[Scanner]:
    """A scanner of a file, which may be compressed by gzip."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == _GZIP
            raw.seek(0)
            stream: IO[bytes] = gzip.GzipFile(fileobj=raw) if packed else raw  # type: ignore[assignment]
            yield Scanner(io.TextIOWrapper(stream, "utf-8-sig", errors="replace"), str(path))
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise unreadable(str(path), getattr(error, "strerror", None) or str(error)) from error


def text(content: str, source: str = "<text>") -> Scanner:
    return Scanner(io.StringIO(content.removeprefix(BYTE_ORDER)), source)


def described(token: str) -> str:
    return f"'{token}'" if token else END


def unreadable(path: str, found: str) -> FormulaError:
    return FormulaError(
        "the file cannot be read",
        expected="a readable VNN-LIB file",
        found=found[:80] or "an error",
        fix="check the path, and that the file was copied whole",
        where=path,
    )
