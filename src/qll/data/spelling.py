"""How numbers are spelled in tables: decimal commas, units beside them, a word among them.

Nothing is guessed: ``1,234`` may be a thousand or little more than one. A column that looks like
numbers and is none is refused with what to say; a schema that says ``decimal = ","`` is obeyed.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np

from qll.data.table import Cells, Table, absent
from qll.errors import DataError

DECIMALS = (".", ",")
# 1.234.567,89 or 1234567,89: points stand before three digits each, if at all.
_WITH_COMMA = re.compile(r"[+-]?(\d{1,3}(\.\d{3})+|\d+)(,\d+)?([eE][+-]?\d+)?")
_WITH_UNIT = re.compile(r"[+-]?\d[\d.,]*\s*[^\d\s.,][^\d]*")
# A column of so many numbers is one of numbers: what else stands in it was meant to be one.
_MOSTLY = 0.9


def is_number(cell: object) -> bool:
    try:
        return math.isfinite(float(cell))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False


def with_points(table: Table) -> Table:
    """The table with the numbers of a German, French, ... file spelled with decimal points."""

    def spelled(name: str, cells: Cells) -> Cells:
        if cells.dtype != object:
            return cells
        changed = cells.copy()
        for row, cell in enumerate(cells):
            if not isinstance(cell, str):
                continue
            if _WITH_COMMA.fullmatch(cell):
                changed[row] = cell.replace(".", "").replace(",", ".")
            elif is_number(cell) and "." in cell:
                raise DataError(
                    "a number has a decimal point",
                    where=table.place(row, name),
                    expected='1234,5 or 1.234,5, since the schema says decimal = ","',
                    found=f"'{cell}'",
                    fix="correct the cell, or take 'decimal' out of the schema",
                )
        return changed

    return replace(table, columns={name: spelled(name, c) for name, c in table.columns.items()})


def refuse_misspelled(name: str, table: Table) -> None:
    """Raise if the texts of a column were meant to be numbers: all have a decimal comma or a unit,
    or a few stand among many numbers."""
    cells = table.column(name)
    known = np.flatnonzero(~absent(cells))
    texts = [cells[row] if isinstance(cells[row], str) else str(cells[row]) for row in known]
    words = [k for k, text in enumerate(texts) if not is_number(text)]
    place = table.place(int(known[words[0]]), name)
    first = f"'{texts[words[0]][:30]}'"
    if all(_WITH_COMMA.fullmatch(text) for text in texts):
        raise DataError(
            "numbers are written with a comma",
            where=place,
            expected="a decimal point, or a schema that says what the comma is",
            found=first,
            fix="begin a schema with: qll data FILE --target NAME --decimal , --write",
        )
    if all(_WITH_UNIT.fullmatch(text) for text in texts) and len(set(texts)) > len(texts) // 2:
        raise DataError(
            "a number stands beside a unit or another word",
            where=place,
            expected="the number alone",
            found=first,
            fix=f"take the word out of column '{name}'; a unit belongs into the schema",
        )
    distinct = {text for text in texts if is_number(text)}
    if len(words) <= (1 - _MOSTLY) * len(texts) and len(distinct) > len(texts) // 4:
        others = len(texts) - len(words)
        raise DataError(
            "a word stands among numbers",
            where=place,
            expected=f"a number, as in {others} of the column's {len(texts)} cells",
            found=first,
            fix=(
                f"write {texts[words[0]].strip().replace(',', '.')}"
                if _WITH_COMMA.fullmatch(texts[words[0]])
                else "correct the cell, or leave it empty and say what to do about missing values"
            ),
        )
