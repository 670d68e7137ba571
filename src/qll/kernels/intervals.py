"""Interval bounds of a recognised network in folded layers, differentiable by torch.

The two ends of a box run through a network as one doubled input: a map with weights ``W`` becomes
``[[W+, W-], [W-, W+]]`` on ``[lower, upper]``, and the ReLU applies to both ends alike. So the
bounds are a forward pass of a network twice as wide, and the kernels of ``forward`` serve. Up to
the last hidden layer: what follows is composed with the question (``qll.bounds.modules``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional

from qll.kernels import available
from qll.kernels.chain import build_plan
from qll.kernels.forward import _MOST_WEIGHTS, FirstLayer, FirstLayerFunction, module_key
from qll.kernels.recognise import Shape
from qll.kernels.spans import FusedLayers, spans_of

Ends = tuple[Tensor, Tensor]

_known: WeakKeyDictionary[nn.Module, dict[Any, FoldedIntervals | None]] = WeakKeyDictionary()


def folded_intervals(module: nn.Module, lower: Tensor, upper: Tensor) -> Ends | None:
    """Ends (batch, width) of the last hidden layer over the boxes, up to its ReLU (which does
    nothing a second time); None where the kernels do not
    apply: the caller has a general path, of which this is a faster form."""
    plain = lower.dtype == torch.float32 and lower.device.type == "cpu" and len(lower) > 0
    if not available() or not plain or lower.requires_grad or upper.requires_grad:
        return None
    key = module_key(module, tuple(lower.shape[1:]))
    known = _known.setdefault(module, {})
    if key not in known:
        known.clear()
        known[key] = FoldedIntervals.of(module, tuple(lower.shape[1:]))
    folded = known[key]
    return None if folded is None else folded(lower, upper)


class FoldedIntervals:
    """The spans of a module up to its last ReLU, doubled."""

    def __init__(self, spans: list[FusedLayers]) -> None:
        self._spans = spans
        self._first = _doubled_first(spans[0])

    @classmethod
    def of(cls, module: nn.Module, shape: Shape) -> FoldedIntervals | None:
        spans = spans_of(module, shape)
        if spans is None or not any(span.relu for span in spans):
            return None
        last = max(k for k, span in enumerate(spans) if span.relu)
        return cls(spans[: last + 1])

    def __call__(self, lower: Tensor, upper: Tensor) -> Ends:
        value = torch.cat((lower, upper), 1)  # channels, or features
        rest = self._spans
        if self._first is not None:
            value, rest = self._first_ends(value), self._spans[1:]
        for place, span in enumerate(rest):
            value = _apply(span, value)
            if span.relu and place < len(rest) - 1:
                value = torch.relu_(value)
        half = value.shape[1] // 2
        return value[:, :half].flatten(1), value[:, half:].flatten(1)

    def _first_ends(self, value: Tensor) -> Tensor:
        span, layer = self._spans[0], self._first
        if layer is None:
            raise TypeError("this network has no first layer in kernels")
        weight, bias = span.weights()
        ends: Tensor = FirstLayerFunction.apply(  # type: ignore[no-untyped-call]
            layer, value.flatten(1), _doubled(weight), torch.cat((bias, bias))
        )
        return ends.reshape(-1, *_doubled_shape(span.layers[-1].out_shape))


def _doubled(weight: Tensor) -> Tensor:
    """``[[W+, W-], [W-, W+]]`` over outputs and inputs."""
    up, down = weight.clamp(min=0.0), weight.clamp(max=0.0)
    return torch.cat((torch.cat((up, down), 1), torch.cat((down, up), 1)), 0)


def _doubled_shape(shape: Shape) -> Shape:
    return (2 * shape[0], *shape[1:])


def _doubled_first(span: FusedLayers) -> FirstLayer | None:
    """The first convolution on both ends, by kernels; only before a hidden layer that follows."""
    core = span.core
    if core is None or not span.relu or core.groups != 1:
        return None
    if 4 * core.weight().numel() > _MOST_WEIGHTS or len(span.layers[-1].out_shape) != 3:
        return None
    outside = nn.Conv2d(
        2 * core.in_shape[0], 2 * core.out_channels, core.kernel, core.stride, core.padding,
        core.dilation, bias=True,
    )  # fmt: skip
    twin = FusedLayers(
        [replace(core, module=outside, in_shape=_doubled_shape(core.in_shape),
                 out_channels=2 * core.out_channels)],
        relu=True,
    )  # fmt: skip
    plan = build_plan([twin])
    return FirstLayer(twin, plan) if plan.rows == plan.outputs else None


def _apply(span: FusedLayers, value: Tensor) -> Tensor:
    core, (weight, bias) = span.core, span.weights()
    shape = _doubled_shape(span.layers[-1].out_shape)
    if core is None:
        result = functional.linear(value.flatten(1), _doubled(weight), torch.cat((bias, bias)))
        return result.reshape(-1, *shape)
    lower, upper = value.chunk(2, 1)
    options = (core.stride, core.padding, core.dilation, core.groups)
    shift = bias.reshape(core.out_shape)
    middle = functional.conv2d((lower + upper) / 2, weight, None, *options) + shift
    radius = functional.conv2d((upper - lower) / 2, weight.abs(), None, *options)
    return torch.cat((middle - radius, middle + radius), 1).reshape(-1, *shape)
