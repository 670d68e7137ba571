"""How far the published networks were trained, beside runs of our own: what their weights tell.

    python bench/published_training.py CORPUS [--data-dir DIR] [--runs RUNS] [--quick] [--json OUT]

For each network of classification robustness (``CORPUS/models``, and the runs ``qll reproduce``
left in RUNS): the prediction loss on rotated training images, PAcc and CAcc on test images, and the
property's loss at the points that the published attack finds, at several epsilon. Where the runs
have their figures by epoch, *epoch alike* is the one at which our run of the same logic had the
prediction loss of the published network.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import qll
from qll.attacks import attack
from qll.attacks.folded import Folded
from qll.data import load as load_data
from qll.metrics import constraint_accuracy, prediction_accuracy
from qll.networks import load as load_network
from qll.training.config import published_formula

EPSILONS = (0.1, 0.15, 0.2, 0.25, 0.3)
LOGICS = {"Baseline": "baseline", "DL2": "dl2", "STL_5": "stl5", "QLL_5": "qll5"}
ATTACK = attack("apgd:20,restarts=2,as_published=true")


@dataclass(frozen=True)
class Images:
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    mean: NDArray[np.float64]
    std: NDArray[np.float64]

    @classmethod
    def of(cls, name: str, folder: str | None, count: int) -> Images:
        data = load_data(name, data_dir=folder)
        chance = torch.Generator().manual_seed(0)
        x, labels = data.train.batch(slice(0, count))
        return cls((data.augment(x, chance), labels), data.test.batch(slice(0, count)),
                   np.array(data.mean), np.array(data.std))  # fmt: skip


def figures(model: nn.Module, images: Images) -> dict[str, Any]:
    x, labels = images.train
    robust = qll.load("classification-robustness")
    led = qll.load(str(published_formula("classification-robustness")))
    found: dict[str, Any] = {}
    with torch.no_grad():
        found["loss"] = float(nn.functional.cross_entropy(model(x), labels))
        found["PAcc"] = prediction_accuracy(model, *images.test).value
        found["CAcc"] = constraint_accuracy(model, robust, *images.test).value
        for epsilon in EPSILONS:
            prop = led.with_parameters(epsilon=epsilon)
            points = ATTACK.find(model, prop, x, labels, logic="qll:5")
            value = prop.loss(model(points["x"]), labels=labels, logic="qll:5")
            found[f"property {epsilon:g}"] = float(value.mean())
    return found


def epoch_alike(run: Path, loss: float) -> int | None:
    """The first epoch whose prediction loss is no more than ``loss``."""
    path = run / "metrics.jsonl"
    if not path.is_file():
        return None
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return next((row["epoch"] for row in rows if row["prediction_loss"] <= loss), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--data-dir")
    parser.add_argument("--runs", type=Path, help="of 'qll reproduce'")
    parser.add_argument("--quick", action="store_true", help="one network of each, 512 images")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = []
    for data in ("mnist", "fashion"):
        images = Images.of(data, given.data_dir, 512 if given.quick else 4_000)
        folder = given.corpus / "models" / "classification-robustness" / data
        for published, ours in LOGICS.items():
            run = given.runs and given.runs / f"classification-robustness-{data}-{ours}-0"
            networks = {
                f"published {path.parent.name}": load_network(
                    path, mean=images.mean, std=images.std
                )
                for path in sorted(folder.glob(f"*/{published}.onnx"))[: 1 if given.quick else 3]
            }
            if run and (run / "model.onnx").is_file():
                networks["ours 0"] = load_network(run / "model.onnx")
            for name, network in networks.items():
                row: dict[str, Any] = {"data": data, "logic": published, "network": name}
                row |= figures(Folded(network), images)
                if run and name.startswith("published"):
                    row["epoch alike"] = epoch_alike(run, row["loss"])
                rows.append(row)
                print(shown(row), flush=True)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))


def shown(row: dict[str, Any]) -> str:
    values = [f"{key} {v:.3f}" if isinstance(v, float) else f"{key} {v}" for key, v in row.items()]
    return ", ".join(values)


if __name__ == "__main__":
    main()
