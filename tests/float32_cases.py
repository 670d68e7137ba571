"""Small random networks and what float32 makes of them, for tests of the float32 arithmetic."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from torch import nn

from qll.networks import Network, load
from qll.networks.orders import Order, replay

BIG = 2.0**24  # x + BIG loses all of a small x in float32


def linear(weight: Any, bias: Any) -> nn.Linear:
    layer = nn.Linear(len(weight[0]), len(weight))
    layer.weight.data = torch.tensor(weight, dtype=torch.float32)
    layer.bias.data = torch.tensor(bias, dtype=torch.float32)
    return layer


def losing() -> nn.Sequential:
    """``((x + 2^24) - 2^24) - x``: 0, but minus x in float32 for x below 1."""
    return nn.Sequential(
        linear([[1.0], [1.0]], [BIG, 0.0]), nn.ReLU(),
        linear([[1.0, 0.0], [0.0, 1.0]], [-BIG, 0.0]), nn.ReLU(),
        linear([[1.0, -1.0]], [0.0]),
    )  # fmt: skip


def growing() -> nn.Sequential:
    """``x + 2^24``: more than 2^24, but not in float32 for x below 1."""
    return nn.Sequential(linear([[1.0]], [BIG]), nn.ReLU(), linear([[1.0]], [0.0]))


def random_network(rng: np.random.Generator) -> tuple[Network, nn.Sequential]:
    """One to three hidden layers, some of weights that cancel, at sizes that float32 feels."""
    widths = [int(rng.integers(1, 5)), *rng.integers(1, 7, size=rng.integers(1, 4)), 2]
    scale = float(rng.choice([1.0, 30.0, 1e4, 1e-20]))
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        weight = rng.normal(size=(after, before)) * float(rng.choice([1.0, 1.0, 100.0]))
        weight[rng.random(weight.shape) < 0.2] = 0.0
        if rng.random() < 0.3:
            weight = np.sign(weight)
        bias = rng.normal(size=after) * scale * (rng.random(after) < 0.8)
        layers += [linear(weight.tolist(), bias.tolist())]
        kind = rng.random()
        layers += [
            nn.LeakyReLU(0.1) if kind < 0.15 else nn.Hardtanh() if kind < 0.25 else nn.ReLU()
        ]
    model = nn.Sequential(*layers[:-1])
    return load(model, input_shape=(widths[0],)), model


def random_order(rng: np.random.Generator) -> Order:
    return Order(
        str(rng.choice(["forward", "backward", "pairwise", "random"])),
        fused=bool(rng.random() < 0.5),
        bias_first=bool(rng.random() < 0.5),
        seed=int(rng.integers(1 << 30)),
    )


def evaluations(
    network: Network, point: Any, rng: np.random.Generator, count: int
) -> list[np.ndarray]:
    """Outputs at a float32 point in ``count`` orders and by ONNX Runtime, as float64."""
    answers = [replay(network.program, point, random_order(rng)) for _ in range(count)]
    answers.append(np.asarray(network.runtime(np.asarray(point)[None]))[0])
    return [np.asarray(a, dtype=np.float64).reshape(-1) for a in answers]
