"""The rows of a ReLU network in blocks that read the same columns, as the channels of a pixel do.

A product with a block loads each column once for all of its rows, and stores it once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qll import limits
from qll.bounds.groups import Array, Indices
from qll.bounds.rows import Rows

BLOCK = 4  # rows; as many accumulators as the registers of any machine hold


@dataclass(frozen=True, eq=False)
class Blocks:
    """Block ``b`` has the rows ``members[b * BLOCK:(b + 1) * BLOCK]``, all of one layer, -1 where
    it has fewer, and reads ``columns[starts[b]:starts[b + 1]]``."""

    inputs: int
    members: Indices
    starts: Indices
    columns: NDArray[np.int32]
    weights: Array  # (len(columns), BLOCK), 0 for the rows that are not there
    bias: Array  # (neurons,)
    ends: tuple[int, ...]  # blocks of the layers up to each

    @classmethod
    def of(cls, rows: Rows, layers: Sequence[slice]) -> Blocks:
        matrix = rows.matrix.sorted_indices()
        starts, indices, data = matrix.indptr, matrix.indices, matrix.data
        members: list[list[int]] = []
        ends = []
        for part in layers:
            limits.check()
            alike: dict[bytes, list[int]] = {}
            for i in range(part.start, part.stop):
                alike.setdefault(indices[starts[i] : starts[i + 1]].tobytes(), []).append(i)
            for some in alike.values():
                members += [some[k : k + BLOCK] for k in range(0, len(some), BLOCK)]
            ends.append(len(members))
        first = np.array([some[0] for some in members], dtype=np.int64)
        counts = starts[first + 1] - starts[first]
        at = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        weights = np.zeros((int(at[-1]), BLOCK))
        columns = np.empty(int(at[-1]), dtype=np.int32)
        padded = np.full((len(members), BLOCK), -1, dtype=np.int64)
        for b, some in enumerate(members):
            if b % 64 == 0:
                limits.check()
            here = slice(at[b], at[b + 1])
            columns[here] = indices[starts[some[0]] : starts[some[0] + 1]]
            padded[b, : len(some)] = some
            for t, i in enumerate(some):
                weights[here, t] = data[starts[i] : starts[i + 1]]
        return cls(rows.inputs, padded.ravel(), at, columns, weights, rows.bias, tuple(ends))

    def packed(self, kind: type) -> tuple[Any, ...]:
        """As the kernels take it."""
        return (
            self.inputs, self.members, self.starts, self.columns,
            self.weights.ravel().astype(kind), self.bias.astype(kind),
        )  # fmt: skip

    def below(self, packed: tuple[Any, ...], layer: int, neurons: int) -> tuple[Any, ...]:
        """Of what is ``packed`` the first layers, which have so many neurons."""
        inputs, members, starts, columns, weights, bias = packed
        count = self.ends[layer - 1] if layer else 0
        last = int(starts[count])
        return (
            inputs, members[: count * BLOCK], starts[: count + 1], columns[:last],
            weights[: last * BLOCK], bias[:neurons],
        )  # fmt: skip
