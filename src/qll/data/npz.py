"""Numpy arrays: ``.npz`` with ``x`` and ``y`` (and ``x_test``, ``y_test``), or ``.npy`` with the
labels in a file beside it."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qll.data.formats import FORMATS, Arrays, Format, cannot_read

_X = ("x", "X", "x_train", "X_train", "images", "inputs", "data")
_Y = ("y", "Y", "y_train", "Y_train", "labels", "targets", "target")
_X_TEST, _Y_TEST = ("x_test", "X_test"), ("y_test", "Y_test")


def read_npz(path: Path, columns: tuple[str, ...] = (), labels: Path | None = None) -> Arrays:
    if path.suffix.lower() == ".npy":
        beside = path.with_name(path.stem + "_labels.npy") if labels is None else labels
        truth = _load(beside) if beside.exists() else None
        return Arrays(_array(path, _load(path)), truth, str(path), names=columns)
    with _load(path) as held:
        try:
            x, y = _first(held, _X), _first(held, _Y)
            x_test, y_test = _first(held, _X_TEST), _first(held, _Y_TEST)
        except ValueError as error:  # an array of Python objects
            raise cannot_read(path, "arrays of numbers", str(error)) from error
        names = tuple(str(n) for n in held["features"]) if "features" in held.files else columns
        classes = tuple(str(n) for n in held["classes"]) if "classes" in held.files else ()
        if x is None:
            raise cannot_read(
                path, f"an array called {' or '.join(_X[:3])}", f"{', '.join(held.files) or 'none'}"
            )
    test = None if x_test is None or y_test is None else (x_test, y_test)
    return Arrays(x, y, str(path), test=test, classes=classes, names=names)


def _first(held: Any, names: tuple[str, ...]) -> NDArray[Any] | None:
    return next((np.asarray(held[name]) for name in names if name in held.files), None)


def _array(path: Path, value: Any) -> NDArray[Any]:
    if not isinstance(value, np.ndarray):
        raise cannot_read(path, "one array", "several")
    return value


def _load(path: Path) -> Any:
    try:
        # A file of somebody else: objects are refused, so that nothing of it is run.
        return np.load(path, allow_pickle=False)  # noqa: TID251
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise cannot_read(path, "arrays of numbers, as numpy writes them", str(error)) from error


FORMATS.register("npz")(
    Format("NPZ and NPY", lambda path: path.suffix.lower() in (".npz", ".npy"), read_npz)
)
