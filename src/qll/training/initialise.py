"""Starts for certified training: the first convolution as thresholds, or ramps, of single pixels.

Bounds over boxes of radius epsilon reward a first layer that reads one pixel at a time and ignores
what the perturbation alone can cause: ``relu(s (x - t))`` with ``t`` near epsilon is exactly 0 on
the whole box around a black pixel. Certified training converges to such taps by itself, and leaves
channels and hidden units dead on the way; starting there spares them.

A ramp takes two channels a pixel, ``relu(s (x - low)) - relu(s (x - high))``: it is constant on the
boxes of dark and of bright pixels alike, and costs half of the pixels. Training alone does not
keep it (the upper channels die), so ``hold_first_convolution`` does.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qll.errors import InputError, NetworkError
from qll.training.config import TrainConfig

# Away from exact ties between channels, small against the taps.
_NOISE = 0.02


def initialise(model: nn.Module, config: TrainConfig) -> None:
    """The start that a run names; the network's own, where it names none."""
    epsilon = config.own_epsilon() or 0.0
    if config.initialisation == "threshold":
        threshold_first_convolution(model, epsilon)
    if config.initialisation == "ramp":
        ramp = config.ramp
        low = config.reach * epsilon if ramp.low is None else ramp.low
        ramp_first_convolution(model, low, 1 - low if ramp.high is None else ramp.high)
        if ramp.bias:
            open_hidden_units(model, ramp.bias)
        if ramp.held:
            hold_first_convolution(model)


