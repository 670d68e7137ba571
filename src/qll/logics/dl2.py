"""DL2 (Fischer et al. 2019): a loss that is 0 exactly where the formula holds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from qll.logics import _rows as rows
from qll.logics._rows import RowFunction, Rows
from qll.logics.base import LOGICS, Direction, Law, Logic, Negation, fill, resolve


@LOGICS.register("dl2")
@dataclass(frozen=True)
class DL2(Logic):
    """Loss in [0, inf], 0 is true; ``and`` is the sum, ``or`` the product.

    The linear implication, which DL2 does not name, is the truncated difference: the residual of
    its sum, and what the paper uses for comparisons.

    >>> DL2().conj(torch.tensor([0.0, 2.0]))
    tensor(2.)
    """

    name: ClassVar[str] = "dl2"
    direction: ClassVar[Direction] = Direction.LOWER_IS_TRUER
    domain: ClassVar[tuple[float, float]] = (0.0, math.inf)
    top: ClassVar[float] = 0.0
    bottom: ClassVar[float] = math.inf
    unit: ClassVar[float] = 0.0
    negation: ClassVar[Negation] = Negation.PUSHED_INWARD
    laws: ClassVar[frozenset[Law]] = frozenset(
        {
            Law.ASSOCIATIVE,
            Law.COMMUTATIVE,
            Law.MONOTONE,
            Law.RESIDUATED,
            Law.SOUND,
            Law.SHADOW_LIFTING,
        }
    )

    def leq(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.relu(a - b)

    def conj(
        self, xs: Tensor, *, hardness: float | None = None, where: Tensor | None = None
    ) -> Tensor:
        return fill(xs, where, 0.0).sum(0)

    def disj(
        self, xs: Tensor, *, hardness: float | None = None, where: Tensor | None = None
    ) -> Tensor:
        return _product(fill(xs, where, 1.0))

    def implies(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.relu(resolve(b - a, self.top))

    def loss(self, value: Tensor) -> Tensor:
        return value

    def kernel(self) -> tuple[Mapping[str, RowFunction], tuple[float, ...]]:
        return {
            "leq": rows.positive_excess,
            "conj": rows.total,
            "disj": rows.product,
            "tensor": rows.total,
            "par": rows.product,
            "limp": _truncated_difference,
            "loss": rows.itself,
        }, ()


def _product(xs: Tensor) -> Tensor:
    """Two factors are the common case, and much cheaper than a general product's gradient.

    Where the product overflows the factors are cut so that it is the largest number instead: an
    infinity would meet a zero factor here or in a gradient, and make NaN.
    """
    value = xs[0] * xs[1] if len(xs) == 2 else xs.prod(0)
    if math.isfinite(value.detach().sum().item()):
        return value
    cap = 0.99 * torch.finfo(xs.dtype).max ** (1.0 / len(xs))
    return torch.where(torch.isfinite(value), xs, xs.clamp(max=cap)).prod(0)


# --- the compiled reading (qll.kernels.formula) ---


def _truncated_difference(
    v: Rows, n: int, hardness: float, params: Rows, out: Rows, g: Rows
) -> None:
    gap = v[1] - v[0]
    slope = np.where(gap > 0.0, 1.0, 0.0)
    out[0] = np.maximum(0.0, gap)
    g[0] = -slope
    g[1] = slope
