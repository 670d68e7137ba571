"""What writes the values of a network graph: windows in tiles, sums of rows, largest rows.

Each states its forward steps and those that carry a gradient back; ``graph.py`` makes them of the
network's layers.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from qll.kernels.graph_rows import Forms, Indices, Operation, Rows, inverse, rising, runs
from qll.kernels.plan import Floats
from qll.kernels.steps import CHOSEN, FROM_BIAS, FROM_DESTINATION, LARGEST, PLAIN, RELU, SUM
from qll.kernels.tables import Packing, height_dividing, height_for
from qll.networks.entries import Form, Scaled, Windowed
from qll.networks.matrices import Array

# A source row block of this many rows (32 KiB at 32 lanes) stays in the first-level cache while
# every output block reads it; it also bounds the length of one float32 sum.
ROWS_A_SEGMENT = 256


class Tiles(Operation):
    """A convolution or a linear map. ``source`` (channels, pixels) are the rows that it reads,
    ``taps`` (output pixels, kernel entries) the pixels under its window, -1 outside; ``order`` the
    kernel entries as neighbouring outputs follow one another where one pixel is looked at."""

    def __init__(
        self,
        rows: Rows,
        node: int,
        source: Indices,
        taps: Indices,
        *,
        channels: int,
        groups: int,
        order: list[int],
        last_axis: bool,
    ) -> None:
        super().__init__()
        self.node, self.taps, self.groups, self.order = node, taps, groups, order
        self.number, self.given = node, source
        self.absorbed: list[int] = []  # layers that scale and shift its channels
        self.channels, self.own = channels, channels // groups
        if groups == 1:
            self.height = height_for(channels, rows.tallest)
        else:
            self.height = height_dividing(self.own, rows.tallest)
        self.stride = -(-channels // self.height) * self.height
        self.out = rows.value(self.pixels * self.stride, self.pixels * channels)
        # Rows that lie one after the other are read as one run: the channels come in that order.
        inside = int((source >= 0).all(axis=0).argmax())
        self.place = np.argsort(source[:, inside], kind="stable") if groups == 1 else None
        self.source = source if self.place is None else source[self.place]
        self.taken = len(source) // groups
        self.multiplications = int((taps >= 0).sum()) * channels * self.taken
        self.last_axis = last_axis
        self.reads_input = False  # the points themselves, and not a copy of them
        self.table, self.windows = self.source.tolist(), taps.tolist()

    @property
    def pixels(self) -> int:
        """Pixels that it writes."""
        return len(self.taps)

    def is_by_channel(self, part: tuple[int, ...], shape: tuple[int, ...]) -> bool:
        """Whether numbers of this shape, broadcast to the layer's, are one for each channel."""
        axis = len(shape) - 1 if self.last_axis else 1
        sizes = (1,) * (len(shape) - len(part)) + part
        return all(size == 1 for place, size in enumerate(sizes) if place != axis)

    def out_rows(self) -> Indices:
        """(channels, output pixels)."""
        pixels = np.arange(self.pixels) * self.stride
        return self.out.first + pixels[None, :] + np.arange(self.channels)[:, None]

    def reads(self) -> Indices:
        used = np.unique(self.taps[self.taps >= 0])
        read = self.source[:, used]
        return read[read >= 0]

    def effective(self, forms: Forms) -> tuple[Floats, Floats]:
        form = forms[self.node] if self.node is not None else None
        if not isinstance(form, Windowed):
            raise TypeError("a tiled operation is not a convolution or a linear map")
        weight, bias = form.weight.reshape(len(form.weight), -1), form.bias
        for number in self.absorbed:
            scaled = forms[number]
            if isinstance(scaled, Scaled):
                factor, shift = (
                    np.broadcast_to(part.reshape(-1), bias.shape)
                    for part in (scaled.factor, scaled.shift)
                )
                weight, bias = weight * factor[:, None], bias * factor + shift
        return np.append(weight.reshape(-1), 0.0).astype(np.float32), bias.astype(np.float32)

    def _index(self) -> Indices:
        """(outputs, inputs of a group, kernel entries): where each weight is, in reading order."""
        shape = (self.channels, self.taken, self.taps.shape[1])
        index = np.arange(np.prod(shape)).reshape(shape)
        return index if self.place is None else index[:, self.place]

    def forward(self, rows: Rows) -> None:
        packing, bias = self._pack_forward(rows)
        parts = self._parts()
        for position, part in enumerate(parts):
            block = len(rows.tables.blocks)
            for pixel in range(len(self.taps)):
                self._blocks(rows, pixel, part, packing, bias, pixel)
            last = position == len(parts) - 1
            rows.step(
                self.height,
                block,
                FROM_BIAS if position == 0 else FROM_DESTINATION,
                RELU if last and self.out.relu else PLAIN,
                reads_input=self.reads_input,
            )
        self.finish(rows)

    def _pack_forward(self, rows: Rows) -> tuple[Packing, int]:
        """The weights, and the first bias."""
        entries, height, taken = self.taps.shape[1], self.height, self.taken
        index = np.full((self.stride, taken, entries), self.channels * taken * entries)
        index[: self.channels] = self._index()
        # (block, kernel entry, input, row of the tile)
        packed = index.reshape(-1, height, taken, entries).transpose(0, 3, 2, 1)
        packing = rows.tables.reserve(packed.copy())
        self.weights.append(packing)
        bias = rows.biases
        rows.biases += self.out.rows
        numbers = np.tile(np.arange(self.channels), self.pixels)
        places = np.repeat(np.arange(self.pixels) * self.stride, self.channels)
        self.biases.append((bias + places + numbers, numbers))
        return packing, bias

    def _blocks(
        self,
        rows: Rows,
        pixel: int,
        part: list[list[tuple[int, int]]],
        packing: Packing,
        bias: int,
        place: int,
        *,
        only: int | None = None,
    ) -> None:
        """The blocks of the channels of one pixel, or one of them, written to a pixel's place."""
        entries, height, taken = self.taps.shape[1], self.height, self.taken
        under = [(k, tap) for k, tap in enumerate(self.windows[pixel]) if tap >= 0]
        for b in range(self.stride // height) if only is None else (only,):
            group = min(b * height // self.own, self.groups - 1)
            found = []
            for k, tap in under:
                first = packing.first + (b * entries + k) * taken * height
                for c, count in part[group]:
                    if self.table[c][tap] >= 0:
                        weight = first + (c - group * taken) * height
                        found.append((self.table[c][tap], weight, count))
            row = place * self.stride + b * height
            rows.tables.block(self.out.first + row, found, height, bias + row)

    def _parts(self) -> list[list[list[tuple[int, int]]]]:
        """Runs of channels whose rows follow one another at every pixel, by group; a long linear
        map is cut into several parts."""
        cuts = set((np.flatnonzero(~rising(self.source).all(axis=1)) + 1).tolist())
        cuts |= {group * self.taken for group in range(self.groups)}
        linear = self.taps.size == 1
        if linear:
            cuts |= set(range(0, len(self.source), ROWS_A_SEGMENT))
        ends = [*sorted(cuts), len(self.source)]
        found = [(c, after - c) for c, after in pairwise(ends)]
        if linear:
            parts: list[list[tuple[int, int]]] = [[]]
            for run in found:
                if sum(count for _, count in parts[-1]) + run[1] > ROWS_A_SEGMENT:
                    parts.append([])
                parts[-1].append(run)
            return [[part] for part in parts if part]
        of_group = range(self.groups)
        return [[[run for run in found if run[0] // self.taken == g] for g in of_group]]

    def backward(self, rows: Rows) -> None:
        places, number = self._destinations(rows)
        taken = len(places) // self.groups
        height = contiguous_height(places, taken, rows.tallest)
        entries, own = self.taps.shape[1], self.own
        index = np.append(
            self._index().transpose(1, 0, 2),
            np.full((1, self.channels, entries), self.channels * self.taken * entries),
            axis=0,
        )
        # (group, input, output, kernel entry) -> (group, block, kernel entry, output, row)
        by_group = [index[number[:taken], g * own : (g + 1) * own] for g in range(self.groups)]
        packed = np.stack(by_group)[..., self.order]
        packed = packed.reshape(self.groups, taken // height, height, own, entries)
        packing = rows.tables.reserve(packed.transpose(0, 1, 4, 3, 2).copy())
        self.weights.append(packing)
        readers: list[list[tuple[int, int]]] = [[] for _ in range(places.shape[1])]
        position = {k: place for place, k in enumerate(self.order)}
        for pixel, window in enumerate(self.taps.tolist()):
            for k, tap in enumerate(window):
                if tap >= 0:
                    readers[tap].append((pixel, position[k]))
        start, finish = rows.begin_gradient(self.reads())
        table = rows.gradient_rows(places).tolist()
        block = len(rows.tables.blocks)
        for tap, outputs in enumerate(readers):
            if not outputs:
                continue
            for b in range(len(places) // height):
                row = table[b * height][tap]
                if row < 0:
                    continue
                first = packing.first + b * entries * own * height
                lane = self.out.gradient + b * height // taken * own
                found = [
                    (lane + pixel * self.stride, first + k * own * height, own)
                    for pixel, k in outputs
                ]
                rows.tables.block(row, found, height, 0)
        rows.step(height, block, start, finish)

    def _destinations(self, rows: Rows) -> tuple[Indices, Indices]:
        """Rows whose gradients come out of a tile together, and which input each is (-1 for the
        padding of a value that is read whole, which keeps its rows in one piece)."""
        number = np.arange(len(self.source))
        owners = np.unique(rows.owners(self.source[self.source >= 0]))
        if self.groups > 1 or len(owners) != 1 or (self.source < 0).any():
            return self.source, number
        value = rows.values[owners[0]]
        pixels = self.source.shape[1]
        if value.rows == value.entries or self.source.size != value.entries or value.rows % pixels:
            return self.source, number
        stride = value.rows // pixels
        first = self.source[0]
        places = first[None, :] + np.arange(stride)[:, None]
        ends = np.sort(places, axis=None)
        if not np.array_equal(ends, value.first + np.arange(value.rows)):
            return self.source, number
        known = {row: c for c, row in enumerate(self.source[:, 0].tolist())}
        numbers = np.array([known.get(row, -1) for row in places[:, 0].tolist()])
        held = numbers >= 0
        if not np.array_equal(places[held], self.source[numbers[held]]):
            return self.source, number
        return places, numbers


def contiguous_height(places: Indices, taken: int, tallest: int) -> int:
    """The highest tile whose rows follow one another, wherever it is put."""
    for height in (8, 4):
        if height > tallest or taken % height:
            continue
        parts = places.reshape(-1, height, places.shape[1])
        absent = parts < 0
        steady = (np.diff(parts, axis=1) == 1).all(axis=1) & ~absent.any(axis=1)
        if (steady | absent.all(axis=1)).all():
            return height
    return 1


class Sums(Operation):
    """Entry ``k`` is a weighted sum of rows ``entries[k]`` and, with a bias, a shift.

    ``read`` gives factors and shifts of the layer's form; ``numbers`` says which factor meets which
    entry (default: one each).
    """

    def __init__(
        self,
        rows: Rows,
        entries: Indices,
        places: Indices,
        read: Callable[[Form | None], tuple[Array, Array]],
        *,
        node: int | None = None,
        numbers: Indices | None = None,
        reads_input: bool = False,
    ) -> None:
        super().__init__()
        self.node, self.entries, self.read, self.reads_input = node, entries, read, reads_input
        self.numbers = np.arange(entries.size).reshape(entries.shape)
        if numbers is not None:
            self.numbers = np.broadcast_to(numbers, entries.shape)
        self.out = rows.value(len(entries), len(entries))
        self.places = self.out.first + places

    def reads(self) -> Indices:
        return np.zeros(0, np.int64) if self.reads_input else self.entries[self.entries >= 0]

    def effective(self, forms: Forms) -> tuple[Floats, Floats]:
        factors, shifts = self.read(None if self.node is None else forms[self.node])
        flat = np.append(factors.reshape(-1), 0.0).astype(np.float32)
        shift = np.broadcast_to(shifts.reshape(-1), (len(self.entries),))
        return flat, shift.astype(np.float32)

    def forward(self, rows: Rows) -> None:
        order = np.argsort(self.places)
        bias = rows.biases
        rows.biases += self.out.rows
        shifts = np.arange(len(order))
        self.biases.append((bias + self.places - self.out.first, shifts))
        finish = RELU if self.out.relu else PLAIN
        self._emit(
            rows, self.places[order], self.entries[order], self.numbers[order],
            bias=bias - self.out.first, start=FROM_BIAS, finish=finish,
        )  # fmt: skip
        self.finish(rows)

    def backward(self, rows: Rows) -> None:
        if not self.reads().size:
            return
        read, readers, which = inverse(self.places, self.entries)
        start, finish = rows.begin_gradient(read)
        shift = self.out.gradient - self.out.first
        sources = np.where(readers >= 0, readers + shift, -1)
        numbers = np.where(which >= 0, self.numbers.reshape(-1)[which], 0)
        into = rows.gradient_rows(read)
        order = np.argsort(into)
        self._emit(
            rows, into[order], sources[order], numbers[order], bias=0, start=start, finish=finish
        )

    def _emit(
        self,
        rows: Rows,
        places: Indices,
        sources: Indices,
        numbers: Indices,
        *,
        bias: int,
        start: int,
        finish: int,
    ) -> None:
        block, weight = len(rows.tables.blocks), rows.tables.weights
        index: list[Indices] = []
        for first, last in runs(places, sources):
            taps = []
            for term in np.flatnonzero(sources[first] >= 0):
                taps.append((int(sources[first, term]), weight, last - first))
                index.append(numbers[first:last, term])
                weight += last - first
            place = int(places[first])
            rows.tables.apart(place, taps, bias + place if start == FROM_BIAS else 0)
        if index:
            self.weights.append(rows.tables.reserve(np.concatenate(index)))
        rows.step(SUM, block, start, finish, reads_input=self.reads_input and start == FROM_BIAS)


class LargestOf(Operation):
    """Entry ``k`` is the largest (or least) of the rows ``entries[k]``."""

    def __init__(self, rows: Rows, entries: Indices, places: Indices, sign: int) -> None:
        super().__init__()
        self.entries, self.sign = entries, sign
        self.out = rows.value(len(entries), len(entries))
        self.places = self.out.first + places
        self.winners = rows.reserve(len(entries))

    def reads(self) -> Indices:
        return self.entries[self.entries >= 0]

    def effective(self, forms: Forms) -> tuple[Floats, Floats]:
        return np.zeros(1, np.float32), np.zeros(0, np.float32)

    def forward(self, rows: Rows) -> None:
        order = np.argsort(self.places)
        places, sources = self.places[order], self.entries[order]
        block = len(rows.tables.blocks)
        for first, last in runs(places, sources):
            taps = [
                (int(sources[first, term]), int(term), last - first)
                for term in np.flatnonzero(sources[first] >= 0)
            ]
            winner = self.winners + int(places[first]) - self.out.first
            rows.tables.apart(int(places[first]), taps, winner)
        rows.step(LARGEST, block, 0, int(self.sign < 0))

    def backward(self, rows: Rows) -> None:
        read, readers, which = inverse(self.places, self.entries)
        start, finish = rows.begin_gradient(read)
        shift = self.out.gradient - self.out.first
        terms = np.where(which >= 0, which % self.entries.shape[1], -1)
        into = rows.gradient_rows(read)
        order = np.argsort(into)
        into, readers, terms = into[order], readers[order], terms[order]
        block = len(rows.tables.blocks)
        for first, last in runs(into, readers, terms):
            taps = [
                (int(readers[first, r]) + shift, int(terms[first, r]), last - first)
                for r in np.flatnonzero(readers[first] >= 0)
            ]
            rows.tables.apart(int(into[first]), taps, self.winners - self.out.gradient)
        rows.step(CHOSEN, block, start, finish)
