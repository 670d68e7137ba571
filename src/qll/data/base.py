"""What a data set is: two splits of images in raw units, their labels, and what a training run has
to know about them. Nothing here knows of formulas or networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qll.errors import DataError
from qll.registry import Registry

Task = Literal["single-label", "multi-label"]
Augmentation = Callable[[Tensor, torch.Generator], Tensor]
Progress = Callable[[str, int, int | None], None]
"""Called with the file's name, the bytes that are there, and all bytes if the server told."""

Loader = Callable[..., "DataSet"]
"""``loader(data_dir, progress=..., **options)``; its keyword arguments are the set's options."""

data_sets: Registry[Loader] = Registry("data set", "qll.data")

_BYTE_MAX = np.float32(255)


def keep(images: Tensor, generator: torch.Generator) -> Tensor:
    """The augmentation that does nothing."""
    return images


@dataclass(frozen=True, eq=False)
class Split:
    """Images and labels in the published order.

    ``pixels`` is (N, C, H, W): bytes (0 to 255, for raw units 0 to 1) or float32 in raw units.
    ``labels`` is int64: (N,) class numbers, or (N, n) of zeros and ones.
    """

    pixels: NDArray[Any]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def images(self) -> NDArray[np.float32]:
        """(N, C, H, W) in raw units. Made once; four times the memory of the bytes."""
        return _raw(self.pixels)

    def batch(self, indices: Tensor | NDArray[np.int64] | slice) -> tuple[Tensor, Tensor]:
        """Images (raw units, float32) and labels of some rows, without converting the others."""
        at = indices.cpu().numpy() if isinstance(indices, Tensor) else indices
        return torch.from_numpy(_raw(self.pixels[at])), torch.from_numpy(self.labels[at])

    def __repr__(self) -> str:
        return f"<Split of {len(self)} images {self.pixels.shape[1:]}, {self.pixels.dtype}>"


def _raw(pixels: NDArray[Any]) -> NDArray[np.float32]:
    if pixels.dtype == np.uint8:
        # Division in float32, as the published preprocessing does it: bit for bit the same inputs.
        return pixels.astype(np.float32) / _BYTE_MAX
    return np.ascontiguousarray(pixels, dtype=np.float32)


@dataclass(frozen=True, eq=False)
class DataSet:
    """A data set. Made by ``qll.data.load``; checks itself, so whoever has one can rely on it."""

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    task: Task
    mean: tuple[float, ...]
    std: tuple[float, ...]
    batch_size: int
    augment: Augmentation = keep
    lower: float = 0.0
    upper: float = 1.0
    published: NDArray[np.int64] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for split_name, split in (("training", self.train), ("test", self.test)):
            _check_split(split, self, f"{self.name}, {split_name} images")
        if self.train.pixels.shape[1:] != self.test.pixels.shape[1:]:
            raise DataError(
                "training and test images have different shapes",
                where=self.name,
                expected=f"test images of {self.train.pixels.shape[1:]}",
                found=f"{self.test.pixels.shape[1:]}",
                fix="pass the files of one data set",
            )
        channels = self.train.pixels.shape[1]
        if not len(self.mean) == len(self.std) == channels or not all(s > 0 for s in self.std):
            raise DataError(
                "mean and deviation do not fit the images",
                where=self.name,
                expected=f"{channels} means and {channels} positive deviations",
                found=f"mean {self.mean}, std {self.std}",
                fix="give one of each a channel; a constant channel has no deviation to divide by",
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of an image."""
        channels, height, width = self.train.pixels.shape[1:]
        return channels, height, width

    def published_subset(self) -> NDArray[np.int64]:
        """Rows of the test split, in the order in which the paper's verifier was asked."""
        if self.published is None:
            raise DataError(
                "no published verification subset",
                where=self.name,
                expected="a data set of the paper",
                found=f"'{self.name}'",
                fix="choose the test images yourself, for example the first 100",
            )
        return self.published

    def __repr__(self) -> str:
        options = "".join(f", {key}={value!r}" for key, value in self.options.items())
        return f"load({self.name!r}{options})"


def _check_split(split: Split, data: DataSet, where: str) -> None:
    pixels, labels = split.pixels, split.labels
    if pixels.ndim != 4 or 0 in pixels.shape:
        raise DataError(
            "images have the wrong shape",
            where=where,
            expected="(count, channels, height, width) with at least one of each",
            found=f"{pixels.shape}",
            fix="pass images of one size",
        )
    if len(pixels) != len(labels):
        raise DataError(
            "images and labels differ in number",
            where=where,
            expected=f"{len(pixels)} labels, one an image",
            found=f"{len(labels)}",
            fix="use the image file and the label file of the same split",
        )
    if pixels.dtype != np.uint8:
        # NaN fails the comparison, so it is caught here too.
        inside = bool(((pixels >= data.lower) & (pixels <= data.upper)).all())
        if pixels.dtype != np.float32 or not inside:
            raise DataError(
                "images are not in raw units",
                where=where,
                expected=f"bytes, or float32 in [{data.lower:g}, {data.upper:g}]",
                found=f"{pixels.dtype} in [{pixels.min():g}, {pixels.max():g}]",
                fix="scale the images; normalisation is a layer of the network",
            )
    _check_labels(labels, data, where)


def _check_labels(labels: NDArray[np.int64], data: DataSet, where: str) -> None:
    count = len(data.classes)
    shape: tuple[int, ...]
    if data.task == "single-label":
        shape, values = (len(labels),), f"a class in 0 to {count - 1}"
        wrong = np.flatnonzero((labels < 0) | (labels >= count)) if labels.ndim == 1 else None
    else:
        shape, values = (len(labels), count), "0 or 1"
        bad = (labels != 0) & (labels != 1)
        wrong = np.flatnonzero(bad.any(axis=1)) if labels.ndim == 2 else None
    if wrong is None or labels.shape != shape or labels.dtype != np.int64:
        raise DataError(
            "labels have the wrong shape",
            where=where,
            expected=f"int64 labels of shape {shape}",
            found=f"{labels.dtype} of shape {labels.shape}",
            fix=f"give {data.task} labels for {count} classes",
        )
    if len(wrong):
        raise DataError(
            f"label of image {wrong[0]} is out of range",
            where=where,
            expected=values,
            found=f"{labels[wrong[0]].tolist()} ({len(wrong)} such labels)",
            fix=f"correct the labels; the classes are {', '.join(data.classes)}",
        )


def load(
    name: str,
    data_dir: str | Path | None = None,
    *,
    progress: Progress | None = None,
    **options: Any,
) -> DataSet:
    """A data set by name. Files are taken from ``data_dir``, or from the cache folder (see
    ``qll.data.files.cache_dir``), to which they are downloaded when missing.

    >>> load("dice-rendered", count_train=8, count_test=4)
    load('dice-rendered', count_train=8, count_test=4)
    """
    from qll.data.options import accept

    loader = data_sets[name]
    accept(name, loader, options)
    folder = None if data_dir is None else Path(data_dir).expanduser()
    data = loader(folder, progress=progress, **options)
    given = dict(options) if data_dir is None else {"data_dir": str(data_dir), **options}
    object.__setattr__(data, "options", given)
    return data
