"""Differentiable bounds of torch modules over boxes: interval arithmetic, and CROWN on top of it.

For training on bounds. Affine runs that end in few outputs are folded to one matrix first, which is
tighter than bounding them layer by layer; the last linear layer is not bounded at all but composed
with whatever affine function of the outputs is asked for (differences of logits, say).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from qll.bounds.boxes import Box, output_box, seen
from qll.bounds.carried import lower_bounds
from qll.errors import NetworkError
from qll.kernels.intervals import folded_intervals
from qll.kernels.recognise import (
    AffineLayer,
    Convolution,
    Dense,
    Rectifier,
    Scale,
    recognise,
)

Ends = tuple[Tensor, Tensor]
BoundKind = Literal["interval", "crown"]

# An affine run with at most this many outputs is folded to a dense matrix.
_FOLD_OUTPUTS = 256
# Up to this many rows of all patterns together, one product with all of them is faster than one
# small product for each sample.
_ALL_ROWS = 1024


@dataclass(frozen=True, eq=False)
class _Run:
    """Consecutive affine layers between two ReLUs."""

    layers: tuple[AffineLayer, ...]

    @property
    def out_size(self) -> int:
        return math.prod(self.layers[-1].out_shape)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer.forward(x)
        return x

    def adjoint(self, g: Tensor) -> Tensor:
        for layer in reversed(self.layers):
            g = layer.adjoint(g)
        return g

    def matrix(self) -> tuple[Tensor, Tensor]:
        """``(weight (out, in), bias (out,))`` of the run, differentiable in its parameters."""
        like = _example(self.layers)
        seed = torch.eye(self.out_size, device=like.device, dtype=like.dtype)
        weight = self.adjoint(seed.reshape(-1, *self.layers[-1].out_shape)).flatten(1)
        bias = self.forward(like.new_zeros(1, *self.layers[0].in_shape)).flatten()
        return weight, bias

    def interval(self, middle: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
        """Middle and radius of the image of a box."""
        if self.out_size <= _FOLD_OUTPUTS and len(self.layers) > 1:
            weight, bias = self.matrix()
            shape = (-1, *self.layers[-1].out_shape)
            centre = middle.flatten(1) @ weight.t() + bias
            return centre.reshape(shape), (radius.flatten(1) @ weight.abs().t()).reshape(shape)
        for layer in self.layers:
            middle, radius = layer.forward(middle), _absolute(layer, radius)
        return middle, radius


def _example(layers: tuple[AffineLayer, ...]) -> Tensor:
    for layer in layers:
        if isinstance(layer, Dense | Convolution):
            return layer.module.weight if isinstance(layer, Dense) else layer.weight()
        if isinstance(layer, Scale):
            return layer.scale_and_shift()[0]
    return torch.zeros(())


def _absolute(layer: AffineLayer, radius: Tensor) -> Tensor:
    """The radius through the absolute values of the layer's weights."""
    match layer:
        case Dense():
            return radius @ layer.module.weight.abs().t()
        case Convolution():
            return torch.nn.functional.conv2d(
                radius, layer.weight().abs().to(radius), None, layer.stride, layer.padding,
                layer.dilation, layer.groups,
            )  # fmt: skip
        case Scale():
            scale = layer.scale_and_shift()[0].abs()
            return radius * scale.reshape(1, -1, *(1,) * (radius.dim() - 2))
        case _:
            return layer.forward(radius)  # a reshape