@torch.no_grad()
def threshold_first_convolution(model: nn.Module, epsilon: float) -> None:
    """Rewrite the first convolution; draws its noise from torch's global stream.

    Channels share out the pixels of a stride's cell and, where there are more channels than
    pixels, thresholds between epsilon and 1 - epsilon.
    """
    first = _First(model)
    cell = first.cell()
    channels = first.convolution.out_channels
    rounds = -(-channels // len(cell))
    low = min(epsilon, 0.45)
    thresholds = [low + (1 - 2 * low) * (k // len(cell)) / rounds for k in range(channels)]
    slopes = [1.0 / (1.0 - threshold) for threshold in thresholds]
    taps = [cell[k % len(cell)] for k in range(channels)]
    noise = _NOISE * torch.randn_like(first.convolution.weight)
    first.write(taps, thresholds, slopes, noise)


@torch.no_grad()
def ramp_first_convolution(model: nn.Module, low: float, high: float) -> None:
    """Channel k rises from ``low``, channel k + half of them from ``high``, on the same pixel; the
    layer after it starts by taking their difference, which goes from 0 to 1."""
    if not 0 <= low < high <= 1:
        raise InputError(
            "the ramp of the first convolution is out of range",
            expected="0 <= low < high <= 1, in the input's units",
            found=f"low {low:g}, high {high:g}",
            fix="pass --set ramp.low=0.2 --set ramp.high=0.8, say",
        )
    first = _First(model)
    channels = first.convolution.out_channels
    half = channels // 2
    cell = first.diagonal_first()
    if channels % 2:
        raise NetworkError(
            "ramps take the channels of the first convolution in pairs",
            expected="an even number of channels",
            found=f"{channels}",
            fix="pass --set initialisation=threshold",
        )
    taps = [cell[k % half % len(cell)] for k in range(channels)]
    thresholds = [low] * half + [high] * half
    nothing = torch.zeros_like(first.convolution.weight)
    first.write(taps, thresholds, [1.0 / (high - low)] * channels, nothing)
    weight = first.weight_after()
    weight[:, half:] = -weight[:, :half]


@torch.no_grad()
def open_hidden_units(model: nn.Module, bias: float) -> None:
    """Add to the bias of the units before the second ReLU. With weights as small as they start, 1
    keeps every unit open on all of the data for the first steps, whose gradients reach them all."""
    before: nn.Module | None = None
    rectified = 0
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            before = module
        elif isinstance(module, nn.ReLU):
            rectified += 1
            if rectified == 2 and isinstance(before, nn.Conv2d | nn.Linear):
                if before.bias is not None:
                    before.bias.add_(bias)
                    return
                break
    raise NetworkError(
        "there are no hidden units behind the ramps whose bias could be set",
        expected="a second nn.ReLU behind a layer with a bias",
        found=f"{type(model).__name__} with {rectified} nn.ReLU",
        fix="leave --set ramp.bias out",
    )


def hold_first_convolution(model: nn.Module) -> None:
    """Its weights stay as they are."""
    for parameter in _First(model).convolution.parameters():
        parameter.requires_grad_(False)


class _First:
    """The first convolution of a network, what normalises its input, and the layer after it."""

    def __init__(self, model: nn.Module) -> None:
        self.mean: Tensor | None = None
        self.std: Tensor | None = None
        self.after: nn.Module | None = None
        found: nn.Conv2d | None = None
        for module in model.modules():
            mean, std = getattr(module, "mean", None), getattr(module, "std", None)
            if found is None and isinstance(mean, Tensor) and isinstance(std, Tensor):
                self.mean, self.std = mean, std
            if isinstance(module, nn.Conv2d | nn.Linear):
                if found is not None:
                    self.after = module
                    break
                if isinstance(module, nn.Linear):
                    break
                found = module
        if found is None:
            raise NetworkError(
                "this network has no convolution to initialise by thresholds",
                expected="a network whose first layer is nn.Conv2d",
                found=type(model).__name__,
                fix="pass --set initialisation=default",
            )
        if found.bias is None:
            raise NetworkError(
                "thresholds need a first convolution with a bias",
                expected="nn.Conv2d(..., bias=True)",
                found="bias=False",
                fix="pass --set initialisation=default, or give the convolution a bias",
            )
        self.convolution, self.bias = found, found.bias

    def cell(self) -> list[tuple[int, int, int]]:
        """Taps (colour, row, column) that read each pixel once, over all places of the kernel."""
        conv = self.convolution
        height, width = conv.kernel_size
        top, left = height // 2, width // 2
        return [
            (c, min(top + i, height - 1), min(left + j, width - 1))
            for c in range(conv.in_channels // conv.groups)
            for i in range(conv.stride[0])
            for j in range(conv.stride[1])
        ]

    def diagonal_first(self) -> list[tuple[int, int, int]]:
        """The same, pixels of the diagonal before the others: where there are channels for some
        only, these lie farthest apart."""
        cell = self.cell()
        _, top, left = cell[0]
        return sorted(cell, key=lambda tap: tap[1] - top != tap[2] - left)

    def write(
        self,
        taps: list[tuple[int, int, int]],
        thresholds: list[float],
        slopes: list[float],
        noise: Tensor,
    ) -> None:
        conv = self.convolution
        weight, bias = noise.clone(), torch.zeros(conv.out_channels)
        for k, ((c, i, j), threshold, slope) in enumerate(
            zip(taps, thresholds, slopes, strict=True)
        ):
            deviation, centre = 1.0, 0.0  # of the normalisation before it
            if self.std is not None and self.mean is not None:
                deviation = float(self.std[c % len(self.std)])
                centre = float(self.mean[c % len(self.mean)])
            weight[k, c, i, j] = slope * deviation
            bias[k] = slope * (centre - threshold)
        conv.weight.copy_(weight)
        self.bias.copy_(bias)

    def weight_after(self) -> Tensor:
        """The next layer's weights, by output and by this layer's channel."""
        after, channels = self.after, self.convolution.out_channels
        if isinstance(after, nn.Conv2d) and after.groups == 1:
            return after.weight
        if isinstance(after, nn.Linear) and after.in_features % channels == 0:
            return after.weight.view(after.out_features, channels, -1)
        raise NetworkError(
            "ramps need a layer after the first convolution that takes the channels' differences",
            expected="nn.Conv2d without groups, or nn.Linear over all of its outputs",
            found="nothing" if after is None else type(after).__name__,
            fix="pass --set initialisation=threshold",
        )
