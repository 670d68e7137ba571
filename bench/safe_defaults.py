"""Does a user's loop with ``PropertyLoss`` keep its accuracy? Every shipped property is tried.

    python bench/safe_defaults.py [--quick] [--json OUT] [--data-dir FOLDER] [--seeds 0,1]
                                  [--only REGEX] [--optimisers REGEX]

Each cell trains one small network and prints PAcc and CSec (AutoPGD of 20 steps) on test data: with
the prediction's loss alone; with the property as the paper has it (margin rewarded without limit);
with the default; and with the default asking for some margin. The attack of the loop has three
steps and no restart. A last line for each loss says how far PAcc fell below prediction alone.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import qll
from qll.attacks import attack
from qll.data.source import load as load_data
from qll.networks.models import Normalize
from qll.prediction import correct_predictions, prediction_loss
from qll.properties import names

ATTACK = "apgd:3,restarts=0"
JUDGED = 500  # test points that are attacked

Optimiser = Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]
OPTIMISERS: dict[str, Optimiser] = {
    "SGD 0.05": lambda p: torch.optim.SGD(p, lr=0.05),
    "SGD 0.2": lambda p: torch.optim.SGD(p, lr=0.2),
    "momentum 0.01": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "momentum 0.05": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "Adam 1e-3": lambda p: torch.optim.Adam(p, lr=1e-3),
    "Adam 5e-3": lambda p: torch.optim.Adam(p, lr=5e-3),
    "AdamW 1e-3": lambda p: torch.optim.AdamW(p, lr=1e-3),
}
PREDICTION = "prediction"
LOSSES: dict[str, dict[str, Any]] = {
    "paper": {"floor": None, "learned": 0.0},
    "default": {},
    "floor -0.5": {"floor": -0.5},
}


@dataclass(frozen=True)
class Case:
    """What a property is tried on."""

    data: str
    parameters: dict[str, float] = field(default_factory=dict)
    batch: int = 128
    epochs: int = 3


DICE = Case("dice-rendered", batch=16, epochs=8)
CASES = {
    "classification-robustness": Case("mnist", {"epsilon": 0.05}),
    "strong-classification-robustness": Case("mnist", {"epsilon": 0.05}),
    "standard-robustness": Case("mnist", {"epsilon": 0.05}),
    "output-bounds": Case("mnist", {"epsilon": 0.05}),
    "clothing-footwear": Case("fashion", {"epsilon": 0.05}),
    "group-similarity": Case("fashion", {"epsilon": 0.05}),
    "not-both": DICE,
    "exactly-one": DICE,
    "label-robustness": DICE,
    # with an atom for each input and output: a property of few inputs
    "lipschitz-robustness": Case("rows"),
    "monotonicity": Case("rows"),
}


@dataclass(frozen=True, eq=False)
class Split:
    x: Tensor
    labels: Tensor
    test_x: Tensor
    test_labels: Tensor
    task: str


def load(name: str, folder: str | None, count: int) -> Split:
    test = count // 3
    if name == "rows":
        return rows(count, test)
    return pictures(name, folder, count // 5 if "dice" in name else count, test)


def pictures(name: str, folder: str | None, train: int, test: int) -> Split:
    options = {"count_train": train, "count_test": test} if name == "dice-rendered" else {}
    data = load_data(name, None if options else folder, **options)
    return Split(*data.train.batch(slice(0, train)), *data.test.batch(slice(0, test)), data.task)


def rows(train: int, test: int) -> Split:
    """Four numbers, two classes; class 0 is likelier where input 0 is larger."""
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(train + test, 4, generator=draw)
    score = 3 * x[:, 0] - 2 * x[:, 1] + 2 * torch.sin(6 * x[:, 2]) * x[:, 3] - 0.7
    labels = (torch.rand(len(x), generator=draw) > torch.sigmoid(4 * score)).long()
    return Split(x[:train], labels[:train], x[train:], labels[train:], "single-label")


def network(split: Split) -> nn.Module:
    """A small network of the split's shape with PyTorch's own initialisation."""
    outputs = 6 if split.task == "multi-label" else int(split.labels.max()) + 1
    if split.x.dim() == 2:
        return nn.Sequential(nn.Linear(split.x.shape[1], 32), nn.ReLU(), nn.Linear(32, outputs))
    features = nn.Sequential(
        Normalize(split.x.mean((0, 2, 3)).tolist(), split.x.std((0, 2, 3)).tolist()),
        nn.Conv2d(split.x.shape[1], 8, 5, stride=2), nn.ReLU(),
        nn.Conv2d(8, 16, 5, stride=2), nn.ReLU(), nn.Flatten(),
    )  # fmt: skip
    width = features(split.x[:1]).shape[1]
    return nn.Sequential(*features, nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, outputs))


def train(
    split: Split, case: Case, prop: qll.Property, optimiser: str, name: str, seed: int
) -> dict[str, float | str]:
    """PAcc and CSec of one network after the last epoch; ``name`` is that of the loss."""
    torch.manual_seed(seed)
    model = network(split)
    step = OPTIMISERS[optimiser](model.parameters())
    own = None
    if name != PREDICTION:
        own = qll.PropertyLoss(prop, attack=ATTACK, task=split.task, **LOSSES[name])
    for _ in range(case.epochs):
        for chosen in torch.randperm(len(split.x)).split(case.batch):
            x, labels = split.x[chosen], split.labels[chosen]
            if own is None:
                loss = prediction_loss(model(x), labels, split.task)
            else:
                loss = own(model, x, labels)
            step.zero_grad()
            loss.backward()
            step.step()
    with torch.no_grad():
        good, total = correct_predictions(model(split.test_x), split.test_labels, split.task)
    x, labels = split.test_x[:JUDGED], split.test_labels[:JUDGED]
    found = attack("apgd:20,restarts=0")(model, prop, x, labels)
    return {"pacc": good / total, "csec": float((~found.falsified).float().mean())}


def shown(cell: dict[str, float | str]) -> str:
    if "stopped" in cell:
        return f"stopped ({cell['stopped']})"
    return f"{100 * cell['pacc']:.1f} / {100 * cell['csec']:.1f}"


def lost(rows: list[dict[str, Any]], loss: str) -> list[float]:
    """Points of PAcc below prediction alone, of every row; a run that stopped has lost them all."""
    return [
        100 * (row["cells"][PREDICTION]["pacc"] - row["cells"][loss].get("pacc", 0.0))
        for row in rows
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer images and optimisers")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--only", default="", help="properties whose name matches")
    parser.add_argument("--optimisers", default="", help="those whose name matches")
    parser.add_argument("--seeds", default="0")
    arguments = parser.parse_args()
    shared = os.environ.get("QLL_SHARED")
    folder = arguments.data_dir or (f"{shared}/data" if shared else None)
    if differ := set(names()) ^ set(CASES):
        raise SystemExit(f"CASES and the shipped properties differ: {', '.join(sorted(differ))}")
    torch.set_num_threads(1)  # small batches: a second thread only waits
    count = 3000 if arguments.quick else 6000
    tried = ["momentum 0.05", "Adam 1e-3"] if arguments.quick else list(OPTIMISERS)
    optimisers = [name for name in tried if re.search(arguments.optimisers, name)]
    splits: dict[str, Split] = {}
    found: list[dict[str, Any]] = []
    for name in (n for n in CASES if re.search(arguments.only, n)):
        case = CASES[name]
        if case.data not in splits:
            splits[case.data] = load(case.data, folder, count)
        split = splits[case.data]
        shape = {"outputs": 2, "inputs": (4,)} if case.data == "rows" else {}
        prop = qll.load(name, **shape, **case.parameters)
        print(f"{name} ({case.data}); PAcc / CSec in %", flush=True)
        for optimiser in optimisers:
            for seed in map(int, arguments.seeds.split(",")):
                begun = time.perf_counter()
                cells = {}
                for loss in (PREDICTION, *LOSSES):
                    try:
                        cells[loss] = train(split, case, prop, optimiser, loss, seed)
                    except qll.QllError as error:
                        cells[loss] = {"stopped": error.what}
                named = {"property": name, "data": case.data, "optimiser": optimiser, "seed": seed}
                found.append({**named, "cells": cells})
                line = "  ".join(f"{loss} {shown(cell)}" for loss, cell in cells.items())
                print(f"  {optimiser:14} {line}  ({time.perf_counter() - begun:.0f} s)", flush=True)
    for loss in LOSSES:
        gaps = lost(found, loss)
        mean, bad = statistics.fmean(gaps), sum(gap > 5 for gap in gaps)
        print(
            f"{loss}: PAcc below prediction alone by {mean:.1f} points on average, "
            f"{max(gaps):.1f} at most; by more than 5 in {bad} of {len(gaps)} cells"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
