"""A network read from ONNX as a torch module whose weights can be trained.

A chain of convolutions, linear layers, ReLUs, normalisations and reshapes keeps its layers; any
other chain of affine maps and ReLUs becomes linear layers over the flattened input. The module
computes the same function of raw input, float rounding apart, which is checked.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from qll.errors import NetworkError
from qll.networks.activations import RELU
from qll.networks.layers import Apply, BatchNorm, Convolution, Linear, Reshape
from qll.networks.matrices import Array, Matrix, is_sparse
from qll.networks.models import Normalize
from qll.networks.network import Network

# Weights of the dense form: beyond this a convolution is better written as one.
MOST_WEIGHTS = 20_000_000
_PROBES = 16
_TOLERANCE = 1e-3


def to_module(network: Network) -> nn.Sequential:
    """The network as a module on ``(batch, *input_shape)``, in float32."""
    module = _by_layers(network)
    if module is None or not _agrees(module, network):
        module = _dense(network)
    if not _agrees(module, network):
        raise NetworkError(
            "this network cannot be trained further in float32",
            where=network.name,
            expected="the same outputs as the file's, up to rounding",
            found="others",
            fix="check the scale of its weights",
        )
    return module


def _by_layers(network: Network) -> nn.Sequential | None:
    """Layer by layer, if the graph is a chain of layers that torch has."""
    layers: list[nn.Module] = []
    if network.normalisation is not None:
        mean, std = network.normalisation
        by_channel = _by_channel(mean, std, network.input_shape)
        if by_channel is None:
            return None
        layers.append(Normalize(*by_channel))
    if any(node.sources != (place,) for place, node in enumerate(network.graph.nodes)):
        return None
    if network.graph.output != len(network.graph.nodes):
        return None
    for node in network.graph.nodes:
        match node.layer:
            case Linear(weight, bias):
                linear = nn.Linear(weight.shape[1], weight.shape[0])
                _fill(linear, weight, bias)
                layers.append(linear)
            case Convolution(weight, bias, window, groups) if weight.ndim == 4:
                if window.before != window.after:
                    return None
                conv = nn.Conv2d(
                    weight.shape[1] * groups,
                    weight.shape[0],
                    _pair(window.kernel),
                    _pair(window.stride),
                    _pair(window.before),
                    _pair(window.dilation),
                    groups,
                )
                _fill(conv, weight, bias)
                layers.append(conv)
            case Reshape(target) if len(target) == 2:
                layers.append(nn.Flatten())
            case Reshape(target):
                layers.append(nn.Unflatten(1, tuple(target[1:])))
            case BatchNorm(gain, shift, mean, variance, epsilon) if (gain > 0).all():
                deviation = np.sqrt(variance + epsilon) / gain
                layers.append(Normalize((mean - shift * deviation).tolist(), deviation.tolist()))
            case Apply(function) if function == RELU:
                layers.append(nn.ReLU())
            case _:
                return None
    return nn.Sequential(*layers)


def _dense(network: Network) -> nn.Sequential:
    form = network.relu_form
    entries = sum(layer.width * form.widths[k] for k, layer in enumerate(form.layers))
    if not form.is_relu_chain or entries > MOST_WEIGHTS:
        raise NetworkError(
            "this network cannot be trained further",
            where=network.name,
            expected=f"a chain of affine layers and ReLUs with at most {MOST_WEIGHTS:,} weights",
            found="branches or other activations"
            if not form.is_relu_chain
            else f"{entries:,} weights",
            fix="pass the torch module that it was exported from",
        )
    layers: list[nn.Module] = [nn.Flatten()]
    for k, layer in enumerate(form.layers):
        linear = nn.Linear(form.widths[k], layer.width)
        _fill(linear, _full(layer.terms[0][1]), layer.bias)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _pair(sizes: tuple[int, ...]) -> tuple[int, int]:
    height, width = sizes
    return height, width


def _full(matrix: Matrix) -> Array:
    return np.asarray(matrix.toarray() if is_sparse(matrix) else matrix)


@torch.no_grad()
def _fill(module: nn.Linear | nn.Conv2d, weight: Array, bias: Array) -> None:
    module.weight.copy_(torch.tensor(np.asarray(weight)))
    if module.bias is not None:
        module.bias.copy_(torch.tensor(np.asarray(bias)))


def _by_channel(
    mean: Array, std: Array, shape: tuple[int, ...]
) -> tuple[list[float], list[float]] | None:
    if len(shape) < 2:
        return None
    centre, width = (values.reshape(shape[0], -1) for values in (mean, std))
    if (centre != centre[:, :1]).any() or (width != width[:, :1]).any():
        return None
    return centre[:, 0].tolist(), width[:, 0].tolist()


@torch.no_grad()
def _agrees(module: nn.Module, network: Network) -> bool:
    draw = np.random.default_rng(0)
    points = draw.uniform(-1.0, 1.0, (_PROBES, math.prod(network.input_shape)))
    wanted = network.relu_form.forward(points)
    x = torch.from_numpy(points.reshape(_PROBES, *network.input_shape)).float()
    try:
        found: Tensor = module(x)
    except RuntimeError:
        return False
    scale = max(float(np.abs(wanted).max()), 1e-6)
    return found.shape == wanted.shape and bool(
        np.abs(found.double().numpy() - wanted).max() <= _TOLERANCE * scale
    )
