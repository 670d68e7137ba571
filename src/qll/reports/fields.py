"""Connectives as surfaces: values and gradients over a square of two truth values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from qll.logics.base import LOGICS, Direction, Logic
from qll.logics.base import logic as read_logic

Array = NDArray[np.float64]
Kind = Literal["and", "or"]

# The paper's choices: Yager at r = 5, STL and QLL at 1.
FUZZY_HARDNESS = 5.0
HARDNESS = 1.0
_OPEN_SQUARE = (-2.0, 2.0)


@dataclass(frozen=True, eq=False)
class Field:
    """``value[j, i]`` at ``(axis[i], axis[j])``, and its gradient there."""

    axis: Array
    value: Array
    by_x: Array
    by_y: Array

    @property
    def norm(self) -> Array:
        return np.hypot(self.by_x, self.by_y)


def is_bounded(logic: Logic) -> bool:
    """A truth domain with two ends, as the fuzzy logics have."""
    return bool(np.isfinite(logic.domain).all())


def is_flipped(logic: Logic) -> bool:
    """Unbounded logics are all drawn lower-is-truer, as the paper draws them."""
    return not is_bounded(logic) and logic.direction is Direction.HIGHER_IS_TRUER


def square(logic: Logic) -> tuple[float, float]:
    """[0, 1] for a bounded domain, [-2, 2] for the others, as in the paper."""
    return logic.domain if is_bounded(logic) else _OPEN_SQUARE


def paper_logics() -> list[Logic]:
    """Every logic of the registry at the hardness that the paper draws: bounded domains first."""
    records = [read_logic(name) for name in LOGICS]
    drawn = [_at_paper_hardness(record) for record in records]
    return sorted(drawn, key=lambda record: (not is_bounded(record), record.name))


def _at_paper_hardness(record: Logic) -> Logic:
    if np.isnan(record.hardness):
        return record
    return record.harden(FUZZY_HARDNESS if is_bounded(record) else HARDNESS)


def connective(
    logic: Logic, kind: Kind, points: int, ends: tuple[float, float], *, shift: float = 0.0
) -> Field:
    """The trained ``and`` or ``or`` of two operands on a grid, with its autograd gradient.
    ``shift`` moves the second operand."""
    axis = np.linspace(*ends, points)
    x, y = np.meshgrid(axis, axis + shift)
    xs = torch.from_numpy(np.stack([x.ravel(), y.ravel()])).requires_grad_()
    sign = -1.0 if is_flipped(logic) else 1.0
    apply = logic.conj if kind == "and" else logic.disj
    value = sign * apply(sign * xs)
    (slope,) = torch.autograd.grad(value.sum(), xs)
    return Field(axis, *(_grid(t, points) for t in (value.detach(), slope[0], slope[1])))


def maximum(points: int, ends: tuple[float, float], *, shift: float = 0.0) -> Field:
    """max with gradient (1/2, 1/2) on the diagonal, as the paper defines it."""
    axis = np.linspace(*ends, points)
    x, y = np.meshgrid(axis, axis + shift)
    by_x = np.where(x > y, 1.0, np.where(x == y, 0.5, 0.0))
    return Field(axis, np.maximum(x, y), by_x, 1.0 - by_x)


def gradient_gap(logic: Logic, points: int) -> tuple[Array, Array, Array]:
    """Of the conjunction against max: the axis, the norm of the difference of the gradients, and
    the cosine between them (NaN where one of them vanishes). Half a step off the diagonal, on
    which alone max's gradient is another."""
    half = (_OPEN_SQUARE[1] - _OPEN_SQUARE[0]) / (points - 1) / 2
    soft = connective(logic, "and", points, _OPEN_SQUARE, shift=half)
    hard = maximum(points, _OPEN_SQUARE, shift=half)
    gap = np.hypot(soft.by_x - hard.by_x, soft.by_y - hard.by_y)
    product = soft.by_x * hard.by_x + soft.by_y * hard.by_y
    norms = soft.norm * hard.norm
    cosine = np.divide(product, norms, out=np.full_like(norms, np.nan), where=norms > 1e-12)
    return soft.axis, gap, cosine


def _grid(flat: Any, points: int) -> Array:
    result: Array = flat.detach().numpy().reshape(points, points)
    return result
