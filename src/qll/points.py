"""Checks of the tensors that a reading is given: types, shapes, finite numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from qll.errors import InputError
from qll.formula.nodes import SOURCES
from qll.registry import suggest


def check_points(
    name: str,
    outputs: int | None,
    sources: Iterable[str],
    y: Tensor,
    points: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """The tensors that property ``name`` speaks of, by source; ``outputs`` None: any number."""
    _check_outputs(name, outputs, y)
    tensors = {"y": y}
    inputs: tuple[str, torch.Size] | None = None
    for source in sorted(sources):
        if source == "y":
            continue
        if points.get(source) is None:
            raise InputError(
                f"property '{name}' speaks of {source}",
                expected=f"{source}=...",
                found="none",
                fix=f"pass {source}= with one row for each sample",
            )
        tensor = points[source]
        check_tensor(tensor, source)
        fits = tensor.dim() >= 2 and tensor.shape[0] == y.shape[0]
        if not fits or (source.startswith("y") and tensor.shape != y.shape):
            raise InputError(
                f"{source} does not fit y",
                expected=str(tuple(y.shape)) if source[0] == "y" else f"({y.shape[0]}, ...)",
                found=str(tuple(tensor.shape)),
                fix="pass the same samples in the same order, one row for each",
            )
        if source.startswith("x"):
            if inputs is not None and tensor.shape != inputs[1]:
                raise InputError(
                    f"{source} does not fit {inputs[0]}",
                    expected=str(tuple(inputs[1])),
                    found=str(tuple(tensor.shape)),
                    fix="pass points of the same input space",
                )
            inputs = (source, tensor.shape)
        tensors[source] = tensor
    for key in points:
        if key not in SOURCES:
            raise InputError(
                f"'{key}' is not a point of the language",
                expected="x, x0, y0, x2 or y2",
                found=f"'{key}'",
                fix=suggest(key, ["labels", "logic", *SOURCES]),
            )
    for key, tensor in tensors.items():
        _check_finite(key, tensor)
    return tensors


def check_tensor(value: object, what: str) -> None:
    if not isinstance(value, Tensor):
        raise InputError(
            f"{what} is not a tensor",
            expected="a torch tensor",
            found=type(value).__name__,
            fix="pass torch.as_tensor(...)",
        )


def check_inputs(x: object) -> None:
    """Before a network sees them: a single NaN stays in the averages of its normalisation."""
    check_tensor(x, "x")
    if isinstance(x, Tensor):
        _check_finite("x", x)


def _check_outputs(name: str, outputs: int | None, y: Tensor) -> None:
    check_tensor(y, "y")
    if y.dim() != 2:
        raise InputError(
            "outputs have the wrong shape",
            expected="(batch, outputs)",
            found=str(tuple(y.shape)),
            fix="pass y = model(x), one row for each sample",
        )
    if not y.is_floating_point():
        raise InputError(
            "outputs have the wrong type",
            expected="a floating-point tensor",
            found=str(y.dtype),
            fix="pass the logits themselves, not predicted classes",
        )
    if outputs is not None and y.shape[1] != outputs:
        raise InputError(
            f"outputs do not fit property '{name}'",
            expected=f"(batch, {outputs})",
            found=str(tuple(y.shape)),
            fix="load the property with the network's number of outputs",
        )


def _check_finite(name: str, tensor: Tensor) -> None:
    # The sum is finite unless something is not (or overflows, which the full look tells).
    if math.isfinite(tensor.detach().sum().item()) or bool(torch.isfinite(tensor).all()):
        return
    bad = int((~torch.isfinite(tensor)).flatten(1).any(1).sum())
    raise InputError(
        f"{name} is not finite",
        expected="finite numbers",
        found=f"NaN or infinity in {bad} of {len(tensor)} samples",
        fix="look at the data: fill in or drop what is missing"
        if name.startswith("x")
        else "look at the network's weights and learning rate",
    )
