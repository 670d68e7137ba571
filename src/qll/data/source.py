"""A data set, wherever it comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qll.data.base import DataSet, Progress, data_sets
from qll.data.options import accept
from qll.data.own import is_own, load_own


def load(
    name: Any,
    data_dir: str | Path | None = None,
    *,
    progress: Progress | None = None,
    **options: Any,
) -> DataSet:
    """A data set by name, or data of your own: a file or folder (CSV, Parquet, NPZ, IDX, images by
    class, a schema in TOML), ``package.module:factory``, arrays ``(x, y)``, a data frame, a torch
    ``Dataset``. Your own takes ``target``, ``features``, ``task``, ``test`` and ``seed``.

    Files of a named set are taken from ``data_dir``, or from the cache folder (see
    ``qll.data.files.cache_dir``), to which they are downloaded when missing.

    >>> load("dice-rendered", count_train=8, count_test=4)
    load('dice-rendered', count_train=8, count_test=4)
    """
    if is_own(name):
        accept(str(name), load_own, options)
        folder = None if data_dir is None else Path(data_dir).expanduser()
        return load_own(name, folder, **options)
    loader = data_sets[name]
    accept(name, loader, options)
    folder = None if data_dir is None else Path(data_dir).expanduser()
    data = loader(folder, progress=progress, **options)
    given = dict(options) if data_dir is None else {"data_dir": str(data_dir), **options}
    object.__setattr__(data, "options", given)
    return data
