"""What a layer states: its shape, its exact steps and its entries.

Shapes carry the batch axis, which is 1 throughout: a network is its map on one point. The readers
(ONNX, torch) only translate into these classes; folding, replay and bounds see only the steps.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qll.errors import NetworkError
from qll.networks.entries import Form
from qll.networks.matrices import broadcast
from qll.networks.program import ProgramBuilder

Shape: TypeAlias = tuple[int, ...]
Indices: TypeAlias = NDArray[np.int64]
Range: TypeAlias = tuple[float, float]
Part: TypeAlias = "tuple[Layer, tuple[int, ...]]"
ANYTHING: Range = (-math.inf, math.inf)


def misfit(what: str, expected: str, found: object) -> NetworkError:
    return NetworkError(
        what, expected=expected, found=str(found), fix="check the shapes of the network's layers"
    )


class Layer(ABC):
    """``shape`` checks that the operands fit; ``lower`` may then rely on it."""

    onnx: ClassVar[tuple[str, ...]] = ()  # its ONNX operators
    # Where torch has it, from torch on: modules, functions, and methods of Tensor.
    in_torch: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def shape(self, *operands: Shape) -> Shape: ...

    @abstractmethod
    def lower(self, builder: ProgramBuilder, values: list[int], shapes: list[Shape]) -> int:
        """Add this layer's steps; return the index of its value."""

    @abstractmethod
    def form(self, shapes: list[Shape]) -> Form:
        """The same by its entries, for kernels."""

    def range(self, ranges: list[Range], shapes: list[Shape]) -> Range:
        """Ends of all entries, whatever the input, where those of the operands are within
        ``ranges``: a divisor must be known to stay away from 0."""
        return ANYTHING

    def keeps_order(self, shape: Shape) -> bool:
        """Whether of any two entries of an operand of this shape the larger stays the larger."""
        return False

    def parts(self, shapes: list[Shape]) -> list[Part]:
        """The layers that it is made of, each with what it reads: the operands by number, then the
        parts before it. None for a layer that is one step of its own."""
        return []


class Composite(Layer):
    """A layer that is made of others, which say all there is to say of it."""

    @abstractmethod
    def parts(self, shapes: list[Shape]) -> list[Part]: ...

    def shape(self, *operands: Shape) -> Shape:
        shapes = list(operands)
        for layer, sources in self.parts(shapes):
            shapes.append(layer.shape(*(shapes[s] for s in sources)))
        return shapes[-1]

    def lower(self, builder: ProgramBuilder, values: list[int], shapes: list[Shape]) -> int:
        values, shapes = list(values), list(shapes)
        for layer, sources in self.parts(list(shapes)):
            operands = [shapes[s] for s in sources]
            values.append(layer.lower(builder, [values[s] for s in sources], operands))
            shapes.append(layer.shape(*operands))
        return values[-1]

    def range(self, ranges: list[Range], shapes: list[Shape]) -> Range:
        ranges, shapes = list(ranges), list(shapes)
        for layer, sources in self.parts(list(shapes)):
            operands = [shapes[s] for s in sources]
            ranges.append(layer.range([ranges[s] for s in sources], operands))
            shapes.append(layer.shape(*operands))
        return ranges[-1]

    def form(self, shapes: list[Shape]) -> Form:
        raise TypeError("a layer of several parts has no form of its own")


def outward(low: float, high: float) -> Range:
    """Past the rounding of one operation; what is no number is unknown."""
    low, high = math.nextafter(low, -math.inf), math.nextafter(high, math.inf)
    return (-math.inf if math.isnan(low) else low), (math.inf if math.isnan(high) else high)


def multiplied(one: Range, other: Range) -> Range:
    """Of products; an end that is infinite stands for numbers, so 0 times it is 0."""
    corners = [a * b if a and b else 0.0 for a in one for b in other]
    return outward(min(corners), max(corners))


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
