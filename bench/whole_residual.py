"""A small residual network on CIFAR-sized pictures, from training to certificates.

    python bench/whole_residual.py [--quick] [--json OUT] [--epsilon E] [--steps N] [--points N]

Batch norm, a residual block and max pooling on 3x32x32 pictures of ten classes (a smooth coloured
pattern each, under noise): trained on its predictions and on classification robustness with the
compiled attack, attacked in compiled code, proved, and every verdict confirmed by the checker. CPU
seconds of one thread.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor, nn

import qll
from qll.attacks import attack
from qll.verify.verdict import Status

CLASSES, BATCH = 10, 64


class Residual(nn.Module):
    def __init__(self, channels: int = 4) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, stride=2, padding=1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(channels) for _ in range(3)])
        self.one = nn.Conv2d(channels, channels, 3, padding=1)
        self.two = nn.Conv2d(channels, channels, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.last = nn.Linear(channels * 64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.norms[0](self.first(x)))
        inner = self.norms[2](self.two(torch.relu(self.norms[1](self.one(h)))))
        return self.last(self.pool(torch.relu(inner + h)).flatten(1))


def pictures(count: int, seed: int) -> tuple[Tensor, Tensor]:
    coarse = torch.rand(CLASSES, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    patterns = nn.functional.interpolate(coarse, size=32, mode="bilinear")
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=draw)
    noise = torch.rand(count, 3, 32, 32, generator=draw) - 0.5
    return (0.2 * patterns[labels] + 0.4 + noise).clamp(0, 1), labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--epsilon", type=float, default=2 / 255)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--points", type=int, default=10)
    parser.add_argument("--timeout", type=float, default=60.0)
    options = parser.parse_args()
    if options.quick:
        options.steps, options.points = 15, 3
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Residual()
    rule = qll.load("classification-robustness", epsilon=options.epsilon)
    loss = qll.PropertyLoss(rule, logic="qll:5", attack="apgd:5,restarts=0", engine="compiled")
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    spent = {}

    def measured(name: str, start: float) -> None:
        spent[name] = time.process_time() - start

    start = time.process_time()
    for step in range(options.steps):
        optimiser.zero_grad()
        loss(model, *pictures(BATCH, 1 + step)).backward()
        optimiser.step()
    model.eval()
    measured("training", start)
    x, labels = pictures(500, 10_001)
    with torch.no_grad():
        accuracy = float((model(x).argmax(1) == labels).float().mean())
    x, labels = x[: options.points], labels[: options.points]
    start = time.process_time()
    found = attack("apgd:20")(model, rule, x, labels, engine="compiled")
    measured("attack", start)
    start = time.process_time()
    verdicts = qll.verify(rule, model, x, labels, timeout=options.timeout, certified=True)
    measured("proofs and their check", start)
    statuses = Counter(str(verdict.status) for verdict in verdicts)
    contradicted = sum(
        verdict.status is Status.VERIFIED and broken
        for verdict, broken in zip(verdicts, found.falsified.tolist(), strict=True)
    )
    print(f"accuracy {100 * accuracy:.1f} %, epsilon {options.epsilon:.4f}")
    print(f"attack: {int(found.falsified.sum())} of {len(x)} falsified; verdicts {dict(statuses)}")
    print(f"attacked points that are said to be verified: {contradicted}")
    print("CPU seconds: " + ", ".join(f"{name} {value:.1f}" for name, value in spent.items()))
    if options.json is not None:
        record = {"accuracy": accuracy, "verdicts": dict(statuses), "cpu_s": spent}
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
