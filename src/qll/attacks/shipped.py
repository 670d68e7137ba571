"""Attacks on a network as it is shipped: an ONNX file, judged as ONNX Runtime runs it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qll.attacks.base import Attack, AttackResult, worst_of
from qll.attacks.folded import Folded
from qll.attacks.problem import Engine, other_points
from qll.errors import NetworkError
from qll.logics.base import Logic
from qll.networks import Network
from qll.property import Property
from qll.regions import Region
from qll.regions.clauses import clauses, speaks_of


class Runtime(nn.Module):
    """What ONNX Runtime answers, where a module is expected; without gradients."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, batch: Tensor) -> Tensor:
        return torch.from_numpy(self.network.runtime(batch.numpy()))


class Double(nn.Module):
    """The stored weights in float64: what only the rounding of float32 violates is no violation."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, batch: Tensor) -> Tensor:
        flat = batch.double().flatten(1).numpy()
        if not self.network.relu_form.is_piecewise_linear:
            return torch.from_numpy(self.network.program.forward(flat))
        # exact, each output rounded once
        rows = [[float(v) for v in self.network.evaluate_exact(point)] for point in flat]
        return torch.tensor(rows, dtype=torch.float64).reshape(len(flat), -1)


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
    the file itself and, once more, in float64."""
    if tuple(network.input_shape) != tuple(x.shape[1:]):
        raise NetworkError(
            "the network does not take these inputs",
            where=network.name,
            expected=f"inputs of shape {tuple(network.input_shape)}",
            found=str(tuple(x.shape[1:])),
            fix="choose the data that the network was trained on",
        )
    rules = clauses(prop)
    if rules != (prop,):
        found = [
            attack_shipped(attack, network, r, x, labels, logic=logic, seed=seed, engine=engine)
            for r in rules
        ]
        return worst_of(found, [speaks_of(rule, x) for rule in rules])
    region, real = Region.of(prop, x), Runtime(network)
    model = Folded(network)
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
    falsified = inside & (margins < 0)
    rows = falsified.nonzero()[:, 0]
    if len(rows):
        exact, mine = Double(network), {name: t[rows] for name, t in points.items()}
        first = exact(x[rows]) if "y0" in prop.sources else None
        same = other_points(exact, prop, mine, x0=x[rows], y0=first)
        again = prop.margin(
            exact(mine["x"]),
            labels=None if labels is None else labels[rows],
            **{name: tensor.double() for name, tensor in same.items()},
        )
        falsified[rows] = again < 0
    return AttackResult(points, margins, losses, inside, falsified, y)
