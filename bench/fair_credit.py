"""Fair credit: five published networks, two protected inputs, the whole domain and its 201 parts.

The question of Fairify (Biswas and Rajan, ICSE 2023): are there two applicants who differ in one
protected input alone and get different decisions? Inputs are whole numbers; a partition cuts the
amount of the credit into pieces of 100. Published are the answers by partition of z3 with pruning,
30 minutes a network; ours must not contradict them.

    QLL_SHARED=... python bench/fair_credit.py [--quick] [--json OUT]
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import qll
from qll.files import write_json
from qll.networks import Network, load

RULES = Path(__file__).parent.parent / "examples" / "fair-credit"
SECONDS = 60.0
QUICK_EVERY = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="every 50th partition")
    parser.add_argument("--networks", default="GC1,GC2,GC3,GC4,GC5")
    parser.add_argument("--json", type=Path, default=None)
    given = parser.parse_args()
    folder = Path(os.environ["QLL_SHARED"]) / "tabular" / "fairness" / "german"
    task = json.loads((folder / "task.json").read_text())
    rows = []
    for name in given.networks.split(","):
        network = load(folder / f"{name}.onnx")
        for protected in task["protected"]:
            row = answer(network, name, protected, task, quick=given.quick)
            rows.append(row)
            print(line(row), flush=True)
    total = sum(row["cpu_seconds"] for row in rows)
    print(f"{len(rows)} questions, {total:.1f} s of CPU")
    wrong = [row["network"] + " " + row["protected"] for row in rows if row["contradicts"]]
    print("contradicts what is published: " + (", ".join(wrong) or "nothing"))
    if given.json is not None:
        write_json(given.json, {"rows": rows, "cpu_seconds": total})


def parts(task: dict[str, Any], *, quick: bool) -> list[tuple[int, int]]:
    """The pieces of the one range that is longer than a partition."""
    size = task["partition"]
    (long,) = [i for i in task["inputs"] if i["high"] - i["low"] + 1 > size]
    starts = range(long["low"], long["high"] + 1, size)
    found = [(start, min(start + size - 1, long["high"])) for start in starts]
    return found[::QUICK_EVERY] if quick else found


def answer(
    network: Network, name: str, protected: str, task: dict[str, Any], *, quick: bool
) -> dict[str, Any]:
    rule = RULES / f"fair-{protected}.qll"
    cpu, wall = time.process_time(), time.monotonic()
    (whole,) = qll.verify(qll.load(str(rule)), network, timeout=SECONDS)
    tally = {"falsified": 0, "verified": 0, "unknown": 0}
    checked, slowest = 0, 0.0
    for low, high in parts(task, quick=quick):
        prop = qll.load(str(rule), least=float(low), most=float(high))
        (verdict,) = qll.verify(prop, network, timeout=SECONDS)
        tally[str(verdict.status)] += 1
        checked += verdict.status == "verified" and "checker" in str(verdict.evidence)
        slowest = max(slowest, verdict.seconds)
    (told,) = [
        row for row in task["published"]
        if row["network"] == name and row["protected"] == protected
    ]  # fmt: skip
    return {
        "network": name,
        "protected": protected,
        "whole": str(whole.status),
        "partitions": tally,
        "checked": checked,
        "slowest": round(slowest, 2),
        "published": {key: told[key] for key in ("sat", "unsat", "unknown", "verdict")},
        "contradicts": contradicts(tally, str(whole.status), told, quick=quick),
        "cpu_seconds": round(time.process_time() - cpu, 2),
        "wall_seconds": round(time.monotonic() - wall, 2),
    }


def contradicts(tally: dict[str, int], whole: str, told: dict[str, Any], *, quick: bool) -> bool:
    """Fewer falsified partitions than were found sat, fewer verified ones than unsat; of networks
    that were decided to the end, other numbers."""
    if {"SAT": "verified", "UNSAT": "falsified"}.get(told["verdict"]) == whole:
        return True
    if quick or tally["unknown"]:
        return False
    return tally["falsified"] < told["sat"] or tally["verified"] < told["unsat"]


def line(row: dict[str, Any]) -> str:
    ours, told = row["partitions"], row["published"]
    return (
        f"{row['network']} {row['protected']}: whole domain {row['whole']}; partitions "
        f"{ours['falsified']} falsified, {ours['verified']} verified ({row['checked']} checked), "
        f"{ours['unknown']} unknown (published: {told['sat']}, {told['unsat']}, "
        f"{told['unknown']}); {row['cpu_seconds']:.1f} s of CPU, slowest {row['slowest']} s"
    )


if __name__ == "__main__":
    main()
