"""Runs of affine layers, cut where the number of multiplications is least.

A convolution alone keeps its structure, several layers together are folded into one dense map. A
layer that scales and shifts (normalisation) joins its neighbour; since it comes before zero
padding, its shift is no constant near the border, and so every output row has its own bias.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from qll.kernels.recognise import (
    AffineLayer,
    Convolution,
    Dense,
    Rectifier,
    Reshape,
    Scale,
    Shape,
    recognise,
)

_memo: ContextVar[dict[Any, tuple[Tensor, Tensor]] | None] = ContextVar("folded", default=None)


@contextmanager
def folded_once() -> Iterator[None]:
    """Inside, passes of one network share its folded weights and their part of the graph: a
    training step has several passes and folding costs as much as one of them. For one call of
    ``backward`` (those before it keep the graph)."""
    token = _memo.set({})
    try:
        yield
    finally:
        _memo.reset(token)


@dataclass(eq=False)
class FusedLayers:
    """Consecutive affine layers that run as one forward and one backward step."""

    layers: list[AffineLayer]
    relu: bool

    @property
    def core(self) -> Convolution | None:
        """The convolution whose structure is kept, or None for a dense map."""
        weighted = [x for x in self.layers if isinstance(x, Convolution | Dense)]
        if len(weighted) == 1 and isinstance(weighted[0], Convolution):
            return weighted[0]
        return None

    @property
    def in_size(self) -> int:
        return prod(self.layers[0].in_shape)

    @property
    def out_size(self) -> int:
        return prod(self.layers[-1].out_shape)

    def weights(self) -> tuple[Tensor, Tensor]:
        """The convolution's kernel or the dense matrix, and the bias of every output."""
        memo = _memo.get()
        if memo is None:
            return self._fold()
        key = (*map(_state, self.layers), torch.is_grad_enabled())
        if key not in memo:
            memo[key] = self._fold()
        return memo[key]

    def _fold(self) -> tuple[Tensor, Tensor]:
        return self.matrix() if self.core is None else self.kernel(), self.bias()

    def bias(self) -> Tensor:
        value = torch.zeros(1, *self.layers[0].in_shape)
        for layer in self.layers:
            value = layer.forward(value)
        return value.reshape(-1)

    def matrix(self) -> Tensor:
        """(outputs, inputs), by running the adjoint on the rows of the last layer."""
        last = self.layers[-1]
        rest = self.layers[:-1]
        if isinstance(last, Dense):
            rows = last.module.weight
        else:
            rows = last.adjoint(torch.eye(self.out_size).reshape(-1, *last.out_shape))
        for layer in reversed(rest):
            rows = layer.adjoint(rows)
        return rows.reshape(self.out_size, -1)

    def kernel(self) -> Tensor:
        """The convolution's weights with the scales of its neighbours folded in."""
        core = self.core
        if core is None:
            raise TypeError("a dense span has no convolution kernel")
        weight = core.weight()
        before = True
        for layer in self.layers:
            if layer is core:
                before = False
            elif isinstance(layer, Scale):
                scale = layer.scale_and_shift()[0]
                if before:
                    by_group = scale.reshape(core.groups, -1).repeat_interleave(
                        core.out_channels // core.groups, 0
                    )
                    weight = weight * by_group[:, :, None, None]
                else:
                    weight = weight * scale[:, None, None, None]
        return weight


def _state(layer: AffineLayer) -> tuple[Any, ...]:
    """What the weights of a layer depend on, down to whether they get gradients."""
    module = getattr(layer, "module", None)
    tensors = () if module is None else (*module.parameters(), *module.buffers())
    states = tuple((id(t), t._version, t.requires_grad) for t in tensors)
    return type(layer), id(module), layer.in_shape, states


def multiplications(layers: list[AffineLayer]) -> int:
    span = FusedLayers(layers, relu=False)
    core = span.core
    if core is None:
        return span.in_size * span.out_size
    taps = prod(core.kernel) * core.in_shape[0] // core.groups
    return prod(core.out_shape) * taps


def cut(layers: list[AffineLayer]) -> list[list[AffineLayer]]:
    """The cheapest way to cut an affine run into spans (a scale or reshape never stands alone)."""
    count = len(layers)
    best: list[tuple[float, int]] = [(0.0, 0)]
    for end in range(1, count + 1):
        options = []
        for start in range(end):
            part = layers[start:end]
            weighted = any(isinstance(x, Convolution | Dense) for x in part)
            # A scale behind a reshape no longer matches the convolution's channels one by one.
            kept = not _is_scaled_after_reshape(part)
            if (weighted or (start == 0 and end == count)) and kept:
                options.append((best[start][0] + multiplications(part), start))
        best.append(min(options, default=(float("inf"), 0)))
    cuts = [count]
    while cuts[-1] > 0:
        cuts.append(best[cuts[-1]][1])
    return [layers[a:b] for a, b in pairwise(reversed(cuts))]


def _is_scaled_after_reshape(part: list[AffineLayer]) -> bool:
    if FusedLayers(part, relu=False).core is None:
        return False
    reshaped = False
    for layer in part:
        reshaped = reshaped or isinstance(layer, Reshape)
        if reshaped and isinstance(layer, Scale):
            return True
    return False


def spans_of(module: nn.Module, input_shape: Shape) -> list[FusedLayers] | None:
    """The spans of a module that is a chain of known layers; None for any other."""
    pieces = recognise(module, input_shape)
    if pieces is None:
        return None
    spans: list[FusedLayers] = []
    run: list[AffineLayer] = []
    for piece in [*pieces, None]:
        if isinstance(piece, AffineLayer):
            run.append(piece)
            continue
        if not run:  # two ReLUs in a row, a ReLU on the input, or a network that ends in one
            return None
        spans += [FusedLayers(part, relu=False) for part in cut(run)]
        spans[-1].relu = isinstance(piece, Rectifier)
        run = []
    return spans
