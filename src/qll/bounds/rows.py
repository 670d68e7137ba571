"""A ReLU network as one sparse matrix: every pre-activation over the columns before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from qll import limits
from qll.bounds.groups import Array
from qll.late import late
from qll.networks.relu_form import ReluForm

if TYPE_CHECKING:
    from scipy import sparse
else:
    sparse = late("scipy.sparse")


@dataclass(frozen=True, eq=False)
class Rows:
    """A ReLU network over columns: inputs, then hidden activations in the network's own order."""

    inputs: int
    matrix: Any  # CSR (neurons, columns) of the pre-activations
    bias: Array  # (neurons,)
    _last: Any = None  # the output layer that was asked for last, and its columns

    @classmethod
    def of(cls, form: ReluForm) -> Rows:
        widths = form.widths[:-1]
        blocks = [cls._block(layer.terms, layer.width, widths) for layer in form.layers[:-1]]
        bias = np.concatenate([layer.bias for layer in form.layers[:-1]])
        return cls(form.input_size, sparse.vstack(blocks).tocsr(), bias)

    @staticmethod
    def _block(terms: Any, width: int, widths: tuple[int, ...]) -> Any:
        limits.check()
        own = dict(terms)
        parts = [
            sparse.csr_matrix(own[j]) if j in own else sparse.csr_matrix((width, n))
            for j, n in enumerate(widths)
        ]
        return sparse.hstack(parts).tocsr()

    def below(self, count: int) -> Rows:
        """The first ``count`` neurons, which read nothing else."""
        matrix = self.matrix[:count, : self.inputs + count]
        return Rows(self.inputs, matrix, self.bias[:count])

    @property
    def neurons(self) -> int:
        return len(self.bias)

    @property
    def columns(self) -> int:
        return self.inputs + self.neurons

    def objectives(
        self, form: ReluForm, outputs: Array, constant: Array, inputs: Array | None
    ) -> tuple[Array, Array]:
        """``outputs . y + inputs . x + constant`` over the columns."""
        last = form.layers[-1]
        if self._last is None or self._last[0] is not last:
            block = self._block(last.terms, last.width, form.widths[:-1]).T.tocsr()
            object.__setattr__(self, "_last", (last, block))
        found = np.asarray((self._last[1] @ outputs.T).T)
        if inputs is not None:
            found[:, : self.inputs] += inputs
        return found, outputs @ last.bias + constant
