"""Yager logic with parameter r: Lukasiewicz at r = 1, Goedel as r tends to infinity."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from qll.logics import _rows as rows
from qll.logics._fuzzy import Fuzzy, root
from qll.logics._rows import RowFunction, Rows
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
        return peak * root(_power(xs / peak, self.r).sum(0), self.r)

    def implies(self, a: Tensor, b: Tensor) -> Tensor:
        return self._residual(a <= b, 1.0 - a, 1.0 - b, b)

    def leq(self, a: Tensor, b: Tensor) -> Tensor:
        # 1 - sigmoid(a) = sigmoid(-a), exact where sigmoid(a) rounds to 1
        return self._residual(a <= b, torch.sigmoid(-a), torch.sigmoid(-b), torch.sigmoid(b))

    def _residual(self, holds: Tensor, not_a: Tensor, not_b: Tensor, b: Tensor) -> Tensor:
        if math.isinf(self.r):
            return torch.where(holds, torch.ones_like(b), b)
        one = torch.ones_like(not_b)
        # Where b is 1 to within rounding, 1 - b must still divide.
        base = torch.where(holds, one, not_b.clamp(min=torch.finfo(not_b.dtype).tiny))
        # ((1-b)^r - (1-a)^r)^(1/r) = (1-b) * (1 - ((1-a)/(1-b))^r)^(1/r): no cancelling powers
        ratio = torch.where(holds, torch.zeros_like(base), not_a / base)
        return torch.where(holds, one, 1.0 - base * root(1.0 - _power(ratio, self.r), self.r))

    def negate(self, a: Tensor) -> Tensor:
        if math.isinf(self.r):
            return (a < 1).to(a.dtype)
        return root(1.0 - _power(a, self.r), self.r)

    def kernel(self) -> tuple[Mapping[str, RowFunction], tuple[float, ...]]:
        return {
            "leq": _leq_rows,
            "conj": _conjunction_rows,
            "disj": _disjunction_rows,
            "tensor": _conjunction_rows,
            "par": _disjunction_rows,
            "limp": _implication_rows,
            "loss": rows.one_minus,
        }, (self.r,)


def _power(u: Tensor, r: float) -> Tensor:
    """``u ** r``, with gradient 0 at 0 where it would be infinite."""
    return u.pow(r) if r >= 1.0 else root(u, 1.0 / r)


# --- the compiled reading (qll.kernels.formula) ---

_TINY = 1e-12  # as in ``root``: below it, value and derivative of the root are 0


def _norm_rows(complement: bool) -> RowFunction:
    """The r-norm of the operands, cut at 1; or 1 minus that of their complements, cut at 0."""
    offset, sign = (1.0, -1.0) if complement else (0.0, 1.0)

    def connective(v: Rows, n: int, hardness: float, params: Rows, out: Rows, g: Rows) -> None:
        r = params[0]
        peak = offset + sign * v[0]
        for i in range(1, n):
            peak = np.maximum(peak, offset + sign * v[i])
        if math.isinf(r):
            count = np.where(offset + sign * v[0] == peak, 1.0, 0.0)
            for i in range(1, n):
                count = count + np.where(offset + sign * v[i] == peak, 1.0, 0.0)
            for i in range(n):
                g[i] = np.where(offset + sign * v[i] == peak, 1.0, 0.0) / count
            out[0] = offset + sign * peak
        else:
            peak = np.maximum(peak, 1e-300)
            whole = np.where(peak > 0.0, 0.0, 0.0)
            for i in range(n):
                share = (offset + sign * v[i]) / peak
                power = np.where(share > 0.0, np.exp((r - 1.0) * np.log(share)), 0.0)
                g[i] = power
                whole = whole + power * share
            rooted = np.exp(np.log(np.maximum(whole, _TINY)) / r)
            norm = np.where(whole > _TINY, peak * rooted, 0.0)
            inside = np.where(whole > _TINY, np.where(norm <= 1.0, 1.0, 0.0), 0.0)
            for i in range(n):
                g[i] = inside * g[i] * rooted / np.maximum(whole, _TINY)
            out[0] = offset + sign * np.minimum(1.0, norm)

    return connective


_conjunction_rows, _disjunction_rows = _norm_rows(True), _norm_rows(False)


def _leq_rows(a: Rows, b: Rows, n: int, params: Rows, v: Rows, da: Rows, db: Rows) -> None:
    r = params[0]
    for i in range(n):
        holds = a[i] <= b[i]
        not_a, not_b = 1.0 / (1.0 + np.exp(a[i])), 1.0 / (1.0 + np.exp(b[i]))
        if math.isinf(r):
            v[i] = np.where(holds, 1.0, 1.0 - not_b)
            da[i] = 0.0
            db[i] = np.where(holds, 0.0, not_b * (1.0 - not_b))
        else:
            ratio = np.where(holds, 0.0, not_a / np.maximum(not_b, 1e-300))
            power = np.where(ratio > 0.0, np.exp((r - 1.0) * np.log(ratio)), 0.0)
            rest = 1.0 - power * ratio
            rooted = np.where(rest > _TINY, np.exp(np.log(np.maximum(rest, _TINY)) / r), 0.0)
            slope = rooted / np.maximum(rest, _TINY) * power  # minus the root's, by the ratio
            v[i] = np.where(holds, 1.0, 1.0 - not_b * rooted)
            by_not_a = slope
            by_not_b = -rooted - ratio * slope
            da[i] = np.where(holds, 0.0, -by_not_a * not_a * (1.0 - not_a))
            db[i] = np.where(holds, 0.0, -by_not_b * not_b * (1.0 - not_b))


def _implication_rows(v: Rows, n: int, hardness: float, params: Rows, out: Rows, g: Rows) -> None:
    r = params[0]
    holds = v[0] <= v[1]
    if math.isinf(r):
        out[0] = np.where(holds, 1.0, v[1])
        g[0] = 0.0
        g[1] = np.where(holds, 0.0, 1.0)
    else:
        not_a, not_b = 1.0 - v[0], 1.0 - v[1]
        ratio = np.where(holds, 0.0, not_a / np.maximum(not_b, 1e-300))
        power = np.where(ratio > 0.0, np.exp((r - 1.0) * np.log(ratio)), 0.0)
        rest = 1.0 - power * ratio
        rooted = np.where(rest > _TINY, np.exp(np.log(np.maximum(rest, _TINY)) / r), 0.0)
        slope = rooted / np.maximum(rest, _TINY) * power
        out[0] = np.where(holds, 1.0, 1.0 - not_b * rooted)
        g[0] = np.where(holds, 0.0, -slope)
        g[1] = np.where(holds, 0.0, rooted + ratio * slope)
