"""The forward pass of a recognised network with its affine runs folded, differentiable by torch.

The same function of the same parameters, float noise apart. It is for the step that changes the
weights: torch's convolutions are far from the machine's speed at a handful of channels, and most of
all in the gradient of their weights. A small first convolution runs in kernels of its own, folded
maps are one matrix product, whatever else there is stays with torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from qll.kernels import available
from qll.kernels.chain import ChainPlan, build_plan
from qll.kernels.recognise import Shape
from qll.kernels.spans import FusedLayers, spans_of
from qll.kernels.threads import in_parts
from qll.networks.hooks import is_altered

# A first convolution with more weights than this is left to torch, which is good at those.
_MOST_WEIGHTS = 512
# Modules that do something else while training.
_TWO_MODES = (nn.Dropout, nn.Dropout2d, nn.BatchNorm1d, nn.BatchNorm2d)
Floats = NDArray[np.float32]


_known: WeakKeyDictionary[nn.Module, dict[Any, FoldedForward | None]] = WeakKeyDictionary()


def training_forward(module: nn.Module, x: Tensor) -> Callable[[Tensor], Tensor]:
    """What to call on ``x`` instead of the module in a training step: its folded forward pass if
    there is one and numba is there, otherwise the module itself."""
    if not available() or _is_hooked(module):
        return module
    key = module_key(module, tuple(x.shape[1:]))
    known = _known.setdefault(module, {})
    if key not in known:
        known.clear()
        known[key] = fold_forward(module, key[0])
    return known[key] or module


def module_key(module: nn.Module, shape: Shape) -> tuple[Any, ...]:
    """What a plan depends on: a layer that was replaced, or moved to another type, needs a new
    one."""
    every = module.named_modules(remove_duplicate=False)
    parts = tuple((name, id(part), is_altered(part)) for name, part in every)
    tensors = tuple((id(p), p.dtype, p.device) for p in module.parameters())
    return shape, parts, tensors


def _is_hooked(module: nn.Module) -> bool:
    return any(
        part._forward_hooks
        or part._forward_pre_hooks
        or part._backward_hooks
        or part._backward_pre_hooks
        for part in module.modules()
    )


class FoldedForward:
    """Call it like the module; the module's parameters get their gradients."""

    def __init__(self, module: nn.Module, spans: list[FusedLayers]) -> None:
        # Weakly: this is kept under the module, and would otherwise keep it for ever.
        self._module = ref(module)
        self._spans = spans
        self._first = _first_layer(spans[0])

    def __call__(self, x: Tensor) -> Tensor:
        if x.requires_grad or x.device.type != "cpu" or x.dtype != torch.float32 or not len(x):
            return self._plainly(x)
        value, rest = x, self._spans
        if self._first is not None:
            value, rest = self._first(x), self._spans[1:]
        for span in rest:
            value = _apply(span, value)
            value = torch.relu_(value) if span.relu else value
        return value

    def _plainly(self, x: Tensor) -> Tensor:
        module = self._module()
        if module is None:
            raise RuntimeError("the module of this forward pass is gone")
        y: Tensor = module(x)
        return y


def fold_forward(module: nn.Module, input_shape: Shape) -> FoldedForward | None:
    """The folded forward pass of a chain of known layers; None for any other module, and for one
    that does something else while training."""
    if any(isinstance(part, _TWO_MODES) for part in module.modules()):
        return None
    spans = spans_of(module, input_shape)
    return None if spans is None else FoldedForward(module, spans)


def _apply(span: FusedLayers, value: Tensor) -> Tensor:
    core, (weight, bias) = span.core, span.weights()
    if core is None:
        result = functional.linear(value.flatten(1), weight, bias)
    else:
        result = functional.conv2d(
            value, weight, None, core.stride, core.padding, core.dilation, core.groups
        )
        result = result + bias.reshape(core.out_shape)
    return result.reshape(-1, *span.layers[-1].out_shape)


class FirstLayer:
    """A convolution and its ReLU by kernels: value, and gradient by weights and bias."""

    def __init__(self, span: FusedLayers, plan: ChainPlan) -> None:
        self.span, self.plan = span, plan
        self.out_places = plan.output_rows.astype(np.int32)
        self.weight_index = plan.forward_index()

    def __call__(self, x: Tensor) -> Tensor:
        shape = self.span.layers[-1].out_shape
        weight, bias = self.span.weights()
        value: Tensor = FirstLayerFunction.apply(self, x.flatten(1), weight, bias)  # type: ignore[no-untyped-call]
        return value.reshape(-1, *shape)

    def room(self) -> tuple[Floats, Floats, NDArray[np.int64]]:
        from qll.kernels.simd import LANES, aligned_floats

        lanes, rows = (aligned_floats(n * LANES) for n in (self.plan.inputs, self.plan.rows))
        return lanes, rows, np.zeros(LANES, dtype=np.int64)


def _first_layer(span: FusedLayers) -> FirstLayer | None:
    core = span.core
    if core is None or not span.relu or core.weight().numel() > _MOST_WEIGHTS:
        return None
    plan = build_plan([span])
    return FirstLayer(span, plan) if plan.rows == plan.outputs else None


class FirstLayerFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, layer: FirstLayer, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        from qll.kernels.first_layer import layer_forward

        plan = layer.plan
        plan.set_weights(0, weight.detach(), bias.detach())
        points = np.ascontiguousarray(x.detach().numpy())
        # Memory of torch, which is aligned: its products round differently on other addresses.
        result = torch.empty(len(points), plan.outputs)
        out = result.numpy()

        def work(first: int, last: int) -> None:
            step = plan.forward_steps[0]
            layer_forward(
                first, last, step, plan.arrays("forward"), points, plan.input_places,
                layer.out_places, *layer.room(), out,
            )  # fmt: skip

        in_parts(len(points), work)
        ctx.layer, ctx.points, ctx.out = layer, points, out
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, Tensor, Tensor]:
        from qll.kernels.first_layer import layer_gradient, sum_lanes
        from qll.kernels.simd import LANES, aligned_floats

        layer, points, out = ctx.layer, ctx.points, ctx.out
        plan = layer.plan
        open_only = torch.ops.aten.threshold_backward(grad.contiguous(), torch.from_numpy(out), 0.0)
        slopes = open_only.numpy()
        count = len(layer.weight_index)
        parts: dict[int, tuple[Floats, Floats]] = {}

        def work(first: int, last: int) -> None:
            spread = aligned_floats(count * LANES), aligned_floats(plan.rows * LANES)
            layer_gradient(
                first, last, plan.forward_steps[0], plan.arrays("forward"), points,
                plan.input_places, slopes, layer.out_places, *layer.room(), *spread,
            )  # fmt: skip
            parts[first] = spread

        in_parts(len(points), work)
        packed, by_row = np.zeros(count, np.float32), np.zeros(plan.rows, np.float32)
        for _, (spread_weight, spread_bias) in sorted(parts.items()):  # always in one order
            sum_lanes(spread_weight, packed)
            sum_lanes(spread_bias, by_row)
        shape = layer.span.core.weight().shape
        by_weight = np.bincount(layer.weight_index, packed, minlength=shape.numel() + 1)
        by_weight = by_weight[: shape.numel()].astype(np.float32).reshape(shape)
        by_bias = by_row[plan.output_rows]
        return None, None, torch.tensor(by_weight), torch.tensor(by_bias)
