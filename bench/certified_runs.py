"""PAcc and CSat of certified runs on the whole test set, beside the paper's best and the goals.

    python bench/certified_runs.py RUNS --paper RESULTS.json [--count N] [--timeout S] [--jobs N]
                                   [--quick] [--json OUT] [--write docs/results.md]

RUNS is a folder of run folders (``qll train --method ... --out RUNS/...``). Every verdict is
confirmed by the independent checker and kept in the run folder, so a second call goes on. The
paper's best row of a property is the one with the largest product of PAcc and CSat.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from qll.data.base import DataSet
from qll.errors import QllError
from qll.training.config import BASELINE, TrainConfig
from qll.training.loop import Trainer, load_configured, open_run
from qll.training.run import RunFolder
from qll.verify.api import Problem, decide_all
from qll.verify.journal import Journal

BEGIN, END = "<!-- certified: begin -->", "<!-- certified: end -->"
GOALS = {
    ("classification-robustness", "mnist"): (96.5, 78.0),
    ("classification-robustness", "fashion"): (82.5, 56.0),
    ("clothing-footwear", "fashion"): (86.5, 99.5),
    ("strong-classification-robustness", "mnist"): (98.2, 100.0),
    ("strong-classification-robustness", "fashion"): (88.5, 100.0),
    ("not-both", "dice"): (92.0, 100.0),
    ("exactly-one", "dice"): (92.0, 100.0),
}


def prove(trainer: Trainer, rows: np.ndarray, out: Path, timeout: float, jobs: int) -> list[str]:
    """Statuses of the regions around these test images, from the journal or now."""
    x, labels = trainer.data.test.batch(rows)
    problem = Problem.of(
        trainer.judged, trainer.model.eval(), x, labels, timeout=timeout, certified=True
    )
    journal = Journal(out, problem)
    known = journal.finished()
    if not known:
        with journal:
            left = [i for i in range(len(problem)) if i not in journal.known]
            for index, verdict in decide_all(problem, left, jobs=jobs):
                journal.add(index, verdict)
        known = journal.known
        statuses = [known[i]["status"] for i in range(len(problem))]
        journal.finish({s: statuses.count(s) for s in ("verified", "falsified", "unknown")})
    return [known[i]["status"] for i in range(len(problem))]


def judge(path: Path, data: DataSet, arguments: argparse.Namespace) -> dict[str, Any] | None:
    evaluation = RunFolder(path).evaluation()
    if evaluation is None or evaluation.pacc is None:
        return None
    trainer = open_run(path, data=data)
    published = np.asarray(data.published_subset())
    paper = prove(trainer, published, path / "csat-paper.json", arguments.timeout, arguments.jobs)
    count = min(arguments.count or len(data.test), len(data.test))
    if (path / f"csat-{len(data.test)}.json").is_file():  # all of them, by an earlier call
        count = len(data.test)
    rows = np.arange(count)
    found = prove(trainer, rows, path / f"csat-{count}.json", arguments.timeout, arguments.jobs)
    config = trainer.config
    return {
        "run": path.name,
        "property": config.property,
        "data": config.data,
        "method": describe(config),
        "seed": config.seed,
        "epochs": config.epochs,
        "pacc": 100 * evaluation.pacc.value,
        "csec": 100 * evaluation.csec_qll.value,
        "csat": 100 * found.count("verified") / count,
        "unknown": found.count("unknown"),
        "regions": count,
        "csat_paper": 100 * paper.count("verified") / len(paper),
    }


def describe(config: TrainConfig) -> str:
    """What tells two recipes apart."""
    parts = []
    for stage in config.stages or [{}]:
        options = stage.get("options", config.options)
        part = stage.get("method", config.method)
        if stage.get("logic") == BASELINE:
            part = "plain"
        elif "size" in options:
            part += f" {options['size']:g}"
        attack = options.get("attack", stage.get("attack", config.attack))
        if str(attack).startswith("secant"):
            part += " by mean slopes"
        elif "steps" in options:
            part += f" (attacks of {options['steps']} steps)"
        if views := [name for name, value in stage.get("views", {}).items() if value]:
            part += f" (views: {', '.join(views)})"
        parts.append(part)
    text = ", then ".join(parts)
    if config.logic != "qll:5":
        text = f"{config.logic}, {text}"
    if config.initialisation != "default":
        text += f", from {config.initialisation}s"
    if config.surrogate:
        text += f", {config.surrogate} at {config.reach:g} epsilon"
    if rule := config.options.get("rule"):
        text += f", by {rule}"
    if views := [name for name, value in config.views if value]:
        text += f", views: {', '.join(views)}"
    return text


def best_of_paper(path: Path) -> dict[tuple[str, str], tuple[float, float]]:
    best: dict[tuple[str, str], tuple[float, float]] = {}
    for row in json.loads(path.read_text(encoding="utf-8")):
        key = (row["constraint"], row["dataset"])
        point = (row["PAcc"][0], row["CSat"][0])
        if key not in best or point[0] * point[1] > best[key][0] * best[key][1]:
            best[key] = point
    return best


def table(rows: list[dict[str, Any]], paper: dict[tuple[str, str], tuple[float, float]]) -> str:
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["property"], row["data"], row["method"]].append(row)
    lines = [
        "| property | data | method | epochs | seeds | PAcc | CSat | regions | unknown | CSec: at "
        "most | CSat, paper's images | paper's best PAcc / CSat | goal |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (prop, data, method), found in sorted(groups.items()):
        goal, best = GOALS.get((prop, data)), paper.get((prop, data))
        cells = [
            prop,
            data,
            method,
            "/".join(sorted({str(r["epochs"]) for r in found})),
            str(len(found)),
            spread([r["pacc"] for r in found]),
            spread([r["csat"] for r in found]),
            "/".join(sorted({str(r["regions"]) for r in found})),
            str(sum(r["unknown"] for r in found)),
            spread([r["csec"] for r in found]),
            spread([r["csat_paper"] for r in found]),
            "" if best is None else f"{best[0]:.1f} / {best[1]:.1f}",
            "" if goal is None else f"{goal[0]:g} / {goal[1]:g}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def spread(values: list[float]) -> str:
    mean = statistics.mean(values)
    return f"{mean:.1f}" + (f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path)
    parser.add_argument("--paper", type=Path, required=True, help="the paper's result table")
    parser.add_argument("--count", type=int, default=0, help="test images; 0: all")
    parser.add_argument("--timeout", type=float, default=3.0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="100 test images")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--write", type=Path, help="replace the section in this file")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.count = 100
    torch.set_num_threads(1)
    sets: dict[str, DataSet] = {}
    rows = []
    for path in sorted(p.parent for p in arguments.runs.glob("*/config.json")):
        try:
            config = RunFolder(path).config()
            if config.data not in sets:
                sets[config.data] = load_configured(config)
            row = judge(path, sets[config.data], arguments)
        except QllError as error:
            print(f"{path.name}: left out: {error.what}", flush=True)
            continue
        if row is None:
            print(f"{path.name}: not finished", flush=True)
            continue
        rows.append(row)
        print(
            f"{row['run']:44} PAcc {row['pacc']:.1f}  CSat {row['csat']:.1f} of {row['regions']} "
            f"({row['unknown']} unknown)  paper's images {row['csat_paper']:.1f}",
            flush=True,
        )
    text = table(rows, best_of_paper(arguments.paper))
    print(text)
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    if arguments.write:
        held = arguments.write.read_text(encoding="utf-8")
        section = f"{BEGIN}\n{text}\n{END}"
        if BEGIN in held:
            held = held[: held.index(BEGIN)] + section + held[held.index(END) + len(END) :]
        else:
            held = held.rstrip() + "\n\n" + section + "\n"
        arguments.write.write_text(held, encoding="utf-8")


if __name__ == "__main__":
    main()
