"""Ours against Marabou on queries sampled over the rows of a corpus, in one run: CPU time.

    python bench/verify_vs_marabou.py CORPUS_DIR [--count 40] [--timeout 30] [--json OUT]

Both decide the same queries in the same process, one after the other; contradictions are counted.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
from verify_corpus import make_queries, name_of

from qll.verify.backend import BACKENDS, Budget


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--timeout", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = json.loads((arguments.corpus / "verdicts.json").read_text())
    rng = np.random.default_rng(arguments.seed)
    chosen = rng.choice(len(rows), size=arguments.count, replace=False)
    backends = {name: BACKENDS[name]() for name in ("bab", "marabou")}
    # Compile and load everything once before the clock runs.
    for backend in ("bab",):
        backends[backend].decide(make_queries(arguments.corpus, rows[0], 0), Budget(seconds=5))
    total = dict.fromkeys(backends, 0.0)
    unknown = dict.fromkeys(backends, 0)
    contradictions = 0
    results = []
    for r in chosen:
        row = rows[r]
        index = int(rng.integers(len(row["verdicts"])))
        (query,) = make_queries(arguments.corpus, row, index)
        answers = {}
        for name, backend in backends.items():
            start = time.process_time()
            verdict = backend.decide([query], Budget(seconds=arguments.timeout))[0]
            cpu = time.process_time() - start
            total[name] += cpu
            unknown[name] += not verdict.decided
            answers[name] = {"status": str(verdict.status), "cpu_seconds": cpu}
        decided = {a["status"] for a in answers.values()} - {"unknown"}
        contradictions += len(decided) > 1
        results.append({"row": name_of(row), "index": index, **answers})
        print(
            f"{name_of(row):60} {index:3} "
            + "  ".join(f"{n} {a['status']:9} {a['cpu_seconds']:.3f}" for n, a in answers.items()),
            flush=True,
        )
    summary = {
        "cpu_seconds": total,
        "ratio": total["marabou"] / total["bab"],
        "unknown": unknown,
        "contradictions": contradictions,
    }
    print(summary)
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": results, "total": summary}, indent=1) + "\n")


if __name__ == "__main__":
    main()
