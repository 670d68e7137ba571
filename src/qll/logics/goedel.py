"""Goedel logic: min, max, and an implication that is the conclusion where it fails."""

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

    def kernel(self) -> tuple[Mapping[str, RowFunction], tuple[float, ...]]:
        return {
            "leq": _leq_rows,
            "conj": rows.minimum,
            "disj": rows.maximum,
            "tensor": rows.minimum,
            "par": rows.maximum,
            "limp": _implication_rows,
            "loss": rows.one_minus,
        }, ()


# --- the compiled reading (qll.kernels.formula) ---


def _leq_rows(a: Rows, b: Rows, n: int, params: Rows, v: Rows, da: Rows, db: Rows) -> None:
    for i in range(n):
        conclusion = 1.0 / (1.0 + np.exp(-b[i]))
        v[i] = np.where(a[i] <= b[i], 1.0, conclusion)
        da[i] = 0.0
        db[i] = np.where(a[i] <= b[i], 0.0, conclusion * (1.0 - conclusion))


def _implication_rows(v: Rows, n: int, hardness: float, params: Rows, out: Rows, g: Rows) -> None:
    out[0] = np.where(v[0] <= v[1], 1.0, v[1])
    g[0] = 0.0
    g[1] = np.where(v[0] <= v[1], 0.0, 1.0)
