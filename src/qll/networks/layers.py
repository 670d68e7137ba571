"""One class per layer type: the shape it gives and the primitive steps it means.

Shapes carry the batch axis, which is 1 throughout: a network is its map on one point. The readers
(ONNX, torch) only translate into these classes; folding, replay and bounds see only the steps.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from qll.errors import NetworkError
from qll.networks.entries import Combined, Fixed, Form, Moved, Same, Scaled, Windowed
from qll.networks.matrices import (
    Array,
    broadcast,
    check_entries,
    compact,
    csr_by_rows,
    diagonal,
    selection,
    sparse,
)
from qll.networks.program import ProgramBuilder
from qll.networks.windows import Window

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


@dataclass(frozen=True, eq=False)
class Constant(Layer):
    value: Array

    def shape(self, *operands: Shape) -> Shape:
        return self.value.shape

    def lower(self, builder: ProgramBuilder, values: list[int], shapes: list[Shape]) -> int:
        return builder.constant(self.value)

    def form(self, shapes: list[Shape]) -> Form:
        return Fixed(self.value)


@dataclass(frozen=True)
class Reshape(Layer):
    """Also flatten, squeeze, unsqueeze and identity: the entries keep their order."""

    target: Shape

    def shape(self, *operands: Shape) -> Shape:
        (operand,) = operands
        if math.prod(operand) != math.prod(self.target):
            raise misfit("a reshape changes the number of entries", f"{operand}", self.target)
        return self.target

    def lower(self, builder: ProgramBuilder, values: list[int], shapes: list[Shape]) -> int:
        return values[0]

    def form(self, shapes: list[Shape]) -> Form:
        return Same()


class Rearrange(Layer):
    """Layers whose every output entry is one input entry, or a fill value."""

    fill: float = 0.0

    @abstractmethod
    def indices(self, operand: Shape) -> Indices:
        """The output's shape, filled with flat input positions; -1 takes the fill value."""

    def shape(self, *operands: Shape) -> Shape:
        (operand,) = operands
        return self.indices(operand).shape

    def lower(self, builder: ProgramBuilder, values: list[int], shapes: list[Shape]) -> int:
        flat = self.indices(shapes[0]).reshape(-1)
        bias = np.where(flat < 0, self.fill, 0.0)
        return builder.affine([(values[0], selection(flat, builder.widths[values[0]]))], bias)

    def form(self, shapes: list[Shape]) -> Form:
        return Moved(self.indices(shapes[0]).reshape(-1), self.fill)


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


@dataclass(frozen=True)
class Transpose(Rearrange):
    order: tuple[int, ...]

    def indices(self, operand: Shape) -> Indices:
        if sorted(self.order) != list(range(len(operand))):
            raise misfit(
                "a transpose does not fit its tensor", f"an order of {operand}", self.order
            )
        return positions(operand).transpose(self.order)


@dataclass(frozen=True)
class Pad(Rearrange):
    before: tuple[int, ...]
    after: tuple[int, ...]
    fill: float = 0.0

    def indices(self, operand: Shape) -> Indices:
        if len(self.before) != len(operand) or len(self.after) != len(operand):
            raise misfit("a padding does not fit its tensor", f"{len(operand)} axes", self)
        widths = list(zip(self.before, self.after, strict=True))
        grown = [size + a + b for size, (a, b) in zip(operand, widths, strict=True)]
        if min(grown, default=1) < 1:
            raise misfit("a padding removes the whole tensor", "a positive size", tuple(grown))
        check_entries(math.prod(grown), "a padding")
        inner = positions(operand)
        crop = tuple(slice(max(-a, 0), size - max(-b, 0)) for size, (a, b) in zip(operand, widths))
        return np.pad(inner[crop], [(max(a, 0), max(b, 0)) for a, b in widths], constant_values=-1)


@dataclass(frozen=True)
class Slice(Rearrange):
    """``slices[axis]`` is (start, stop, step) as Python means them."""

    slices: tuple[tuple[int | None, int | None, int | None], ...]

    def indices(self, operand: Shape) -> Indices:
        if len(self.slices) > len(operand) or any(step == 0 for _, _, step in self.slices):
            raise misfit("a slice does not fit its tensor", f"{len(operand)} axes", self.slices)
        taken = positions(operand)[tuple(slice(*bounds) for bounds in self.slices)]
        if not taken.size:
            raise misfit("a slice is empty", f"a range inside {operand}", self.slices)
        return taken