@dataclass(frozen=True, eq=False)
class ModuleBounds:
    """Bounds of a module over one box for each sample; see ``module_bounds``.

    ``boxes`` are the ends before each ReLU (intervals need the last alone), ``inputs`` those of the
    input, and ``runs`` the affine runs between them, the last of which gives the outputs.
    """

    runs: tuple[_Run, ...]
    inputs: Ends
    boxes: tuple[Ends, ...]
    kind: BoundKind

    @property
    def outputs(self) -> int:
        return self.runs[-1].out_size

    @property
    def sources(self) -> tuple[str, ...]:
        return ("y",)

    @property
    def input_shape(self) -> None:
        return None

    @property
    def zeros(self) -> Tensor:
        return self.inputs[0].new_zeros(len(self.inputs[0]))

    def affine(self, rows: Tensor, constant: Tensor, pick: Tensor | None) -> Ends:
        """Bounds ``(n, batch)`` of ``rows @ y + constant``, ``rows`` (patterns, n, outputs)."""
        weight, bias = self.runs[-1].matrix()
        composed = rows @ weight  # (patterns, n, width of the last hidden layer)
        offset = constant + rows @ bias
        if self.kind == "crown" and self.boxes:
            return self._crown(composed, offset, pick)
        low, high = self._last_box()
        return _box_ends((low + high) / 2, (high - low) / 2, composed, offset, pick)

    def outputs_box(self) -> Ends:
        """Bounds ``(batch, outputs)`` of the outputs themselves."""
        eye = torch.eye(self.outputs, device=self.zeros.device, dtype=self.zeros.dtype)
        low, high = self.affine(eye[None], eye.new_zeros(1, self.outputs), None)
        return low.t(), high.t()

    def _last_box(self) -> Ends:
        if not self.boxes:
            return self.inputs[0].flatten(1), self.inputs[1].flatten(1)
        low, high = self.boxes[-1]
        return torch.relu(low).flatten(1), torch.relu(high).flatten(1)

    def _crown(self, composed: Tensor, offset: Tensor, pick: Tensor | None) -> Ends:
        """Linear bounds carried back to the input, one for each row and sample."""
        batch = len(self.zeros)
        pick = (
            torch.zeros(batch, dtype=torch.long, device=composed.device) if pick is None else pick
        )
        rows, constants = composed[pick], offset[pick]  # (batch, n, width), (batch, n)
        ends = []
        for sign in (1.0, -1.0):  # the upper end is minus the lower end of the negated row
            ends.append(sign * self._lower(sign * rows, sign * constants).t())
        return ends[0], ends[1]

    def _lower(self, rows: Tensor, constant: Tensor) -> Tensor:
        batch, count = rows.shape[:2]
        for k in range(len(self.boxes) - 1, -1, -1):
            low, high = (end.flatten(1).unsqueeze(1) for end in self.boxes[k])
            unstable = (low < 0) & (high > 0)
            width = torch.where(unstable, high - low, torch.ones_like(low))
            # A bound that is no number says nothing: it must not pass for a neuron that is off.
            off = torch.where(high <= 0, 0.0, torch.nan)
            chord = torch.where(unstable, high / width, torch.where(low >= 0, 1.0, off))
            # The slope below is a choice: 1 where the positive side is larger. It is held fixed.
            slope = torch.where(unstable, (high > -low).to(low.dtype), chord).detach()
            falling = rows.clamp(max=0.0)
            constant = constant - (falling * torch.where(unstable, chord * low, 0.0)).sum(-1)
            back = rows.clamp(min=0.0) * slope + falling * chord
            run = self.runs[k]
            shape = (batch * count, *run.layers[-1].out_shape)
            flat = back.reshape(shape)
            zero = run.forward(back.new_zeros(1, *run.layers[0].in_shape)).flatten()
            constant = constant + back @ zero
            rows = run.adjoint(flat).reshape(batch, count, -1)
        low, high = (end.flatten(1).unsqueeze(1) for end in self.inputs)
        middle, radius = (low + high) / 2, (high - low) / 2
        return constant + (rows * middle).sum(-1) - (rows.abs() * radius).sum(-1)


@dataclass(frozen=True, eq=False)
class BoxBounds:
    """Interval bounds of any module; what ``ModuleBounds`` is to a chain."""

    box: Box

    @property
    def outputs(self) -> int:
        return self.box.shape[1]

    @property
    def sources(self) -> tuple[str, ...]:
        return ("y",)

    @property
    def input_shape(self) -> None:
        return None

    @property
    def zeros(self) -> Tensor:
        return self.box.lower.new_zeros(len(self.box))

    def affine(self, rows: Tensor, constant: Tensor, pick: Tensor | None) -> Ends:
        """Bounds ``(n, batch)`` of ``rows @ y + constant``, ``rows`` (patterns, n, outputs)."""
        box = self.box
        if box.linear is not None and box.linear[0].ndim == 2:
            box, weight, bias = box.linear
            constant = constant if bias is None else constant + rows @ bias
            rows = rows @ weight
        return _box_ends(box.middle, box.radius, rows, constant, pick)

    def outputs_box(self) -> Ends:
        """Bounds ``(batch, outputs)`` of the outputs themselves."""
        return self.box.lower, self.box.upper


