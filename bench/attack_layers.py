"""The compiled attack against torch's on networks that are no ReLU chains, in CPU seconds a batch.

    python bench/attack_layers.py [--quick] [--json OUT]

One row a network: a training step of ``qll.PropertyLoss`` (attack, loss and backward pass) and the
attack alone, each with the engine ``compiled`` and with ``autograd`` (restarts in one batch), turn
about in this process, one thread; medians. ``gap`` is the difference of the mean attacked losses
relative to their size, at equal starting points. *published* is the attack of the published recipe,
restarts one after the other, as in bench/published_recipe.py: against it the attack on ReLU chains
is about twenty times as fast, and the goal for other layers is half of that.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from published_recipe import PlainRecipe, robustness
from torch import Tensor, nn

import qll
from qll.attacks.apgd import AutoPGD
from qll.logics import logic

BATCH, STEPS, RESTARTS = 64, 20, 2


class Residual(nn.Module):
    """Two blocks of ``channels`` with batch norm, a pooling between them: a small CIFAR network."""

    def __init__(self, channels: int, size: int) -> None:
        super().__init__()

        def layer(taken: int) -> nn.Module:
            return nn.Sequential(nn.Conv2d(taken, channels, 3, padding=1), nn.BatchNorm2d(channels))

        self.first = layer(3)
        self.blocks = nn.ModuleList([layer(channels) for _ in range(4)])
        self.last = nn.Linear(channels * (size // 4) ** 2, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        for one, two in ((self.blocks[0], self.blocks[1]), (self.blocks[2], self.blocks[3])):
            h = torch.relu(two(torch.relu(one(h))) + h)
            h = nn.functional.max_pool2d(h, 2)
        return self.last(h.flatten(1))


def pooled(activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), activation(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), activation(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip


def strided(activation: Callable[[], nn.Module]) -> nn.Module:
    """The paper's network with another activation."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1), activation(),
        nn.Conv2d(4, 8, 3, stride=2, padding=1), nn.Flatten(),
        nn.Linear(392, 16), activation(), nn.Linear(16, 10),
    )  # fmt: skip


def controller(activation: Callable[[], nn.Module]) -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 64), activation(), nn.Linear(64, 64), activation(), nn.Linear(64, 10)
    )


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "residual, 8 channels, 16x16": (lambda: Residual(8, 16), (3, 16, 16)),
    "residual, 8 channels, 32x32": (lambda: Residual(8, 32), (3, 32, 32)),
    "max-pool CNN, 28x28": (pooled, (1, 28, 28)),
    "the paper's, ReLU": (lambda: strided(nn.ReLU), (1, 28, 28)),
    "the paper's, LeakyReLU": (lambda: strided(nn.LeakyReLU), (1, 28, 28)),
    "the paper's, Sigmoid": (lambda: strided(nn.Sigmoid), (1, 28, 28)),
    "Tanh, 6-64-64-10": (lambda: controller(nn.Tanh), (6,)),
    "GELU, 6-64-64-10": (lambda: controller(nn.GELU), (6,)),
    "Sigmoid, 6-64-64-10": (lambda: controller(nn.Sigmoid), (6,)),
    "LeakyReLU, 6-64-64-10": (lambda: controller(nn.LeakyReLU), (6,)),
}
QUICK = (
    "residual, 8 channels, 16x16", "max-pool CNN, 28x28", "the paper's, ReLU",
    "the paper's, LeakyReLU", "the paper's, Sigmoid", "Tanh, 6-64-64-10",
)  # fmt: skip
ENGINES = ("compiled", "autograd")


def timed(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def measure(name: str, rounds: int) -> dict[str, float | str]:
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    model = make()
    x, labels = torch.rand(BATCH, *shape), torch.arange(BATCH) % 10
    model(x)
    prop = qll.load("classification-robustness", epsilon=0.05)
    search = AutoPGD(steps=STEPS, restarts=RESTARTS)
    losses = {
        engine: qll.PropertyLoss(prop, logic="qll:5", attack=search, engine=engine)
        for engine in ENGINES
    }

    def step(engine: str) -> None:
        losses[engine](model.train(), x, labels).backward()

    def attack(engine: str) -> Tensor:
        return search(model.eval(), prop, x, labels, seed=1, engine=engine).losses

    plain = PlainRecipe(model, robustness(logic("qll:5")), 0.05, STEPS, RESTARTS, False, None)
    found: dict[str, list[float]] = {}
    reached = {engine: float(attack(engine).mean()) for engine in ENGINES}
    step("compiled")
    for _ in range(rounds):
        for engine in ENGINES:
            found.setdefault(f"step {engine}", []).append(timed(lambda e=engine: step(e)))
            found.setdefault(f"attack {engine}", []).append(timed(lambda e=engine: attack(e)))
        model.eval()
        found.setdefault("attack published", []).append(timed(lambda: plain.attack(x, labels)))
    row: dict[str, float | str] = {"network": name}
    row |= {key: statistics.median(values) for key, values in found.items()}
    row["step ratio"] = row["step autograd"] / row["step compiled"]  # type: ignore[operator]
    row["attack ratio"] = row["attack autograd"] / row["attack compiled"]  # type: ignore[operator]
    row["published ratio"] = row["attack published"] / row["attack compiled"]  # type: ignore[operator]
    row["gap"] = (reached["compiled"] - reached["autograd"]) / (1 + abs(reached["autograd"]))
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in QUICK if args.quick else NETWORKS:
        row = measure(name, 2 if args.quick else 5)
        rows.append(row)
        print(
            f"{name:28}  step {row['step compiled']:.3f} s, torch {row['step autograd']:.3f} s: "
            f"{row['step ratio']:.1f} times; attack {row['attack ratio']:.1f} times, "
            f"the published one {row['published ratio']:.1f} times; "
            f"gap {row['gap']:+.1e}",
            flush=True,
        )
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
