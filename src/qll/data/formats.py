"""Files of your own: every format is a module of this package that registers how it is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from qll.data.table import Table
from qll.errors import DataError
from qll.registry import Registry

MOST_BYTES = 4 << 30  # of a file that is read whole


@dataclass(frozen=True, eq=False)
class Arrays:
    """Inputs (rows, ...) and labels as they are stored; ``test`` has those of a test split, where
    the file has one. ``classes`` are the names of the labels."""

    x: NDArray[Any]
    y: NDArray[Any] | None
    source: str
    test: tuple[NDArray[Any], NDArray[Any]] | None = None
    classes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Format:
    """``reads`` says whether a path is of this format, by its name alone; ``read`` reads it, with
    the names of the columns where the file has none, and a file of labels where there is one."""

    title: str
    reads: Callable[[Path], bool]
    read: Callable[[Path, tuple[str, ...], Path | None], Table | Arrays]


FORMATS: Registry[Format] = Registry("data format", "qll.data")


def read_data(
    path: Path, columns: tuple[str, ...] = (), labels: Path | None = None
) -> Table | Arrays:
    """The content of a file or folder, by the first format that reads it."""
    if not path.exists():
        raise DataError(
            "there is no such file or folder",
            where=str(path),
            expected="data: " + ", ".join(FORMATS[name].title for name in FORMATS),
            found="nothing there",
            fix="check the path; a relative one begins in the folder where you are",
        )
    for name in FORMATS:
        form = FORMATS[name]
        if form.reads(path):
            if path.is_file() and path.stat().st_size > MOST_BYTES:
                raise DataError(
                    "this file is too large to be read whole",
                    where=str(path),
                    expected=f"at most {MOST_BYTES:,} bytes",
                    found=f"{path.stat().st_size:,}",
                    fix="pass a part of it",
                )
            return form.read(path, columns, labels)
    raise DataError(
        "this format is not known",
        where=str(path),
        expected=", ".join(FORMATS[name].title for name in FORMATS),
        found=f"'{path.suffix or path.name}'",
        fix="convert it, or pass package.module:factory, a function that returns the data",
    )


def cannot_read(
    path: Path, what: str, problem: str, fix: str = "check the file and its permissions"
) -> DataError:
    return DataError(
        "the data cannot be read",
        where=str(path),
        expected=what,
        found=problem,
        fix=fix,
    )
