"""Two versions of the source, turn about in one run: verdicts and CPU seconds of each.

    python bench/two_versions.py BEFORE AFTER [--part corpus|acasxu|training|certified ...]
                                 [--take N] [--json OUT]

BEFORE and AFTER are folders with `src` and `bench` (say, of `git archive`). Each version has a
process of its own; they work on the same unit (networks and their regions, an instance, a training
step) one after the other, the first to go changing from unit to unit, and each twice, of which the
second time counts: what is compiled or imported on first use is not. Data come from QLL_SHARED.
Printed: how many verdicts differ, and the ratio of CPU seconds, after to before.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

PARTS = ("corpus", "acasxu", "training", "certified")
TAKE = {"corpus": 24, "acasxu": 12, "training": 12, "certified": 20}
QUERIES = 8  # of each network of the corpus
BATCH = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("versions", nargs=2, type=Path)
    parser.add_argument("--part", action="append", choices=PARTS)
    parser.add_argument("--take", type=int, help="units of each part")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--work", choices=PARTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        serve(arguments.versions[0], arguments.work)
        return
    found = {}
    for part in arguments.part or PARTS:
        found[part] = compare(arguments.versions, part, arguments.take or TAKE[part])
        print(said(part, found[part]), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


def compare(versions: list[Path], part: str, take: int) -> list[dict[str, Any]]:
    workers = [start(version.resolve(), part) for version in versions]
    rows = []
    try:
        for unit in range(take):
            answers: list[Any] = [None, None]
            for side in (0, 1) if unit % 2 else (1, 0):
                answers[side] = ask(workers[side], [unit, take])
            rows.append({"unit": unit, "before": answers[0], "after": answers[1]})
    finally:
        for worker in workers:
            worker.kill()
    return rows


def start(version: Path, part: str) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(version / "src"), str(version / "bench")])
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).resolve()), str(version), ".", "--work", part],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        text=True,
    )


def ask(worker: subprocess.Popen[str], what: object) -> Any:
    if worker.stdin is None or worker.stdout is None:
        raise RuntimeError("a worker without pipes")
    worker.stdin.write(json.dumps(what) + "\n")
    worker.stdin.flush()
    for line in worker.stdout:
        if line.startswith("{"):
            return json.loads(line)
    raise RuntimeError("a worker ended")


def said(part: str, rows: list[dict[str, Any]]) -> str:
    before, after = ([row[side]["cpu"] for row in rows] for side in ("before", "after"))
    if "verdicts" not in rows[0]["before"]:
        ratio = median(after) / median(before)
        return f"{part}: {len(rows)} steps, CPU {median(before):.3f} s before, ratio {ratio:.3f}"
    pairs = [
        pair
        for row in rows
        for pair in zip(row["before"]["verdicts"], row["after"]["verdicts"], strict=True)
    ]
    other = sum(a != b for a, b in pairs)
    more = sum(a == "unknown" != b for a, b in pairs)
    less = sum(b == "unknown" != a for a, b in pairs)
    return (
        f"{part}: {len(pairs)} verdicts, {other} differ ({more} only after, {less} only before); "
        f"CPU {sum(before):.1f} s before, ratio {sum(after) / sum(before):.3f}"
    )


def serve(version: Path, part: str) -> None:
    """Units by number, from standard input, until it ends."""
    sys.path.pop(0)  # the folder of this file: each version has benches of its own
    import torch

    import qll

    if version not in Path(qll.__file__).parents:
        raise RuntimeError(f"{qll.__file__} is not of {version}")
    torch.set_num_threads(1)
    work: Callable[[int, int], list[str] | None] | None = None
    for unit, take in map(json.loads, sys.stdin):
        if work is None:
            work = {"corpus": corpus, "acasxu": acasxu}.get(part, lambda: training(part))()
        work(unit, take)  # compiles, and imports what is imported on first use
        begun = time.process_time()
        verdicts = work(unit, take)
        row: dict[str, Any] = {"cpu": time.process_time() - begun}
        if verdicts is not None:
            row["verdicts"] = verdicts
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()


def shared() -> Path:
    return Path(os.environ["QLL_SHARED"])


def spread(items: list[Any], take: int) -> Iterator[Any]:
    """So many of them, from everywhere in the list."""
    yield from (items[k * len(items) // take] for k in range(take))


def corpus() -> Callable[[int, int], list[str]]:
    from verify_corpus import make_queries

    from qll.verify.backend import BACKENDS, Budget

    backend, folder = BACKENDS["bab"](), shared() / "corpus"
    rows = json.loads((folder / "verdicts.json").read_text())

    def work(unit: int, take: int) -> list[str]:
        queries = make_queries(folder, list(spread(rows, take))[unit])[:QUERIES]
        budget = Budget(seconds=5.0, clock="cpu")
        return [str(v.status) for v in backend.decide(queries, budget)]

    return work


def acasxu() -> Callable[[int, int], list[str]]:
    from verify_acasxu import query_of

    from qll.verify.backend import BACKENDS, Budget

    backend, folder = BACKENDS["bab"](), shared() / "corpus" / "acasxu"
    with (folder / "instances.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))

    def work(unit: int, take: int) -> list[str]:
        query = query_of(folder, list(spread(rows, take))[unit])
        return [str(backend.decide([query], Budget(seconds=20.0, clock="cpu"))[0].status)]

    return work


def training(part: str) -> Callable[[int, int], None]:
    """Steps with attacked points, or with the bounds of small boxes."""
    import torch

    import qll
    from qll.data import load
    from qll.kernels.forward import training_forward
    from qll.kernels.spans import folded_once
    from qll.networks.models import create
    from qll.training.config import resolve
    from qll.training.loop import Trainer
    from qll.training.loss import combine, reduce_losses
    from qll.training.methods import METHODS, Setup, Step
    from qll.training.progress import Silent

    data = load("mnist", shared() / "data")
    torch.manual_seed(0)
    model = create("paper-mnist")
    if part == "training":
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
        prop = qll.load("classification-robustness", outputs=10, epsilon=0.2)
        loss = qll.PropertyLoss(prop, logic="qll:5", attack="apgd:20,restarts=2")
    else:
        options = {"logic": "qll:5", "method": "small-box"}
        config = resolve("classification-robustness", "mnist", options=options)
        trainer = Trainer(config, data, model, None, Silent())
        term = METHODS["small-box"](Setup(config, model, data))
        prop, logic = trainer.parts[0].trained, trainer.logic

    def work(unit: int, take: int) -> None:
        rows = torch.arange(unit * BATCH, (unit + 1) * BATCH) % len(data.train)
        x, labels = data.train.batch(rows)
        if part == "training":
            optimiser.zero_grad(set_to_none=True)
            loss(model, x, labels).backward()
            optimiser.step()
            return
        with folded_once():  # as the training loop does
            y = training_forward(model, x)(x)
            prediction = torch.nn.functional.cross_entropy(y, labels)
            found = term.term(Step(x, labels, y, prop, logic, 0, 0))
        losses = reduce_losses(found.losses, None)
        total, _ = combine(model, prediction, losses, config.make_balance())
        trainer.optimiser.zero_grad(set_to_none=True)
        total.backward()
        trainer.optimiser.step()

    return work


if __name__ == "__main__":
    main()
