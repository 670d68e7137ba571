"""STL robustness (Varnai and Dimarogonas 2020): n-ary, smooth, not associative, not monotone."""

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
from qll.logics.base import LOGICS, Direction, Law, Logic, fill, positive, resolve, with_parameter

# Below this the extreme operand counts as 0, where the operators take its own value: the quotient
# (x - m) / m and its square stay finite in float32.
_ZERO = 1e-12
# exp(-80) is 0 for every purpose in float32; clamping there keeps 0 * inf out of the gradient.
_FLOOR = -80.0


def _minimum(xs: Tensor, nu: float, where: Tensor | None) -> Tensor:
    """Equation (stl-conjunction) without its leading minus, so that nesting keeps its sign."""
    low = fill(xs, where, torch.finfo(xs.dtype).max).amin(0)
    near_zero = low.abs() < _ZERO
    anchor = torch.where(near_zero, torch.ones_like(low), low)
    # With the minimum m: t = (x - m) / m is <= 0 for m < 0 and >= 0 for m > 0; the exponents
    # are nu * t in the first case and -nu * t in the second, <= 0 in both.
    gap = xs - low
    # So far beyond the minimum that both exponents are below the floor: no weight, and no
    # quotient whose square overflows in the gradient.
    far = (gap > -_FLOOR * max(1.0, 1.0 / nu) * anchor.abs()) | torch.isinf(gap)
    t = torch.where(far, torch.zeros_like(gap), gap) / anchor
    below = t.clamp(min=_FLOOR, max=0.0)
    above = (-nu * t).clamp(min=_FLOOR, max=0.0)
    negative = low < 0
    weight = torch.where(negative, (nu * below).clamp(min=_FLOOR).exp(), above.exp())
    weight = fill(weight, ~far if where is None else where & ~far, 0.0)
    term = torch.where(negative, low * below.exp(), fill(xs, where, 0.0))
    mixed = (weight / weight.sum(0) * term).sum(0)  # shares first: huge terms must not add up
    return torch.where(near_zero, low, mixed)


@LOGICS.register("stl")
@dataclass(frozen=True)
class STL(Logic):
    """Robustness in [-inf, inf], higher is truer; the loss is minus the robustness.

    >>> STL(nu=1).conj(torch.tensor([1.0, 2.0])), STL(nu=1).conj(torch.tensor([1.0, 5.0]))
    (tensor(1.2689), tensor(1.0719))
    """

    nu: float = 5.0

    name: ClassVar[str] = "stl"
    direction: ClassVar[Direction] = Direction.HIGHER_IS_TRUER
    domain: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    top: ClassVar[float] = math.inf
    bottom: ClassVar[float] = -math.inf
    unit: ClassVar[float] = 0.0
    laws: ClassVar[frozenset[Law]] = frozenset(
        {Law.COMMUTATIVE, Law.IDEMPOTENT, Law.INVOLUTIVE, Law.DE_MORGAN, Law.SOUND}
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "nu", positive(self.nu, "stl", "nu"))

    @property
    def hardness(self) -> float:
        return self.nu

    def harden(self, hardness: float) -> Logic:
        return with_parameter(self, "nu", hardness)

    def leq(self, a: Tensor, b: Tensor) -> Tensor:
        return b - a

    def conj(
        self, xs: Tensor, *, hardness: float | None = None, where: Tensor | None = None
    ) -> Tensor:
        nu = self.nu if hardness is None else hardness
        if math.isinf(nu):
            return fill(xs, where, torch.finfo(xs.dtype).max).amin(0)
        return _minimum(xs, nu, where)

    def disj(
        self, xs: Tensor, *, hardness: float | None = None, where: Tensor | None = None
    ) -> Tensor:
        return -self.conj(-xs, hardness=hardness, where=where)

    def implies(self, a: Tensor, b: Tensor) -> Tensor:
        return resolve(b - a, self.top)

    def negate(self, a: Tensor) -> Tensor:
        return -a

    def loss(self, value: Tensor) -> Tensor:
        return -value

    def kernel(self) -> tuple[Mapping[str, RowFunction], tuple[float, ...]]:
        return {
            "leq": rows.b_minus_a,
            "conj": _conjunction_rows,
            "disj": _disjunction_rows,
            "tensor": _conjunction_rows,
            "par": _disjunction_rows,
            "limp": rows.difference,
            "loss": rows.opposite,
        }, (self.nu,)


# --- the compiled reading (qll.kernels.formula) ---


def _extreme_rows(sign: float) -> RowFunction:
    """``_minimum`` of the operands (sign 1), or minus that of their negatives (-1).

    With t = x / m - 1, the value V = sum(w term) / sum(w) depends on x_i by t_i (and, for m > 0,
    by its own term), and on the least operand m by every t and, for m < 0, by every term.
    """

    def connective(v: Rows, n: int, hardness: float, params: Rows, out: Rows, g: Rows) -> None:
        nu = params[0] if math.isnan(hardness) else hardness
        low = v[0] * sign
        for i in range(1, n):
            low = np.minimum(low, v[i] * sign)
        ties = np.where(v[0] * sign == low, 1.0, 0.0)
        for i in range(1, n):
            ties = ties + np.where(v[i] * sign == low, 1.0, 0.0)
        if math.isinf(nu):
            for i in range(n):
                g[i] = np.where(v[i] * sign == low, 1.0, 0.0) / ties
            out[0] = low * sign
        else:
            near_zero = np.abs(low) < _ZERO
            anchor = np.where(near_zero, 1.0, low)
            negative = low < 0.0
            weights = np.where(near_zero, 0.0, 0.0)
            mixed = weights
            for i in range(n):
                x = v[i] * sign
                t = (x - low) / anchor
                below = np.minimum(0.0, np.maximum(_FLOOR, t))
                above = np.minimum(0.0, np.maximum(_FLOOR, -nu * t))
                weight = np.exp(np.where(negative, np.maximum(_FLOOR, nu * below), above))
                weights = weights + weight
                mixed = mixed + weight * np.where(negative, low * np.exp(below), x)
            mixed = mixed / weights
            by_low = np.where(near_zero, 0.0, 0.0)
            for i in range(n):
                x = v[i] * sign
                t = (x - low) / anchor
                below = np.minimum(0.0, np.maximum(_FLOOR, t))
                above = np.minimum(0.0, np.maximum(_FLOOR, -nu * t))
                weight = np.exp(np.where(negative, np.maximum(_FLOOR, nu * below), above))
                share = weight / weights
                decay = np.exp(below)
                term = np.where(negative, low * decay, x)
                # Where a clamp holds, what it holds back has no derivative.
                if_negative = np.where(nu * below >= _FLOOR, nu * share * (term - mixed), 0.0)
                if_negative = np.where(t >= _FLOOR, if_negative + share * term, 0.0)
                if_positive = np.where(-nu * t >= _FLOOR, -nu * share * (x - mixed), 0.0)
                by_t = np.where(negative, if_negative, if_positive)
                g[i] = by_t / anchor + np.where(negative, 0.0, share)
                by_low = by_low - by_t * x / (anchor * anchor)
                by_low = by_low + np.where(negative, share * decay, 0.0)
            for i in range(n):
                least = np.where(v[i] * sign == low, 1.0, 0.0) / ties
                g[i] = np.where(near_zero, least, g[i] + least * by_low)
            out[0] = np.where(near_zero, low, mixed) * sign

    return connective


_conjunction_rows, _disjunction_rows = _extreme_rows(1.0), _extreme_rows(-1.0)
