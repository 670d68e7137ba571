"""From a file or a text to a document, whichever version of VNN-LIB it is."""

from __future__ import annotations

from pathlib import Path

from qll.exchange import scanner as scan
from qll.exchange.document import Document
from qll.exchange.scanner import COPY, Scanner, described
from qll.exchange.version1 import read_version1
from qll.exchange.version2 import read_version2


def read(path: str | Path) -> Document:
    """A VNN-LIB file of version 1 or 2, as it is or compressed by gzip."""
    with scan.open_text(Path(path)) as scanner:
        return _read(scanner)


def parse(text: str, source: str = "<text>") -> Document:
    return _read(scan.text(text, source))


def _read(scanner: Scanner) -> Document:
    """Version 2 says so in its first statement."""
    token = scanner.token()
    if token != "(":  # noqa: S105
        raise scanner.error("this is not VNN-LIB", "a statement", described(token), COPY)
    command = scanner.token()
    if command == "vnnlib-version":
        return read_version2(scanner)
    return read_version1(scanner, command)
