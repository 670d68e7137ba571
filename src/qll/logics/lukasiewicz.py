"""Lukasiewicz logic: bounded sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from qll.logics._fuzzy import Fuzzy
from qll.logics.base import LOGICS, Law, fill


@LOGICS.register("lukasiewicz")
@dataclass(frozen=True)
class Lukasiewicz(Fuzzy):
    """
    >>> Lukasiewicz().conj(torch.tensor([0.75, 0.5]))
    tensor(0.2500)
    """

    name: ClassVar[str] = "lukasiewicz"
    laws: ClassVar[frozenset[Law]] = frozenset(
        {
            Law.ASSOCIATIVE,
            Law.COMMUTATIVE,
            Law.MONOTONE,
            Law.UNITS,
            Law.INVOLUTIVE,
            Law.DE_MORGAN,
            Law.RESIDUATED,
        }
    )

    def tensor(self, xs: Tensor, *, where: Tensor | None = None) -> Tensor:
        return (1.0 - (1.0 - fill(xs, where, 1.0)).sum(0)).clamp(min=0.0)

    def par(self, xs: Tensor, *, where: Tensor | None = None) -> Tensor:
        return fill(xs, where, 0.0).sum(0).clamp(max=1.0)

    def implies(self, a: Tensor, b: Tensor) -> Tensor:
        return (1.0 - a + b).clamp(max=1.0)

    def negate(self, a: Tensor) -> Tensor:
        return 1.0 - a

    def leq(self, a: Tensor, b: Tensor) -> Tensor:
        # 1 - sigmoid(a) = sigmoid(-a), exact where sigmoid(a) rounds to 1
        return (torch.sigmoid(-a) + torch.sigmoid(b)).clamp(max=1.0)
