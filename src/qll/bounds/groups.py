"""Groups of first-layer neurons that read the same inputs, such as the channels of one patch.

A group has its own copy of each of its inputs; the copies of an input are tied by multipliers (see
`qll.bounds.dual`). Small groups allow the joint hull, in which all subsets are enumerated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

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
    """Groups of the rows of ``weight`` (dense or CSR)."""
    supports = _supports(weight)
    by_support: dict[tuple[int, ...], list[int]] = {}
    for row in sorted(range(len(supports)), key=lambda r: -len(supports[r])):
        support = supports[row]
        key = support
        if support and support not in by_support:
            key = (
                next(
                    (s for s in by_support if len(s) <= HULL_INPUTS and set(support) <= set(s)),
                    support,
                )
                if len(support) <= HULL_INPUTS and len(by_support) < 64
                else support
            )
        by_support.setdefault(key, []).append(row)
    order: list[int] = []
    neuron_starts, copy_starts = [0], [0]
    copy_input: list[int] = []
    hull: list[bool] = []
    blocks: list[Array] = []
    for support, rows in by_support.items():
        small = 0 < len(support) <= HULL_INPUTS
        size = HULL_NEURONS if small else len(rows)
        for start in range(0, len(rows), size):
            chunk = sorted(rows[start : start + size])
            order += chunk
            copy_input += support
            neuron_starts.append(len(order))
            copy_starts.append(len(copy_input))
            hull.append(small)
            block = weight[chunk][:, list(support)]
            blocks.append(np.asarray(block if isinstance(block, np.ndarray) else block.toarray()))
    inputs = np.array(copy_input, dtype=np.int64)
    home = np.full(input_size, -1, dtype=np.int64)
    for copy in range(inputs.size - 1, -1, -1):
        home[inputs[copy]] = copy
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


def _supports(weight: Any) -> list[tuple[int, ...]]:
    if isinstance(weight, np.ndarray):
        everything = tuple(range(weight.shape[1]))
        if weight.shape[1] > HULL_INPUTS:
            return [everything] * weight.shape[0]
        return [tuple(np.flatnonzero(row).tolist()) for row in weight]
    indices = [
        weight.indices[weight.indptr[r] : weight.indptr[r + 1]] for r in range(weight.shape[0])
    ]
    return [tuple(sorted(np.unique(columns).tolist())) for columns in indices]
