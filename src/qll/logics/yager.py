"""Yager logic with parameter r: Lukasiewicz at r = 1, Goedel as r tends to infinity."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from qll.logics._fuzzy import Fuzzy, root
from qll.logics.base import LOGICS, Law, Logic, fill, positive, with_parameter


@LOGICS.register("yager")
@dataclass(frozen=True)
class Yager(Fuzzy):
    """The disjunction is ``min((a^r + b^r)^(1/r), 1)`` (the paper's table omits the root), the
    negation the Yager complement ``(1 - a^r)^(1/r)``, as the paper's formula simplifies to (the
    residual one would be ``1 - (1 - (1 - a)^r)^(1/r)``).

    >>> Yager(r=2).conj(torch.tensor([0.5, 0.5]))
    tensor(0.2929)
    """

    r: float = 2.0

    name: ClassVar[str] = "yager"
    laws: ClassVar[frozenset[Law]] = frozenset(
        {
            Law.ASSOCIATIVE,
            Law.COMMUTATIVE,
            Law.MONOTONE,
            Law.UNITS,
            Law.INVOLUTIVE,
            Law.RESIDUATED,
        }
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "r", positive(self.r, "yager", "r"))

    @property
    def hardness(self) -> float:
        return self.r

    def harden(self, hardness: float) -> Logic:
        return with_parameter(self, "r", hardness)

    def tensor(self, xs: Tensor, *, where: Tensor | None = None) -> Tensor:
        xs = fill(xs, where, 1.0)
        return xs.amin(0) if math.isinf(self.r) else (1.0 - self._norm(1.0 - xs)).clamp(min=0.0)

    def par(self, xs: Tensor, *, where: Tensor | None = None) -> Tensor:
        xs = fill(xs, where, 0.0)
        return xs.amax(0) if math.isinf(self.r) else self._norm(xs).clamp(max=1.0)

    def _norm(self, xs: Tensor) -> Tensor:
        """The r-norm, scaled by its largest entry so that no power underflows."""
        peak = xs.detach().amax(0).clamp(min=torch.finfo(xs.dtype).tiny)
        return peak * root((xs / peak).pow(self.r).sum(0), self.r)

    def implies(self, a: Tensor, b: Tensor) -> Tensor:
        return self._residual(a <= b, 1.0 - a, 1.0 - b, b)

    def leq(self, a: Tensor, b: Tensor) -> Tensor:
        # 1 - sigmoid(a) = sigmoid(-a), exact where sigmoid(a) rounds to 1
        return self._residual(a <= b, torch.sigmoid(-a), torch.sigmoid(-b), torch.sigmoid(b))

    def _residual(self, holds: Tensor, not_a: Tensor, not_b: Tensor, b: Tensor) -> Tensor:
        if math.isinf(self.r):
            return torch.where(holds, torch.ones_like(b), b)
        one = torch.ones_like(not_b)
        base = torch.where(holds, one, not_b)
        # ((1-b)^r - (1-a)^r)^(1/r) = (1-b) * (1 - ((1-a)/(1-b))^r)^(1/r): no cancelling powers
        ratio = torch.where(holds, torch.zeros_like(base), not_a / base)
        return torch.where(holds, one, 1.0 - base * root(1.0 - ratio.pow(self.r), self.r))

    def negate(self, a: Tensor) -> Tensor:
        if math.isinf(self.r):
            return (a < 1).to(a.dtype)
        return root(1.0 - a.pow(self.r), self.r)
