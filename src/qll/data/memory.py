"""Data in memory: arrays, tensors, data frames, columns by name, torch data sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qll.data.formats import Arrays
from qll.data.table import Table
from qll.errors import DataError


def content_of(value: Any, name: str = "data") -> Table | Arrays:
    """Of ``(x, y)``, ``(x, y, x_test, y_test)``, a frame, a dict of columns, a torch data set."""
    if isinstance(value, Table | Arrays):
        return value
    if hasattr(value, "columns") and hasattr(value, "to_dict"):  # a frame, of pandas or alike
        return Table({str(c): _cells(value[c]) for c in value.columns}, name)
    if isinstance(value, Mapping):
        return _mapping(value, name)
    if isinstance(value, tuple | list) and len(value) in (2, 4) and not _is_pair(value):
        arrays = [_array(part) for part in value]
        test = (arrays[2], arrays[3]) if len(arrays) == 4 else None
        return Arrays(arrays[0], arrays[1], name, test=test)
    if hasattr(value, "__getitem__") and hasattr(value, "__len__"):
        return _items(value, name)
    raise DataError(
        "this is no data",
        where=name,
        expected="(x, y), a data frame, a dict of columns, or a torch Dataset with a length",
        found=type(value).__name__,
        fix="pass one of these, or the path of a file",
    )


def _mapping(value: Mapping[Any, Any], name: str) -> Table | Arrays:
    if "x" in value and "y" in value and np.ndim(value["x"]) > 1:
        return Arrays(_array(value["x"]), _array(value["y"]), name)
    columns = {str(column): _cells(cells) for column, cells in value.items()}
    lengths = {len(cells) for cells in columns.values()}
    if len(lengths) != 1:
        raise DataError(
            "the columns differ in length",
            where=name,
            expected="one value a row in each of them",
            found=f"lengths {sorted(lengths)}",
            fix="pass columns of one table",
        )
    return Table(columns, name)


def _is_pair(value: Any) -> bool:
    """Two samples of a data set, rather than inputs and labels."""
    return all(isinstance(part, tuple) for part in value)


def _items(value: Any, name: str) -> Arrays:
    """A map-style data set: every item is an input and its label."""
    try:
        pairs = [
            (_array(item[0]), _array(item[1])) for item in (value[k] for k in range(len(value)))
        ]
    except (TypeError, IndexError, KeyError) as error:
        raise DataError(
            "the items of this data set are not understood",
            where=name,
            expected="a pair of input and label for each item",
            found=str(error) or type(value).__name__,
            fix="wrap it so that dataset[k] is (input, label)",
        ) from error
    if not pairs:
        raise DataError(
            "this data set is empty",
            where=name,
            expected="at least one item",
            found="none",
            fix="pass one with items",
        )
    shapes = {x.shape for x, _ in pairs}
    if len(shapes) > 1:
        raise DataError(
            "the inputs of this data set differ in shape",
            where=name,
            expected=f"{pairs[0][0].shape} for all",
            found=f"{len(shapes)} shapes",
            fix="bring them to one shape",
        )
    x = np.stack([x for x, _ in pairs])
    return Arrays(x, np.stack([y for _, y in pairs]), name)


def _array(value: Any) -> NDArray[Any]:
    if hasattr(value, "detach"):  # a tensor
        value = value.detach().cpu()
    return np.asarray(value)


def _cells(values: Any) -> NDArray[Any]:
    cells = _array(values)
    return cells if cells.dtype.kind in "iufb" else np.array(list(values), dtype=object)
