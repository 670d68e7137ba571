"""Balls in the norms l1 and l2, and equations, in floats: where a search may look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qll.formula.hard import Affine
from qll.formula.rounds import Round
from qll.verify.condition import Array

# So far inside a ball that rounding does not take a point out of it again.
INWARD = 1.0 - 2.0**-40


@dataclass(frozen=True, eq=False)
class Drawn:
    """``rows @ v + constant`` has a norm of at most the radius; points are drawn towards ``still``,
    where it is 0."""

    kind: str
    rows: Array
    constant: Array
    still: Array
    radius: float

    @classmethod
    def of(cls, ball: Round, size: int) -> Drawn:
        rows, constant = np.zeros((len(ball.rows), size)), np.zeros(len(ball.rows))
        for k, row in enumerate(ball.rows):
            terms, constant[k] = row.floats
            for (_, at), c in terms:
                rows[k, at] = c
        still = np.linalg.lstsq(rows, -constant, rcond=None)[0].astype(np.float64)
        return cls(ball.kind, rows, constant, still, ball.radius)

    def drawn_in(self, points: Array) -> Array:
        away = points @ self.rows.T + self.constant
        far = np.linalg.norm(away, 2 if self.kind == "l2" else 1, axis=-1, keepdims=True)
        share = np.minimum(1.0, INWARD * self.radius / np.maximum(far, 1e-300))
        return np.asarray(np.where(share < 1.0, self.still + share * (points - self.still), points))


# Turns between the equations and the box.
TURNS = 8


@dataclass(frozen=True, eq=False)
class Flat:
    """``rows @ v + constant`` is 0; points move to the nearest such one, and back into the box."""

    rows: Array
    constant: Array
    inverse: Array

    @classmethod
    def of(cls, equations: Sequence[Affine], size: int) -> Flat:
        rows, constant = np.zeros((len(equations), size)), np.zeros(len(equations))
        for k, row in enumerate(equations):
            terms, constant[k] = row.floats
            for (_, at), c in terms:
                rows[k, at] = c
        return cls(rows, constant, np.linalg.pinv(rows).astype(np.float64))

    def drawn_in(self, points: Array, lower: Array, upper: Array) -> Array:
        for _ in range(TURNS):
            away = points @ self.rows.T + self.constant
            points = np.clip(points - away @ self.inverse.T, lower, upper)
        return points
