"""A ball of the norm l1 or l2 that cuts a box: the least value of a linear function on both.

For any l >= 0 the minimum of ``q . x`` over box and ball is at least that over the box of
``q . x + l (|x - c|^2 - r^2)``, with the norm l1 of ``q . x + l (|x - c|_1 - r)``: one minimum for
each input, at an end, at the centre or where the derivative is 0. Which l is best does not matter
to soundness; some are tried. Products and sums of n terms err by at most g times the sizes that are
summed (`qll.audit.bounds`); the differences from the centre are widened by more than they err.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qll.audit.exact import Array

STEPS, SPAN = 28, 9.0
WIDER = 2.0**-50


@dataclass(frozen=True, eq=False)
class Ball:
    """Inputs ``at`` are within ``radius`` of ``centre``; the others are in their box only."""

    kind: str
    at: Array
    centre: Array
    radius: float

    def least(self, q: Array, mid: Array, rad: Array, g: float) -> Array:
        """Below ``q . x``; the last axis are the inputs, the others go together."""
        q = np.asarray(q) + np.zeros_like(mid)
        each = q * mid - np.abs(q) * rad
        own, others = q[..., self.at], each.sum(-1) - each[..., self.at].sum(-1)
        low, high = ((mid + s * rad)[..., self.at] - self.centre for s in (-1, 1))
        hair = WIDER * (np.abs(self.centre) + np.abs(low) + np.abs(high))
        low, high = low - hair, high + hair
        reach = np.maximum(np.abs(low), np.abs(high))
        rest = others + own @ self.centre
        size = (np.abs(q) * (np.abs(mid) + rad)).sum(-1)
        size = size + (np.abs(own) * (np.abs(self.centre) + reach)).sum(-1)
        far = (reach * reach if self.kind == "l2" else reach).sum(-1)
        span = self.radius * self.radius if self.kind == "l2" else self.radius

        def value(log: Array) -> Array:
            push = np.exp(log)
            found = self._separately(own, push[..., None], low, high).sum(-1)
            return np.asarray(rest + found - push * span - g * push * (far + span))

        first = np.sqrt((own * own).sum(-1)) / 2 if self.kind == "l2" else np.abs(own).max(-1)
        first = (first + 1e-30) / (max(self.radius, 1e-30) if self.kind == "l2" else 1.0)
        left, right = np.log(first) - SPAN, np.log(first) + SPAN
        best = value(np.log(first))
        for _ in range(STEPS):
            one, other = left + (right - left) / 3, right - (right - left) / 3
            a, b = value(one), value(other)
            best = np.fmax(best, np.fmax(a, b))
            left, right = np.where(a < b, one, left), np.where(a < b, right, other)
        best = np.where(np.isfinite(best), best, -np.inf)
        return np.asarray(best - g * size)

    def _separately(self, q: Array, push: Array, low: Array, high: Array) -> Array:
        if self.kind == "l2":
            at = np.clip(-q / (2 * push), low, high)
            return np.asarray(q * at + push * at * at)
        near = np.clip(0.0, low, high)
        ends = [q * d + push * np.abs(d) for d in (low, high, near)]
        return np.asarray(np.minimum.reduce(ends))
