"""A network as a list of primitive steps on flattened vectors, holding the stored weights exactly.

Every layer lowers to affine maps and activations, so that the float64 replay, the rigorous
enclosure, the rational evaluation and the folding know these two and nothing of convolutions. A
step's numbers are the stored ones (float32 is a subset of float64) or small integers: nothing is
rounded on the way in, which is why a quotient keeps its divisor apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from qll import limits
from qll.errors import NetworkError
from qll.networks.activations import RELU, Activation
from qll.networks.matrices import (
    Array,
    Matrix,
    check_total,
    diagonal,
    entries,
    identity,
    selection,
)


@dataclass(frozen=True, eq=False)
class AffineMap:
    """``(bias + sum_j M_j v_j) / divisor``; no divisor means 1, no terms means a constant."""

    terms: tuple[tuple[int, Matrix], ...]
    bias: Array
    divisor: Array | None = None

    @property
    def width(self) -> int:
        return int(self.bias.shape[0])


@dataclass(frozen=True)
class Activate:
    """``function(v)``, entry by entry."""

    source: int
    function: Activation


Step: TypeAlias = AffineMap | Activate


@dataclass(frozen=True, eq=False)
class Program:
    """Value 0 is the flattened input; step ``i`` gives value ``i + 1``; the last is the output."""

    input_shape: tuple[int, ...]
    widths: tuple[int, ...]
    steps: tuple[Step, ...]

    def forward(self, x: Array) -> Array:
        """(B, input size) -> (B, output size) in float64, without folding."""
        values: list[Array] = [np.asarray(x, dtype=np.float64).T]
        for step in self.steps:
            if isinstance(step, Activate):
                values.append(step.function.value(values[step.source]))
                continue
            total = np.repeat(step.bias[:, None], values[0].shape[1], axis=1)
            for source, matrix in step.terms:
                total += matrix @ values[source]
            values.append(total if step.divisor is None else total / step.divisor[:, None])
        return values[-1].T


class ProgramBuilder:
    """Collects steps; the layer types call it. Values are referred to by index."""

    def __init__(self, input_size: int) -> None:
        self.widths: list[int] = [input_size]
        self.steps: list[Step] = []
        self._entries = 0

    def affine(
        self,
        terms: Sequence[tuple[int, Matrix]],
        bias: Array | None = None,
        *,
        divisor: Array | None = None,
    ) -> int:
        limits.check()
        width = terms[0][1].shape[0] if bias is None else bias.shape[0]
        if bias is None:
            bias = np.zeros(width)
        wanted = [(width, self.widths[source]) for source, _ in terms]
        sizes = {width, bias.size, width if divisor is None else divisor.size}
        if [matrix.shape for _, matrix in terms] != wanted or len(sizes) != 1:
            raise NetworkError(
                "a layer's matrices do not fit its operands",
                expected=f"shapes {wanted}",
                found=f"{[matrix.shape for _, matrix in terms]}, bias {bias.size}",
                fix="check the shapes of the network's layers",
            )
        self._entries += sum(entries(matrix).size for _, matrix in terms)
        check_total(self._entries)
        return self._append(AffineMap(tuple(terms), bias, divisor), width)

    def constant(self, value: Array) -> int:
        return self._append(AffineMap((), value.reshape(-1)), value.size)

    def activate(self, source: int, function: Activation) -> int:
        return self._append(Activate(source, function), self.widths[source])

    def rectify(self, source: int) -> int:
        return self.activate(source, RELU)

    def identity(self, source: int) -> Matrix:
        return identity(self.widths[source])

    def scale(self, source: int, factor: Array) -> int:
        return self.affine([(source, diagonal(factor))])

    def select(self, source: int, indices: np.ndarray[tuple[int], np.dtype[np.int64]]) -> int:
        return self.affine([(source, selection(indices, self.widths[source]))])

    def constant_value(self, source: int) -> Array | None:
        """The value's entries if they do not depend on the input."""
        step = self.steps[source - 1] if source else None
        if isinstance(step, AffineMap) and not step.terms and step.divisor is None:
            return step.bias
        return None

    def _append(self, step: Step, width: int) -> int:
        self.steps.append(step)
        self.widths.append(width)
        return len(self.steps)

    def finish(self, input_shape: tuple[int, ...], output: int) -> Program:
        """Only what the output needs, in order, renumbered."""
        needed = {output}
        for index in range(output, 0, -1):
            if index in needed:
                needed.update(_sources(self.steps[index - 1]))
        order = [0, *sorted(needed - {0})]
        place = {old: new for new, old in enumerate(order)}
        steps = [_renumber(self.steps[old - 1], place) for old in order[1:]]
        if not steps:  # the output is the input itself
            steps = [AffineMap(((0, identity(self.widths[0])),), np.zeros(self.widths[0]))]
            order.append(0)
        return Program(input_shape, tuple(self.widths[old] for old in order), tuple(steps))


def _sources(step: Step) -> tuple[int, ...]:
    if isinstance(step, Activate):
        return (step.source,)
    return tuple(source for source, _ in step.terms)


def _renumber(step: Step, place: dict[int, int]) -> Step:
    if isinstance(step, Activate):
        return Activate(place[step.source], step.function)
    terms = tuple((place[source], matrix) for source, matrix in step.terms)
    return AffineMap(terms, step.bias, step.divisor)
