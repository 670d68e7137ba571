"""Where the values of a network graph lie, and the tables that their steps make.

A value is a block of rows that one operation writes. What only moves entries (reshape, transpose,
slice, concatenation, padding) writes nothing: it is a *view*, an array of rows, -1 for a zero.

The gradient of a value takes the value's own rows, of which nothing is needed any more, except
where a ReLU gates it and it is added up in several steps: it then gets rows of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from qll.kernels.plan import Floats
from qll.kernels.steps import ACTIVATE, CLEAR, FROM_DESTINATION, FROM_ZERO, GATE, PLAIN, SCALE
from qll.kernels.tables import Packing, Tables
from qll.networks.activations import RELU, Activation
from qll.networks.entries import Curved, Form

Indices = NDArray[np.int64]
Forms = Mapping[int, Form]


@dataclass(eq=False)
class Value:
    """``entries`` of the ``rows`` hold an entry, the rest is padding of the tiles."""

    first: int
    rows: int
    entries: int
    relu: bool = False
    slopes: int | None = None  # first row of the derivatives of its activation
    gradient: int = -1
    gated: bool = False  # its gradient comes whole in one step, which gates it too
    started: bool = False


@dataclass(eq=False)
class Rows:
    """Row numbers and tables of a plan that is being made."""

    tallest: int
    tables: Tables = field(default_factory=Tables)
    rows: int = 0
    biases: int = 0
    values: list[Value] = field(default_factory=list)

    def reserve(self, count: int) -> int:
        self.rows += count
        return self.rows - count

    def value(self, rows: int, entries: int) -> Value:
        self.values.append(Value(self.reserve(rows), rows, entries))
        return self.values[-1]

    def withdraw(self, value: Value) -> None:
        """The last value, before anything but views was made of it."""
        if self.values.pop() is not value or self.rows != value.first + value.rows:
            raise ValueError("only the last value can be withdrawn")
        self.rows = value.first

    def step(
        self, kind: int, first_block: int, start: int, finish: int, *, reads_input: bool = False
    ) -> None:
        count = len(self.tables.blocks) - first_block
        self.tables.steps.append((kind, count, first_block, start, finish, int(reads_input)))

    def whole(self, kind: int, first: int, count: int, other: int = 0, option: int = 0) -> None:
        """A step on ``count`` rows one after the other."""
        self.tables.steps.append((kind, count, first, other, option, 0))

    # --- gradients ---

    def clear(self, value: Value) -> None:
        self.whole(CLEAR, value.gradient, value.rows)

    def owners(self, rows: Indices) -> Indices:
        """The number of the value that each row belongs to."""
        firsts = np.array([value.first for value in self.values])
        found: Indices = np.searchsorted(firsts, rows, side="right") - 1
        return found

    def gradient_rows(self, rows: Indices) -> Indices:
        shift = np.array([value.gradient - value.first for value in self.values])
        moved: Indices = np.where(rows < 0, -1, rows + shift[self.owners(np.maximum(rows, 0))])
        return moved

    def place_gradients(self, operations: list[Operation]) -> None:
        uses = np.zeros(len(self.values), dtype=np.int64)
        alone = np.zeros(len(self.values), dtype=np.bool_)
        for operation in operations:
            rows = operation.reads()
            for number in np.unique(self.owners(rows)):
                uses[number] += 1
                alone[number] = self._covers(rows, self.values[number]) and _one(self.owners(rows))
        for value, count, whole in zip(self.values, uses, alone, strict=True):
            value.gated = value.relu and count == 1 and bool(whole)
            separate = value.relu and not value.gated
            value.gradient = self.reserve(value.rows) if separate else value.first

    def _covers(self, rows: Indices, value: Value) -> bool:
        """Whether every entry of the value is among the rows, once."""
        inside = rows[(rows >= value.first) & (rows < value.first + value.rows)]
        return len(inside) == value.entries and len(np.unique(inside)) == value.entries

    def begin_gradient(self, rows: Indices) -> tuple[int, int]:
        """What a step that adds to the gradients of these rows starts from and ends with."""
        values = [self.values[number] for number in np.unique(self.owners(rows))]
        fresh = all(not value.started and self._covers(rows, value) for value in values)
        for value in values:
            if not value.started and not fresh:
                self.clear(value)
            value.started = True
        gated = fresh and len(values) == 1 and values[0].gated
        return (FROM_ZERO if fresh else FROM_DESTINATION), (GATE if gated else PLAIN)

    def end_gradient(self, value: Value) -> None:
        """From the gradient by a value to that by what its activation was given."""
        if value.slopes is not None:
            self.whole(SCALE, value.gradient, value.rows, value.slopes)
        elif value.relu and not value.gated:
            self.whole(SCALE, value.gradient, value.rows, value.first, option=1)


def _one(numbers: Indices) -> bool:
    return len(np.unique(numbers)) == 1


class Operation(ABC):
    """Writes one value; ``node`` is the layer whose weights it has, if any."""

    out: Value
    node: int | None = None
    # The activation that follows, its node, and its number among the plan's functions.
    activation: Activation | None = None
    activation_node: int | None = None
    function: int = -1
    multiplications: int = 0

    def __init__(self) -> None:
        self.weights: list[Packing] = []
        self.biases: list[tuple[Indices, Indices]] = []  # places, and the bias that goes there

    @abstractmethod
    def reads(self) -> Indices:
        """All rows that it reads, as often as it does."""

    @abstractmethod
    def forward(self, rows: Rows) -> None: ...

    @abstractmethod
    def backward(self, rows: Rows) -> None: ...

    @abstractmethod
    def effective(self, forms: Forms) -> tuple[Floats, Floats]:
        """Weights, a 0 behind them, and biases."""

    def activate(self, node: int, function: Activation) -> None:
        self.activation, self.activation_node = function, node
        self.out.relu = function == RELU

    def finish(self, rows: Rows) -> None:
        if self.activation is not None and not self.out.relu:
            self.out.slopes = rows.reserve(self.out.rows)
            rows.whole(ACTIVATE, self.out.first, self.out.rows, self.out.slopes, self.function)

    def refresh(self, forms: Forms, weights: Floats, biases: Floats) -> None:
        effective, shifts = self.effective(forms)
        for packing in self.weights:
            packing.fill(weights, effective)
        for places, numbers in self.biases:
            biases[places] = shifts[numbers]

    def parameters(self, forms: Forms) -> tuple[float, ...]:
        if self.activation_node is None or self.out.relu:
            return ()
        form = forms[self.activation_node]
        return form.function.kernel()[1] if isinstance(form, Curved) else ()


def rising(rows: Indices) -> NDArray[np.bool_]:
    """Where the next row down an array's first axis is the next row, or neither is there."""
    absent = rows < 0
    next_one = (np.diff(rows, axis=0) == 1) & ~absent[:-1]
    steady: NDArray[np.bool_] = next_one | (absent[1:] & absent[:-1])
    return steady


