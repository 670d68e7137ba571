"""Linear bounds of any torch module, by torch's own backward pass (CROWN, Zhang et al. 2018).

A lower bound of ``row . y`` is carried back from the outputs: through an affine step by its
adjoint, which is what autograd does to a gradient, and through an activation by one of two lines,
depending on the sign of what arrives. So the module is run once more, on zeros, with every
activation replaced by a function whose value is 0 and whose backward pass takes the lines. Run so,
the input of an activation is the sum of the biases before it: the constants of the bound are read
off there.

The ends of the intervals that the lines are made for come from a run on boxes
(`qll.bounds.boxes`); both runs call the same functions in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from qll.bounds.boxes import CURVES, RULES, Ends, on, slopes_by_channel, unknown
from qll.bounds.composed import Root, layer_norm, matrix_product, softmax
from qll.networks.activations import RELU, Activation
from qll.networks.activations.square import SQUARE
from qll.networks.torch_reader import evaluation_mode
from qll.networks.windows import Window

_PRODUCTS = (torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__)
_QUOTIENTS = (torch.div, Tensor.div, Tensor.__truediv__)
_MATRICES = (torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm)
_EXTREMA = {torch.maximum: 1.0, torch.minimum: -1.0}
_POOLS = (functional.max_pool1d, functional.max_pool2d, torch.max_pool1d, torch.max_pool2d)
# What intervals know and linear bounds do not.
_REFUSED = (functional.adaptive_max_pool1d, functional.adaptive_max_pool2d)
# What a module may ask of a tensor beside running it through layers.
_QUESTIONS = ("__get__", "size", "dim", "__len__", "__getitem__", "numel")


@dataclass(eq=False)
class _Run:
    """Ends still to come, and the constants that the backward pass has collected."""

    ends: Iterator[Ends]
    repeats: int
    constants: list[Tensor]

    def next(self) -> Ends:
        low, high = next(self.ends)
        return _repeat(low, self.repeats), _repeat(high, self.repeats)


def _repeat(t: Tensor, times: int) -> Tensor:
    return t.repeat_interleave(times, 0)


class Carried(Tensor):
    """A tensor through which a linear bound is carried back."""

    run: _Run

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        given = [a for a in _flat(args) if isinstance(a, Carried)]
        run = given[0].run
        if function in CURVES:
            return _wrap(_curved(run, args[0], CURVES[function](*args[1:], **kwargs)), run)
        if function in _EXTREMA:
            return _wrap(_extremum(run, args[0], args[1], _EXTREMA[function]), run)
        if function in (functional.prelu, torch.prelu):
            return _wrap(_prelu(run, args[0], args[1]), run)
        if function in _POOLS:
            return _wrap(_pooled(run, args[0], *args[1:], **kwargs), run)
        if RULES.get(function) in (softmax, layer_norm):
            return RULES[function](*args, **kwargs)
        if function in _PRODUCTS and len(given) > 1:
            return _wrap(_product(run, args[0], args[1]), run)
        if function in _MATRICES and len(given) > 1:
            return matrix_product(args[0], args[1])
        if function in _QUOTIENTS and isinstance(args[1], Carried):
            return args[0] * torch.reciprocal(args[1])
        if function == Tensor.__rtruediv__:
            return torch.reciprocal(args[0]) * args[1]
        name = getattr(function, "__name__", str(function))
        known = function in RULES or name in _QUESTIONS
        if not known or function in _REFUSED:
            raise unknown(name)
        with torch._C.DisableTorchFunctionSubclass():
            return _wrap(function(*args, **kwargs), run)


def _flat(args: Any) -> Iterator[Any]:
    for a in args:
        if isinstance(a, tuple | list):
            yield from _flat(a)
        else:
            yield a


def _wrap(found: Any, run: _Run) -> Any:
    if not isinstance(found, Tensor):
        return found
    carried = found.as_subclass(Carried)
    carried.run = run
    return carried


def _plain(t: Any) -> Any:
    return t.as_subclass(Tensor) if isinstance(t, Tensor) else t


def _curved(run: _Run, z: Tensor, found: Activation | Root) -> Tensor:
    low, high = run.next()
    activation = on(found, low)
    alpha = activation.start(low, high)
    lower, upper = activation.lower_line(low, high, alpha), activation.upper_line(low, high, alpha)
    return _relaxed(run, z, lower, upper)


def _relaxed(run: _Run, z: Tensor, lower: Ends, upper: Ends) -> Tensor:
    found: Tensor = _Lines.apply(_plain(z), *lower, *upper, run.constants)  # type: ignore[no-untyped-call]
    return found


def _product(run: _Run, a: Tensor, b: Tensor) -> Tensor:
    """``a b = m b + n a - m n + (a - m) (b - n)`` with the middles m and n of the intervals: the
    last term is at most the product of their radii, which makes of it the mean of McCormick's
    (1976) two planes on each side."""
    if a is b:
        return _curved(run, a, SQUARE)
    (low, high), (low2, high2) = run.next(), run.next()
    middle, middle2 = (low + high) / 2, (low2 + high2) / 2
    room = (high - low) * (high2 - low2) / 4
    zero = torch.zeros_like(room)
    left, right = _plain(a), _plain(b)
    # Of the input, though by a factor of 0: else the backward pass would not come by.
    rest = _relaxed(run, (left + right) * 0.0, (zero, -room), (zero, room))
    found: Tensor = middle * right + middle2 * left - middle * middle2 + rest
    return found


def _extremum(run: _Run, a: Any, b: Any, sign: float) -> Tensor:
    """``max(a, b) = b + relu(a - b)``, ``min(a, b) = b - relu(b - a)``."""
    low, high = run.next()
    low, high = (low, high) if sign > 0 else (-high, -low)
    alpha = RELU.start(low, high)
    lines = RELU.lower_line(low, high, alpha), RELU.upper_line(low, high, alpha)
    gap = _plain(a) - _plain(b) if sign > 0 else _plain(b) - _plain(a)
    found: Tensor = _plain(b) + sign * _relaxed(run, gap, *lines)
    return found


def _prelu(run: _Run, z: Tensor, weight: Tensor) -> Tensor:
    """Convex where the slope is at most 1: above it the chord, below it one of its two pieces."""
    low, high = run.next()
    slope = slopes_by_channel(weight, z.dim()).expand_as(low)
    open_ = (low < 0) & (high > 0)
    width = torch.where(open_, high - low, torch.ones_like(low))
    one, zero = torch.ones_like(low), torch.zeros_like(low)
    stable = torch.where(low >= 0, one, slope)
    chord = torch.where(open_, (high - slope * low) / width, stable)
    shift = torch.where(open_, high - chord * high, zero)
    piece = torch.where(open_, torch.where(high > -low, one, slope), stable)
    convex = slope <= 1
    lower = torch.where(convex, piece, chord), torch.where(convex, zero, shift)
    upper = torch.where(convex, chord, piece), torch.where(convex, shift, zero)
    return _relaxed(run, z, lower, upper)


def _pooled(
    run: _Run,
    z: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor:
    """The entry whose lower end is largest lies below the maximum. Above it lies that entry plus
    how far another may rise above its lower end, or the largest upper end: what is nearer in the
    middle."""
    low, high = run.next()
    flat = z.dim() == 3  # one spatial axis: the second of two
    if flat:
        low, high = low.unsqueeze(2), high.unsqueeze(2)
    kernel = _pair(kernel_size, 1 if flat else None)
    steps = kernel if stride is None else _pair(stride, 1 if flat else None)
    edge, spread = _pair(padding, 0 if flat else None), _pair(dilation, 1 if flat else None)
    floor, pick = functional.max_pool2d(
        low, kernel, steps, edge, spread, ceil_mode, return_indices=True
    )
    place = pick.flatten(2)
    taps = Window(kernel, steps, edge, edge, spread, ceil_mode).taps(tuple(high.shape[2:]))
    rest = _largest_other(high.flatten(2), place, torch.from_numpy(taps)).reshape(floor.shape)
    own = high.flatten(2).gather(2, place).reshape(floor.shape)
    top = torch.maximum(rest, own)
    lift = (rest - floor).clamp(min=0.0)
    tied = (floor + own) / 2 + lift < top
    one, zero = torch.ones_like(floor), torch.zeros_like(floor)
    slope = torch.where(tied, one, zero)
    shift = torch.where(tied, lift, top)
    chosen = _plain(z).flatten(2).gather(2, place).reshape(floor.shape)
    found = _relaxed(run, chosen, (one, zero), (slope, shift))
    return found.squeeze(2) if flat else found


def _pair(value: Any, before: int | None) -> tuple[int, int]:
    """A setting by axis; ``before`` is that of the first axis where the layer has only one."""
    if before is not None:
        return before, value if isinstance(value, int) else value[0]
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def _largest_other(ends: Tensor, place: Tensor, taps: Tensor) -> Tensor:
    """The largest of the ends (batch, channels, pixels) in each window, ``place`` left out."""
    found = torch.full(place.shape, -torch.inf, dtype=ends.dtype, device=ends.device)
    for column in taps.to(ends.device).t():
        index = column.clamp(min=0).expand(*place.shape[:2], -1)
        usable = (column >= 0) & (index != place)
        found = torch.where(usable, torch.maximum(found, ends.gather(2, index)), found)
    return found


class _Lines(torch.autograd.Function):
    """0; back goes what arrives times a line's slope, by its sign."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, *rest: Any) -> Tensor:
        *lines, constants = rest
        ctx.constants = constants
        ctx.save_for_backward(z, *lines)
        return torch.zeros_like(z)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        z, slope, shift, upper_slope, upper_shift = ctx.saved_tensors
        rising, falling = g.clamp(min=0.0), g.clamp(max=0.0)
        back = rising * slope + falling * upper_slope
        constant = rising * shift + falling * upper_shift + back * z
        ctx.constants.append(constant.flatten(1).sum(1))
        return back, None, None, None, None, None