@dataclass(frozen=True, eq=False)
class CarriedBounds(BoxBounds):
    """Linear bounds of any module, or intervals where these are tighter; ``ends`` are those before
    its curved steps."""

    model: nn.Module
    inputs: Ends
    ends: list[Ends]

    def affine(self, rows: Tensor, constant: Tensor, pick: Tensor | None) -> Ends:
        least, most = super().affine(rows, constant, pick)
        zero = torch.zeros(len(self.zeros), dtype=torch.long, device=rows.device)
        pick = zero if pick is None else pick
        chosen, shift = rows[pick], constant[pick]  # (batch, n, outputs), (batch, n)
        found = []
        for sign in (1.0, -1.0):  # the upper end is minus the lower end of the negated row
            bound = lower_bounds(self.model, self.inputs, self.ends, sign * chosen, sign * shift)
            found.append(sign * bound.t())
        return torch.maximum(least, found[0]), torch.minimum(most, found[1])

    def outputs_box(self) -> Ends:
        eye = torch.eye(self.outputs, device=self.zeros.device, dtype=self.zeros.dtype)
        low, high = self.affine(eye[None], eye.new_zeros(1, self.outputs), None)
        return low.t(), high.t()


def _box_ends(
    middle: Tensor, radius: Tensor, rows: Tensor, constant: Tensor, pick: Tensor | None
) -> Ends:
    """Ends ``(n, batch)`` of affine functions of a box ``(batch, width)``."""
    if rows.shape[0] == 1:
        centre = middle @ rows[0].t() + constant[0]
        spread = radius @ rows[0].abs().t()
    else:
        if pick is None:
            raise TypeError("rows for several label patterns need each sample's pattern")
        centre = _picked(middle, rows, pick) + constant[pick]
        spread = _picked(radius, rows.abs(), pick)
    return (centre - spread).t(), (centre + spread).t()


def _picked(values: Tensor, rows: Tensor, pick: Tensor) -> Tensor:
    """``(batch, n)``: each sample's ``values`` by the rows of its pattern."""
    patterns, count, width = rows.shape
    if patterns * count > _ALL_ROWS:
        return torch.einsum("bw,bnw->bn", values, rows[pick])
    every = (values @ rows.reshape(-1, width).t()).reshape(-1, patterns, count)
    return every.take_along_dim(pick[:, None, None], 1)[:, 0]


def affine_runs(model: nn.Module, shape: tuple[int, ...]) -> tuple[_Run, ...] | None:
    """The affine runs of a chain, with a ReLU between each and the next; None for another graph."""
    pieces = recognise(model, shape, compiled=False)
    return None if pieces is None else tuple(_runs(pieces))


def _runs(pieces: Sequence[AffineLayer | Rectifier]) -> list[_Run]:
    runs: list[_Run] = []
    layers: list[AffineLayer] = []
    for piece in pieces:
        if isinstance(piece, Rectifier):
            runs.append(_Run(tuple(layers)))
            layers = []
        else:
            layers.append(piece)
    runs.append(_Run(tuple(layers)))
    if not all(run.layers for run in runs):
        raise NetworkError(
            "this network has two ReLUs in a row, or ends in one",
            expected="an affine layer before and after every ReLU",
            found="a ReLU without one",
            fix="remove the redundant ReLU",
        )
    return runs


def module_bounds(
    model: nn.Module, lower: Tensor, upper: Tensor, *, kind: BoundKind = "interval"
) -> ModuleBounds | BoxBounds:
    """Bounds of ``model`` over the boxes between ``lower`` and ``upper``, ``(batch, *input)``.

    Differentiable in the model's parameters and in the boxes. Chains of affine layers and ReLUs are
    bounded in folded layers, any other module by running it (`qll.bounds.boxes`, and for linear
    bounds `qll.bounds.carried`).
    """
    pieces = recognise(model, tuple(lower.shape[1:]), compiled=False)
    if pieces is None:
        with seen() as before:
            box = output_box(model, lower, upper)
        if box.ndim != 2:
            raise NetworkError(
                "the outputs are not a vector",
                expected="a batch of vectors",
                found=f"shape {tuple(box.shape)}",
                fix="flatten the output",
            )
        if kind == "interval":
            return BoxBounds(box)
        return CarriedBounds(box, model, (lower, upper), before)
    runs = _runs(pieces)
    if kind == "interval":
        ends = folded_intervals(model, lower, upper)
        if ends is not None:
            return ModuleBounds(tuple(runs), (lower, upper), (ends,), kind)
    boxes: list[Ends] = []
    middle, radius = (lower + upper) / 2, (upper - lower) / 2
    for run in runs[:-1]:
        middle, radius = run.interval(middle, radius)
        boxes.append((middle - radius, middle + radius))
        low, high = (torch.relu(end) for end in boxes[-1])
        middle, radius = (low + high) / 2, (high - low) / 2
    return ModuleBounds(tuple(runs), (lower, upper), tuple(boxes), kind)
