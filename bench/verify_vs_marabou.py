"""Ours against Marabou on queries sampled over the rows of a corpus, in one run: CPU time.

    python bench/verify_vs_marabou.py CORPUS_DIR [--count 40] [--timeout 60] [--json OUT]

Both decide the same queries, one after the other, a single thread each; contradictions are counted.
Marabou only knows the wall clock, so each of its queries runs in a child process that the system
ends after `--timeout` seconds of CPU time. Such a query counts with the time it was given, so the
ratio is a lower bound.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from verify_corpus import make_queries, name_of

from qll.verify.backend import BACKENDS, Backend, Budget
from qll.verify.query import Query

NAMES = ("bab", "marabou")
CLOCKS = {"bab": "cpu", "marabou": "wall"}
# Marabou's own time-out: far above what a busy machine needs for the CPU seconds.
WALL = 3600.0


def in_child(work: Callable[[], str], seconds: float) -> tuple[str, float]:
    """What ``work`` says (``unknown`` if it is ended after ``seconds``) and its CPU seconds."""
    read, write = os.pipe()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    pid = os.fork()
    if pid == 0:
        limit = int(np.ceil(seconds))
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
        os.write(write, work().encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as stream:
        said = stream.read()
    os.waitpid(pid, 0)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)
    return said or "unknown", spent


def in_process(work: Callable[[], str]) -> tuple[str, float]:
    start = time.process_time()
    said = work()
    return said, time.process_time() - start


def summary_of(results: list[dict[str, Any]]) -> dict[str, Any]:
    def seconds(name: str, rows: list[dict[str, Any]]) -> float:
        return sum(float(r[name]["cpu_seconds"]) for r in rows)

    both = [r for r in results if "unknown" not in {r[name]["status"] for name in NAMES}]
    return {
        "queries": len(results),
        "cpu_seconds": {name: seconds(name, results) for name in NAMES},
        "ratio": seconds("marabou", results) / seconds("bab", results),
        "unknown": {n: sum(r[n]["status"] == "unknown" for r in results) for n in NAMES},
        "decided_by_both": len(both),
        "ratio_decided_by_both": seconds("marabou", both) / max(seconds("bab", both), 1e-9),
        "median_ratio": float(
            np.median([r["marabou"]["cpu_seconds"] / r["bab"]["cpu_seconds"] for r in results])
        ),
        "contradictions": sum(r["bab"]["status"] != r["marabou"]["status"] for r in both),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--timeout", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--skip", type=int, default=0, help="of the sample, to go on with a run")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = json.loads((arguments.corpus / "verdicts.json").read_text())
    rng = np.random.default_rng(arguments.seed)
    chosen = rng.choice(len(rows), size=arguments.count, replace=False)
    backends = {name: BACKENDS[name]() for name in NAMES}
    # Compile and load everything before the clock runs: one proof and one counterexample.
    for verdict in ("verified", "falsified"):
        row = next(r for r in rows if verdict in r["verdicts"])
        query = make_queries(arguments.corpus, row, row["verdicts"].index(verdict))
        for backend in backends.values():
            backend.decide(query, Budget(seconds=1))
    results = []
    for number, r in enumerate(chosen):
        row = rows[r]
        index = int(rng.integers(len(row["verdicts"])))
        if number < arguments.skip:
            continue
        (query,) = make_queries(arguments.corpus, row, index)
        answers: dict[str, Any] = {}
        for name, backend in backends.items():

            def work(backend: Backend = backend, name: str = name, query: Query = query) -> str:
                seconds = arguments.timeout if name == "bab" else WALL
                return str(backend.decide([query], Budget(seconds, clock=CLOCKS[name]))[0].status)

            if name == "bab":
                status, cpu = in_process(work)
            else:
                status, cpu = in_child(work, arguments.timeout)
            answers[name] = {"status": status, "cpu_seconds": cpu}
        results.append({"row": name_of(row), "index": index, **answers})
        print(
            f"{name_of(row):60} {index:3} "
            + "  ".join(f"{n} {a['status']:9} {a['cpu_seconds']:.3f}" for n, a in answers.items()),
            flush=True,
        )
        if arguments.json:
            content = {"rows": results, "total": summary_of(results)}
            arguments.json.write_text(json.dumps(content, indent=1) + "\n")
    print(json.dumps(summary_of(results), indent=1))


if __name__ == "__main__":
    main()
