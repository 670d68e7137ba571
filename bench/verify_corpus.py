"""Run the verifier over a folder of published networks and verdicts.

    python bench/verify_corpus.py CORPUS_DIR [--rows REGEX] [--timeout S] [--jobs N] [--json OUT]

The folder holds `verdicts.json`, `models/` and the images. REGEX is searched in
`constraint/dataset/seed/logic/epsilon`. A verdict that contradicts a decided published one is
counted: it is a defect until the network, run on the witness, shows which side is wrong.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import struct
import time
from fractions import Fraction
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from qll.formula.hard import HardForm
from qll.formula.parse import parse_specification
from qll.networks import load
from qll.property import Property
from qll.verify.backend import BACKENDS, Budget
from qll.verify.query import Query

NORMALISATION = {
    "mnist": (0.1307, 0.3081),
    "fashion": (0.2860, 0.3530),
    "dice": (
        (0.7232479453086853, 0.7257601618766785, 0.6415771842002869),
        (0.32942402362823486, 0.24738003313541412, 0.2831753194332123),
    ),
}
STRONG_THRESHOLD = 0.84729786038


def property_of(constraint: str, epsilon: float) -> Property:
    """The shipped property as the published runs judged it."""
    text = resources.files("qll.properties").joinpath(f"{constraint}.qll").read_text()
    if constraint.startswith("strong"):  # the published threshold is a truncated logit
        text = text.replace("probability = 0.7", f"logit = {STRONG_THRESHOLD}")
    return Property(parse_specification(text), {"epsilon": epsilon})


def read_idx(path: Path) -> Any:
    data = path.read_bytes()
    kinds = {8: ">u1", 13: ">f4", 14: ">f8", 12: ">i4", 9: "i1", 11: ">i2"}
    sizes = struct.unpack(f">{data[3]}I", data[4 : 4 + 4 * data[3]])
    return np.frombuffer(data[4 + 4 * data[3] :], dtype=kinds[data[2]]).reshape(sizes)


def make_queries(corpus: Path, row: dict[str, Any], only: int | None = None) -> list[Query]:
    images = read_idx(corpus / f"{row['dataset']}-images.idx").astype(np.float64)
    labels = read_idx(corpus / f"{row['dataset']}-labels.idx")
    mean, std = NORMALISATION[row["dataset"]]
    network = load(corpus / row["model"], mean=np.array(mean), std=np.array(std))
    epsilon = float(Fraction(row["epsilon"]))
    prop = property_of(row["constraint"], epsilon)
    forms: dict[Any, HardForm] = {}
    queries = []
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        if only is not None and i != only:
            continue
        pattern = (int(label),) if np.ndim(label) == 0 and prop.uses_labels else None
        if pattern not in forms:
            forms[pattern] = prop.hard_form(
                pattern, outputs=network.output_size, inputs=network.input_shape
            )
        x = image.reshape(-1)
        lower, upper = np.clip(x - epsilon, 0.0, 1.0), np.clip(x + epsilon, 0.0, 1.0)
        queries.append(Query(network, lower, upper, forms[pattern]))
    return queries


def run_row(
    corpus: Path, row: dict[str, Any], timeout: float, backend: str, clock: str
) -> dict[str, Any]:
    queries = make_queries(corpus, row)
    wall, cpu = time.monotonic(), time.process_time()
    verdicts = BACKENDS[backend]().decide(queries, Budget(seconds=timeout, clock=clock))
    cpu, wall = time.process_time() - cpu, time.monotonic() - wall
    statuses = [str(v.status) for v in verdicts]
    wrong = [
        i
        for i, (ours, published) in enumerate(zip(statuses, row["verdicts"], strict=True))
        if "unknown" not in (ours, published) and ours != published
    ]
    return {
        **{k: row[k] for k in ("constraint", "dataset", "seed", "logic", "epsilon")},
        **{s: statuses.count(s) for s in ("verified", "falsified", "unknown")},
        "contradictions": len(wrong),
        "contradicting": wrong,
        "cpu_seconds": cpu,
        "wall_seconds": wall,
        "published_unknown": row["verdicts"].count("unknown"),
        "verdicts": [v.as_json() for v in verdicts],
    }


def name_of(row: dict[str, Any]) -> str:
    return "/".join(str(row[k]) for k in ("constraint", "dataset", "seed", "logic", "epsilon"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--rows", default="")
    parser.add_argument("--timeout", type=float, default=10.0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--backend", default="bab")
    parser.add_argument("--clock", default="wall", help="cpu: for a machine that others use too")
    arguments = parser.parse_args()
    rows = json.loads((arguments.corpus / "verdicts.json").read_text())
    rows = [row for row in rows if re.search(arguments.rows, name_of(row))]
    start = time.monotonic()
    results = []
    tasks = [
        (arguments.corpus, row, arguments.timeout, arguments.backend, arguments.clock)
        for row in rows
    ]
    if arguments.jobs > 1:
        with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
            waiting = [pool.apply_async(run_row, task) for task in tasks]
            for item in waiting:
                results.append(item.get())
                report(results[-1])
    else:
        for task in tasks:
            results.append(run_row(*task))
            report(results[-1])
    keys = ("verified", "falsified", "unknown", "contradictions", "cpu_seconds")
    total = {k: sum(r[k] for r in results) for k in keys}
    total["wall_seconds"] = time.monotonic() - start
    count = sum(len(r["verdicts"]) for r in results)
    print(f"total of {count}: " + ", ".join(f"{k} {v:.6g}" for k, v in total.items()))
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": results, "total": total}, indent=1) + "\n")


def report(r: dict[str, Any]) -> None:
    print(
        f"{name_of(r):62} verified {r['verified']:3} falsified {r['falsified']:3} "
        f"unknown {r['unknown']:3} (published {r['published_unknown']:3}) "
        f"contradictions {r['contradictions']} "
        f"cpu {r['cpu_seconds']:.2f} wall {r['wall_seconds']:.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
