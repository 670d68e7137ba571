"""What a layer states: its shape, its exact steps and its entries.

Shapes carry the batch axis, which is 1 throughout: a network is its map on one point. The readers
(ONNX, torch) only translate into these classes; folding, replay and bounds see only the steps.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from qll.errors import NetworkError
from qll.networks.entries import Form
from qll.networks.matrices import broadcast
from qll.networks.program import ProgramBuilder

Shape: TypeAlias = tuple[int, ...]
Indices: TypeAlias = NDArray[np.int64]


def misfit(what: str, expected: str, found: object) -> NetworkError:
    return NetworkError(
        what, expected=expected, found=str(found), fix="check the shapes of the network's layers"
    )


class Layer(ABC):
    """``shape`` checks that the operands fit; ``lower`` may then rely on it."""

    @abstractmethod
    def shape(self, *operands: Shape) -> Shape: ...

    @abstractmethod
    def lower(self, builder: ProgramBuilder, values: list[int], shapes: list[Shape]) -> int:
        """Add this layer's steps; return the index of its value."""

    @abstractmethod
    def form(self, shapes: list[Shape]) -> Form:
        """The same by its entries, for kernels."""


def positions(shape: Shape) -> Indices:
    return np.arange(math.prod(shape), dtype=np.int64).reshape(shape)


def operand_starts(shapes: list[Shape]) -> Indices:
    """Where each operand's entries begin when all are numbered one after the other, and the end."""
    return np.cumsum([0, *(math.prod(shape) for shape in shapes)])


def spread_entries(shapes: list[Shape]) -> Indices:
    """(n, operands): the entries of the operands that meet in each entry of their broadcast."""
    target = broadcast(*shapes)
    starts = operand_starts(shapes)
    columns = [
        (np.broadcast_to(positions(shape), target) + first).reshape(-1)
        for shape, first in zip(shapes, starts, strict=False)
    ]
    return np.stack(columns, axis=1)
