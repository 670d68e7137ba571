"""A chain of layers as a kernel plan: steps, blocks, taps and packed weights.

Layouts: ``layers.py``. The fast form of networks without branches whose only activation is ReLU;
any other is planned by ``graph.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qll.kernels.patches import HEIGHT as PATCH_HEIGHT
from qll.kernels.patches import (
    backward_taps,
    forward_taps,
    has_patches,
    has_windows,
    patch_region,
)
from qll.kernels.plan import NetworkPlan
from qll.kernels.recognise import Convolution, Shape
from qll.kernels.spans import FusedLayers, multiplications
from qll.kernels.steps import FROM_BIAS, FROM_DESTINATION, FROM_ZERO, GATE, PATCHED, PLAIN, RELU
from qll.kernels.tables import (
    Packing,
    Placement,
    Tables,
    height_dividing,
    height_for,
    image_region,
    outputs_of,
    weight_index,
    window,
)

# A source row block of this many rows (32 KiB at 32 lanes) stays in the first-level cache while
# every output block reads it; it also bounds the length of one float32 sum.
ROWS_A_SEGMENT = 256


@dataclass(eq=False)
class ChainPlan(NetworkPlan):
    """The plan of a chain of spans."""

    _sources: list[tuple[Callable[[], Tensor], list[Packing]]] = field(default_factory=list)
    _bias_sources: list[tuple[Callable[[], Tensor], int, NDArray[np.int64]]] = field(
        default_factory=list
    )

    def refresh(self) -> None:
        with torch.no_grad():
            for span in range(len(self._sources)):
                self.set_weights(span, self._sources[span][0](), self._bias_sources[span][0]())

    def set_weights(self, span: int, weight: Tensor, bias: Tensor) -> None:
        """Pack the effective weights and bias of one span."""
        flat = np.append(weight.reshape(-1).numpy(), np.float32(0.0))
        for packing in self._sources[span][1]:
            packing.fill(self.weights, flat)
        _, first, row_of = self._bias_sources[span]
        self.biases[first + row_of] = bias.numpy()

    def forward_index(self) -> NDArray[np.int64]:
        """Which effective weight each packed weight of the first forward step is."""
        return self._sources[0][1][0].index


def build_plan(spans: list[FusedLayers]) -> ChainPlan:
    """The plan of spans, with the weights read."""
    from qll.kernels.simd import TILE, aligned_floats

    builder = _Builder(TILE)
    shape = spans[0].layers[0].in_shape
    region = builder.input_region(shape, spans[0])
    regions = [region]
    for span in spans:
        region = builder.forward(span, regions[-1], first=span is spans[0])
        regions.append(region)
    forward = builder.take_steps()
    for position in range(len(spans) - 1, -1, -1):
        gated = position > 0 and spans[position - 1].relu
        source, target = regions[position : position + 2]
        builder.backward(spans[position], source, target, gated=gated, last=position == 0)
    backward = builder.take_steps()
    order = np.empty(regions[0].rows, dtype=np.int32)
    order[regions[0].row_of] = np.arange(regions[0].rows)
    tables = builder.tables
    plan = ChainPlan(
        inputs=spans[0].in_size,
        outputs=spans[-1].out_size,
        input_order=order,
        output_row=regions[-1].first,
        output_rows=regions[-1].row_of,
        rows=builder.rows,
        forward_steps=forward,
        backward_steps=backward,
        blocks=np.array(tables.blocks, dtype=np.int32).reshape(-1),
        taps=np.array(tables.taps, dtype=np.int32).reshape(-1),
        weights=aligned_floats(tables.weights),
        biases=aligned_floats(builder.biases),
        multiplications=sum(multiplications(span.layers) for span in spans),
        _sources=[(source, packings) for source, packings in builder.sources.values()],
        _bias_sources=builder.bias_sources,
    )
    plan.refresh()
    return plan


class _Builder:
    def __init__(self, tallest: int) -> None:
        self.tallest = tallest
        self.tables = Tables()
        self.rows = 0
        self.biases = 0
        self.sources: dict[int, tuple[Callable[[], Tensor], list[Packing]]] = {}
        self.bias_sources: list[tuple[Callable[[], Tensor], int, NDArray[np.int64]]] = []

    def take_steps(self) -> NDArray[np.int64]:
        steps = np.array(self.tables.steps, dtype=np.int64)
        self.tables.steps = []
        return steps

    def _step(self, height: int, first: int, start: int, finish: int, *, reads_input: int) -> None:
        count = len(self.tables.blocks) - first
        self.tables.steps.append((height, count, first, start, finish, int(reads_input)))

    def _pack(self, span: FusedLayers, index: NDArray[np.int64]) -> int:
        source = span.kernel if span.core is not None else span.matrix
        packings = self.sources.setdefault(id(span), (source, []))[1]
        packings.append(self.tables.reserve(index))
        return packings[-1].first

    def input_region(self, shape: Shape, span: FusedLayers) -> Placement:
        if span.core is None:
            count = prod(shape)
            return Placement(0, count, np.arange(count), 0)
        if has_patches(span.core):
            return patch_region(span.core)
        return image_region(0, shape, shape[0])

    def _new_region(self, span: FusedLayers, height: int) -> Placement:
        shape = span.layers[-1].out_shape if span.core is None else span.core.out_shape
        if len(shape) == 3:
            region = image_region(self.rows, shape, -(-shape[0] // height) * height)
        else:
            rows = -(-shape[0] // height) * height
            region = Placement(self.rows, rows, np.arange(shape[0]), 0)
        self.rows += region.rows
        self.bias_sources.append((span.bias, self.biases, region.row_of))
        self.biases += region.rows
        return region

    def forward(self, span: FusedLayers, source: Placement, *, first: bool) -> Placement:
        core = span.core
        if core is None:
            height = height_for(span.layers[-1].out_shape[0], self.tallest)
        elif core.groups == 1:
            height = height_for(core.out_channels, self.tallest)
        else:
            height = height_dividing(core.out_channels // core.groups, self.tallest)
        bias = self.biases
        region = self._new_region(span, height)
        if core is None:
            self._dense_forward(span, source, region, height, bias, first=first)
        elif first and has_patches(core):
            self._patched_forward(span, core, source, region, height, bias)
        else:
            self._convolution_forward(span, core, source, region, height, bias, first=first)
        return region

    def _dense_forward(
        self,
        span: FusedLayers,
        source: Placement,
        target: Placement,
        height: int,
        bias: int,
        *,
        first: bool,
    ) -> None:
        padding = span.in_size * span.out_size
        logical = np.full((target.rows, source.rows), padding)
        logical[np.ix_(target.row_of, source.row_of)] = np.arange(padding).reshape(
            span.out_size, span.in_size
        )
        weights = self._pack(
            span, logical.reshape(-1, height, source.rows).transpose(0, 2, 1).copy()
        )
        starts = list(range(0, source.rows, ROWS_A_SEGMENT))
        for begin in starts:
            end = min(begin + ROWS_A_SEGMENT, source.rows)
            block = len(self.tables.blocks)
            for b in range(target.rows // height):
                weight = weights + (b * source.rows + begin) * height
                self.tables.block(
                    target.first + b * height,
                    [(source.first + begin, weight, end - begin)],
                    height,
                    bias + b * height,
                )
            start = FROM_BIAS if begin == 0 else FROM_DESTINATION
            finish = RELU if span.relu and begin == starts[-1] else PLAIN
            self._step(height, block, start, finish, reads_input=first)

    def _convolution_forward(
        self,
        span: FusedLayers,
        core: Convolution,
        source: Placement,
        target: Placement,
        height: int,
        bias: int,
        *,
        first: bool,
    ) -> None:
        out_channels, out_height, out_width = core.out_shape
        in_group, out_group = core.in_shape[0] // core.groups, out_channels // core.groups
        index = weight_index(core, padded_out=target.stride, padded_in=in_group)
        # (block, ky, kx, input channel, row of the tile)
        packed = index.reshape(-1, height, in_group, *core.kernel).transpose(0, 3, 4, 2, 1)
        weights = self._pack(span, packed.copy())
        a_block, a_row = prod(core.kernel) * in_group * height, core.kernel[1] * in_group * height
        block = len(self.tables.blocks)
        for y in range(out_height):
            for x in range(out_width):
                place = (y * out_width + x) * target.stride
                for b in range(target.stride // height):
                    group = min(b * height // out_group, core.groups - 1)
                    runs = []
                    for ky, iy in window(core, 0, y):
                        for kx, ix in window(core, 1, x):
                            row = (iy * core.in_shape[2] + ix) * source.stride + group * in_group
                            weight = weights + b * a_block + ky * a_row + kx * in_group * height
                            runs.append((source.first + row, weight, in_group))
                    row = place + b * height
                    self.tables.block(target.first + row, runs, height, bias + row)
        self._step(height, block, FROM_BIAS, RELU if span.relu else PLAIN, reads_input=first)

    def _patched_forward(
        self,
        span: FusedLayers,
        core: Convolution,
        source: Placement,
        target: Placement,
        height: int,
        bias: int,
    ) -> None:
        packed, reads = forward_taps(core, source, height, target.stride)
        weights = self._pack(span, packed.copy())
        block, a_block = len(self.tables.blocks), packed[0].size
        for position, inside in enumerate(reads):
            for b in range(target.stride // height):
                row, first = position * target.stride + b * height, weights + b * a_block
                runs = [(source_row, first + tap * height, 1) for source_row, tap in inside]
                self.tables.block(target.first + row, runs, height, bias + row)
        channels = core.in_shape[0]
        whole = height == PATCH_HEIGHT and has_windows(self.tables, block, channels)
        finish = RELU if span.relu else PLAIN
        self._step(height, block, FROM_BIAS, finish, reads_input=1 + channels if whole else 1)

    def backward(
        self, span: FusedLayers, source: Placement, target: Placement, *, gated: bool, last: bool
    ) -> None:
        """From the gradient at ``target`` to the one at ``source``, whose activations gate it."""
        block = len(self.tables.blocks)
        if span.core is None:
            height = self._dense_backward(span, source, target)
        elif last and has_patches(span.core):
            height = PATCHED
            self._patched_backward(span, span.core, target)
        else:
            height = self._convolution_backward(span, span.core, source, target)
        self._step(height, block, FROM_ZERO, GATE if gated else PLAIN, reads_input=False)

    def _dense_backward(self, span: FusedLayers, source: Placement, target: Placement) -> int:
        height = height_dividing(source.rows, self.tallest)
        padding = span.in_size * span.out_size
        used = int(target.row_of.max()) + 1
        logical = np.full((source.rows, used), padding)
        logical[np.ix_(source.row_of, target.row_of)] = (
            np.arange(padding).reshape(span.out_size, span.in_size).T
        )
        packed = logical.reshape(-1, height, used).transpose(0, 2, 1)
        weights = self._pack(span, packed.copy())
        for b in range(source.rows // height):
            runs = [(target.first, weights + b * used * height, used)]
            self.tables.block(source.first + b * height, runs, height, 0)
        return height

    def _convolution_backward(
        self, span: FusedLayers, core: Convolution, source: Placement, target: Placement
    ) -> int:
        in_group = core.in_shape[0] // core.groups
        out_group = core.out_channels // core.groups
        whole = source.stride if core.groups == 1 else in_group
        height = height_dividing(whole, self.tallest)
        # Taps in the order in which neighbouring outputs follow one another in memory: for each
        # residue of the stride, descending.
        order = [
            (ky, kx)
            for ry in range(core.stride[0])
            for rx in range(core.stride[1])
            for ky in range(core.kernel[0] - 1, -1, -1)
            if ky % core.stride[0] == ry
            for kx in range(core.kernel[1] - 1, -1, -1)
            if kx % core.stride[1] == rx
        ]
        position = {tap: number for number, tap in enumerate(order)}
        padded_in = source.stride if core.groups == 1 else in_group
        index = weight_index(core, padded_out=core.out_channels, padded_in=padded_in)
        # (group, output channel, input channel, tap) -> (group, block, tap, output channel, row)
        by_tap = index.reshape(core.groups, out_group, padded_in, *core.kernel)
        by_tap = np.stack([by_tap[..., ky, kx] for ky, kx in order], axis=-1)
        packed = by_tap.reshape(core.groups, out_group, -1, height, len(order))
        weights = self._pack(span, packed.transpose(0, 2, 4, 1, 3).copy())
        a_block = len(order) * out_group * height
        for y in range(core.in_shape[1]):
            for x in range(core.in_shape[2]):
                place = (y * core.in_shape[2] + x) * source.stride
                for b in range(source.stride // height):
                    group = min(b * height // in_group, core.groups - 1)
                    # Padding rows of a grouped layer belong to no group and stay zero.
                    inside = core.groups == 1 or b * height < core.in_shape[0]
                    runs = []
                    for ky, oy in outputs_of(core, 0, y) if inside else ():
                        for kx, ox in outputs_of(core, 1, x):
                            row = (oy * core.out_shape[2] + ox) * target.stride + group * out_group
                            weight = (b * a_block) + position[ky, kx] * out_group * height
                            runs.append((target.first + row, weights + weight, out_group))
                    self.tables.block(source.first + place + b * height, runs, height, 0)
        return height

    def _patched_backward(self, span: FusedLayers, core: Convolution, target: Placement) -> None:
        packed, tiles = backward_taps(core, target)
        weights = self._pack(span, packed)
        for number, taps in enumerate(tiles):
            moved = [(row, weights + weight, n) for row, weight, n in taps]
            self.tables.apart(number * PATCH_HEIGHT, moved, 0)
