"""All ACAS Xu instances of a folder with `instances.csv`, against their known verdicts.

python bench/verify_acasxu.py DIR [--only REGEX] [--jobs N] [--json OUT]
"""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import re
import time
from pathlib import Path
from typing import Any

from qll.networks import load
from qll.verify.backend import BACKENDS, Budget
from qll.verify.query import Query
from qll.verify.vnnlib import read_vnnlib


def run(folder: Path, row: dict[str, str]) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    specification = read_vnnlib(folder / row["property"])
    query = Query(
        load(folder / row["network"]),
        specification.lower,
        specification.upper,
        specification.condition,
        tie_violates=True,
    )
    wall, cpu = time.monotonic(), time.process_time()
    verdict = BACKENDS["bab"]().decide([query], Budget(seconds=float(row["timeout"])))[0]
    return {
        **row,
        **verdict.as_json(),
        "wall_seconds": time.monotonic() - wall,
        "cpu_seconds": time.process_time() - cpu,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=2)
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
    with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
        for item in [pool.apply_async(run, (arguments.folder, row)) for row in rows]:
            r = item.get()
            results.append(r)
            mark = "" if r["status"] == r["verdict"] else "   <-- expected " + r["verdict"]
            print(
                f"{r['network']:34} {r['property']:14} {r['status']:9} {r['stage']:8} "
                f"nodes {r['nodes']:7} wall {r['wall_seconds']:.2f}{mark}",
                flush=True,
            )
    total = {
        "correct": sum(r["status"] == r["verdict"] for r in results),
        "unknown": sum(r["status"] == "unknown" for r in results),
        "contradictions": sum(r["status"] not in ("unknown", r["verdict"]) for r in results),
        "cpu_seconds": sum(r["cpu_seconds"] for r in results),
        "wall_seconds": time.monotonic() - start,
        "slowest": max(r["wall_seconds"] for r in results),
    }
    print(f"{len(results)} instances: " + ", ".join(f"{k} {v:.6g}" for k, v in total.items()))
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": results, "total": total}, indent=1) + "\n")


if __name__ == "__main__":
    main()
