"""Prove, write certificates and check them, over a folder of published networks.

    python bench/audit_corpus.py CORPUS_DIR [--rows REGEX] [--count N] [--timeout S] [--json OUT]

The folder is laid out as for `bench/verify_corpus.py`; REGEX is searched in
`constraint/dataset/seed/logic/epsilon`, N images are taken of each row. Printed per row and in
total: verdicts and how many of them the checker confirms, sizes of certificates, and CPU seconds of
proving (attacks included) and of checking, each certificate from its bytes.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import time
from fractions import Fraction
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from verify_corpus import NORMALISATION, STRONG_THRESHOLD, name_of, read_idx

from qll.audit import audit
from qll.formula.parse import parse_specification
from qll.networks import load
from qll.property import Property
from qll.verify.backend import BACKENDS, Budget
from qll.verify.certificate import Unwritable, certify
from qll.verify.query import Query
from qll.verify.subject import Subject
from qll.verify.verdict import Status


def property_of(constraint: str, epsilon: float) -> Property:
    text = resources.files("qll.properties").joinpath(f"{constraint}.qll").read_text()
    if constraint.startswith("strong"):  # the published threshold is a truncated logit
        text = text.replace("probability = 0.7", f"logit = {STRONG_THRESHOLD}")
    return Property(parse_specification(text), {"epsilon": epsilon})


def run_row(corpus: Path, row: dict[str, Any], count: int, timeout: float) -> dict[str, Any]:
    images = read_idx(corpus / f"{row['dataset']}-images.idx").astype(np.float64)[:count]
    labels = read_idx(corpus / f"{row['dataset']}-labels.idx")[:count]
    mean, std = NORMALISATION[row["dataset"]]
    network = load(corpus / row["model"], mean=np.array(mean), std=np.array(std))
    epsilon = float(Fraction(row["epsilon"]))
    prop = property_of(row["constraint"], epsilon)
    subjects, queries = [], []
    for image, label in zip(images, labels, strict=True):
        x0 = image.reshape(-1)
        subject = Subject.of(prop, x0, label)
        form = prop.hard_form(
            subject.labels, outputs=network.output_size, inputs=network.input_shape
        )
        subjects.append(subject)
        queries.append(
            Query(network, np.clip(x0 - epsilon, 0, 1), np.clip(x0 + epsilon, 0, 1), form)
        )
    backend = BACKENDS["bab"]()
    backend.decide(queries[:1], Budget(seconds=timeout))  # kernels compiled before the clock runs
    cpu = time.process_time()
    verdicts = backend.decide(queries, Budget(seconds=timeout, proofs=True))
    proving = time.process_time() - cpu
    result: dict[str, Any] = {
        **{k: row[k] for k in ("constraint", "dataset", "seed", "logic", "epsilon")},
        "prove_cpu": proving, "check_cpu": {"verified": 0.0, "falsified": 0.0},
        "verified": 0, "falsified": 0, "unknown": 0, "vacuous": 0,
        "confirmed": {"verified": 0, "falsified": 0}, "sizes": [], "not_confirmed": [],
    }  # fmt: skip
    for index, (query, verdict, subject) in enumerate(zip(queries, verdicts, subjects)):
        status = "vacuous" if verdict.vacuous else str(verdict.status)
        result[status] += 1
        if not verdict.decided or verdict.vacuous:  # says nothing of the network: not certified
            continue
        try:
            data, answer = certify(query, verdict, subject)
        except Unwritable as error:
            result["not_confirmed"].append([index, status, str(error)])
            continue
        cpu = time.process_time()
        again = audit(data, network.source)
        result["check_cpu"][status] += time.process_time() - cpu
        if again.confirmed and answer.confirmed:
            result["confirmed"][status] += 1
        else:
            result["not_confirmed"].append([index, status, again.reason])
        if verdict.status is Status.VERIFIED:
            result["sizes"].append(len(data))
    return result


def report(name: str, r: dict[str, Any]) -> None:
    sizes = sorted(r["sizes"]) or [0]
    print(
        f"{name:60} verified {r['confirmed']['verified']}/{r['verified']} "
        f"falsified {r['confirmed']['falsified']}/{r['falsified']} unknown {r['unknown']} "
        f"vacuous {r['vacuous']} "
        f"kB median {statistics.median(sizes) / 1000:.1f} max {sizes[-1] / 1000:.1f} "
        f"CPU s prove {r['prove_cpu']:.2f} check {r['check_cpu']['verified']:.2f} "
        f"+ {r['check_cpu']['falsified']:.2f}",
        flush=True,
    )
    for index, status, reason in r["not_confirmed"]:
        print(f"    image {index}, {status}: {reason}", flush=True)


def add(rows: list[dict[str, Any]]) -> dict[str, Any]:
    total: dict[str, Any] = {
        k: sum(r[k] for r in rows)
        for k in ("verified", "falsified", "unknown", "vacuous", "prove_cpu")
    }
    for k in ("confirmed", "check_cpu"):
        total[k] = {s: sum(r[k][s] for r in rows) for s in ("verified", "falsified")}
    total["sizes"] = [s for r in rows for s in r["sizes"]]
    total["not_confirmed"] = []
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--rows", default="")
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--timeout", type=float, default=10.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = json.loads((arguments.corpus / "verdicts.json").read_text())
    results = []
    for row in rows:
        if re.search(arguments.rows, name_of(row)):
            results.append(run_row(arguments.corpus, row, arguments.count, arguments.timeout))
            report(name_of(row), results[-1])
    total = add(results)
    report("total", total)
    share = total["confirmed"]["verified"] / max(total["verified"], 1)
    print(
        f"verified confirmed {100 * share:.3f} %, "
        f"checking {total['check_cpu']['verified'] / max(total['prove_cpu'], 1e-9):.2f} of proving"
    )
    if arguments.json:
        total["sizes"] = {
            "median": statistics.median(total["sizes"] or [0]), "max": max(total["sizes"] or [0])
        }  # fmt: skip
        arguments.json.write_text(json.dumps({"rows": results, "total": total}, indent=1) + "\n")


if __name__ == "__main__":
    main()
