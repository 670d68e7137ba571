"""Groups of unstable first-layer neurons that read the same inputs, for joint hulls.

Those whose sign is known on the box are affine there and need no hull: what they pass to the inputs
is shared out with the rest (`qll.bounds.dual`). So few groups are left, and their neurons are those
that matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qll.bounds.blocks import BLOCK
from qll.bounds.groups import HULL_INPUTS, Array, Indices, group_neurons
from qll.bounds.rows import Rows


@dataclass(frozen=True, eq=False)
class Hulls:
    """Group ``g`` has the neurons ``members[g * BLOCK:(g + 1) * BLOCK]``, -1 where it has fewer,
    and the copies ``starts[g]:starts[g + 1]``; copy ``c`` is one of input ``inputs_of[c]``, takes
    the ``share[c]`` of its coefficient, and ``home[c]`` is the first copy of the same input."""

    members: Indices
    starts: Indices
    inputs_of: Indices
    weights: Array  # (copies, BLOCK)
    share: Array
    home: Indices
    joined: tuple[NDArray[np.bool_], NDArray[np.bool_]]  # which neurons, and which inputs

    @classmethod
    def of(cls, rows: Rows, open_: Any) -> Hulls:
        """Of the neurons ``open_``, which read inputs alone; not of those that read many."""
        starts = rows.matrix.indptr
        reads = starts[open_ + 1] - starts[open_]
        chosen = open_[(reads > 0) & (reads <= HULL_INPUTS)]
        joined = np.zeros(rows.neurons, dtype=bool), np.zeros(rows.inputs, dtype=bool)
        if not len(chosen):
            none = np.zeros(0, dtype=np.int64)
            empty = np.zeros((0, BLOCK)), np.zeros(0)
            return cls(none, np.zeros(1, dtype=np.int64), none, *empty, none, joined)
        groups = group_neurons(rows.matrix[chosen, : rows.inputs], rows.inputs)
        members = np.full((groups.count, BLOCK), -1, dtype=np.int64)
        weights = np.zeros((groups.copies, BLOCK))
        for g, block in enumerate(groups.blocks):
            own = slice(groups.neuron_starts[g], groups.neuron_starts[g + 1])
            members[g, : len(block)] = chosen[groups.order[own]]
            weights[groups.copy_starts[g] : groups.copy_starts[g + 1], : len(block)] = block.T
        joined[0][chosen] = True
        joined[1][groups.copy_input] = True
        return cls(
            members.ravel(), groups.copy_starts, groups.copy_input, weights,
            groups.share[groups.copy_input], groups.copy_home, joined,
        )  # fmt: skip

    @property
    def copies(self) -> int:
        return int(self.inputs_of.size)

    @property
    def widest(self) -> int:
        return int(np.diff(self.starts).max(initial=0))

    def packed(self, kind: type) -> tuple[Any, ...]:
        """As the kernels take it."""
        return (
            self.members, self.starts, self.inputs_of, self.weights.ravel().astype(kind),
            self.share.astype(kind), self.home,
        )  # fmt: skip
