"""The layout that MNIST and its successors share: four IDX files of 28 x 28 grey images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qll.data.augment import Rotation
from qll.data.base import DataSet, Progress, Split
from qll.data.download import fetch
from qll.data.files import cache_dir, check_folder, locate, missing
from qll.data.idx import read_idx
from qll.errors import DataError

SIDE = 28
_MOST_BYTES = 64 << 20  # the largest file has 47 MB before compression
# The published runs verified 100 test images, drawn so (confirmed against the published arrays).
_VERIFIED, _VERIFIED_SEED = 100, 42


@dataclass(frozen=True)
class Published:
    """The four files of a data set: publishers (a folder URL each) and SHA-256 of the contents."""

    name: str
    mirrors: tuple[str, ...]
    folders: tuple[str, ...]
    train_images: str
    train_labels: str
    test_images: str
    test_labels: str
    classes: tuple[str, ...]
    mean: float
    std: float


def verified_rows(count: int) -> NDArray[np.int64]:
    """Of ``count`` test images those that the paper's verifier was asked about, in its order."""
    order = np.random.RandomState(_VERIFIED_SEED).permutation(count)
    return order[:_VERIFIED].astype(np.int64)


def load_digits(
    published: Published, data_dir: Path | None, *, progress: Progress | None, checksum: bool
) -> DataSet:
    def file(kind: str, sha256: str) -> NDArray[Any]:
        path = _file(published, kind, sha256, data_dir, progress)
        values = read_idx(path, sha256=sha256 if checksum else None)
        axes = 3 if "images" in kind else 1
        if values.dtype != np.uint8 or values.ndim != axes:
            raise DataError(
                "the file holds something else",
                where=str(path),
                expected=f"bytes with {axes} axes",
                found=f"{values.dtype} of shape {values.shape}",
                fix="use the published image and label files",
            )
        return values

    def split(stem: str, images_sha256: str, labels_sha256: str) -> Split:
        images = file(f"{stem}-images-idx3-ubyte", images_sha256)
        labels = file(f"{stem}-labels-idx1-ubyte", labels_sha256)
        return Split(images[:, None], labels.astype(np.int64))

    train = split("train", published.train_images, published.train_labels)
    test = split("t10k", published.test_images, published.test_labels)
    return DataSet(
        name=published.name,
        train=train,
        test=test,
        classes=published.classes,
        task="single-label",
        mean=(published.mean,),
        std=(published.std,),
        batch_size=512,
        augment=Rotation(degrees=10),
        published=verified_rows(len(test)) if checksum else None,
    )


def _file(
    published: Published, kind: str, sha256: str, data_dir: Path | None, progress: Progress | None
) -> Path:
    names = (kind, f"{kind}.gz")
    if data_dir is not None:
        check_folder(data_dir)
    root = cache_dir() if data_dir is None else data_dir
    # The set's own folder first: file names are the same for all sets of this family.
    found = locate(root, published.folders, names)
    if found is not None:
        return found
    if data_dir is not None:
        raise missing(published.name, root, published.folders, names)
    return fetch(
        [f"{mirror}/{kind}.gz" for mirror in published.mirrors],
        root / published.name / f"{kind}.gz",
        check=lambda part: read_idx(part, sha256=sha256),
        most=_MOST_BYTES,
        progress=progress,
    )