def runs(
    places: Indices, sources: Indices, terms: Indices | None = None
) -> Iterator[tuple[int, int]]:
    """Stretches over which places and all sources rise by one (``terms``: and these stay);
    ``places`` (n,) rise, ``sources`` and ``terms`` are (n, terms)."""
    absent = sources < 0
    steady = rising(sources)
    if terms is not None:
        steady &= absent[1:] | (terms[1:] == terms[:-1])
    # A row without any source is a block of its own.
    steady = steady.all(axis=1) & (np.diff(places) == 1) & ~absent[1:].all(axis=1)
    cuts = [0, *(np.flatnonzero(~steady) + 1).tolist(), len(places)]
    for first, last in pairwise(cuts):
        if last > first:
            yield first, last


def inverse(places: Indices, sources: Indices) -> tuple[Indices, Indices, Indices]:
    """The other way round: the rows that are read, and for each the places that read it and as
    which term of all (n * terms), both (rows, readers), -1 where there are fewer."""
    terms = sources.shape[1]
    flat = sources.reshape(-1)
    used = np.flatnonzero(flat >= 0)
    used = used[np.argsort(flat[used], kind="stable")]
    read, start, count = np.unique(flat[used], return_index=True, return_counts=True)
    column = np.arange(len(used)) - np.repeat(start, count)
    row = np.repeat(np.arange(len(read)), count)
    readers = np.full((len(read), int(count.max(initial=0))), -1)
    which = np.full_like(readers, -1)
    readers[row, column] = np.repeat(places, terms)[used]
    which[row, column] = used
    return read, readers, which
