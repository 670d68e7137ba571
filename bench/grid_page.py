"""docs/grid.md from the records in the repository: ours beside the published figures.

    python bench/grid_page.py [RESULTS] --paper PUBLISHED.json [--write docs/grid.md] [--json OUT]

Prints the part of the page between its marks; --write puts it there. --quick is accepted for the
sake of scripts that pass it to every benchmark: nothing is run here.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from qll.grid.plan import paper_grid
from qll.reports.compact import SUFFIX, read_compact
from qll.reports.paper import Paper, read_paper
from qll.reports.records import read_runs
from qll.reports.table_text import comparison_markdown, markdown
from qll.reports.tables import build_table

BEGIN, END = "<!-- grid: begin -->", "<!-- grid: end -->"


def page_part(results: Path, paper: Paper) -> str:
    """What is there, what it cost, the comparison, and every row."""
    table = build_table(read_runs([results]), paper)
    held = summary(results)
    lines = [
        f"{held['rows']} of {held['all_rows']} rows, {held['runs']} runs "
        f"({held['full']} at full length). Of {held['timed']} that were not interrupted the "
        f"processor time is known: {held['core_hours']:.1f} core hours, median "
        f"{held['median_minutes']:.1f} minutes. {held['regions']:,} regions were asked of the "
        f"verifier, {held['unknown']:,} are unknown.",
        "",
        comparison_markdown(table).strip(),
        "",
        markdown(table, "long").strip(),
    ]
    return "\n".join(lines)


def summary(results: Path) -> dict[str, Any]:
    planned = paper_grid().runs()
    epochs = {run.name: run.config.epochs for run in planned}
    rows = {run.name: run.row.name for run in planned}
    pieces = {
        path.name.removesuffix(SUFFIX): read_compact(path)
        for path in sorted(results.glob(f"*{SUFFIX}"))
    }
    tasks = [held.task for held in pieces.values() if held.task is not None]
    cpu = [float(task["cpu_seconds"]) for task in tasks if task.get("cpu_seconds") is not None]
    statuses = [
        verdict["status"]
        for held in pieces.values()
        for values in held.verdicts.values()
        for verdict in values["verdicts"]
    ]
    return {
        "rows": len({rows[name] for name in pieces if name in rows}),
        "all_rows": len(set(rows.values())),
        "runs": len(pieces),
        "full": sum(len(held.epochs) == epochs.get(name) for name, held in pieces.items()),
        "timed": len(cpu),
        "core_hours": sum(cpu) / 3600,
        "median_minutes": statistics.median(cpu or [0.0]) / 60,
        "regions": len(statuses),
        "unknown": statuses.count("unknown"),
    }


def replaced(page: str, part: str) -> str:
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{part}\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, nargs="?", default=Path("results/paper"))
    parser.add_argument("--paper", type=Path, required=True)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    part = page_part(options.results, read_paper(options.paper))
    if options.write is not None:
        page = options.write.read_text(encoding="utf-8")
        options.write.write_text(replaced(page, part), encoding="utf-8")
    else:
        print(part)
    if options.json is not None:
        options.json.write_text(json.dumps(summary(options.results), indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
