"""STL robustness (Varnai and Dimarogonas 2020): n-ary, smooth, not associative, not monotone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

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
    t = (xs - low) / anchor
    below = t.clamp(min=_FLOOR, max=0.0)
    above = (-nu * t).clamp(min=_FLOOR, max=0.0)
    negative = low < 0
    weight = torch.where(negative, (nu * below).clamp(min=_FLOOR).exp(), above.exp())
    weight = fill(weight, where, 0.0)
    term = torch.where(negative, low * below.exp(), fill(xs, where, 0.0))
    mixed = (weight * term).sum(0) / weight.sum(0)
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
