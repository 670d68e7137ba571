"""Balls in the norms l1 and l2 around a batch of data points: projected onto, and contained."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from qll.formula.nodes import Ball, PointBinder
from qll.formula.question import Parts


@dataclass(frozen=True)
class Norm:
    """``point`` is within ``radius`` of the data point in the norm ``kind``."""

    point: str
    kind: str
    radius: float

    def drawn_in(self, x: Tensor, x0: Tensor) -> Tensor:
        """The nearest point of the ball, a hair inside."""
        away = (x - x0).flatten(1)
        radius = self.radius * (1 - 8 * torch.finfo(x.dtype).eps * away.shape[1] ** 0.5)
        size = away.abs()
        if self.kind == "l2":
            far = away.norm(dim=1, keepdim=True)
            inner = away * (radius / far.clamp(min=1e-30)).clamp(max=1.0)
        else:
            # What each entry loses (Duchi and others 2008): the largest stay in front.
            falling = size.sort(dim=1, descending=True).values
            place = torch.arange(1, size.shape[1] + 1, device=x.device, dtype=x.dtype)
            lost = (falling.cumsum(1) - radius) / place
            last = (falling > lost).sum(1, keepdim=True).clamp(min=1)
            cut = lost.gather(1, last - 1).clamp(min=0.0)
            inner = away.sign() * (size - cut).clamp(min=0.0)
        return torch.where(self._within(away, 0.0)[:, None], x.flatten(1), x0.flatten(1) + inner
                           ).reshape(x.shape)  # fmt: skip

    def contains(self, x: Tensor, x0: Tensor, tolerance: float) -> Tensor:
        return self._within((x.double() - x0.double()).flatten(1), tolerance)

    def _within(self, away: Tensor, tolerance: float) -> Tensor:
        far = away.norm(dim=1) if self.kind == "l2" else away.abs().sum(1)
        return far <= self.radius + tolerance


def norms_of(parts: Parts, binders: tuple[PointBinder, ...]) -> tuple[Norm, ...]:
    return tuple(
        Norm(binder.point, part.norm, parts.radii(part)[0])
        for binder in binders
        for part in binder.parts
        if isinstance(part, Ball) and part.norm
    )
