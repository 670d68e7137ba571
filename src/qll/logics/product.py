"""Product logic: probabilities of independent events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from qll.logics import _rows as rows
from qll.logics._fuzzy import Fuzzy, residual_negation
from qll.logics._rows import RowFunction, Rows
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

    def kernel(self) -> tuple[Mapping[str, RowFunction], tuple[float, ...]]:
        return {
            "leq": _leq_rows,
            "conj": rows.product,
            "disj": _disjunction_rows,
            "tensor": rows.product,
            "par": _disjunction_rows,
            "limp": _implication_rows,
            "loss": rows.one_minus,
        }, ()


def _product(xs: Tensor) -> Tensor:
    return xs[0] * xs[1] if len(xs) == 2 else xs.prod(0)


# --- the compiled reading (qll.kernels.formula) ---


def _leq_rows(a: Rows, b: Rows, n: int, params: Rows, v: Rows, da: Rows, db: Rows) -> None:
    for i in range(n):
        premise, conclusion = 1.0 / (1.0 + np.exp(-a[i])), 1.0 / (1.0 + np.exp(-b[i]))
        holds = a[i] <= b[i]
        ratio = np.where(holds, 1.0, conclusion / np.maximum(premise, 1e-300))
        v[i] = ratio
        da[i] = np.where(holds, 0.0, -ratio * (1.0 - premise))
        db[i] = np.where(holds, 0.0, ratio * (1.0 - conclusion))


def _disjunction_rows(v: Rows, n: int, hardness: float, params: Rows, out: Rows, g: Rows) -> None:
    result = 1.0 - v[0]
    g[0] = 1.0
    for i in range(1, n):
        g[i] = result
        result = result * (1.0 - v[i])
    after = 1.0 - v[n - 1]
    for i in range(n - 2, -1, -1):
        g[i] = g[i] * after
        after = after * (1.0 - v[i])
    out[0] = 1.0 - result


def _implication_rows(v: Rows, n: int, hardness: float, params: Rows, out: Rows, g: Rows) -> None:
    holds = v[0] <= v[1]
    divisor = np.where(holds, 1.0, v[0])
    ratio = np.where(holds, 1.0, v[1] / divisor)
    out[0] = ratio
    g[0] = np.where(holds, 0.0, -ratio / divisor)
    g[1] = np.where(holds, 0.0, 1.0 / divisor)
