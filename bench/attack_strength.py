"""What an attack finds for its gradients: the published one beside Algorithm 1 of Croce and Hein.

    python bench/attack_strength.py CORPUS [--data-dir DIR] [--quick] [--json OUT]

The step of the published attack is halved once at most (``qll.kernels.schedule``), so that most of
its gradients are spent on steps too long to gain anything. On every published network each attack
seeks the worst point around the same augmented training images, by the logic
and in the form that the network was trained on. A row is a property, a data set and a logic, over
its seeds: the mean loss that was found (in units of the logic; what training learns of), and
for each attack its difference from the published one's, as a share of the loss that the published
attack adds to the loss at the images themselves. Processor seconds are of the attack alone.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from qll.attacks import attack
from qll.attacks.folded import Folded
from qll.data import load as load_data
from qll.networks import load as load_network
from qll.property import Property
from qll.training.config import resolve

CORRECTED = (
    "apgd:20,restarts=2",
    "apgd:10,restarts=2",
    "apgd:15,restarts=1",
    "apgd:12,restarts=1",
    "apgd:20,restarts=0",
)
LOGICS = {"QLL_5": "qll:5", "DL2": "dl2", "STL_5": "stl:5"}
EXPERIMENTS = (
    ("classification-robustness", "mnist"),
    ("classification-robustness", "fashion"),
    ("clothing-footwear", "fashion"),
    ("strong-classification-robustness", "mnist"),
    ("strong-classification-robustness", "fashion"),
    ("not-both", "dice"),
    ("exactly-one", "dice"),
)


@dataclass(frozen=True)
class Found:
    property: str
    data: str
    logic: str
    seed: str
    attack: str
    published: bool
    gradients: int
    loss: float
    clean: float
    cpu_seconds: float


def gradients(text: str) -> int:
    chosen = attack(text)
    return (chosen.steps + 1) * (chosen.restarts + 1)  # type: ignore[attr-defined]


def mean_loss(prop: Property, model: Folded, x: Tensor, labels: Tensor, logic: str) -> float:
    with torch.no_grad():
        return float(prop.loss(model(x), labels=labels, logic=logic).mean())


def attacked(
    model: Folded, prop: Property, x: Tensor, labels: Tensor, logic: str, text: str
) -> tuple[float, float]:
    """The loss found, and the processor seconds that it took."""
    seeker = attack(text)
    before = time.process_time()
    points = seeker.find(model, prop, x, labels, logic=logic)
    seconds = time.process_time() - before
    return mean_loss(prop, model, points["x"], labels, logic), seconds


def experiment(
    corpus: Path, prop_name: str, data_name: str, folder: str | None, count: int, seeds: int
) -> list[Found]:
    data = load_data(data_name, data_dir=folder)
    x, labels = data.train.batch(slice(0, count))
    x = data.augment(x, torch.Generator().manual_seed(0))
    found = []
    for published, logic in LOGICS.items():
        config = resolve(prop_name, data_name, options={"logic": logic})
        prop = config.trained_property(len(data.classes))
        theirs = f"apgd:{config.steps},restarts={config.restarts},as_published=true"
        models = corpus / "models" / prop_name / data_name
        for path in sorted(models.glob(f"*/{published}.onnx"))[:seeds]:
            model = Folded(load_network(path, mean=np.array(data.mean), std=np.array(data.std)))
            clean = mean_loss(prop, model, x, labels, logic)
            attacked(model, prop, x[:32], labels[:32], logic, theirs)  # compiles
            for text in (theirs, *CORRECTED):
                torch.manual_seed(0)
                loss, seconds = attacked(model, prop, x, labels, logic, text)
                found.append(
                    Found(prop_name, data_name, logic, path.parent.name, text, text == theirs,
                          gradients(text), loss, clean, seconds)
                )  # fmt: skip
    return found


def gain(rows: list[Found], text: str) -> float:
    """How much more (or less) an attack adds to the clean loss than the published one, as a share
    of what that adds; the mean over the networks of a row."""
    shares = []
    for base in (row for row in rows if row.published):
        mine = next(row for row in rows if row.attack == text and row.seed == base.seed)
        added = base.loss - base.clean
        shares.append((mine.loss - base.loss) / added if added > 0 else 0.0)
    return float(np.mean(shares))


def shown(rows: list[Found]) -> str:
    first = rows[0]
    theirs = [row for row in rows if row.published]
    cells = " ".join(f"{gain(rows, text):+11.1%}" for text in CORRECTED)
    return (f"{first.property:33} {first.data:8} {first.logic:6} {theirs[0].gradients:9} "
            f"{np.mean([row.loss for row in theirs]):8.4f} "
            f"{cells}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--data-dir", help="folder that holds the data sets, one folder each")
    parser.add_argument("--quick", action="store_true", help="one seed, robustness, 256 images")
    parser.add_argument("--json", type=Path, metavar="OUT")
    given = parser.parse_args()
    torch.set_num_threads(1)
    shared = os.environ.get("QLL_SHARED")
    folder = given.data_dir or (str(Path(shared) / "data") if shared else None)
    chosen = EXPERIMENTS[:2] if given.quick else EXPERIMENTS
    everything: list[Found] = []
    heads = " ".join(f"{text.removeprefix('apgd:').replace(',restarts=', ' x 1+'):>11}"
                     for text in CORRECTED)  # fmt: skip
    print(f"{'property':33} {'data':8} {'logic':6} {'published':>9} {'loss':>8} {heads}")
    print(f"{'gradients':68} "
          + " ".join(f"{gradients(text):11}" for text in CORRECTED))  # fmt: skip
    for prop, data in chosen:
        place = str(Path(folder) / data) if folder else None
        found = experiment(given.corpus, prop, data, place, 256 if given.quick else 1024,
                           1 if given.quick else 3)  # fmt: skip
        everything += found
        for logic in LOGICS.values():
            print(shown([row for row in found if row.logic == logic]), flush=True)
    base = sum(row.cpu_seconds for row in everything if row.published)
    ratios = [sum(row.cpu_seconds for row in everything if row.attack == text) / base
              for text in CORRECTED]  # fmt: skip
    print(f"{'CPU time, of the published attack':68} " + " ".join(f"{r:11.2f}" for r in ratios))
    if given.json:
        given.json.write_text(json.dumps([asdict(row) for row in everything], indent=1) + "\n")


if __name__ == "__main__":
    main()
