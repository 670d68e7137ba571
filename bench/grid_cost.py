"""What the paper's grid of 260 runs costs, from the measured times of runs that were done.

    python bench/grid_cost.py RUNS [--cores 1,16,256] [--json OUT] [--write docs/cost.md]

RUNS is the folder of `qll reproduce`. A run's time is the sum of its epochs, of its evaluation and
of its proofs, as its records have it: processor time where one session did the whole run, else by
the clock on the wall, which on a busy machine is too much. A run that is not there counts as the
mean of the other seeds of its row, a row that is not there as the mean of its property and data
set, then of its data set; shorter runs are scaled to the paper's epochs. How many of each there
were is printed. The wall time on several cores is that of longest-first list scheduling: a free
core takes the longest run that is left, which is never more than 4/3 of the best schedule. --quick
is accepted for the sake of scripts that pass it to every benchmark: nothing is run here.
"""

from __future__ import annotations

import argparse
import heapq
import json
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from qll.grid.experiment import difference
from qll.grid.plan import Planned, paper_grid
from qll.training.run import RunFolder

BEGIN, END = "<!-- cost: begin -->", "<!-- cost: end -->"


def makespan(seconds: Iterable[float], cores: int) -> float:
    """Wall time when a free core always takes the longest task that is left.

    >>> makespan([3, 3, 2, 2, 2], 2)
    7.0
    """
    free = [0.0] * cores
    for task in sorted(seconds, reverse=True):
        heapq.heapreplace(free, free[0] + task)
    return max(free)


def measured(run: Planned, folder: Path) -> dict[str, float] | None:
    """Seconds of the parts of one run, scaled to its planned epochs; None if it is not there."""
    held = RunFolder(folder / run.name)
    record = folder / run.name / "task.json"
    if not held.config_path.is_file() or not record.is_file():
        return None
    config = held.config()
    other = difference(run.config, config.model_copy(update={"epochs": run.config.epochs}))
    if other is not None or not config.epochs:
        return None
    held_times = json.loads(record.read_text(encoding="utf-8"))
    seconds, cpu = held_times["seconds"], held_times.get("cpu_seconds")
    wall = seconds["train"] + (seconds["evaluate"] or 0.0) + seconds["prove"]
    # A run uses one thread: on a machine with other work its processor time is its time alone.
    busy = 1.0 if cpu is None else min(cpu / wall, 1.0)
    scale = run.config.epochs / config.epochs
    return {
        "train": busy * scale * seconds["train"],
        "evaluate": busy * (seconds["evaluate"] or 0.0),
        "prove": busy * seconds["prove"],
        "by_wall": float(cpu is None),
        "scaled": float(scale != 1),
        "no_evaluation": float(seconds["evaluate"] is None),
    }


def total(parts: dict[str, float]) -> float:
    return parts["train"] + parts["evaluate"] + parts["prove"]


# Whose mean stands for a run that is not there: the first that has any.
_ALIKE: tuple[tuple[str, Callable[[Planned], object]], ...] = (
    ("mean of the row's other seeds", lambda run: run.row.name),
    ("mean of the property on the data set", lambda run: _pair(run)),
    ("mean of the data set", lambda run: run.row.data),
    ("mean of all runs", lambda run: None),
)


def times(runs: Sequence[Planned], folder: Path) -> tuple[list[float], Counter[str]]:
    """Seconds of every run, and from where they are."""
    own = {run.name: measured(run, folder) for run in runs}
    sources: Counter[str] = Counter()
    found = []
    for run in runs:
        parts = own[run.name]
        if parts is not None:
            sources["measured"] += 1
            sources["of these by the clock on the wall"] += bool(parts["by_wall"])
            sources["of these scaled from fewer epochs"] += bool(parts["scaled"])
            sources["of these without the time of the evaluation"] += bool(parts["no_evaluation"])
            found.append(total(parts))
            continue
        for name, kind in _ALIKE:
            alike = [own[r.name] for r in runs if kind(r) == kind(run)]
            known = [total(parts) for parts in alike if parts is not None]
            if known:
                sources[name] += 1
                found.append(statistics.fmean(known))
                break
        else:
            raise SystemExit(f"no finished run of the grid in {folder}")
    return found, sources