@dataclass(frozen=True)
class Concat(Layer):
    axis: int

    def shape(self, *operands: Shape) -> Shape:
        rank = len(operands[0])
        axis = self.axis % rank if rank else 0
        rest = {shape[:axis] + shape[axis + 1 :] for shape in operands}
        ranks = {len(shape) for shape in operands}
        if not -rank <= self.axis < rank or len(rest) != 1 or len(ranks) != 1:
            raise misfit("a concatenation's operands do not fit", f"axis {self.axis}", operands)
        joined = sum(shape[axis] for shape in operands)
        return (*operands[0][:axis], joined, *operands[0][axis + 1 :])

    def _joined(self, shapes: list[Shape]) -> tuple[Indices, Indices]:
        """Where each operand's entries begin, and which entry stands where."""
        offsets = operand_starts(shapes)
        parts = [positions(shape) + first for shape, first in zip(shapes, offsets, strict=False)]
        return offsets, np.concatenate(parts, axis=self.axis).reshape(-1)

    def form(self, shapes: list[Shape]) -> Form:
        return Moved(self._joined(shapes)[1])

    def lower(self, builder: ProgramBuilder, values: list[int], shapes: list[Shape]) -> int:
        offsets, joined = self._joined(shapes)
        terms = []
        for value, start, stop in zip(values, offsets, offsets[1:], strict=False):
            mine = (joined >= start) & (joined < stop)
            picks = np.where(mine, joined - start, -1)
            terms.append((value, selection(picks, int(stop - start))))
        return builder.affine(terms)


@dataclass(frozen=True)
class Sum(Layer):
    """Sum and difference of two or more branches, broadcast; ``signs`` are +1 or -1."""

    signs: tuple[int, ...]

    def shape(self, *operands: Shape) -> Shape:
        if len(operands) != len(self.signs):
            raise misfit("a sum has operands missing", f"{len(self.signs)}", len(operands))
        return broadcast(*operands)

    def lower(self, builder: ProgramBuilder, values: list[int], shapes: list[Shape]) -> int:
        target = broadcast(*shapes)
        bias = np.zeros(math.prod(target))
        absorbed = False
        terms = []
        for value, shape, sign in zip(values, shapes, self.signs, strict=True):
            flat = np.broadcast_to(positions(shape), target).reshape(-1)
            constant = builder.constant_value(value)
            if constant is not None and not absorbed:
                # Only one constant becomes the bias: the sum of two would be rounded.
                bias, absorbed = sign * constant[flat], True
            else:
                terms.append((value, sign * selection(flat, builder.widths[value])))
        return builder.affine(terms, bias)

    def form(self, shapes: list[Shape]) -> Form:
        entries = spread_entries(shapes)
        return Combined(entries, np.tile(np.array(self.signs, dtype=np.float64), (len(entries), 1)))


@dataclass(frozen=True, eq=False)
class Scale(Layer):
    """``x * factor / divisor`` with constants, broadcast."""

    factor: Array
    divisor: Array | None = None

    def shape(self, *operands: Shape) -> Shape:
        divisor = () if self.divisor is None else self.divisor.shape
        return broadcast(operands[0], self.factor.shape, divisor)

    def lower(self, builder: ProgramBuilder, values: list[int], shapes: list[Shape]) -> int:
        target = self.shape(shapes[0])
        flat = np.broadcast_to(positions(shapes[0]), target).reshape(-1)
        factor = np.broadcast_to(self.factor, target).reshape(-1)
        matrix = diagonal(factor) @ selection(flat, builder.widths[values[0]])
        divisor = None
        if self.divisor is not None:
            divisor = np.ascontiguousarray(np.broadcast_to(self.divisor, target)).reshape(-1)
        return builder.affine([(values[0], matrix.tocsr())], divisor=divisor)

    def form(self, shapes: list[Shape]) -> Form:
        factor = self.factor if self.divisor is None else self.factor / self.divisor
        return Scaled(factor, np.zeros(()))


@dataclass(frozen=True, eq=False)
class Normalise(Layer):
    """``(x - mean) / std``; both spread over the whole tensor, batch axis aside."""

    mean: Array
    std: Array

    def shape(self, *operands: Shape) -> Shape:
        (operand,) = operands
        if broadcast(operand, self.mean.shape, self.std.shape) != operand:
            raise misfit("a normalisation does not fit its tensor", str(operand), self.mean.shape)
        return operand

    def lower(self, builder: ProgramBuilder, values: list[int], shapes: list[Shape]) -> int:
        mean = np.broadcast_to(self.mean, shapes[0]).reshape(-1)
        std = np.broadcast_to(self.std, shapes[0]).reshape(-1)
        term = (values[0], builder.identity(values[0]))
        return builder.affine([term], -mean, divisor=np.ascontiguousarray(std))

    def form(self, shapes: list[Shape]) -> Form:
        return Scaled(1.0 / self.std, -self.mean / self.std)


