"""Tables as text: values with commas, semicolons, tabs or blanks between them, with a header or
not."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import numpy as np

from qll.data.formats import FORMATS, Format, cannot_read
from qll.data.table import Table
from qll.errors import DataError

_SUFFIXES = (".csv", ".tsv", ".txt", ".data")
_SIGNS = (",", ";", "\t")
_ROWS = "put the names of the columns in the first line and a line for each example below it"


def read_csv(path: Path, columns: tuple[str, ...] = (), labels: Path | None = None) -> Table:
    """``columns`` names those of a file without a header."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise DataError(
            "the text is not in UTF-8",
            where=f"{path}, line {line}",
            expected="UTF-8",
            found=f"the byte 0x{error.object[error.start]:02x}",
            fix="save it so: 'CSV UTF-8' in Excel, or iconv -f cp1252 -t utf-8 OLD > NEW",
        ) from error
    except OSError as error:
        raise cannot_read(path, "a readable file", error.strerror or str(error)) from error
    rows = _rows(text, path)
    if not rows:
        raise cannot_read(path, "a header and rows of values", "an empty file", _ROWS)
    names, body = _header(rows, columns, path)
    if not body:
        raise cannot_read(path, "rows of values after the header", "none", _ROWS)
    for line, row in body:
        if len(row) != len(names):
            raise DataError(
                "a row has another number of cells than the header",
                where=f"{path}, line {line}",
                expected=f"{len(names)} cells: {', '.join(names[:8])}",
                found=f"{len(row)}",
                fix="correct the row; a cell with a comma in it stands in quotes",
            )
    cells = [np.array([row[k] for _, row in body], dtype=object) for k in range(len(names))]
    found = dict(zip(names, cells, strict=True))
    if names[0] == "" and len(set(cells[0].tolist())) == len(body):
        del found[""]  # the row numbers that pandas writes
    return Table(found, str(path), [line for line, _ in body])


def _rows(text: str, path: Path) -> list[tuple[int, list[str]]]:
    sign = _separator(text)
    if sign is None:  # blanks
        lines = enumerate(text.splitlines(), start=1)
        return [(number, line.split()) for number, line in lines if line.strip()]
    reader = csv.reader(text.splitlines(), delimiter=sign, strict=True, skipinitialspace=True)
    try:
        return [(reader.line_num, [c.strip() for c in row]) for row in reader if any(row)]
    except csv.Error as error:
        raise cannot_read(
            path, "comma-separated values", f"line {reader.line_num}: {error}"
        ) from error


def _separator(text: str) -> str | None:
    first = next((line for line in text.splitlines() if line.strip()), "")
    counts = Counter({sign: first.count(sign) for sign in _SIGNS})
    sign, count = counts.most_common(1)[0]
    return sign if count else (None if len(first.split()) > 1 else ",")


def _header(
    rows: list[tuple[int, list[str]]], columns: tuple[str, ...], path: Path
) -> tuple[list[str], list[tuple[int, list[str]]]]:
    line, first = rows[0]
    if columns:
        if len(columns) != len(first):
            raise DataError(
                "the names do not fit the columns of the file",
                where=f"{path}, line {line}",
                expected=f"{len(columns)} cells: {', '.join(columns[:8])}",
                found=f"{len(first)}",
                fix="give 'columns' in the schema a name for each of them",
            )
        return list(columns), rows
    if any(_is_number(cell) for cell in first):  # no header names a column so
        return [f"column {k}" for k in range(1, len(first) + 1)], rows
    for k, name in enumerate(first):
        if first.index(name) != k or (not name and k):
            raise DataError(
                "the header does not name the columns",
                where=f"{path}, line {line}",
                expected="a name of its own for each column",
                found=f"'{name}' twice" if name else "an empty name",
                fix="correct the first line",
            )
    return first, rows[1:]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


FORMATS.register("csv")(
    Format("CSV", lambda path: path.suffix.lower() in _SUFFIXES and path.is_file(), read_csv)
)
