"""What a violation implies under splits, and what one more split would: `qll.kernels.propagate`."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qll.bounds.rows import Rows
from qll.verify.condition import Array


class State(NamedTuple):
    """Bounds of the columns and of the rows, that is of the pre-activations (`Rows`)."""

    low: Array
    high: Array
    row_low: Array
    row_high: Array


class Implications:
    """Of a violation in which every objective is at most 0, over one box."""

    def __init__(
        self,
        rows: Rows,
        box: tuple[Array, Array],
        ends: tuple[Array, Array],
        objectives: Array,
        constants: Array,
    ) -> None:
        """``ends`` are bounds of the neurons, in the network's own order."""
        matrix = rows.matrix.sorted_indices()
        readers = matrix.tocsc()
        low = np.concatenate([box[0], np.maximum(ends[0], 0.0)])
        high = np.concatenate([box[1], np.maximum(ends[1], 0.0)])
        self._packed = (
            rows.inputs, matrix.indptr.astype(np.int64), matrix.indices.astype(np.int64),
            matrix.data.astype(np.float64), rows.bias.astype(np.float64),
            readers.indptr.astype(np.int64), readers.indices.astype(np.int64),
            np.maximum(high - low, 1e-12), np.ascontiguousarray(objectives, dtype=np.float64),
            np.ascontiguousarray(constants, dtype=np.float64),
        )  # fmt: skip
        self.root = State(low, high, ends[0].astype(np.float64), ends[1].astype(np.float64))
        self.possible = self._propagate(self.root, np.ones(rows.neurons, dtype=np.bool_))

    def _propagate(self, state: State, waiting: NDArray[np.bool_]) -> bool:
        from qll.kernels.propagate import propagate

        return bool(propagate(*self._packed, *state, waiting))

    def under(self, sign: NDArray[np.int8]) -> tuple[State, bool]:
        """With these splits; and whether they leave anything."""
        state = State(*(part.copy() for part in self.root))
        np.minimum(state.row_high, np.where(sign < 0, 0.0, np.inf), out=state.row_high)
        np.maximum(state.row_low, np.where(sign > 0, 0.0, -np.inf), out=state.row_low)
        return state, self.possible and self._propagate(state, sign != 0)

    def look_ahead(self, neurons: Any, state: State) -> Array:
        """(neurons, 2) what splitting each, off and on, brings; -1 where it leaves nothing."""
        from qll.kernels.propagate import look_ahead

        return np.asarray(look_ahead(neurons, *self._packed, *state))


@cache
def load_kernels() -> None:
    """By a network of one input and one neuron."""
    from scipy import sparse

    one = np.ones(1)
    rows = Rows(1, sparse.csr_matrix(np.array([[1.0, 0.0]])), one)
    found = Implications(rows, (-2 * one, one), (-one, 2 * one), np.array([[0.0, 1.0]]), -one)
    found.look_ahead(np.zeros(1, dtype=np.int64), found.root)
