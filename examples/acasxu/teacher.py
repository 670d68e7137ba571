"""What a published network of ACAS Xu answers, as a table; and how far another one agrees with it.

    python teacher.py                          # writes advice.csv and advice-test.csv
    python teacher.py runs/acas/model.onnx     # agreement with the advice, at situations of its own

The teacher is network 2_1 of the folder that QLL_SHARED names. Situations are drawn evenly
from the domain; of those to learn from, one in seven from the regions that the four properties
speak of, which are a 5,000th of the domain and less.
"""

from __future__ import annotations

import csv
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from qll.networks import load

TEACHER = "ACASXU_run2a_2_1_batch_2000.onnx"
INPUTS = ("distance", "bearing", "heading", "own", "intruder")
ADVICE = ("clear", "weak left", "weak right", "strong left", "strong right")
DOMAIN = ((-0.328422877, -0.5, -0.5, -0.5, -0.5), (0.679857769, 0.5, 0.5, 0.5, 0.5))
FAR = ((0.6, -0.5, -0.5, 0.45, -0.5), (0.679857769, 0.5, 0.5, 0.5, -0.45))
COMES = (
    (-0.303531156, -0.009549297, 0.493380324, 0.3, 0.3),
    (-0.298552812, 0.009549297, 0.5, 0.5, 0.5),
)
LEAVES = (
    (-0.303531156, -0.009549297, 0.0, 0.318181818, 0.083333333),
    (-0.298552812, 0.009549297, 0.0, 0.5, 0.166666667),
)
Box = tuple[tuple[float, ...], tuple[float, ...]]


def teacher() -> Any:
    return load(Path(os.environ["QLL_SHARED"]) / "corpus" / "acasxu" / TEACHER)


def situations(box: Box, count: int, seed: int) -> np.ndarray:
    drawn = np.random.default_rng(seed).uniform(*box, (count, len(INPUTS)))
    return drawn.astype(np.float32)


def costs(network: Any, x: np.ndarray) -> np.ndarray:
    return np.asarray(network.runtime(x.reshape(-1, *network.input_shape)))


def write(path: Path, network: Any, x: np.ndarray) -> None:
    with path.open("w", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow((*INPUTS, *ADVICE))
        rows.writerows(np.concatenate([x, costs(network, x)], axis=1).tolist())


def tables(folder: Path, count: int = 96_000) -> None:
    """``count`` situations to learn from, a 24th as many to test."""
    network = teacher()
    counts = (count // 8, count // 100, count // 100)
    parts = [situations(DOMAIN, count - sum(counts), 0)]
    boxes = zip((FAR, COMES, LEAVES), counts, strict=True)
    parts += [situations(box, own, k) for k, (box, own) in enumerate(boxes, 1)]
    write(folder / "advice.csv", network, np.concatenate(parts))
    write(folder / "advice-test.csv", network, situations(DOMAIN, count // 24, 10))


def agreement(path: str, count: int = 50_000) -> dict[str, float]:
    """The share of situations, of the domain and of the far region, with the teacher's advice."""
    network, student = teacher(), load(path)
    found = {}
    for name, box, seed in (("domain", DOMAIN, 20), ("far", FAR, 21)):
        x = situations(box, count, seed)
        same = costs(network, x).argmin(1) == costs(student, x).argmin(1)
        found[name] = float(same.mean())
    return found


def main(paths: list[str]) -> None:
    if not paths:
        tables(Path())
    for path in paths:
        found = agreement(path)
        shares = f"{found['domain']:.1%} of situations, {found['far']:.1%} of those far away"
        sys.stdout.write(f"{path}: the teacher's advice at {shares}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
