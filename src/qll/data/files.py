"""Where the files of a data set are: a folder of the user's, or the cache."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from qll.errors import DataError
from qll.folders import user_cache


def cache_dir() -> Path:
    """``QLL_DATA_DIR`` if it is set, else where everything is kept."""
    chosen = os.environ.get("QLL_DATA_DIR")
    return Path(chosen).expanduser() if chosen else user_cache()


def locate(root: Path, folders: Iterable[str], names: Iterable[str]) -> Path | None:
    """The first existing ``root/folder/name``, folder by folder."""
    tries = (root / folder / name for folder in folders for name in names)
    return next((path for path in tries if path.is_file()), None)


def check_folder(folder: Path) -> None:
    """A wrong ``data_dir`` is the commonest mistake, and gets a message of its own."""
    if not folder.is_dir():
        raise DataError(
            "no such data folder",
            where=str(folder),
            expected="an existing folder with the data set's files",
            found="a file" if folder.exists() else "nothing there",
            fix="correct --data-dir, or leave it out to download the data set",
        )


def missing(data_set: str, root: Path, folders: Iterable[str], names: Iterable[str]) -> DataError:
    places = ", ".join(str(root / folder) for folder in folders)
    return DataError(
        f"data set '{data_set}' is not complete",
        where=str(root),
        expected=f"{' or '.join(names)} in one of {places}",
        found="no such file",
        fix="put the published files there, or leave out --data-dir to download them",
    )
