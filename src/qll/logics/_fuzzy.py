"""What the t-norm logics on [0, 1] share: 1 is true, quantities enter through the sigmoid, and the
trained connectives are the linear ones (the non-linear ones are min and max in all of them)."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from qll.logics.base import Direction, Logic


class Fuzzy(Logic):
    direction: ClassVar[Direction] = Direction.HIGHER_IS_TRUER
    domain: ClassVar[tuple[float, float]] = (0.0, 1.0)
    top: ClassVar[float] = 1.0
    bottom: ClassVar[float] = 0.0
    unit: ClassVar[float] = 1.0
    reads_differences: ClassVar[bool] = False

    def leq(self, a: Tensor, b: Tensor) -> Tensor:
        """The residual implication of the two sides as degrees."""
        return self.implies(torch.sigmoid(a), torch.sigmoid(b))

    @abstractmethod
    def tensor(self, xs: Tensor, *, where: Tensor | None = None) -> Tensor: ...

    @abstractmethod
    def par(self, xs: Tensor, *, where: Tensor | None = None) -> Tensor: ...

    def conj(
        self, xs: Tensor, *, hardness: float | None = None, where: Tensor | None = None
    ) -> Tensor:
        return self.tensor(xs, where=where)

    def disj(
        self, xs: Tensor, *, hardness: float | None = None, where: Tensor | None = None
    ) -> Tensor:
        return self.par(xs, where=where)

    def meet(self, xs: Tensor) -> Tensor:
        return xs.amin(0)

    def join(self, xs: Tensor) -> Tensor:
        return xs.amax(0)

    def loss(self, value: Tensor) -> Tensor:
        return 1.0 - value


def residual_negation(a: Tensor) -> Tensor:
    """1 at exactly 0, otherwise 0: the negation of Goedel and Product."""
    return (a == 0).to(a.dtype)


def root(u: Tensor, r: float) -> Tensor:
    """``u ** (1/r)`` with value and gradient 0 near 0, where the derivative is infinite."""
    tiny = 1e-12
    if r < 1.0:  # a large power: kept finite, so that a clamp after it can hide it
        u = u.clamp(max=0.5 * torch.finfo(u.dtype).max ** r)
    positive = u > tiny
    safe = torch.where(positive, u, torch.ones_like(u))
    return torch.where(positive, safe.pow(1.0 / r), torch.zeros_like(u))
