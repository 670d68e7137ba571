"""Quantitative Linear Logic, the paper's: additive reals, lower is truer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from qll.formula.nodes import Formula
from qll.formula.slack import slack
from qll.logics import _rows as rows
from qll.logics._rows import RowFunction, Rows
from qll.logics.base import (
    LOGICS,
    Direction,
    Law,
    Logic,
    choice,
    fill,
    positive,
    resolve,
    with_parameter,
)


def soft_extreme(xs: Tensor, p: float, where: Tensor | None = None) -> Tensor:
    """``(1/p) log sum exp(p x)`` over the leading axis: the paper's conjunction at hardness p, and
    at -p its disjunction, since ``-(1/p) log sum exp(-p x)`` is the same expression. The maximum
    at p = inf, the minimum at -inf.

    Its gradient is the closed form ``exp(p (x - value))``: torch's own logsumexp has exactly that.
    """
    if math.isinf(p):
        return fill(xs, where, -p).amax(0) if p > 0 else fill(xs, where, -p).amin(0)
    value = torch.logsumexp(fill(xs * p, where, -math.inf), 0) / p
    if math.isfinite(value.detach().sum().item()):
        return value
    return _anchored(xs, p, where) if p > 0 else -_anchored(-xs, -p, where)


def _anchored(xs: Tensor, p: float, where: Tensor | None) -> Tensor:
    """The same for operands so large that ``p x`` overflows, or infinite ones: anchored at the
    maximum before the multiplication. Infinite results carry no gradient instead of NaN."""
    limits = torch.finfo(xs.dtype)
    peak = fill(xs, where, -math.inf).amax(0)
    finite = xs.clamp(limits.min, limits.max)
    anchor = peak.detach().clamp(limits.min, limits.max)
    # Halves keep the difference of two huge numbers of opposite sign in range.
    exponent = ((finite / 2 - anchor / 2) * (2 * p)).clamp(math.log(limits.tiny), 0.0)
    total = fill(exponent.exp(), where, 0.0).sum(0)
    value = anchor + torch.log(total) / p
    return torch.where(torch.isinf(peak), peak.detach(), value)


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
        return soft_extreme(xs, self.p if hardness is None else hardness, where)

    def disj(
        self, xs: Tensor, *, hardness: float | None = None, where: Tensor | None = None
    ) -> Tensor:
        return soft_extreme(xs, -(self.p if hardness is None else hardness), where)

    def tensor(self, xs: Tensor, *, where: Tensor | None = None) -> Tensor:
        return resolve(fill(xs, where, 0.0).sum(0), self.bottom)

    def par(self, xs: Tensor, *, where: Tensor | None = None) -> Tensor:
        return resolve(fill(xs, where, 0.0).sum(0), self.top)

    def implies(self, a: Tensor, b: Tensor) -> Tensor:
        return resolve(b - a, self.top)

    def negate(self, a: Tensor) -> Tensor:
        return -a

    def loss(self, value: Tensor) -> Tensor:
        return value

    def slack(self, root: Formula) -> tuple[float, float]:
        # softplus at hardness p lies above ReLU by at most log(2) / p
        atom = (math.log(2) / self.p, 0.0) if self.comparison == "softplus" else (0.0, 0.0)
        return slack(root, self.p, atom)

    def kernel(self) -> tuple[Mapping[str, RowFunction], tuple[float, ...]]:
        soft = self.comparison == "softplus" and math.isfinite(self.p)
        leq = rows.a_minus_b if self.comparison == "difference" else rows.positive_excess
        return {
            "leq": _soft_positive_excess if soft else leq,
            "conj": _soft_maximum,
            "disj": _soft_minimum,
            "tensor": rows.total,
            "par": rows.total,
            "limp": rows.difference,
            "loss": rows.itself,
        }, (self.p,)

    def vehicle(self) -> Mapping[str, str]:
        """Anchored, since Vehicle's ``log`` and ``exp`` are plain. Its ``const`` drops gradients:
        the anchors of the reductions are all written with it, so that none of them is half lost."""
        p = format(Decimal(repr(self.p)), "f")
        if math.isinf(self.p):
            soft = {
                "pointwiseConjunction": r"\x y -> max x y",
                "pointwiseDisjunction": r"\x y -> min x y",
                "reduceConjunction": r"\xs -> reduceMax xs",
                "reduceDisjunction": r"\xs -> reduceMin xs",
            }
            both, either = "max {0} {1}", "min {0} {1}"
        else:
            scale, root = f"const {p} dims", f"const (1.0 / {p}) dims"
            both = (
                f"max {{0}} {{1}} + {root} * log (exp ({scale} * ({{0}} - max {{0}} {{1}}))"
                f" + exp ({scale} * ({{1}} - max {{0}} {{1}})))"
            )
            either = (
                f"min {{0}} {{1}} - {root} * log (exp ({scale} * (min {{0}} {{1}} - {{0}}))"
                f" + exp ({scale} * (min {{0}} {{1}} - {{1}})))"
            )
            peak, least = "const (reduceMax xs)", "const (reduceMin xs)"
            soft = {
                "pointwiseConjunction": r"\{dims} x y -> " + both.format("x", "y"),
                "pointwiseDisjunction": r"\{dims} x y -> " + either.format("x", "y"),
                "reduceConjunction": (
                    rf"\{{dims}} xs -> {peak} [] + (1.0 / {p})"
                    f" * log (reduceAdd (exp ({scale} * (xs - {peak} dims))))"
                ),
                "reduceDisjunction": (
                    rf"\{{dims}} xs -> {least} [] - (1.0 / {p})"
                    f" * log (reduceAdd (exp ({scale} * ({least} dims - xs))))"
                ),
            }
        less, more = (self._vehicle_gap(*sides, p) for sides in (("x", "y"), ("y", "x")))
        return {
            "trueElement": "-infinity",
            "falseElement": "infinity",
            "pointwiseNegation": r"\x -> -x",
            **soft,
            "pointwiseLessThan": rf"\{{dims}} x y -> {less}",
            "pointwiseLessEqualThan": rf"\{{dims}} x y -> {less}",
            "pointwiseGreaterThan": rf"\{{dims}} x y -> {more}",
            "pointwiseGreaterEqualThan": rf"\{{dims}} x y -> {more}",
            "pointwiseEqual": rf"\{{dims}} x y -> {both.format(f'({less})', f'({more})')}",
            "pointwiseNotEqual": rf"\{{dims}} x y -> {either.format(f'({less})', f'({more})')}",
        }

    def _vehicle_gap(self, low: str, high: str, p: str) -> str:
        if self.comparison == "difference":
            return f"{low} - {high}"
        excess = f"max ({low} - {high}) (const 0.0 dims)"
        if self.comparison == "relu" or math.isinf(self.p):
            return excess
        size = f"max ({low} - {high}) ({high} - {low})"
        return (
            f"{excess} + const (1.0 / {p}) dims"
            f" * log (const 1.0 dims + exp (const (-{p}) dims * ({size})))"
        )


# --- the compiled reading (qll.kernels.formula) ---


def _soft_rows(sign: float) -> RowFunction:
    """``soft_extreme`` with its closed-form gradient, anchored at the extreme operand."""

    def connective(v: Rows, n: int, hardness: float, params: Rows, out: Rows, g: Rows) -> None:
        p = params[0] if math.isnan(hardness) else hardness
        peak = v[0] * sign
        for i in range(1, n):
            peak = np.maximum(peak, v[i] * sign)
        hard = math.isinf(p)
        for i in range(n):
            if hard:
                g[i] = np.where(v[i] * sign == peak, 1.0, 0.0)
            else:
                g[i] = np.exp((v[i] * sign - peak) * p)
        total = g[0]
        for i in range(1, n):
            total = total + g[i]
        for i in range(n):
            g[i] = g[i] / total
        if hard:
            out[0] = peak * sign
        else:
            out[0] = (peak + np.log(total) / p) * sign

    return connective


_soft_maximum, _soft_minimum = _soft_rows(1.0), _soft_rows(-1.0)


def _soft_positive_excess(
    a: Rows, b: Rows, n: int, params: Rows, v: Rows, da: Rows, db: Rows
) -> None:
    p = params[0]
    for i in range(n):
        gap = a[i] - b[i]
        small = np.exp(-p * np.abs(gap))
        v[i] = np.maximum(0.0, gap) + np.log(1.0 + small) / p
        slope = np.where(gap > 0.0, 1.0, small) / (1.0 + small)
        da[i] = slope
        db[i] = -slope
