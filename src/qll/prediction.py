"""The prediction loss of a task."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from qll.errors import InputError
from qll.points import check_tensor

Task = Literal["single-label", "multi-label", "regression"]
Distance = Literal["mse", "l1"]
TASKS: tuple[Task, ...] = ("single-label", "multi-label", "regression")


def prediction_loss(
    y: Tensor,
    labels: Tensor,
    task: str,
    *,
    weights: Tensor | None = None,
    scale: Tensor | None = None,
    distance: Distance = "mse",
) -> Tensor:
    """Cross-entropy, binary cross-entropy of the logits, or mean squared or absolute error; a
    batch's mean. ``weights`` are those of the classes (of several labels: of having one against not
    having it), ``scale`` the unit of each number to predict."""
    check_labels(y, labels, task)
    if task == "single-label":
        return functional.cross_entropy(y, labels, weight=weights)
    if task == "multi-label":
        return functional.binary_cross_entropy_with_logits(
            y, labels.to(y.dtype), pos_weight=weights
        )
    error = y - labels.to(y.dtype).reshape(y.shape)
    error = error if scale is None else error / scale
    return error.abs().mean() if distance == "l1" else (error**2).mean()


def class_weights(labels: Tensor, task: str, outputs: int) -> Tensor | None:
    """Such that every class weighs the same, however rare: for `prediction_loss`.

    >>> class_weights(torch.tensor([0, 0, 0, 1]), "single-label", 2)
    tensor([0.6667, 2.0000])
    """
    if task == "single-label":
        counts = torch.bincount(labels, minlength=outputs).clamp(min=1)
        return len(labels) / (outputs * counts.float())
    if task == "multi-label":
        ones = labels.sum(0).clamp(min=1)
        return (len(labels) - ones).clamp(min=1).float() / ones
    return None


def guess_loss(y: Tensor, labels: Tensor, task: str) -> float:
    """The loss of who knows nothing: all classes alike, every label as likely as not, the mean.

    >>> round(guess_loss(torch.zeros(2, 10), torch.tensor([3, 4]), "single-label"), 3)
    2.303
    """
    if task == "single-label":
        return math.log(y.shape[1])
    if task == "multi-label":
        return math.log(2)
    targets = labels.to(y.dtype).reshape(y.shape)
    return float(targets.var(0, correction=0).mean()) if len(targets) else 0.0


def correct_predictions(y: Tensor, labels: Tensor, task: str) -> tuple[int, int]:
    """How many predictions are right, of how many: images by their largest output; labels one by
    one (Hamming), predicted iff the logit is above 0."""
    check_labels(y, labels, task)
    if task == "single-label":
        return int((y.argmax(1) == labels).sum()), len(labels)
    if task == "multi-label":
        return int(((y > 0) == labels.bool()).sum()), labels.numel()
    raise InputError(
        "a regression has no share of right predictions",
        expected="a single-label or multi-label task",
        found=f"'{task}'",
        fix="look at the mean squared error",
    )


def check_task(task: str) -> str:
    if task not in TASKS:
        raise InputError(
            f"unknown task {task!r}",
            expected=" or ".join(TASKS),
            found=repr(task),
            fix="pass task='single-label'",
        )
    return task


def check_given(labels: object) -> None:
    if labels is None:
        raise InputError(
            "the labels are missing",
            expected="the labels of the batch",
            found="None",
            fix="pass classes (batch,), multi-hot labels (batch, outputs), or numbers to predict",
        )
    check_tensor(labels, "labels")


def check_labels(y: Tensor, labels: Tensor, task: str) -> None:
    """Labels of the wrong kind or range, named before torch's index error."""
    check_task(task)
    check_given(labels)
    batch, outputs = y.shape
    if task == "regression":
        fits = labels.numel() == y.numel()
        wanted = f"{batch} x {outputs} numbers"
    elif task == "multi-label":
        fits = tuple(labels.shape) == (batch, outputs)
        wanted = f"zeros and ones of shape ({batch}, {outputs})"
        fits = fits and (labels.dtype == torch.bool or bool(((labels == 0) | (labels == 1)).all()))
    else:
        fits = tuple(labels.shape) == (batch,) and not labels.is_floating_point()
        wanted = f"{batch} classes from 0 to {outputs - 1}"
        fits = fits and (batch == 0 or _in_range(labels, outputs))
    if not fits:
        raise InputError(
            f"labels do not fit a {task} task",
            expected=wanted,
            found=f"{labels.dtype} of shape {tuple(labels.shape)}{_extremes(labels)}",
            fix="check the labels, and that the network has an output for each class",
        )


def _in_range(labels: Tensor, outputs: int) -> bool:
    low, high = torch.aminmax(labels)
    return bool(low >= 0) and bool(high < outputs)


def _extremes(labels: Tensor) -> str:
    if not labels.numel() or labels.dtype == torch.bool:
        return ""
    low, high = torch.aminmax(labels)
    return f", from {low.item():g} to {high.item():g}"
