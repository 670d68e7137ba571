"""Goedel logic: min, max, and an implication that is the conclusion where it fails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from qll.logics._fuzzy import Fuzzy, residual_negation
from qll.logics.base import LOGICS, Law, fill


@LOGICS.register("goedel")
@dataclass(frozen=True)
class Goedel(Fuzzy):
    """
    >>> Goedel().conj(torch.tensor([0.25, 0.5]))
    tensor(0.2500)
    """

    name: ClassVar[str] = "goedel"
    laws: ClassVar[frozenset[Law]] = frozenset(
        {
            Law.ASSOCIATIVE,
            Law.COMMUTATIVE,
            Law.MONOTONE,
            Law.UNITS,
            Law.IDEMPOTENT,
            Law.RESIDUATED,
            Law.SOUND,
        }
    )

    def tensor(self, xs: Tensor, *, where: Tensor | None = None) -> Tensor:
        return fill(xs, where, 1.0).amin(0)

    def par(self, xs: Tensor, *, where: Tensor | None = None) -> Tensor:
        return fill(xs, where, 0.0).amax(0)

    def implies(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.where(a <= b, torch.ones_like(b), b)

    def negate(self, a: Tensor) -> Tensor:
        return residual_negation(a)
