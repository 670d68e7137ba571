"""Product logic: probabilities of independent events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from qll.logics._fuzzy import Fuzzy, residual_negation
from qll.logics.base import LOGICS, Law, fill


@LOGICS.register("product")
@dataclass(frozen=True)
class Product(Fuzzy):
    """
    >>> Product().conj(torch.tensor([0.5, 0.5]))
    tensor(0.2500)
    """

    name: ClassVar[str] = "product"
    laws: ClassVar[frozenset[Law]] = frozenset(
        {
            Law.ASSOCIATIVE,
            Law.COMMUTATIVE,
            Law.MONOTONE,
            Law.UNITS,
            Law.RESIDUATED,
            Law.SOUND,
            Law.SHADOW_LIFTING,
        }
    )

    def tensor(self, xs: Tensor, *, where: Tensor | None = None) -> Tensor:
        return _product(fill(xs, where, 1.0))

    def par(self, xs: Tensor, *, where: Tensor | None = None) -> Tensor:
        return 1.0 - _product(1.0 - fill(xs, where, 0.0))

    def implies(self, a: Tensor, b: Tensor) -> Tensor:
        holds = a <= b
        divisor = torch.where(holds, torch.ones_like(a), a)  # a > b >= 0 elsewhere: not zero
        return torch.where(holds, torch.ones_like(b), b / divisor)

    def negate(self, a: Tensor) -> Tensor:
        return residual_negation(a)


def _product(xs: Tensor) -> Tensor:
    return xs[0] * xs[1] if len(xs) == 2 else xs.prod(0)
