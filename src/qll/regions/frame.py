"""The image of a few parameters around a batch of data points, as tensors.

What a search moves are the parameters; a point is their image, rounded. Beside the map a region may
have boxes and linear constraints: a point that breaks them is drawn towards where nothing moves, as
far as it must, so that the data point itself has to meet them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qll.formula.moves import FIRST, Evaluation, Move

# Of the size of what is added, that an image in floats may be off.
ROUNDING = 16


@dataclass(frozen=True)
class Tensors:
    """Entries as tensors, ``(batch, inputs)`` or what broadcasts to it."""

    x0: Tensor  # (batch, inputs)

    def number(self, value: float) -> Tensor:
        return self.x0.new_tensor(value)

    def listed(self, values: Sequence[float]) -> Tensor:
        return self.x0.new_tensor(list(values))

    def data(self) -> Tensor:
        return self.x0

    def mean(self) -> Tensor:
        return self.x0.mean(1, keepdim=True)

    def taken(self, places: Sequence[int]) -> Tensor:
        at = torch.tensor(list(places), device=self.x0.device)
        return torch.where(at >= 0, self.x0[:, at.clamp(min=0)], 0.0)

    def added(self, one: Tensor, other: Tensor) -> Tensor:
        return one + other

    def times(self, one: Tensor, other: Tensor) -> Tensor:
        return one * other

    def over(self, one: Tensor, divisor: float) -> Tensor:
        return one / divisor


@dataclass(frozen=True)
class Frame:
    """``offset + first * x + sum_j v_j directions_j``, flat: ``(batch, inputs)`` and ``(batch,
    parameters, inputs)``. ``least``/``most`` are the ends of each parameter, ``(choices,
    parameters)``: of several choices one holds."""

    offset: Tensor
    directions: Tensor
    least: Tensor
    most: Tensor
    first: Tensor | None
    names: tuple[str, ...]

    @classmethod
    def of(cls, move: Move, x0: Tensor) -> Frame:
        flat = x0.flatten(1)
        found = Evaluation(move, Tensors(flat)).run()

        def whole(value: Tensor) -> Tensor:
            return value.expand_as(flat)

        offset = whole(found.get(None, flat.new_zeros(())))
        directions = [whole(found.get(name, flat.new_zeros(()))) for name, _, _ in move.smalls]
        ends = [[(low, high) for _, low, high in move.smalls] for _ in move.choices]
        for row, fixed in zip(ends, move.choices, strict=True):
            for k, value in fixed:
                row[k] = (value, value)
        sides = flat.new_tensor(ends)
        first = whole(found[FIRST]) if FIRST in found else None
        names = tuple(name for name, _, _ in move.smalls)
        stacked = torch.stack(directions, 1)
        return cls(offset, stacked, sides[..., 0], sides[..., 1], first, names)

    def __getitem__(self, rows: Any) -> Frame:
        first = None if self.first is None else self.first[rows]
        return Frame(
            self.offset[rows], self.directions[rows], self.least, self.most, first, self.names
        )

    @property
    def count(self) -> int:
        return len(self.names)

    def expand(self, moved: Tensor, x: Tensor | None = None) -> Tensor:
        """The points, flat, of parameters ``(batch, parameters)``."""
        found = self.offset + (moved[:, :, None] * self.directions).sum(1)
        if self.first is not None and x is not None:
            found = found + self.first * x.flatten(1)
        return found

    def hull(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """The box around the image; ``lower`` and ``upper`` are those of x."""
        least, most = self.least.amin(0)[:, None], self.most.amax(0)[:, None]
        one, other = self.directions * least, self.directions * most
        low = self.offset + torch.minimum(one, other).sum(1)
        high = self.offset + torch.maximum(one, other).sum(1)
        if self.first is not None:
            one, other = self.first * lower.flatten(1), self.first * upper.flatten(1)
            low, high = low + torch.minimum(one, other), high + torch.maximum(one, other)
        return low, high

    def clamp(self, moved: Tensor) -> Tensor:
        """The nearest parameters of one of the choices."""
        inside = torch.clamp(moved[:, None], self.least, self.most)  # (batch, choices, parameters)
        far = (inside - moved[:, None]).square().sum(-1)
        best = far.argmin(1)
        return inside[torch.arange(len(moved), device=moved.device), best]

    def still(self, like: Tensor) -> Tensor:
        """Where nothing moves, or as little as it may."""
        return self.clamp(like.new_zeros(len(like), self.count))

    def start(self, uniform: Tensor, choice: Tensor) -> Tensor:
        """Parameters from numbers in [0, 1), ``(batch, parameters)``, of the choice with this
        number, ``(batch,)``, counted round."""
        choice = choice.to(self.least.device) % len(self.least)
        low, high = self.least[choice], self.most[choice]
        return torch.clamp(low + uniform * (high - low), low, high)

    def fit(self, points: Tensor, x: Tensor | None = None) -> Tensor:
        """The parameters whose image is nearest to points, by least squares."""
        aim = points.flatten(1) - self.expand(self.still(points), x)
        rows = self.directions
        square = (rows @ rows.transpose(1, 2)).double()
        right = (rows @ aim[:, :, None]).double()
        found = torch.linalg.lstsq(square, right, driver="gelsd").solution[:, :, 0]
        return self.clamp(found.to(points.dtype) + self.still(points))

    def contains(self, points: Tensor, x: Tensor | None, tolerance: float) -> Tensor:
        """Up to the rounding of the image itself."""
        flat = points.flatten(1)
        moved = self.fit(points, x)
        size = self.offset.abs() + (moved[:, :, None] * self.directions).abs().sum(1)
        if self.first is not None and x is not None:
            size = size + (self.first * x.flatten(1)).abs()
        room = ROUNDING * torch.finfo(flat.dtype).eps * (size.amax(1) + flat.abs().amax(1))
        away = (self.expand(moved, x) - flat).abs().amax(1)
        return away <= room + tolerance
