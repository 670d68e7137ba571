"""A convolution and the max pooling of its outputs as one operation: see ``pooled.py``."""

from __future__ import annotations

import numpy as np

from qll.kernels.graph_operations import Tiles, contiguous_height
from qll.kernels.graph_rows import Indices, Rows
from qll.kernels.steps import PICKED, PICKED_ROWS, POOL

MOST = 4  # outputs of which one is kept


class PooledTiles(Tiles):
    """Of each of ``cells`` (pooled pixels, outputs of the convolution) the largest."""

    def __init__(self, rows: Rows, tiles: Tiles, cells: Indices) -> None:
        self.cells = cells
        super().__init__(
            rows, tiles.number, tiles.given, tiles.taps,
            channels=tiles.channels, groups=1, order=tiles.order, last_axis=False,
        )  # fmt: skip
        self.absorbed = tiles.absorbed
        if tiles.activation is not None and tiles.activation_node is not None:
            self.activate(tiles.activation_node, tiles.activation)
        self.winners = rows.reserve(self.out.rows)
        inside = int((self.taps[cells] >= 0).sum())
        self.multiplications = inside * self.channels * self.taken

    @property
    def pixels(self) -> int:
        return len(self.cells)

    def reads(self) -> Indices:
        seen = self.taps[self.cells]
        read = self.source[:, np.unique(seen[seen >= 0])]
        return read[read >= 0]

    def forward(self, rows: Rows) -> None:
        packing, bias = self._pack_forward(rows)
        (part,) = self._parts()
        block = len(rows.tables.blocks)
        for place, pixels in enumerate(self.cells.tolist()):
            for b in range(self.stride // self.height):
                for pixel in pixels:
                    self._blocks(rows, pixel, part, packing, bias, place, only=b)
        rows.step(
            POOL,
            block,
            self.winners - self.out.first,
            2 * self.cells.shape[1] + int(self.out.relu),
            reads_input=self.reads_input,
        )
        self.finish(rows)

    def backward(self, rows: Rows) -> None:
        places, number = self._destinations(rows)
        taken = len(places)
        height = contiguous_height(places, taken, rows.tallest)
        height = height if height == rows.tallest else 1
        readers = self._readers(places.shape[1])
        # Cells by which kernel entries they see a pixel; in the order in which the pixels that
        # most cells see meet them, so that the weights of neighbouring cells lie in runs.
        kinds: dict[tuple[int, ...], int] = {}
        for cells in sorted(readers, key=len, reverse=True):
            for seen in cells.values():
                kinds.setdefault(tuple(seen), len(kinds))
        entries, own = self.taps.shape[1], self.channels
        nothing = own * self.taken * entries
        index = np.append(
            self._index().transpose(1, 0, 2), np.full((1, own, entries), nothing), axis=0
        )
        packed = np.full((taken, own, len(kinds), MOST), nothing)
        for by_winner, kind in kinds.items():
            for winner, entry in enumerate(by_winner):
                if entry >= 0:
                    packed[:, :, kind, winner] = index[number, :, entry]
        packed = packed.reshape(taken // height, height, own, len(kinds), MOST)
        rows.tables.weights += -rows.tables.weights % MOST  # four are loaded at once
        packing = rows.tables.reserve(packed.transpose(0, 3, 2, 1, 4).copy())
        self.weights.append(packing)
        start, finish = rows.begin_gradient(self.reads())
        table = rows.gradient_rows(places).tolist()
        block, a_weight = len(rows.tables.blocks), MOST * height
        for tap, cells in enumerate(readers):
            for b in range(taken // height) if cells else ():
                row = table[b * height][tap]
                if row < 0:
                    continue
                found = [
                    (
                        self.out.gradient + cell * self.stride,
                        packing.first + (b * len(kinds) + kinds[tuple(seen)]) * own * a_weight,
                        own,
                    )
                    for cell, seen in cells.items()
                ]
                rows.tables.block(row, found, a_weight, self.winners - self.out.gradient)
        rows.step(PICKED_ROWS if height == 1 else PICKED, block, start, finish)

    def _readers(self, pixels: int) -> list[dict[int, list[int]]]:
        """Of each pixel that is read, the cells that see it, and by which entry of the kernel each
        of their outputs does."""
        found: list[dict[int, list[int]]] = [{} for _ in range(pixels)]
        for cell, outputs in enumerate(self.cells.tolist()):
            for winner, output in enumerate(outputs):
                for entry, tap in enumerate(self.windows[output]):
                    if tap >= 0:
                        found[tap].setdefault(cell, [-1] * MOST)[winner] = entry
        return found


def pooled_cells(tiles: Tiles, rows: Indices, tallest: int) -> Indices | None:
    """The outputs of a convolution, by pixels, of which ``rows`` (entries, terms) take the largest;
    None where they are not cells that the kernels take: up to four that no other has, whole
    channels in order, in tiles of full height."""
    if tiles.groups != 1 or tiles.last_axis or tiles.height != tallest or (rows < 0).any():
        return None
    terms, channels = rows.shape[1], tiles.channels
    if not 2 <= terms <= MOST or len(rows) % channels:
        return None
    places = (rows - tiles.out.first).reshape(channels, -1, terms)
    cells: Indices = places[0] // tiles.stride
    whole = cells * tiles.stride + np.arange(channels)[:, None, None]
    alone = len(np.unique(cells)) == cells.size
    return cells if alone and np.array_equal(places, whole) else None
