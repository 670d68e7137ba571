"""Signed-gradient ascent that sees past the flat parts of the first activation.

Where a first layer saturates (ramps and thresholds of pixels: ``qll.training.initialise``), most
inputs have no gradient at the data point although the region reaches where they count, and an
attack by the gradient leaves them alone: it overstates robustness, and training on it underrates
what there is to defend. Here the first ReLU's derivative is replaced, in the gradient only, by its
mean slope over the region, ``(relu(u) - relu(l)) / (u - l)`` for a pre-activation from l to u: the
slope of its upper relaxation. Layers after it keep the derivative at the point. What is found is
judged on the network itself, as everywhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from qll.attacks.base import ATTACKS, Attack, check_count
from qll.attacks.problem import AttackBatch, Points
from qll.errors import RunError
from qll.kernels.recognise import Convolution
from qll.kernels.spans import FusedLayers, spans_of
from qll.kernels.starts import run_keys, uniform_numbers

# Pre-activations closer than this are one point, where the mean slope is the derivative.
_LEAST_WIDTH = 1e-6
_FEW_TAPS = 4


@ATTACKS.register("secant")
@dataclass(frozen=True)
class Secant(Attack):
    """``steps`` from the data point, from the region's whole width down to 0 along half a cosine;
    ``restarts`` more from random points. For chains of affine layers and ReLUs, and boxes."""

    steps: int = 6
    restarts: int = 0

    def __post_init__(self) -> None:
        check_count(self.steps, "steps", 0)
        check_count(self.restarts, "restarts", 0)

    def search(self, problem: AttackBatch) -> Points:
        chain = _Chain(problem, _spans(problem))
        region = problem.region
        best, values = self._ascend(chain, torch.clamp(region.x0, region.lower, region.upper))
        for run in range(self.restarts):
            point, found = self._ascend(chain, _random_start(problem, run))
            better = found > values
            best = torch.where(_by_sample(better, best), point, best)
            values = torch.where(better, found, values)
        return {"x": best}

    def _ascend(self, chain: _Chain, start: Tensor) -> tuple[Tensor, Tensor]:
        lower, upper = chain.problem.region.lower, chain.problem.region.upper
        here, best = start, start
        values, direction = chain.evaluate(start)
        for step in range(self.steps):
            size = 0.5 * (1 + math.cos(math.pi * step / self.steps))
            move = direction.sign_().mul_(upper - lower).mul_(size)
            here = torch.clamp(move.add_(here), lower, upper)
            found, direction = chain.evaluate(here)
            better = found > values
            best = torch.where(_by_sample(better, best), here, best)
            values = torch.where(better, found, values)
        return best, values


class _Chain:
    """The loss of a chain of affine runs and ReLUs, and the direction in which it rises."""

    def __init__(self, problem: AttackBatch, spans: list[FusedLayers]) -> None:
        self.problem, self.spans = problem, spans
        self.weights = [span.weights() for span in spans]
        self.taps = [
            None if span.core is None else _Taps(span.core, weight)
            for span, (weight, _) in zip(spans, self.weights, strict=True)
        ]
        self.first = next((k for k, span in enumerate(spans) if span.relu), len(spans) - 1)
        self.slopes = self._mean_slopes()

    def _mean_slopes(self) -> Tensor:
        region = self.problem.region
        middle, radius = (region.lower + region.upper) / 2, (region.upper - region.lower) / 2
        for k in range(self.first + 1):
            middle, radius = self._affine(k, middle), self._affine(k, radius, absolute=True)
        low, high = middle - radius, middle + radius
        slope = (high.relu() - low.relu()) / (high - low).clamp(min=_LEAST_WIDTH)
        return torch.where(high - low > _LEAST_WIDTH, slope, (middle > 0).to(slope))

    def evaluate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The loss at each point, and its gradient with the mean slopes."""
        value = x
        open_units: list[Tensor] = []
        for k, span in enumerate(self.spans):
            value = self._affine(k, value)
            if span.relu:
                first = k == self.first
                open_units.append(self.slopes if first else value > 0)
                value = value.relu_()
        losses, gradient = self._formula(value)
        for k in reversed(range(len(self.spans))):
            if self.spans[k].relu:
                gradient = gradient * open_units.pop()
            gradient = self._adjoint(k, gradient)
        return losses, gradient.reshape(x.shape)

    def _formula(self, y: Tensor) -> tuple[Tensor, Tensor]:
        problem = self.problem
        others = {} if problem.y0 is None else {"y0": problem.y0}
        with torch.enable_grad():
            leaf = y.detach().requires_grad_(True)
            losses = problem.prop.loss(leaf, labels=problem.labels, logic=problem.logic, **others)
            if not losses.requires_grad:  # every sample's formula is constant
                return losses, torch.zeros_like(y)
            (gradient,) = torch.autograd.grad(losses.sum(), leaf)
        return losses.detach(), gradient

    def _affine(self, k: int, value: Tensor, *, absolute: bool = False) -> Tensor:
        weight, bias = self.weights[k]
        weight = weight.abs() if absolute else weight
        taps = self.taps[k]
        if taps is None:
            result = functional.linear(value.flatten(1), weight, None if absolute else bias)
        else:
            result = taps.forward(value.reshape(-1, *taps.core.in_shape), weight)
            result = result if absolute else result.add_(bias.reshape(taps.core.out_shape))
        return result.reshape(-1, *self.spans[k].layers[-1].out_shape)

    def _adjoint(self, k: int, gradient: Tensor) -> Tensor:
        weight, taps = self.weights[k][0], self.taps[k]
        if taps is None:
            result = gradient.flatten(1) @ weight
        else:
            result = taps.adjoint(gradient.reshape(-1, *taps.core.out_shape), weight)
        return result.reshape(-1, *self.spans[k].layers[0].in_shape)


