"""Ours against Marabou on queries sampled over the rows of a corpus, in one run: CPU time.

    python bench/verify_vs_marabou.py CORPUS_DIR [--count 40] [--timeout 60] [--json OUT]

Both decide the same queries in the same process, one after the other, a single thread each;
contradictions are counted. A query that Marabou gives up at the time-out (of the wall clock, which
is the one it has) counts with what it took until then, so the ratio is a lower bound.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from verify_corpus import make_queries, name_of

from qll.verify.backend import BACKENDS, Budget

NAMES = ("bab", "marabou")


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
    for r in chosen:
        row = rows[r]
        index = int(rng.integers(len(row["verdicts"])))
        (query,) = make_queries(arguments.corpus, row, index)
        answers: dict[str, Any] = {}
        for name, backend in backends.items():
            start = time.process_time()
            decided = backend.decide([query], Budget(seconds=arguments.timeout))[0]
            cpu = time.process_time() - start
            answers[name] = {"status": str(decided.status), "cpu_seconds": cpu}
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