def lower_bounds(
    model: nn.Module, inputs: Ends, ends: list[Ends], rows: Tensor, constant: Tensor
) -> Tensor:
    """(batch, n) lower bounds of ``rows . y + constant``, ``rows`` (batch, n, outputs), over the
    boxes ``inputs``; ``ends`` are those before the curved steps. Differentiable."""
    batch, count, outputs = rows.shape
    run = _Run(iter(ends), count, [])
    kept = torch.is_grad_enabled()
    with torch.enable_grad(), evaluation_mode(model):
        zeros = inputs[0].new_zeros(batch * count, *inputs[0].shape[1:]).requires_grad_()
        y = _plain(model(_wrap(zeros * 1.0, run)))
        asked = (rows.reshape(batch * count, outputs) * y).sum(1)
        (slope,) = (
            torch.autograd.grad(asked.sum(), zeros, create_graph=kept, allow_unused=True)
            if asked.requires_grad
            else (None,)
        )
        total: Tensor = asked + sum(run.constants, torch.zeros_like(asked)) + constant.reshape(-1)
        if slope is not None:
            low, high = (_repeat(end, count) for end in inputs)
            middle, radius = (low + high) / 2, (high - low) / 2
            total = total + (slope * middle - slope.abs() * radius).flatten(1).sum(1)
    total = total if kept else total.detach()
    return total.reshape(batch, count)
