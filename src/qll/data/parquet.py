"""Tables as Parquet files (needs pyarrow)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from qll.data.formats import FORMATS, Format, cannot_read
from qll.data.table import Cells, Table
from qll.errors import MissingExtra


def read_parquet(path: Path, columns: tuple[str, ...] = (), labels: Path | None = None) -> Table:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtra.of("pyarrow", "tables", "reading Parquet") from error
    try:
        held = parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise cannot_read(path, "a Parquet file", str(error).splitlines()[0]) from error
    return Table({name: _cells(held.column(name)) for name in held.column_names}, str(path))


def _cells(column: Any) -> Cells:
    values = np.array(column.to_pylist(), dtype=object)
    plain = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return values.astype(np.float64) if plain else values


FORMATS.register("parquet")(
    Format("Parquet", lambda path: path.suffix.lower() in (".parquet", ".pq"), read_parquet)
)
