"""Groups of first-layer neurons that read the same inputs, such as the channels of one patch.

A group has its own copy of each of its inputs; the copies of an input are tied by multipliers (see
`qll.bounds.dual`). Small groups allow the joint hull, in which all subsets are enumerated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qll import limits

Array: TypeAlias = NDArray[np.float64]
Indices: TypeAlias = NDArray[np.int64]

# Largest group whose 2^n subsets are enumerated, and most inputs that such a group may read: beyond
# these the enumeration costs more than a split of the domain.
HULL_NEURONS = 4
HULL_INPUTS = 64


@dataclass(frozen=True, eq=False)
class Groups:
    """Group ``g`` holds the neurons ``order[neuron_starts[g]:neuron_starts[g + 1]]`` and the copies
    ``copy_starts[g]:copy_starts[g + 1]``; copy ``c`` is one of input ``copy_input[c]``, and
    ``copy_home[c]`` is the first copy of the same input."""

    order: Indices  # neurons of the layer by group
    neuron_starts: Indices  # (groups + 1,)
    copy_starts: Indices  # (groups + 1,)
    copy_input: Indices  # (copies,)
    copy_home: Indices  # (copies,)
    hull: NDArray[np.bool_]  # (groups,) small enough for the joint hull
    blocks: tuple[Array, ...]  # per group (neurons, copies)
    share: Array  # (inputs,) 1 / number of copies, 0 where there is none

    @property
    def count(self) -> int:
        return len(self.blocks)

    @property
    def copies(self) -> int:
        return int(self.copy_input.size)


def group_neurons(weight: Any, input_size: int) -> Groups:
    """Groups of the rows of ``weight`` (dense or CSR) that read exactly the same inputs."""
    rows = _rows(weight)
    by_support: dict[bytes, list[int]] = {}
    for row, (columns, _) in enumerate(rows):
        limits.check()
        by_support.setdefault(columns.tobytes(), []).append(row)
    order: list[int] = []
    neuron_starts, copy_starts = [0], [0]
    copy_input: list[Indices] = []
    hull: list[bool] = []
    blocks: list[Array] = []
    for members in by_support.values():
        limits.check()
        support = rows[members[0]][0]
        small = 0 < len(support) <= HULL_INPUTS
        size = HULL_NEURONS if small else len(members)
        for start in range(0, len(members), size):
            chunk = members[start : start + size]
            order += chunk
            copy_input.append(support)
            neuron_starts.append(len(order))
            copy_starts.append(copy_starts[-1] + len(support))
            hull.append(small)
            blocks.append(np.stack([rows[row][1] for row in chunk]))
    inputs = np.concatenate(copy_input)
    # Written backwards, so that the first copy of each input is the one that stays.
    home = np.full(input_size, -1, dtype=np.int64)
    home[inputs[::-1]] = np.arange(inputs.size)[::-1]
    counts = np.bincount(inputs, minlength=input_size)
    return Groups(
        np.array(order, dtype=np.int64),
        np.array(neuron_starts, dtype=np.int64),
        np.array(copy_starts, dtype=np.int64),
        inputs,
        home[inputs],
        np.array(hull, dtype=np.bool_),
        tuple(blocks),
        np.divide(1.0, counts, out=np.zeros(input_size), where=counts > 0),
    )


def _rows(weight: Any) -> list[tuple[Indices, Array]]:
    """Every row as (inputs it reads, their weights), inputs rising."""
    if isinstance(weight, np.ndarray):
        if weight.shape[1] > HULL_INPUTS:
            everything = np.arange(weight.shape[1])
            return [(everything, row) for row in weight]
        supports = [np.flatnonzero(row) for row in weight]
        return [(support, row[support]) for support, row in zip(supports, weight, strict=True)]
    matrix = weight.sorted_indices()
    ends = zip(matrix.indptr, matrix.indptr[1:], strict=False)
    return [(matrix.indices[a:b].astype(np.int64), matrix.data[a:b]) for a, b in ends]
