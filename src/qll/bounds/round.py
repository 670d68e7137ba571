"""CROWN over the part of a box that lies in a ball of the norm l1 or l2.

What reaches the input, ``q . x``, is least over box and ball together. For any l >= 0 it is at
least the minimum over the box alone of ``q . x + l (|x - c|^2 - r^2)``, or with the norm l1 of
``q . x + l (|x - c|_1 - r)``, and that falls apart into one minimum for each input. It is concave
in l: where the box has no part in it, it is the ball's dual norm; where box and ball do not meet,
it grows without end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qll.bounds.crown import Crown, Rows
from qll.bounds.dual import Allowance
from qll.late import late

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = late("torch")

# Steps of the search for l, by thirds of its logarithm, and how far around the ball's own one.
STEPS, SPAN = 28, 9.0
ROUNDING = 2.0**-50


@dataclass(frozen=True, eq=False)
class BallOf:
    """Inputs ``at`` are within ``radius`` of ``centre``; the others are in their box only."""

    kind: str
    at: Tensor
    centre: Tensor
    radius: float

    def least(self, q: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """(B, r) a lower bound of ``q . x``, rounding included; q (B, r, inputs), ends (B,
        inputs)."""
        mid, rad = (lower + upper) / 2, (upper - lower) / 2
        each = q * mid[:, None] - q.abs() * rad[:, None]
        size = (q.abs() * (mid.abs() + rad)[:, None]).sum(-1)
        plain = each.sum(-1)
        own = q[..., self.at]
        rest = plain - each[..., self.at].sum(-1) + own @ self.centre
        low, high = lower[:, self.at] - self.centre, upper[:, self.at] - self.centre
        hair = ROUNDING * (self.centre.abs() + low.abs() + high.abs())
        low, high = (low - hair)[:, None], (high + hair)[:, None]
        reach = torch.maximum(low.abs(), high.abs())
        size = size + (own.abs() * (self.centre.abs() + reach)).sum(-1)
        error = ROUNDING * q.shape[-1] * size
        far = reach.square().sum(-1) if self.kind == "l2" else reach.sum(-1)
        span = self.radius**2 if self.kind == "l2" else self.radius

        def value(log: Tensor) -> Tensor:
            push = log.exp()[..., None]
            found = self._separately(own, push, low, high)
            lost = ROUNDING * q.shape[-1] * push[..., 0] * (far + span)
            return rest + found - push[..., 0] * span - lost

        first = (own.norm(dim=-1) / 2 if self.kind == "l2" else own.abs().amax(-1)) + 1e-30
        middle = (first / max(self.radius, 1e-30) if self.kind == "l2" else first).log()
        left, right = middle - SPAN, middle + SPAN
        best = value(middle)
        for _ in range(STEPS):
            one, other = left + (right - left) / 3, right - (right - left) / 3
            a, b = value(one), value(other)
            best = torch.maximum(best, torch.maximum(a, b))
            left, right = torch.where(a < b, one, left), torch.where(a < b, right, other)
        best = torch.where(best.isfinite(), best, -torch.inf)
        return torch.maximum(best, plain) - error

    def _separately(self, q: Tensor, push: Tensor, low: Tensor, high: Tensor) -> Tensor:
        if self.kind == "l2":
            at = torch.minimum(torch.maximum(-q / (2 * push), low), high)
            return (q * at + push * at.square()).sum(-1)
        zero = torch.zeros_like(low).clamp(low, high)
        ends = [q * d + push * d.abs() for d in (low, high, zero)]
        return torch.minimum(torch.minimum(ends[0], ends[1]), ends[2]).sum(-1)


class RoundCrown(Crown):
    """Over boxes cut by one ball."""

    ball: BallOf

    @classmethod
    def of(cls, form: Any, ball: tuple[str, list[int], list[float], float]) -> RoundCrown:
        found = cls(form)
        kind, at, centre, radius = ball
        places = torch.tensor(at)
        found.ball = BallOf(kind, places, torch.tensor(centre, dtype=found.dtype), radius)
        return found

    def _still(self, boxes: Any) -> None:
        return None

    def interval(
        self, lower: Tensor, upper: Tensor, allowance: Allowance | None = None
    ) -> list[tuple[Tensor, Tensor]]:
        found = super().interval(lower, upper, allowance)
        far = torch.maximum(lower.abs(), upper.abs())
        for k, (low, high) in enumerate(found):
            if any(source for source, _ in self.terms[k]):
                continue
            dense = [m if m.layout == torch.strided else m.to_dense() for _, m in self.terms[k]]
            rows = torch.stack(dense).sum(0)
            error = torch.zeros_like(low)
            if allowance is not None:
                size = self.biases[k].abs() + far @ rows.abs().T
                error = allowance.unit * 2 * (size + allowance.hidden[k])
            both = torch.cat([rows, -rows])[None].expand(len(lower), -1, -1)
            least = self.ball.least(both, lower, upper)
            below = self.biases[k] + least[:, : len(rows)] - error
            above = self.biases[k] - least[:, len(rows) :] + error
            found[k] = torch.maximum(low, below), torch.minimum(high, above)
        return found

    def _rows(self, boxes: Any, *given: Any) -> Rows:
        found = super()._rows(boxes, *given)
        part = given[4]
        lower, upper = boxes.lower[part], boxes.upper[part]
        q = found.inputs
        mid, rad = (lower + upper) / 2, (upper - lower) / 2
        plain = (q @ mid[:, :, None])[..., 0] - (q.abs() @ rad[:, :, None])[..., 0]
        size = (q.abs() @ (mid.abs() + rad)[:, :, None])[..., 0]
        better = self.ball.least(q, lower, upper) - plain - ROUNDING * q.shape[-1] * size
        return Rows(found.value + better.clamp(min=0.0).nan_to_num(nan=0.0), q)
