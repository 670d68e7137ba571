"""All ACAS Xu instances of a folder with `instances.csv`, against their known verdicts.

    python bench/verify_acasxu.py DIR [--only REGEX] [--jobs N] [--clock cpu] [--json OUT]

REGEX is searched in `network/property`. Each instance has its own time-out, from the file, by the
chosen clock. Printed by instance, by property (as a table) and in total.
"""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qll.exchange.files import read
from qll.networks import load
from qll.verify.backend import BACKENDS, Budget
from qll.verify.documents import queries
from qll.verify.query import Query


def query_of(folder: Path, row: dict[str, str]) -> Query:
    (query,) = queries(read(folder / row["property"]), load(folder / row["network"]))
    return query


def run(folder: Path, row: dict[str, str], clock: str) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    wall, cpu = time.monotonic(), time.process_time()
    query = query_of(folder, row)
    budget = Budget(seconds=float(row["timeout"]), clock=clock)
    verdict = BACKENDS["bab"]().decide([query], budget)[0]
    return {
        **row,
        **verdict.as_json(),
        "wall_seconds": time.monotonic() - wall,
        "cpu_seconds": time.process_time() - cpu,
    }


def run_all(
    folder: Path, rows: list[dict[str, str]], jobs: int, clock: str
) -> Iterator[dict[str, Any]]:
    if jobs <= 1:
        for row in rows:
            yield run(folder, row, clock)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for item in [pool.apply_async(run, (folder, row, clock)) for row in rows]:
            yield item.get()


def total_of(results: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "instances": len(results),
        "correct": sum(r["status"] == r["verdict"] for r in results),
        "verified": sum(r["status"] == "verified" for r in results),
        "falsified": sum(r["status"] == "falsified" for r in results),
        "unknown": sum(r["status"] == "unknown" for r in results),
        "contradictions": sum(r["status"] not in ("unknown", r["verdict"]) for r in results),
        "cpu_seconds": sum(r["cpu_seconds"] for r in results),
        "slowest_cpu": max((r["cpu_seconds"] for r in results), default=0.0),
        "slowest_wall": max((r["wall_seconds"] for r in results), default=0.0),
    }


def table(results: list[dict[str, Any]]) -> str:
    lines = [
        "| property | instances | decided correctly | verified | falsified | unknown | CPU s "
        "| slowest, CPU s | slowest, wall s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    properties = sorted({r["property"] for r in results})
    for name in [*properties, "all"]:
        t = total_of([r for r in results if name in (r["property"], "all")])
        lines.append(
            f"| {name.removesuffix('.vnnlib').replace('prop_', '')} | {t['instances']} "
            f"| {t['correct']} | {t['verified']} | {t['falsified']} | {t['unknown']} "
            f"| {t['cpu_seconds']:.1f} | {t['slowest_cpu']:.1f} | {t['slowest_wall']:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--clock", default="wall", help="cpu: for a machine that others use too")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with (arguments.folder / "instances.csv").open() as stream:
        rows = [
            r
            for r in csv.DictReader(stream)
            if re.search(arguments.only, f"{r['network']}/{r['property']}")
        ]
    start = time.monotonic()
    results = []
    for r in run_all(arguments.folder, rows, arguments.jobs, arguments.clock):
        results.append(r)
        mark = "" if r["status"] == r["verdict"] else "   <-- expected " + r["verdict"]
        print(
            f"{r['network']:34} {r['property']:14} {r['status']:9} {r['stage']:8} "
            f"nodes {r['nodes']:7} cpu {r['cpu_seconds']:.2f} wall {r['wall_seconds']:.2f}{mark}",
            flush=True,
        )
    total = {**total_of(results), "wall_seconds": time.monotonic() - start}
    print(table(results))
    print(", ".join(f"{k} {v:.6g}" for k, v in total.items()))
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": results, "total": total}, indent=1) + "\n")


if __name__ == "__main__":
    main()
