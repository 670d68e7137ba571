"""Columns of cells as a file has them, and what a schema makes of them: the numbers of a network.

Whatever does not fit is named by row and column: a table is refused as a whole, never in part."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qll.data.schema import MOST_INTEGER, Feature, Schema
from qll.errors import DataError
from qll.registry import suggest

Cells = NDArray[Any]
Numbers = NDArray[np.float64]
# What files write where a value is not known.
_ABSENT = frozenset({"", "?", "na", "n/a", "nan", "null", "none", "-"})
_TRUE, _FALSE = frozenset({"true", "yes"}), frozenset({"false", "no"})


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of one length: numbers, or texts. ``lines`` are the rows' places in the file."""

    columns: Mapping[str, Cells]
    source: str
    lines: Sequence[int] | None = None

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0

    def column(self, name: str) -> Cells:
        if name not in self.columns:
            raise DataError(
                f"there is no column '{name}'",
                where=self.source,
                expected="a column of the table",
                found=f"'{name}'",
                fix=suggest(name, list(self.columns)),
            )
        return self.columns[name]

    def place(self, row: int, column: str) -> str:
        """Where a cell stands, as an editor counts."""
        at = f"line {self.lines[row]}" if self.lines is not None else f"row {row}"
        return f"{self.source}, {at}, column '{column}'"

    def rows(self, keep: NDArray[Any]) -> Table:
        """The table with some of its rows."""
        lines = None if self.lines is None else np.asarray(self.lines)[keep].tolist()
        return Table(
            {name: cells[keep] for name, cells in self.columns.items()}, self.source, lines
        )


def text_of(cell: object) -> str:
    """A cell as the values of a category are written: 1.0 is 1.

    >>> text_of(np.float64(3.0)), text_of(" red ")
    ('3', 'red')
    """
    if isinstance(cell, str):
        return cell.strip()
    if isinstance(cell, bool | np.bool_):
        return "1" if cell else "0"
    if isinstance(cell, float | np.floating) and math.isfinite(cell) and cell == int(cell):
        return str(int(cell))
    return "" if cell is None else str(cell)


def is_absent(cell: object) -> bool:
    if isinstance(cell, str):
        return cell.strip().lower() in _ABSENT
    return cell is None or (isinstance(cell, float | np.floating) and math.isnan(cell))


def absent(cells: Cells) -> NDArray[np.bool_]:
    if cells.dtype.kind == "f":
        return np.isnan(cells)
    if cells.dtype.kind in "iub":
        return np.zeros(len(cells), dtype=bool)
    return np.fromiter((is_absent(cell) for cell in cells), dtype=bool, count=len(cells))


def numbers(cells: Cells) -> Numbers | None:
    """The cells as numbers, NaN where a value is absent; None if some are words."""
    if cells.dtype.kind in "iufb":
        return cells.astype(np.float64)
    found = np.empty(len(cells))
    for row, cell in enumerate(cells):
        if is_absent(cell):
            found[row] = math.nan
            continue
        try:
            found[row] = float(cell)
        except (TypeError, ValueError):
            return None
    return found


