"""Lukasiewicz logic: bounded sums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from qll.logics import _rows as rows
from qll.logics._fuzzy import Fuzzy
from qll.logics._rows import RowFunction, Rows
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

    def kernel(self) -> tuple[Mapping[str, RowFunction], tuple[float, ...]]:
        return {
            "leq": _leq_rows,
            "conj": _conjunction_rows,
            "disj": _disjunction_rows,
            "tensor": _conjunction_rows,
            "par": _disjunction_rows,
            "limp": _implication_rows,
            "loss": rows.one_minus,
        }, ()


# --- the compiled reading (qll.kernels.formula) ---


def _leq_rows(a: Rows, b: Rows, n: int, params: Rows, v: Rows, da: Rows, db: Rows) -> None:
    for i in range(n):
        not_premise, conclusion = 1.0 / (1.0 + np.exp(a[i])), 1.0 / (1.0 + np.exp(-b[i]))
        whole = not_premise + conclusion
        v[i] = np.minimum(1.0, whole)
        da[i] = np.where(whole <= 1.0, -not_premise * (1.0 - not_premise), 0.0)
        db[i] = np.where(whole <= 1.0, conclusion * (1.0 - conclusion), 0.0)


def _conjunction_rows(v: Rows, n: int, hardness: float, params: Rows, out: Rows, g: Rows) -> None:
    result = v[0]
    for i in range(1, n):
        result = result - (1.0 - v[i])
    for i in range(n):
        g[i] = np.where(result >= 0.0, 1.0, 0.0)
    out[0] = np.maximum(0.0, result)


def _disjunction_rows(v: Rows, n: int, hardness: float, params: Rows, out: Rows, g: Rows) -> None:
    result = v[0]
    for i in range(1, n):
        result = result + v[i]
    for i in range(n):
        g[i] = np.where(result <= 1.0, 1.0, 0.0)
    out[0] = np.minimum(1.0, result)


def _implication_rows(v: Rows, n: int, hardness: float, params: Rows, out: Rows, g: Rows) -> None:
    whole = 1.0 - v[0] + v[1]
    slope = np.where(whole <= 1.0, 1.0, 0.0)
    out[0] = np.minimum(1.0, whole)
    g[0] = -slope
    g[1] = slope
