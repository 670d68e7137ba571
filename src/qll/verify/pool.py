"""Open boxes of a proof, and the order in which they are taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from qll.verify.condition import Array
from qll.verify.query import Query


@dataclass(frozen=True, eq=False)
class Pool:
    """Open boxes and which obligations are open on each."""

    lower: Array  # (N, inputs)
    upper: Array
    open: Any  # (N, obligations) bool
    bound: Array  # (N,) of the worst open obligation on the parent
    place: Any  # (N,) its number, for certificates
    wait: Any  # (N,) halvings until it is tried with optimised duals
    low: Array  # (N, neurons) bounds of the hidden neurons on the parent
    high: Array
    scores: Array  # (N, inputs) how much each input matters
    shrunk: Any  # (N,) bool: so much was cut off that it is bounded again before it is halved

    @classmethod
    def whole(cls, query: Query, obligations: int, neurons: int) -> Pool:
        none = np.zeros(1, dtype=np.int64)
        return cls(
            query.lower[None],
            query.upper[None],
            np.ones((1, obligations), dtype=bool),
            np.full(1, -np.inf),
            none,
            none,
            np.full((1, neurons), -np.inf),
            np.full((1, neurons), np.inf),
            np.zeros_like(query.lower[None]),
            np.zeros(1, dtype=bool),
        )

    def take(self, rows: Any) -> Pool:
        return Pool(*(getattr(self, f.name)[rows] for f in fields(self)))

    def __len__(self) -> int:
        return len(self.lower)

    @property
    def bytes(self) -> int:
        width = self.lower.shape[1] + self.low.shape[1] + 4
        return 16 * len(self) * int(width)


def join(pools: Sequence[Pool]) -> Pool:
    return Pool(*(np.concatenate([getattr(p, f.name) for p in pools]) for f in fields(Pool)))


class Stack:
    """Open boxes, the last ones first: depth first keeps them few."""

    def __init__(self, first: Pool) -> None:
        self.pools = [first]
        self.bytes = first.bytes

    def push(self, pool: Pool) -> None:
        if len(pool):
            self.pools.append(pool)
            self.bytes += pool.bytes

    def pop(self, count: int) -> Pool:
        taken: list[Pool] = []
        while count and self.pools:
            pool = self.pools.pop()
            if len(pool) > count:
                self.pools.append(pool.take(slice(0, len(pool) - count)))
                pool = pool.take(slice(len(pool) - count, None))
            taken.append(pool)
            count -= len(pool)
            self.bytes -= pool.bytes
        return join(taken[::-1])

    @property
    def bound(self) -> float:
        return min(float(pool.bound.min()) for pool in self.pools)

    def __bool__(self) -> bool:
        return bool(self.pools)