@dataclass(frozen=True, eq=False)
class BatchNorm(Layer):
    """``gain * (x - mean) / deviation + shift`` per channel, ``deviation = sqrt(variance + eps)``.

    The root is irrational: the layer is *defined* with the root rounded to float64 (relative error
    2^-53), and every reading, the exact one included, uses that same number.
    """

    gain: Array
    shift: Array
    mean: Array
    variance: Array
    epsilon: float

    @cached_property
    def deviation(self) -> Array:
        with np.errstate(invalid="ignore"):
            root: Array = np.sqrt(self.variance + self.epsilon)
        if not np.all(root > 0) or not np.all(np.isfinite(root)):
            raise misfit(
                "a batch norm's variance is not positive",
                "variance + epsilon > 0",
                f"{float(np.min(self.variance))} + {self.epsilon}",
            )
        return root

    def shape(self, *operands: Shape) -> Shape:
        (operand,) = operands
        channels = {part.shape for part in (self.gain, self.shift, self.mean, self.deviation)}
        if len(operand) < 2 or operand[0] != 1 or channels != {(operand[1],)}:
            raise misfit("a batch norm does not fit its tensor", f"channels of {operand}", channels)
        return operand

    def lower(self, builder: ProgramBuilder, values: list[int], shapes: list[Shape]) -> int:
        def spread(part: Array) -> Array:
            return np.repeat(part, math.prod(shapes[0][2:]))

        # Three steps, because the products of the constants would be rounded.
        eye = builder.identity(values[0])
        centred = builder.affine([(values[0], eye)], -spread(self.mean))
        scaled = builder.affine(
            [(centred, diagonal(spread(self.gain)))], divisor=spread(self.deviation)
        )
        return builder.affine([(scaled, eye)], spread(self.shift))

    def form(self, shapes: list[Shape]) -> Form:
        by_channel = (1, -1, *(1,) * (len(shapes[0]) - 2))
        factor = self.gain / self.deviation
        shift = self.shift - self.mean * factor
        return Scaled(factor.reshape(by_channel), shift.reshape(by_channel))


@dataclass(frozen=True, eq=False)
class Linear(Layer):
    """``x @ weight.T + bias`` over the last axis; ``weight`` is (out, in)."""

    weight: Array
    bias: Array

    def shape(self, *operands: Shape) -> Shape:
        (operand,) = operands
        rows, columns = self.weight.shape
        if not operand or operand[-1] != columns or self.bias.shape != (rows,):
            raise misfit(
                "a linear layer does not fit its tensor",
                f"a last axis of {columns} and a bias of {rows}",
                f"{operand} and {self.bias.shape}",
            )
        return (*operand[:-1], rows)

    def lower(self, builder: ProgramBuilder, values: list[int], shapes: list[Shape]) -> int:
        repeats = math.prod(shapes[0][:-1])
        check_entries(self.weight.size * repeats, "a linear layer")
        matrix = compact(self.weight)
        if repeats != 1:
            matrix = sparse().kron(sparse().identity(repeats), matrix, format="csr")
        return builder.affine([(values[0], matrix)], np.tile(self.bias, repeats))

    def form(self, shapes: list[Shape]) -> Form:
        return Windowed(self.weight, self.bias)


@dataclass(frozen=True, eq=False)
class Convolution(Layer):
    """Any number of spatial axes; ``weight`` is (out, in / groups, *kernel)."""

    weight: Array
    bias: Array
    window: Window
    groups: int = 1

    def shape(self, *operands: Shape) -> Shape:
        (operand,) = operands
        out, taken, *kernel = self.weight.shape
        fits = (
            self.groups >= 1
            and len(operand) == self.weight.ndim
            and operand[0] == 1
            and operand[1] == taken * self.groups
            and out % self.groups == 0
            and tuple(kernel) == self.window.kernel
            and self.bias.shape == (out,)
        )
        if not fits:
            raise misfit(
                "a convolution does not fit its tensor",
                f"(1, {taken * self.groups}, ...) with a kernel {self.window.kernel}",
                f"{operand}, weight {self.weight.shape}, bias {self.bias.shape}",
            )
        return (operand[0], out, *self.window.output(operand[2:]))

    def lower(self, builder: ProgramBuilder, values: list[int], shapes: list[Shape]) -> int:
        spatial = shapes[0][2:]
        out, taken = self.weight.shape[:2]
        taps = self.window.taps(spatial)  # (places, kernel entries)
        places, entries = taps.shape
        table = (out, places, taken, entries)
        check_entries(math.prod(table), "a convolution")
        group = np.arange(out) // (out // self.groups)
        channel = group[:, None] * taken + np.arange(taken)  # (out, taken)
        first = (channel * math.prod(spatial)).astype(np.int32)  # entries of a tensor fit
        columns = first[:, None, :, None] + taps[None, :, None, :].astype(np.int32)
        data = self.weight.reshape(out, 1, taken, entries)
        inside = taps >= 0
        keep = np.broadcast_to(inside[None, :, None, :], table)
        matrix = csr_by_rows(
            np.broadcast_to(data, table)[keep],
            columns[keep],
            np.tile(taken * inside.sum(axis=1), out),
            builder.widths[values[0]],
        )
        return builder.affine([(values[0], compact(matrix))], np.repeat(self.bias, places))

    def form(self, shapes: list[Shape]) -> Form:
        return Windowed(self.weight, self.bias, self.window, self.groups)
