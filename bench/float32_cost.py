"""What a verdict about float32 costs: the share of real verdicts that survive, and the time.

    python bench/float32_cost.py CORPUS_DIR [--rows REGEX] [--every K] [--points N] [--timeout S]
                                 [--certified] [--quick] [--json OUT]

Of every K-th row of the corpus the first N data points are decided in real arithmetic and in
float32, one after the other, in one process and by its CPU time. A proof survives if float32
verifies the point too; ``--certified`` has both checked, and counts the checker's time.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from verify_corpus import make_queries

from qll.verify.backend import BACKENDS, Budget
from qll.verify.certificate import certify
from qll.verify.query import Query
from qll.verify.verdict import Status


def decide(query: Query, timeout: float, certified: bool) -> tuple[str, float]:
    began = time.process_time()
    budget = Budget(timeout, proofs=certified, clock="cpu")
    verdict = BACKENDS["bab"]().decide([query], budget)[0]
    status = str(verdict.status)
    if certified and verdict.decided and not verdict.vacuous:
        status = status if certify(query, verdict)[1].confirmed else "unconfirmed"
    return status, time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--rows", default="")
    parser.add_argument("--every", type=int, default=11)
    parser.add_argument("--points", type=int, default=20)
    parser.add_argument("--timeout", type=float, default=10.0)
    parser.add_argument("--certified", action="store_true")
    parser.add_argument("--quick", action="store_true", help="two points of every 40th row")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    every, points = (40, 2) if given.quick else (given.every, given.points)
    rows = json.loads((given.corpus / "verdicts.json").read_text())
    rows = rows["rows"] if isinstance(rows, dict) else rows
    names = ("constraint", "dataset", "seed", "logic", "epsilon")
    chosen = [r for r in rows if re.search(given.rows, "/".join(str(r[n]) for n in names))]
    counts = dict.fromkeys(("verified", "falsified", "survived", "still falsified"), 0)
    seconds, both = {"real": 0.0, "float32": 0.0}, {"real": 0.0, "float32": 0.0}
    changed: list[Any] = []
    for row in chosen[::every]:
        queries = [q for q in make_queries(given.corpus, row)[:points] if not q.vacuous]
        if queries:  # reading the network and loading kernels is in neither time
            decide(queries[0], 1.0, given.certified)
            decide(replace(queries[0], arithmetic="float32"), 1.0, given.certified)
        for index, query in enumerate(queries):
            real, spent = decide(query, given.timeout, given.certified)
            if real not in (Status.VERIFIED, Status.FALSIFIED):
                continue
            single, more = decide(
                replace(query, arithmetic="float32"), given.timeout, given.certified
            )
            counts[real] += 1
            counts["survived" if real == "verified" else "still falsified"] += real == single
            if real != single:
                changed.append(["/".join(str(row[n]) for n in names), index, real, single])
            seconds["real"] += spent
            seconds["float32"] += more
            if real == single:
                both["real"] += spent
                both["float32"] += more
    share = 100.0 * counts["survived"] / max(counts["verified"], 1)
    kept = 100.0 * counts["still falsified"] / max(counts["falsified"], 1)
    print(f"{counts['verified']} proofs in real arithmetic, {share:.1f} % of them in float32")
    print(f"{counts['falsified']} witnesses in real arithmetic, {kept:.1f} % of them in float32")
    ratio = seconds["float32"] / max(seconds["real"], 1e-9)
    print(f"CPU seconds {seconds['real']:.1f} and {seconds['float32']:.1f}, ratio {ratio:.2f}")
    ratio = both["float32"] / max(both["real"], 1e-9)
    print(f"where both decide {both['real']:.1f} and {both['float32']:.1f}, ratio {ratio:.2f}")
    for line in changed:
        print("  ", *line)
    if given.json is not None:
        given.json.write_text(
            json.dumps({**counts, "seconds": seconds, "both": both, "changed": changed})
        )


if __name__ == "__main__":
    main()
