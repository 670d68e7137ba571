"""PAcc and CSat of certified runs, from their records, beside the paper's best and the goals.

    python bench/certified_runs.py [RECORDS] --paper RESULTS.json [--json OUT]
                                   [--write docs/results.md] [--quick]

RECORDS is the folder of compact records (default: results/certified), each made of a run by ``qll
train --method ... --out RUN``, ``qll verify ... --json RUN/verdicts.json`` and ``qll record``.
Regions of which the rule says nothing are left out. The paper's best row of a property is the one
with the largest product of PAcc and CSat. --quick is accepted for the sake of scripts that pass it
to every benchmark: nothing is run here.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qll.reports.records import Run, read_runs
from qll.training.config import BASELINE, TrainConfig

BEGIN, END = "<!-- certified: begin -->", "<!-- certified: end -->"
RECORDS = Path("results/certified")
GOALS = {
    ("classification-robustness", "mnist"): (96.5, 78.0),
    ("classification-robustness", "fashion"): (82.5, 56.0),
    ("clothing-footwear", "fashion"): (86.5, 99.5),
    ("strong-classification-robustness", "mnist"): (98.2, 100.0),
    ("strong-classification-robustness", "fashion"): (88.5, 100.0),
    ("not-both", "dice"): (92.0, 100.0),
    ("exactly-one", "dice"): (92.0, 100.0),
}
HEAD = (
    "property", "data", "method", "epochs", "held out", "seeds", "PAcc", "CSat", "regions of each",
    "unknown", "CSec: at most", "paper's best PAcc / CSat", "goal",
)  # fmt: skip


def judged(run: Run) -> dict[str, Any] | None:
    """What a record says of its network; None if nothing was asked of a verifier."""
    config, figures = run.config, run.figures
    pacc, csec, csat = (figures.get(name) for name in ("PAcc", "CSec_qll", "CSat"))
    if pacc is None or csat is None:
        return None
    (asked,) = run.verifications
    return {
        "run": run.name,
        "property": config.property,
        "data": config.data,
        "method": describe(config),
        "seed": config.seed,
        "epochs": config.epochs,
        "validation": config.validation,
        "pacc": pacc,
        "csec": csec,
        "csat": csat,
        "regions": asked.share("verified").total,
        "unknown": asked.share("unknown").good,
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


def table(rows: Sequence[dict[str, Any]], paper: dict[tuple[str, str], tuple[float, float]]) -> str:
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        key = ("property", "data", "method", "epochs", "validation")
        groups[tuple(row[name] for name in key)].append(row)
    lines = [f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]
    for (prop, data, method, epochs, held), found in sorted(groups.items()):
        goal, best = GOALS.get((prop, data)), paper.get((prop, data))
        cells = [
            prop,
            data,
            method,
            str(epochs),
            f"{held:,}",
            str(len(found)),
            spread([r["pacc"] for r in found]),
            "; ".join(spread([r["csat"] for r in held]) for held in alike(found).values()),
            "; ".join(f"{regions:,}" for regions in alike(found)),
            str(sum(r["unknown"] for r in found)),
            spread([r["csec"] for r in found]),
            "" if best is None else f"{best[0]:.1f} / {best[1]:.1f}",
            "" if goal is None else f"{goal[0]:g} / {goal[1]:g}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def alike(rows: Sequence[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    """By how many regions were asked about: figures of different ones are not averaged."""
    sizes = sorted({row["regions"] for row in rows})
    return {size: [row for row in rows if row["regions"] == size] for size in sizes}


def spread(values: list[float]) -> str:
    mean = statistics.mean(values)
    return f"{mean:.1f}" + (f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else "")


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [row for row in map(judged, read_runs([folder]).runs) if row is not None]


def replaced(page: str, text: str) -> str:
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("records", type=Path, nargs="?", default=RECORDS)
    parser.add_argument("--paper", type=Path, required=True, help="the paper's result table")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--write", type=Path, help="replace the section in this file")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    rows = rows_of(given.records)
    for row in rows:
        print(
            f"{row['run']:32} PAcc {row['pacc']:.2f}  CSat {row['csat']:.2f} of {row['regions']} "
            f"({row['unknown']} unknown)"
        )
    text = table(rows, best_of_paper(given.paper))
    print(text)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if given.write:
        page = given.write.read_text(encoding="utf-8")
        given.write.write_text(replaced(page, text), encoding="utf-8")


if __name__ == "__main__":
    main()
