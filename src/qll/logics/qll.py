"""Quantitative Linear Logic, the paper's: additive reals, lower is truer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import softplus

from qll.formula.nodes import Formula
from qll.formula.slack import slack
from qll.logics.base import (
    LOGICS,
    Direction,
    Law,
    Logic,
    choice,
    fill,
    positive,
    with_parameter,
)


class _SoftMaximum(torch.autograd.Function):
    """``(1/p) log sum exp(p x)`` over the leading axis, for any finite p.

    Anchored at the maximum *before* the multiplication by p, so that large values do not overflow;
    the gradient is ``exp(p (x - value))``, the paper's closed form, whose terms are <= 1.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(xs: Tensor, p: float) -> Tensor:
        peak = xs.amax(0)
        total = (xs - peak).mul_(p).exp_().sum(0)
        return peak.add_(total.log_(), alpha=1.0 / p)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        xs, ctx.p = inputs
        ctx.save_for_backward(xs, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        xs, value = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative was asked for: nothing in place
            return grad * torch.exp((xs - value) * ctx.p), None
        return (xs - value).mul_(ctx.p).exp_().mul_(grad), None


def soft_maximum(xs: Tensor, p: float) -> Tensor:
    """The paper's conjunction at hardness ``p``; ``amax`` at p = inf."""
    if math.isinf(p):
        return xs.amax(0)
    return _SoftMaximum.apply(xs, p)  # type: ignore[no-untyped-call, no-any-return]


COMPARISONS = ("difference", "relu", "softplus")


@LOGICS.register("qll")
@dataclass(frozen=True)
class QLL(Logic):
    """Values in [-inf, inf]; 0 is the unit, ``<= 0`` at p = inf is true.

    ``comparison`` says how ``a <= b`` enters: by the plain difference (the paper's), or through
    ReLU or softplus, which the paper mentions as options.

    >>> QLL(p=1).conj(torch.tensor([0.0, 0.0]))
    tensor(0.6931)
    """

    p: float = 5.0
    comparison: str = "difference"

    name: ClassVar[str] = "qll"
    direction: ClassVar[Direction] = Direction.LOWER_IS_TRUER
    domain: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    top: ClassVar[float] = -math.inf
    bottom: ClassVar[float] = math.inf
    unit: ClassVar[float] = 0.0
    top_is_unit: ClassVar[bool] = False
    laws: ClassVar[frozenset[Law]] = frozenset(
        {
            Law.ASSOCIATIVE,
            Law.COMMUTATIVE,
            Law.MONOTONE,
            Law.UNITS,
            Law.INVOLUTIVE,
            Law.DE_MORGAN,
            Law.RESIDUATED,
            Law.SHADOW_LIFTING,
        }
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", positive(self.p, "qll", "p"))
        choice(self.comparison, "qll", "comparison", COMPARISONS)

    @property
    def hardness(self) -> float:
        return self.p

    def harden(self, hardness: float) -> Logic:
        return with_parameter(self, "p", hardness)

    def leq(self, a: Tensor, b: Tensor) -> Tensor:
        gap = a - b
        if self.comparison == "difference":
            return gap
        if self.comparison == "relu" or math.isinf(self.p):
            return torch.relu(gap)
        return softplus(gap, beta=self.p)

    def conj(
        self, xs: Tensor, *, hardness: float | None = None, where: Tensor | None = None
    ) -> Tensor:
        # A masked operand sits at the lowest finite number: exp of it, relative to any peak, is 0.
        return soft_maximum(_lowest(xs, where), self.p if hardness is None else hardness)

    def disj(
        self, xs: Tensor, *, hardness: float | None = None, where: Tensor | None = None
    ) -> Tensor:
        return -soft_maximum(_lowest(-xs, where), self.p if hardness is None else hardness)

    def tensor(self, xs: Tensor, *, where: Tensor | None = None) -> Tensor:
        return _total(fill(xs, where, 0.0), bottom_wins=True)

    def par(self, xs: Tensor, *, where: Tensor | None = None) -> Tensor:
        return _total(fill(xs, where, 0.0), bottom_wins=False)

    def implies(self, a: Tensor, b: Tensor) -> Tensor:
        return _total(torch.stack(torch.broadcast_tensors(-a, b)), bottom_wins=False)

    def negate(self, a: Tensor) -> Tensor:
        return -a

    def loss(self, value: Tensor) -> Tensor:
        return value

    def slack(self, root: Formula) -> tuple[float, float]:
        # softplus at hardness p lies above ReLU by at most log(2) / p
        atom = (math.log(2) / self.p, 0.0) if self.comparison == "softplus" else (0.0, 0.0)
        return slack(root, self.p, atom)


def _lowest(xs: Tensor, where: Tensor | None) -> Tensor:
    return xs if where is None else torch.where(where, xs, xs.new_tensor(torch.finfo(xs.dtype).min))


def _total(xs: Tensor, *, bottom_wins: bool) -> Tensor:
    """The sum in which ``-inf + inf`` is bottom (tensor) or top (par), never NaN."""
    total = xs.sum(0)
    if not torch.isnan(total).any():
        return total
    clash = torch.isnan(total) & ~torch.isnan(xs).any(0)
    return torch.where(clash, total.new_tensor(math.inf if bottom_wins else -math.inf), total)
