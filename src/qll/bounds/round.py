"""Bounds over the part of a box that lies in a ball of the norm l1 or l2.

What reaches the input, ``q . x``, is least over box and ball together. For any l >= 0 it is at
least the minimum over the box alone of ``q . x + l (|x - c|^2 - r^2)``, or with the norm l1 of
``q . x + l (|x - c|_1 - r)``, and that falls apart into one minimum for each input. It is concave
in l: where the box has no part in it, it is the ball's dual norm; where box and ball do not meet,
it grows without end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from qll.bounds.crown import Crown, Rows, _absolute
from qll.bounds.dual import Allowance
from qll.bounds.graph import GraphBounder
from qll.bounds.rounding import Sizes
from qll.late import late
from qll.networks.matrices import Array
from qll.networks.relu_form import ReluForm

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = late("torch")

# The search for l, in its logarithm: the first step from the ball's own one, and how often it is
# halved. With l2 the bound is off by the square of what is left, with l1 by what is left.
SPAN, STEPS = 4.0, {"l2": 12, "l1": 18}
ROUNDING = 2.0**-50
INWARD = 1.0 - 2.0**-10


@dataclass(frozen=True, eq=False)
class BallOf:
    """Inputs ``at`` are within ``radius`` of ``centre``; the others are in their box only."""

    kind: str
    at: Tensor
    centre: Tensor
    radius: float

    def least(self, q: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """(B, r) a lower bound of ``q . x``, rounding included, and about where it is least, (B, r,
        inputs); q (B, r, inputs), ends (B, inputs)."""
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
        push = self._push(own, low, high, span)
        found = self._separately(own, push[..., None], low, high)
        # A little less than the best l: with l1 there are ends on one side of it only.
        at = self._minimiser(own, INWARD * push[..., None], low, high)
        lost = ROUNDING * q.shape[-1] * push * (far + span)
        best = rest + found - push * span - lost
        best = torch.where(best.isfinite(), best, -torch.inf)
        inner = (best > plain)[..., None]
        point = torch.where(q < 0, upper[:, None], lower[:, None])
        point[..., self.at] = torch.where(inner, self.centre + at, point[..., self.at])
        return torch.maximum(best, plain) - error, point

    def _push(self, own: Tensor, low: Tensor, high: Tensor, span: float) -> Tensor:
        """About the best l: the derivative there, by how much the minimiser leaves the ball, falls
        as l grows. Any other gives a bound as well."""
        first = (own.norm(dim=-1) / 2 if self.kind == "l2" else own.abs().amax(-1)) + 1e-30
        log = (first / max(self.radius, 1e-30) if self.kind == "l2" else first).log()
        step = SPAN
        for _ in range(STEPS[self.kind]):
            at = self._minimiser(own, log.exp()[..., None], low, high)
            beyond = (at.square() if self.kind == "l2" else at.abs()).sum(-1) > span
            log = torch.where(beyond, log + step, log - step)
            step = step / 2
        return log.exp()

    def _minimiser(self, q: Tensor, push: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Of each input's own part, as a step from the centre."""
        if self.kind == "l2":
            return torch.minimum(torch.maximum(-q / (2 * push), low), high)
        end = torch.where(q > 0, low, high)  # the one that q prefers
        none = torch.zeros_like(low).clamp(low, high)
        return torch.where(q * end + push * end.abs() < q * none + push * none.abs(), end, none)

    def _separately(self, q: Tensor, push: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """What is least."""
        if self.kind == "l2":
            at = self._minimiser(q, push, low, high)
            return (q * at + push * at.square()).sum(-1)
        zero = torch.zeros_like(low).clamp(low, high)
        ends = [q * d + push * d.abs() for d in (low, high, zero)]
        return torch.minimum(torch.minimum(ends[0], ends[1]), ends[2]).sum(-1)


class RoundCrown(Crown):
    """Over boxes cut by one ball."""

    ball: BallOf

    @classmethod
    def of(cls, crown: Crown, ball: tuple[str, list[int], list[float], float]) -> RoundCrown:
        """The network of another one, whose matrices it shares."""
        found = cls(crown.form)
        vars(found).update(biases=crown.biases, terms=crown.terms)
        kind, at, centre, radius = ball
        places = torch.tensor(at)
        found.ball = BallOf(kind, places, torch.tensor(centre, dtype=found.dtype), radius)
        return found

    @property
    def groups(self) -> None:
        """Copies of the inputs would each have their own ball."""
        return None

    def below(self, layer: int) -> RoundCrown:
        """Of the layers up to a hidden one, whose pre-activations are its outputs."""
        found = RoundCrown(ReluForm(self.form.input_shape, self.form.layers[: layer + 1]))
        vars(found).update(biases=self.biases[: layer + 1], terms=self.terms[: layer + 1])
        found.ball = self.ball
        return found

    def _still(self, boxes: Any) -> None:
        return None

    def least(self, q: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            value, point = self.ball.least(q[:, None], lower, upper)
        # The value moves with q as the minimiser says.
        return value[:, 0] + ((q - q.detach()) * point[:, 0]).sum(dim=1), point[:, 0]

    def minimisers(self, q: Array, lower: Array, upper: Array) -> Array:
        """(N, r, inputs) about where rows ``q`` are least in boxes and ball."""
        with torch.no_grad():
            found = self.ball.least(*(self.tensor(t) for t in (q, lower, upper)))[1]
        return np.asarray(found.cpu().numpy())

    def first_layers(self, sizes: Sizes) -> list[tuple[Tensor, Tensor]]:
        lower, upper = (self.tensor(side)[None] for side in (sizes.lower, sizes.upper))
        found = super().first_layers(sizes)
        for k in range(len(found)):
            if all(source == 0 for source, _ in self.terms[k]):
                error = sizes.unit * 4 * self.tensor(sizes.layer(k + 1))
                found[k] = self._in_ball(k, lower, upper, *found[k], error)
        return found

    def _in_ball(
        self, k: int, lower: Tensor, upper: Tensor, low: Tensor, high: Tensor, error: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Ends of a layer that reads the input alone."""
        dense = [m if m.layout == torch.strided else m.to_dense().T for _, m in self.terms[k]]
        rows = torch.stack(dense).sum(0)
        both = torch.cat([rows, -rows])[None].expand(len(lower), -1, -1)
        least, _ = self.ball.least(both, lower, upper)
        below = self.biases[k] + least[:, : len(rows)] - error
        above = self.biases[k] - least[:, len(rows) :] + error
        return torch.maximum(low, below), torch.minimum(high, above)

    def interval(
        self, lower: Tensor, upper: Tensor, allowance: Allowance | None = None
    ) -> list[tuple[Tensor, Tensor]]:
        found = super().interval(lower, upper, allowance)
        far = torch.maximum(lower.abs(), upper.abs())
        for k, (low, high) in enumerate(found):
            if any(source for source, _ in self.terms[k]):
                continue
            error = torch.zeros_like(low)
            if allowance is not None:
                size = self.biases[k].abs()
                for _, matrix in self.terms[k]:
                    size = size + self.push(far, _absolute(matrix))
                error = allowance.unit * 2 * (size + allowance.hidden[k])
            found[k] = self._in_ball(k, lower, upper, low, high, error)
        return found

    def _rows(self, boxes: Any, *given: Any) -> Rows:
        found = super()._rows(boxes, *given)
        part = given[4]
        lower, upper = boxes.lower[part], boxes.upper[part]
        q = found.inputs
        mid, rad = (lower + upper) / 2, (upper - lower) / 2
        plain = (q @ mid[:, :, None])[..., 0] - (q.abs() @ rad[:, :, None])[..., 0]
        size = (q.abs() @ (mid.abs() + rad)[:, :, None])[..., 0]
        better = self.ball.least(q, lower, upper)[0] - plain - ROUNDING * q.shape[-1] * size
        return Rows(found.value + better.clamp(min=0.0).nan_to_num(nan=0.0), q)


class RoundBounder(GraphBounder):
    """Dual bounds with splits of neurons: what reaches the input is least in box and ball."""

    crown: RoundCrown

    def __init__(self, crown: RoundCrown) -> None:
        super().__init__(crown.form, crown=crown)

    def below(self, layer: int) -> RoundBounder:
        return RoundBounder(self.crown.below(layer))
