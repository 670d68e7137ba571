"""What the paper's grid of 260 runs costs, from the measured times of runs that were done.

    python bench/grid_cost.py RUNS [--cores 1,16,256] [--json OUT] [--write docs/cost.md]

RUNS is the folder of `qll reproduce`, or one of compact records (`results/paper`). A run's time is
the processor time of its epochs, its evaluation and its proofs, which is on record where the run
was not interrupted. Any other run counts as the mean of the other seeds of its row, else of its
logic on its data set, else of its property on it. Only where none of these is known the clock on
the wall counts, which on a busy machine is too much, and then the mean of the data set and of all
runs; shorter runs are scaled to the paper's epochs. How many of each there were is printed. The
wall time on several cores is that of longest-first list scheduling: a free core takes the longest
run that is left, which is never more than 4/3 of the best schedule. --quick is accepted for the
sake of scripts that pass it to every benchmark: nothing is run here.
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
from qll.reports.compact import SUFFIX, Pieces, folder_pieces, read_compact
from qll.training.config import build

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


def held(run: Planned, folder: Path) -> Pieces | None:
    """The records of a run, from its folder or its compact file."""
    path = folder / run.name
    if (path / "config.json").is_file():
        return folder_pieces(path)
    packed = folder / f"{run.name}{SUFFIX}"
    return read_compact(packed) if packed.is_file() else None


def measured(run: Planned, folder: Path) -> dict[str, float] | None:
    """Seconds of the parts of one run, scaled to its planned epochs; None if it is not there."""
    pieces = held(run, folder)
    if pieces is None or pieces.task is None:
        return None
    config = build(dict(pieces.config))
    other = difference(run.config, config.model_copy(update={"epochs": run.config.epochs}))
    if other is not None or not config.epochs:
        return None
    held_times = pieces.task
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


Kind = tuple[str, Callable[[Planned], object]]
# Whose mean stands for a run that is not there: the first that has any.
_CLOSE: tuple[Kind, ...] = (
    ("mean of the row's other seeds", lambda run: run.row.name),
    ("mean of the logic on the data set", lambda run: (run.row.logic, run.row.data)),
    ("mean of the property on the data set", lambda run: _pair(run)),
)
_FAR: tuple[Kind, ...] = (
    ("mean of the data set", lambda run: run.row.data),
    ("mean of all runs", lambda run: None),
)


def times(runs: Sequence[Planned], folder: Path) -> tuple[list[float], Counter[str]]:
    """Seconds of every run, and from where they are."""
    own = {run.name: parts for run in runs if (parts := measured(run, folder)) is not None}
    if not own:
        raise SystemExit(f"no finished run of the grid in {folder}")
    exact = {name: parts for name, parts in own.items() if not parts["by_wall"]}
    sources: Counter[str] = Counter()
    found = []
    for run in runs:
        name, seconds = _time(run, runs, exact, own)
        sources[name] += 1
        if name in ("measured", _BY_WALL):
            sources["of these scaled from fewer epochs"] += bool(own[run.name]["scaled"])
            without = bool(own[run.name]["no_evaluation"])
            sources["of these without the time of the evaluation"] += without
        found.append(seconds)
    return found, sources


_BY_WALL = "by the clock on the wall"
Known = dict[str, dict[str, float]]


def _time(run: Planned, runs: Sequence[Planned], exact: Known, own: Known) -> tuple[str, float]:
    if run.name in exact:
        return "measured", total(exact[run.name])
    near = _mean(run, runs, exact, _CLOSE)
    if near is not None:
        return near
    if run.name in own:
        return _BY_WALL, total(own[run.name])
    far = _mean(run, runs, own, (*_CLOSE, *_FAR))
    assert far is not None  # of all runs there is one at least
    return far


def _mean(
    run: Planned, runs: Sequence[Planned], known: Known, kinds: Sequence[Kind]
) -> tuple[str, float] | None:
    for name, kind in kinds:
        alike = [total(known[r.name]) for r in runs if r.name in known and kind(r) == kind(run)]
        if alike:
            return name, statistics.fmean(alike)
    return None


def _pair(run: Planned) -> tuple[str, str]:
    return run.row.property, run.row.data


def shares(runs: Sequence[Planned], folder: Path) -> dict[str, float]:
    """Of the measured runs, where the time goes."""
    known = [p for run in runs if (p := measured(run, folder)) is not None]
    parts = [p for p in known if not p["by_wall"]] or known
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
        pieces = held(run, folder)
        if pieces is not None:
            found.add(str(pieces.environment.get("processor")))
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
