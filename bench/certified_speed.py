"""A certified epoch against a plain epoch of the same network in eager torch.

    python bench/certified_speed.py [--quick] [--json OUT] [--data-dir FOLDER] [--threads N]

Both train the paper's network on the same MNIST batches in this process, turn about; a row is the
median of the steps in CPU and in wall seconds, times the steps of an epoch. Plain: forward, cross
entropy, backward and Adam in eager torch, no property. Certified: the same with the interval bound
of robustness at 0.2 in QLL, the paper's balance included.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional

from qll.data.source import load as load_data
from qll.kernels.forward import training_forward
from qll.kernels.spans import folded_once
from qll.networks.models import create
from qll.training.config import resolve
from qll.training.loop import Trainer
from qll.training.loss import combine, reduce_losses
from qll.training.methods import METHODS, Setup, Step
from qll.training.progress import Silent

BATCH = 256
IMAGES = 60_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--threads", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    shared = os.environ.get("QLL_SHARED")
    folder = arguments.data_dir or (f"{shared}/data" if shared else None)
    data = load_data("mnist", folder)
    rows = []
    for method in ("bound", "small-box"):
        rows.append(measure(method, data, 15 if arguments.quick else 60))
        row = rows[-1]
        print(
            f"{row['method']:10} plain {row['reference_seconds']:.2f} s an epoch, certified "
            f"{row['seconds']:.2f}: {row['ratio']:.2f} times (CPU {row['cpu_ratio']:.2f})",
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


def measure(method: str, data, steps: int) -> dict[str, float | str]:
    config = resolve(
        "classification-robustness", "mnist", options={"logic": "qll:5", "method": method}
    )
    torch.manual_seed(0)
    plain = create("paper-mnist")
    optimiser = torch.optim.Adam(plain.parameters(), lr=1e-3)
    trainer = Trainer(config, data, create("paper-mnist"), None, Silent())
    term = METHODS[method](Setup(config, trainer.model, data))
    prop, logic = trainer.parts[0].trained, trainer.logic

    def plain_step(x, labels) -> None:
        loss = functional.cross_entropy(plain(x), labels)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()

    def certified_step(x, labels) -> None:
        with folded_once():  # as the training loop does
            y = training_forward(trainer.model, x)(x)
            prediction = functional.cross_entropy(y, labels)
            found = term.term(Step(x, labels, y, prop, logic, 0, 0))
        total, _ = combine(
            trainer.model, prediction, reduce_losses(found.losses, None), config.make_balance()
        )
        trainer.optimiser.zero_grad(set_to_none=True)
        total.backward()
        trainer.optimiser.step()

    wall: dict[str, list[float]] = {"plain": [], "certified": []}
    cpu: dict[str, list[float]] = {"plain": [], "certified": []}
    jobs: dict[str, Callable[..., None]] = {"plain": plain_step, "certified": certified_step}
    for index in range(steps + 3):
        rows = torch.arange(index * BATCH, (index + 1) * BATCH) % len(data.train)
        x, labels = data.train.batch(rows)
        for name, step in jobs.items():
            begun, used = time.perf_counter(), time.process_time()
            step(x, labels)
            if index >= 3:  # compiled and warm
                wall[name].append(time.perf_counter() - begun)
                cpu[name].append(time.process_time() - used)
    count = IMAGES / BATCH
    middle = {name: statistics.median(times) * count for name, times in wall.items()}
    used = {name: statistics.median(times) for name, times in cpu.items()}
    return {
        "method": method,
        "reference_seconds": middle["plain"],
        "seconds": middle["certified"],
        "ratio": middle["certified"] / middle["plain"],
        "cpu_ratio": used["certified"] / used["plain"],
    }


if __name__ == "__main__":
    main()
