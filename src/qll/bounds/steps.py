"""Differentiable bounds of rules over two points that are a fixed step apart.

``x`` lies anywhere in a box and ``x2`` is ``x + step``: what a pair of points becomes if it is
moved about in a region. The difference of the two runs is bounded as a difference, layer by layer,
so that what both share cancels (`qll.bounds.differences` has the same lines with their rounding,
for proofs; these are for training). Rows that are no difference are bounded by the two runs apart,
and the tighter of both counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from qll.bounds.modules import affine_runs
from qll.errors import NetworkError

Ends = tuple[Tensor, Tensor]
Weights = tuple[Tensor, Tensor]  # weight (out, in), bias (out,)

KNOWN = ("y", "x", "x2", "y2")
"""What a formula may speak of to be bounded so."""


@dataclass(frozen=True, eq=False)
class StepBounds:
    """Boxes ``lower``/``upper`` (batch, inputs) of x, the step (batch, inputs) from x to x2, and
    the quantities that the rows of ``affine`` speak of, one after the other."""

    layers: tuple[Weights, ...]
    lower: Tensor
    upper: Tensor
    step: Tensor
    sources: tuple[str, ...]
    input_shape: tuple[int, ...]

    @property
    def outputs(self) -> int:
        return len(self.layers[-1][1])

    @property
    def zeros(self) -> Tensor:
        return self.lower.new_zeros(len(self.lower))

    def affine(self, rows: Tensor, constant: Tensor, pick: Tensor | None) -> Ends:
        """Bounds ``(n, batch)`` of ``rows @ z + constant``, ``rows`` (patterns, n, slots)."""
        chosen = rows.expand(len(self.lower), *rows.shape[1:]) if pick is None else rows[pick]
        shift = constant.expand(len(self.lower), -1) if pick is None else constant[pick]
        low = self._lower(chosen) + shift
        high = shift - self._lower(-chosen)
        return low.t(), high.t()

    def _lower(self, rows: Tensor) -> Tensor:
        """(batch, n) below ``rows @ z``."""
        p, q, q2, p2 = self._parts(rows)
        second = self.lower + self.step, self.upper + self.step
        moved = (q2 * self.step[:, None]).sum(-1)  # x2 is x and the step
        together = self._single(p + p2, q + q2, (self.lower, self.upper), 0)
        together = together + self._difference(p2) + moved
        apart = self._single(p, q, (self.lower, self.upper), 0)
        return torch.maximum(together, apart + self._single(p2, q2, second, 1))

    def _parts(self, rows: Tensor) -> list[Tensor]:
        """The rows' parts for y, x, x2 and y2."""
        found, at = {}, 0
        for source in self.sources:
            width = self.outputs if source[0] == "y" else self.lower.shape[1]
            found[source] = rows[..., at : at + width]
            at += width
        nothing = {
            "y": rows.new_zeros(*rows.shape[:-1], self.outputs),
            "x": rows.new_zeros(*rows.shape[:-1], self.lower.shape[1]),
        }
        return [found.get(source, nothing[source[0]]) for source in KNOWN]

    # --- one run ---

    @cached_property
    def _ends(self) -> list[Ends]:
        """Ends of every pre-activation of both runs, the second below the first."""
        low = torch.cat((self.lower, self.lower + self.step))
        high = torch.cat((self.upper, self.upper + self.step))
        ends: list[Ends] = []
        a, b = low, high
        for k, (weight, bias) in enumerate(self.layers[:-1]):
            middle, radius = ((a + b) / 2) @ weight.t() + bias, ((b - a) / 2) @ weight.abs().t()
            a, b = middle - radius, middle + radius
            if k:  # by intervals, and back to the input where that is tighter
                eye = torch.eye(len(bias), dtype=low.dtype, device=low.device)
                rows = torch.cat((eye, -eye)).expand(len(low), -1, -1)
                found = _carried(self.layers[: k + 1], rows, None, ends, (low, high))
                a = torch.maximum(a, found[:, : len(bias)])
                b = torch.minimum(b, -found[:, len(bias) :])
            ends.append((a, b))
            a, b = torch.relu(a), torch.relu(b)
        return ends

    def _single(self, rows: Tensor, direct: Tensor, box: Ends, run: int) -> Tensor:
        count = len(self.lower)
        part = slice(run * count, (run + 1) * count)
        ends = [(low[part], high[part]) for low, high in self._ends]
        return _carried(self.layers, rows, direct, ends, box)

    # --- the difference of both ---

    @cached_property
    def _slopes(self) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Of every ReLU: the ends of its difference before it, and its least and greatest slope
        between the two runs (Paulsen, Wang, Wang: ReluDiff, 2020)."""
        count = len(self.lower)
        found: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        for k, (low, high) in enumerate(self._ends):
            on = (low[:count] >= 0) & (low[count:] >= 0)
            off = (high[:count] <= 0) & (high[count:] <= 0)
            eye = torch.eye(low.shape[1], dtype=low.dtype, device=low.device)
            rows = torch.cat((eye, -eye)).expand(count, -1, -1)
            ends = _stepped(self.layers[: k + 1], rows, found, self.step)
            below, above = ends[:, : len(eye)], -ends[:, len(eye) :]
            found.append((below, above, on.to(low.dtype), 1.0 - off.to(low.dtype)))
        return found

    def _difference(self, rows: Tensor) -> Tensor:
        return _stepped(self.layers, rows, self._slopes, self.step)


def step_bounds(
    model: nn.Module, lower: Tensor, upper: Tensor, step: Tensor, sources: Sequence[str]
) -> StepBounds:
    """Bounds for x in the boxes and x2 = x + step, all (batch, *input); ``sources`` are what the
    formula speaks of, in the order of its slots."""
    runs = affine_runs(model, tuple(lower.shape[1:]))
    if runs is None:
        raise NetworkError(
            "this network's difference between two points cannot be bounded",
            expected="a chain of affine layers and ReLUs",
            found=f"another structure in {type(model).__name__}",
            fix="train the rule with --method attack",
        )
    return StepBounds(
        layers=tuple(run.matrix() for run in runs),
        lower=lower.flatten(1),
        upper=upper.flatten(1),
        step=step.flatten(1),
        sources=tuple(sources),
        input_shape=tuple(lower.shape[1:]),
    )


def _carried(
    layers: Sequence[Weights],
    rows: Tensor,
    direct: Tensor | None,
    ends: Sequence[Ends],
    box: Ends,
) -> Tensor:
    """(batch, n) below ``rows @ z + direct @ x`` over boxes, z what the last layer gives, by linear
    bounds that are carried back (CROWN)."""
    total = rows @ layers[-1][1]
    rows = rows @ layers[-1][0]
    for k in range(len(layers) - 2, -1, -1):
        low, high = (end.unsqueeze(1) for end in ends[k])
        mixed = (low < 0) & (high > 0)
        chord = torch.where(mixed, high / torch.where(mixed, high - low, 1.0), (low >= 0).to(low))
        below = torch.where(mixed, (high > -low).to(low), chord).detach()
        falling = rows.clamp(max=0.0)
        total = total - (falling * torch.where(mixed, chord * low, 0.0)).sum(-1)
        back = rows.clamp(min=0.0) * below + falling * chord
        weight, bias = layers[k]
        total, rows = total + back @ bias, back @ weight
    if direct is not None:
        rows = rows + direct
    middle, radius = (((box[1] + sign * box[0]) / 2).unsqueeze(1) for sign in (1, -1))
    return total + (rows * middle).sum(-1) - (rows.abs() * radius).sum(-1)


def _stepped(
    layers: Sequence[Weights],
    rows: Tensor,
    slopes: Sequence[tuple[Tensor, Tensor, Tensor, Tensor]],
    step: Tensor,
) -> Tensor:
    """(batch, n) below ``rows @ dz``, dz the difference of what the last layer gives."""
    total = rows.new_zeros(rows.shape[:-1])
    rows = rows @ layers[-1][0]
    for k in range(len(layers) - 2, -1, -1):
        low, high, least, most = (t.unsqueeze(1) for t in slopes[k])
        mixed = (low < 0) & (high > 0)
        width = torch.where(mixed, high - low, 1.0)
        below = torch.where(mixed, -low / width, (low < 0).to(low))
        above = torch.where(mixed, high / width, (low >= 0).to(low))
        fixed = least == most
        line = rows * torch.where(fixed, most, torch.where(rows > 0, below, above))
        corners = [(rows * s - line) * end for s in (least, most) for end in (low, high)]
        rest = torch.stack(corners).amin(0)
        total = total + torch.where(fixed, 0.0, rest).sum(-1)
        rows = line @ layers[k][0]
    return total + (rows * step.unsqueeze(1)).sum(-1)