def encode(schema: Schema, table: Table) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Inputs (rows, inputs) in raw units, and labels: classes (rows,), zeros and ones (rows,
    outputs), or numbers (rows, targets) in float32."""
    blocks = [_feature_block(feature, table) for feature in schema.features]
    inputs = np.concatenate(blocks, axis=1).astype(np.float32)
    if schema.task == "classes":
        return inputs, _codes(schema.targets[0], table).astype(np.int64)
    values = np.stack([_column(target, table) for target in schema.targets], axis=1)
    if schema.task == "regression":
        return inputs, values.astype(np.float32)
    return inputs, values.astype(np.int64)


def complete_rows(schema: Schema, table: Table) -> Table:
    """Without the rows that lack a value of a column whose ``missing`` says "drop"."""
    keep = np.ones(len(table), dtype=bool)
    for feature in (*schema.features, *schema.targets):
        if feature.missing == "drop":
            keep &= ~absent(table.column(feature.name))
    return table if keep.all() else table.rows(keep)


def _feature_block(feature: Feature, table: Table) -> Numbers:
    column = _column(feature, table)
    if not feature.is_one_hot:
        return column[:, None]
    hot: Numbers = (column[:, None] == np.arange(len(feature.values))).astype(np.float64)
    return hot


def _column(feature: Feature, table: Table) -> Numbers:
    """One number a row, checked against the kind and the range of the feature."""
    if feature.kind == "category" or feature.values:
        return _codes(feature, table)
    cells = table.column(feature.name)
    found = np.full(len(cells), math.nan)
    gone = absent(cells)
    for k in np.flatnonzero(~gone).tolist():
        found[k] = _number(feature, cells[k], table, k)
    if gone.any():
        found[gone] = _stand_in(feature, found[~gone], table, int(np.flatnonzero(gone)[0]))
    low, high = feature.range
    outside = np.flatnonzero((found < low) | (found > high))
    if len(outside):
        row = int(outside[0])
        raise DataError(
            "a value lies outside the range of its column",
            where=table.place(row, feature.name),
            expected=f"a number from {low:g} to {high:g}",
            found=f"{found[row]:g} ({len(outside)} such values)",
            fix=f"correct the value, or the range of '{feature.name}' in the schema",
        )
    return found


def _number(feature: Feature, cell: object, table: Table, row: int) -> float:
    word = cell.strip().lower() if isinstance(cell, str) else ""
    if feature.kind == "binary" and word in _TRUE | _FALSE:
        return float(word in _TRUE)
    try:
        value = float(cell)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        value = math.nan
    whole = feature.kind in ("integer", "binary")
    wrong = not math.isfinite(value) or (whole and value != round(value))
    wrong |= feature.kind == "binary" and value not in (0.0, 1.0)
    if wrong or (whole and abs(value) > MOST_INTEGER):
        wanted = {
            "real": "a finite number",
            "integer": f"a whole number of at most {MOST_INTEGER:,} in size",
            "binary": "0 or 1",
        }[feature.kind]
        raise DataError(
            f"this is no {feature.kind} value",
            where=table.place(row, feature.name),
            expected=wanted,
            found=f"'{text_of(cell)}'",
            fix="correct the cell, or the kind of the column in the schema",
        )
    return value


def _codes(feature: Feature, table: Table) -> Numbers:
    """The places of the cells among the values of their column."""
    cells = table.column(feature.name)
    place = {value: float(k) for k, value in enumerate(feature.values)}
    found = np.full(len(cells), math.nan)
    gone = absent(cells)
    for row in np.flatnonzero(~gone):
        value = text_of(cells[row])
        if value not in place:
            raise DataError(
                f"the category '{value}' is not one of its column",
                where=table.place(int(row), feature.name),
                expected=f"one of: {', '.join(feature.values[:12])}",
                found=f"'{value}'",
                fix=f"correct the cell, or add it to 'values' of '{feature.name}' in the schema",
            )
        found[row] = place[value]
    if gone.any():
        found[gone] = _stand_in(feature, found[~gone], table, int(np.flatnonzero(gone)[0]))
    return found


def _stand_in(feature: Feature, known: Numbers, table: Table, row: int) -> float:
    """What takes the place of absent values."""
    choice = feature.missing
    if isinstance(choice, float | int):
        return float(choice)
    if choice in feature.values:
        return float(feature.values.index(choice))
    if len(known) and choice == "mean" and feature.kind in ("real", "integer"):
        mean = float(known.mean())
        return mean if feature.kind == "real" else float(round(mean))
    if len(known) and choice in ("mean", "commonest"):
        values, counts = np.unique(known, return_counts=True)
        return float(values[counts.argmax()])
    raise DataError(
        "a value is missing",
        where=table.place(row, feature.name),
        expected="a value in every cell",
        found="none, or NaN",
        fix='fill it in, or say what to do: missing = "mean", "commonest", "drop" (the row) or a '
        "value in the schema, which qll data FILE --target NAME --missing drop --write begins",
    )