class _Taps:
    """A convolution by the places of its kernel that are not 0, where they are few: ramps and
    thresholds read a pixel each, and torch takes five times as long for the whole kernel."""

    def __init__(self, core: Convolution, weight: Tensor) -> None:
        self.core = core
        places = torch.nonzero((weight != 0).any(0)).tolist()  # (channel, row, column)
        self.places = places if core.groups == 1 and len(places) <= _FEW_TAPS else None

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        core = self.core
        if self.places is None:
            return functional.conv2d(
                x, weight, None, core.stride, core.padding, core.dilation, core.groups
            )
        padded = functional.pad(x, (core.padding[1],) * 2 + (core.padding[0],) * 2)
        read = torch.stack([padded[self._at(p)] for p in self.places], 1).flatten(2)
        return torch.matmul(self._chosen(weight), read).reshape(-1, *core.out_shape)

    def adjoint(self, gradient: Tensor, weight: Tensor) -> Tensor:
        core, (channels, height, width) = self.core, self.core.in_shape
        count = len(gradient)
        if self.places is None:
            rest = [
                core.in_shape[1 + a] + 2 * core.padding[a] - core.reach(a)
                - (core.out_shape[1 + a] - 1) * core.stride[a]
                for a in (0, 1)
            ]  # fmt: skip
            return functional.conv_transpose2d(
                gradient, weight, None, core.stride, core.padding, rest, core.groups, core.dilation
            )
        above, left = core.padding
        padded = gradient.new_zeros(count, channels, height + 2 * above, width + 2 * left)
        spread = torch.matmul(self._chosen(weight).t(), gradient.flatten(2))
        for number, place in enumerate(self.places):
            padded[self._at(place)] += spread[:, number].reshape(-1, *core.out_shape[1:])
        return padded[:, :, above : above + height, left : left + width]

    def _chosen(self, weight: Tensor) -> Tensor:
        channel, row, column = zip(*self.places, strict=True) if self.places else ((), (), ())
        return weight[:, channel, row, column]

    def _at(self, place: list[int]) -> tuple[slice | int, ...]:
        """What a place of the kernel reads of the padded input, as a picture of the outputs."""
        core, axes = self.core, []
        for axis in (0, 1):
            first = place[1 + axis] * core.dilation[axis]
            last = first + (core.out_shape[1 + axis] - 1) * core.stride[axis] + 1
            axes.append(slice(first, last, core.stride[axis]))
        return slice(None), place[0], *axes


def _spans(problem: AttackBatch) -> list[FusedLayers]:
    """The network as a chain, or an error that says what this attack is not for."""
    region = problem.region
    shaped = region.constraints or region.groups or region.allowed or region.norms
    if region.relates_two_points or region.is_image or shaped:
        raise _refusal("a region that is not a box")
    if problem.prop.sources - {"y", "y0"}:
        raise _refusal("a formula that speaks of inputs")
    if problem.engine == "compiled":
        raise _refusal("engine='compiled'")
    found = spans_of(problem.model, tuple(region.x0.shape[1:]))
    if found is None:
        raise _refusal(f"{type(problem.model).__name__}")
    return found


def _refusal(found: str) -> RunError:
    return RunError(
        "the attack by mean slopes does not take this problem",
        expected="a chain of affine layers and ReLUs in float32 on the CPU, a formula over "
        "outputs, and a box",
        found=found,
        fix="attack by the gradient: apgd instead of secant",
    )


def _random_start(problem: AttackBatch, run: int) -> Tensor:
    lower, upper = problem.region.lower, problem.region.upper
    keys = run_keys(problem.seed + run, len(lower))
    numbers = torch.from_numpy(uniform_numbers(keys, math.prod(lower.shape[1:]))).to(lower)
    return lower + numbers.reshape(lower.shape) * (upper - lower)


def _by_sample(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(-1, *(1,) * (like.dim() - 1))
