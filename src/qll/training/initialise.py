"""A start for certified training: the first convolution as thresholds of single pixels.

Bounds over boxes of radius epsilon reward a first layer that reads one pixel at a time and ignores
what the perturbation alone can cause: ``relu(s (x - t))`` with ``t`` near epsilon is exactly 0 on
the whole box around a black pixel. Certified training converges to such taps by itself, and leaves
channels and hidden units dead on the way; starting there spares them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qll.errors import NetworkError

# Away from exact ties between channels, small against the taps.
_NOISE = 0.02


@torch.no_grad()
def threshold_first_convolution(model: nn.Module, epsilon: float) -> None:
    """Rewrite the first convolution; draws its noise from torch's global stream.

    Channels share out the pixels of a stride's cell and, where there are more channels than
    pixels, thresholds between epsilon and 1 - epsilon.
    """
    scale: Tensor | None = None
    shift: Tensor | None = None
    for module in model.modules():
        mean, std = getattr(module, "mean", None), getattr(module, "std", None)
        if isinstance(mean, Tensor) and isinstance(std, Tensor):
            scale, shift = std, mean
        if isinstance(module, nn.Conv2d):
            return _write(module, epsilon, scale, shift)
    raise NetworkError(
        "this network has no convolution to initialise by thresholds",
        expected="a network whose first layer is nn.Conv2d",
        found=type(model).__name__,
        fix="pass --set initialisation=default",
    )


def _write(conv: nn.Conv2d, epsilon: float, std: Tensor | None, mean: Tensor | None) -> None:
    colours = conv.in_channels // conv.groups
    height, width = conv.kernel_size
    top, left = height // 2, width // 2
    cell = [
        (c, min(top + i, height - 1), min(left + j, width - 1))
        for c in range(colours)
        for i in range(conv.stride[0])
        for j in range(conv.stride[1])
    ]
    rounds = -(-conv.out_channels // len(cell))
    weight = _NOISE * torch.randn_like(conv.weight)
    bias = torch.zeros(conv.out_channels)
    for k in range(conv.out_channels):
        c, i, j = cell[k % len(cell)]
        low = min(epsilon, 0.45)
        threshold = low + (1 - 2 * low) * (k // len(cell)) / rounds
        slope = 1.0 / (1.0 - threshold)
        deviation, centre = 1.0, 0.0  # of the normalisation before it
        if std is not None and mean is not None:
            deviation, centre = float(std[c % len(std)]), float(mean[c % len(mean)])
        weight[k, c, i, j] = slope * deviation
        bias[k] = slope * (centre - threshold)
    conv.weight.copy_(weight)
    if conv.bias is not None:
        conv.bias.copy_(bias)