def _pair(run: Planned) -> tuple[str, str]:
    return run.row.property, run.row.data


def shares(runs: Sequence[Planned], folder: Path) -> dict[str, float]:
    """Of the measured runs, where the time goes."""
    parts = [p for run in runs if (p := measured(run, folder)) is not None]
    whole = sum(total(p) for p in parts)
    return {name: sum(p[name] for p in parts) / whole for name in ("train", "evaluate", "prove")}


def by_pair(runs: Sequence[Planned], seconds: Sequence[float]) -> list[dict[str, Any]]:
    groups: dict[tuple[str, str], list[float]] = {}
    for run, time in zip(runs, seconds, strict=True):
        groups.setdefault(_pair(run), []).append(time)
    return [
        {
            "property": prop,
            "data": data,
            "runs": len(group),
            "mean_minutes": statistics.fmean(group) / 60,
            "longest_minutes": max(group) / 60,
            "core_hours": sum(group) / 3600,
        }
        for (prop, data), group in groups.items()
    ]


def section(result: dict[str, Any]) -> str:
    lines = [
        f"The whole grid is {result['core_hours']:.1f} core hours. The longest of its "
        f"{result['runs']} runs takes {result['longest_minutes']:.0f} minutes, and no number of "
        "cores makes it shorter than that.",
        "",
        "| cores | wall time | core hours paid | busy |",
        "|---:|---:|---:|---:|",
    ]
    for row in result["cores"]:
        lines.append(
            f"| {row['cores']} | {row['wall_hours']:.2f} h | "
            f"{row['cores'] * row['wall_hours']:.1f} | {100 * row['busy']:.0f} % |"
        )
    lines += [
        "",
        "| property, data | runs | mean | longest | core hours |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in result["pairs"]:
        lines.append(
            f"| {row['property']}, {row['data']} | {row['runs']} | {row['mean_minutes']:.1f} min | "
            f"{row['longest_minutes']:.1f} min | {row['core_hours']:.1f} |"
        )
    sources = sorted(result["sources"].items(), key=lambda source: source[0].startswith("mean"))
    where = "; ".join(f"{number} {name}" for name, number in sources if number)
    spent = ", ".join(f"{100 * share:.0f} % {name}" for name, share in result["shares"].items())
    processors = "; ".join(result["processors"])
    lines += [
        "",
        f"Times of the runs: {where}. Of the measured time: {spent}. Measured on: {processors}, "
        "one core a run.",
    ]
    return "\n".join(lines) + "\n"


def processors(runs: Sequence[Planned], folder: Path) -> list[str]:
    found = set()
    for run in runs:
        path = folder / run.name / "environment.json"
        if path.is_file():
            found.add(str(json.loads(path.read_text(encoding="utf-8")).get("processor")))
    return sorted(found)


def compute(folder: Path, cores: Sequence[int]) -> dict[str, Any]:
    runs = paper_grid().runs()
    seconds, sources = times(runs, folder)
    whole = sum(seconds)
    return {
        "runs": len(runs),
        "core_hours": whole / 3600,
        "longest_minutes": max(seconds) / 60,
        "cores": [
            {
                "cores": count,
                "wall_hours": (wall := makespan(seconds, count)) / 3600,
                "busy": whole / (count * wall),
            }
            for count in cores
        ],
        "pairs": by_pair(runs, seconds),
        "sources": dict(sources),
        "shares": shares(runs, folder),
        "processors": processors(runs, folder),
    }


def write_section(path: Path, text: str) -> None:
    old = path.read_text(encoding="utf-8")
    head, rest = old.split(BEGIN, 1)
    path.write_text(f"{head}{BEGIN}\n{text}{END}{rest.split(END, 1)[1]}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path)
    parser.add_argument("--cores", default="1,16,256")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--write", type=Path, help="a Markdown file whose section is replaced")
    parser.add_argument("--quick", action="store_true", help="accepted; nothing is run here")
    options = parser.parse_args()
    result = compute(options.runs, [int(part) for part in options.cores.split(",")])
    text = section(result)
    print(text, end="")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if options.write:
        write_section(options.write, text)


if __name__ == "__main__":
    main()
