"""Images as an IDX file, with the IDX file of their labels beside it."""

from __future__ import annotations

from pathlib import Path

from qll.data.formats import FORMATS, Arrays, Format
from qll.data.idx import read_idx


def read_idx_data(path: Path, columns: tuple[str, ...] = (), labels: Path | None = None) -> Arrays:
    beside = labels or _beside(path)
    truth = read_idx(beside) if beside is not None else None
    return Arrays(read_idx(path), truth, str(path), names=columns)


def is_idx(path: Path) -> bool:
    """By its name: ``train-images-idx3-ubyte``, ``digits.idx``, either of them gzipped."""
    name = path.name.removesuffix(".gz")
    return path.is_file() and (name.endswith(("-ubyte", ".idx")) or ".idx" in name)


def _beside(path: Path) -> Path | None:
    """``images-idx3`` has its labels in ``labels-idx1``."""
    name = path.name.replace("images", "labels").replace("idx3", "idx1").replace("idx4", "idx1")
    other = path.with_name(name)
    return other if name != path.name and other.is_file() else None


FORMATS.register("idx")(Format("IDX", is_idx, read_idx_data))
