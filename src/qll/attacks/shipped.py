"""Attacks on a network as it is shipped: an ONNX file, judged as ONNX Runtime runs it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qll.attacks.base import Attack, AttackResult
from qll.attacks.folded import folded_module
from qll.attacks.problem import Engine, other_points
from qll.errors import NetworkError
from qll.logics.base import Logic
from qll.networks import Network
from qll.property import Property
from qll.regions import Region


class Runtime(nn.Module):
    """What ONNX Runtime answers, where a module is expected; without gradients."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, batch: Tensor) -> Tensor:
        return torch.from_numpy(self.network.runtime(batch.numpy()))


def attack_shipped(
    attack: Attack,
    network: Network,
    prop: Property,
    x: Tensor,
    labels: Tensor | None = None,
    *,
    logic: Logic | str = "qll:5",
    seed: int = 0,
    engine: Engine = "auto",
) -> AttackResult:
    """The search runs on the folded network, which can be differentiated; its points are judged by
    the file itself."""
    if tuple(network.input_shape) != tuple(x.shape[1:]):
        raise NetworkError(
            "the network does not take these inputs",
            where=network.name,
            expected=f"inputs of shape {tuple(network.input_shape)}",
            found=str(tuple(x.shape[1:])),
            fix="choose the data that the network was trained on",
        )
    region, real = Region.of(prop, x), Runtime(network)
    model = folded_module(network.relu_form)
    points = attack.find(
        model, prop, x, labels, logic=logic, region=region, seed=seed, engine=engine
    )
    y0 = real(x) if "y0" in prop.sources else None
    y = real(points["x"])
    others = other_points(real, prop, points, x0=x, y0=y0)
    known = {name: tensor.to(y.dtype) for name, tensor in others.items()}
    margins = prop.margin(y, labels=labels, **known)
    losses = prop.loss(y, labels=labels, logic=logic, **known)
    inside = region.contains(points)
    return AttackResult(points, margins, losses, inside, inside & (margins < 0), y)
