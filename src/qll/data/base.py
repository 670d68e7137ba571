"""What a data set is: two splits of inputs in raw units, their labels, and what a training run has
to know about them. Nothing here knows of formulas or networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qll.data.schema import Schema
from qll.errors import DataError
from qll.registry import Registry

Task = Literal["single-label", "multi-label", "regression"]
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
    """Inputs and labels in the published order.

    ``stored`` is (N, C, H, W) images, bytes (0 to 255, for raw units 0 to 1) or float32 in raw
    units; or (N, inputs) of a table, float32. ``labels`` are int64, (N,) class numbers or (N, n) of
    zeros and ones; of a regression float32, (N, n) numbers.
    """

    stored: NDArray[Any]
    labels: NDArray[Any]

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def inputs(self) -> NDArray[np.float32]:
        """All of them in raw units. Made once; of bytes, four times their memory."""
        return _raw(self.stored)

    def batch(self, indices: Tensor | NDArray[np.int64] | slice) -> tuple[Tensor, Tensor]:
        """Inputs (raw units, float32) and labels of some rows, without converting the others."""
        at = indices.cpu().numpy() if isinstance(indices, Tensor) else indices
        return torch.from_numpy(_raw(self.stored[at])), torch.from_numpy(self.labels[at])

    def __repr__(self) -> str:
        return f"<Split of {len(self)} inputs {self.stored.shape[1:]}, {self.stored.dtype}>"


def _raw(stored: NDArray[Any]) -> NDArray[np.float32]:
    if stored.dtype == np.uint8:
        # Division in float32, as the published preprocessing does it: bit for bit the same inputs.
        return stored.astype(np.float32) / _BYTE_MAX
    return np.ascontiguousarray(stored, dtype=np.float32)


@dataclass(frozen=True, eq=False)
class DataSet:
    """A data set. Made by ``qll.data.load``; checks itself, so whoever has one can rely on it.

    ``classes`` name the outputs. ``mean`` and ``std`` are those of the training inputs, by channel
    or by column; ``target_mean`` and ``target_std`` those of the numbers that a regression
    predicts. A table has a ``schema``.
    """

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
    schema: Schema | None = None
    target_mean: tuple[float, ...] = ()
    target_std: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for split_name, split in (("training", self.train), ("test", self.test)):
            _check_split(split, self, f"{self.name}, {split_name} {self.kind}")
        if self.train.stored.shape[1:] != self.test.stored.shape[1:]:
            raise DataError(
                f"training and test {self.kind} have different shapes",
                where=self.name,
                expected=f"test {self.kind} of {self.train.stored.shape[1:]}",
                found=f"{self.test.stored.shape[1:]}",
                fix="pass the files of one data set",
            )
        channels = self.train.stored.shape[1]
        if not len(self.mean) == len(self.std) == channels or not all(s > 0 for s in self.std):
            raise DataError(
                f"mean and deviation do not fit the {self.kind}",
                where=self.name,
                expected=f"{channels} means and {channels} positive deviations",
                found=f"mean {self.mean}, std {self.std}",
                fix="give one of each a channel; a constant channel has no deviation to divide by",
            )

    @property
    def kind(self) -> str:
        """What its inputs are called."""
        return "images" if self.train.stored.ndim == 4 else "rows"

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one input: (C, H, W) of an image, (inputs,) of a row."""
        return tuple(self.train.stored.shape[1:])

    @property
    def outputs(self) -> int:
        """Of a network for it."""
        return len(self.classes)

    @property
    def measure(self) -> str:
        """What says how well it is predicted, in one number of at most 1."""
        return "R2" if self.task == "regression" else "PAcc"

    @property
    def fits(self) -> int | Schema:
        """What a property of it has to fit: the schema of a table, or a number of outputs."""
        return len(self.classes) if self.schema is None else self.schema

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
    stored, labels = split.stored, split.labels
    table = data.schema is not None
    if stored.ndim != (2 if table else 4) or 0 in stored.shape:
        raise DataError(
            f"{data.kind} have the wrong shape",
            where=where,
            expected="(count, inputs) with at least one of each"
            if table
            else "(count, channels, height, width) with at least one of each",
            found=f"{stored.shape}",
            fix="pass rows of one table" if table else "pass images of one size",
        )
    if len(stored) != len(labels):
        raise DataError(
            f"{data.kind} and labels differ in number",
            where=where,
            expected=f"{len(stored)} labels, one {'a row' if table else 'an image'}",
            found=f"{len(labels)}",
            fix="use the image file and the label file of the same split",
        )
    if stored.dtype != np.uint8:
        # NaN fails the comparison, so it is caught here too.
        inside = bool(((stored >= data.lower) & (stored <= data.upper)).all())
        if stored.dtype != np.float32 or not inside:
            raise DataError(
                f"{data.kind} are not in raw units",
                where=where,
                expected=f"bytes, or float32 in [{data.lower:g}, {data.upper:g}]",
                found=f"{stored.dtype} in [{stored.min():g}, {stored.max():g}]",
                fix=f"scale the {data.kind}; normalisation is a layer of the network",
            )
    _check_labels(labels, data, where)


def _check_labels(labels: NDArray[Any], data: DataSet, where: str) -> None:
    count = len(data.classes)
    shape: tuple[int, ...] = (len(labels), count)
    kind: type[Any] = np.int64
    wrong: NDArray[Any] | None = None
    if data.task == "single-label":
        shape, values = (len(labels),), f"a class in 0 to {count - 1}"
        wrong = np.flatnonzero((labels < 0) | (labels >= count)) if labels.ndim == 1 else None
    elif data.task == "multi-label":
        values = "0 or 1"
        bad = (labels != 0) & (labels != 1)
        wrong = np.flatnonzero(bad.any(axis=1)) if labels.ndim == 2 else None
    else:
        kind, values = np.float32, "finite numbers"
        wrong = np.flatnonzero(~np.isfinite(labels).all(axis=1)) if labels.ndim == 2 else None
    if wrong is None or labels.shape != shape or labels.dtype != kind:
        raise DataError(
            "labels have the wrong shape",
            where=where,
            expected=f"{np.dtype(kind).name} labels of shape {shape}",
            found=f"{labels.dtype} of shape {labels.shape}",
            fix=f"give {data.task} labels for {count} classes",
        )
    if len(wrong):
        raise DataError(
            f"label of {data.kind[:-1]} {wrong[0]} is out of range",
            where=where,
            expected=values,
            found=f"{labels[wrong[0]].tolist()} ({len(wrong)} such labels)",
            fix=f"correct the labels; the classes are {', '.join(data.classes)}",
        )
