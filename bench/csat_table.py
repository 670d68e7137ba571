"""CSat of the published networks as we verify it, beside the published values.

    python bench/csat_table.py CORPUS_JSON --paper results.json [--verdicts verdicts.json]
                               [--write docs/results.md] [--rows docs/results-corpus.md]

CORPUS_JSON is what `bench/verify_corpus.py --json` wrote, `results.json` the paper's table (mean
and deviation over 5 seeds), `verdicts.json` the published verdict of each query, from which CSat
follows for the very networks that we have. `--write` replaces the parts of a page between the
markers `<!-- csat_table: NAME -->` and `<!-- end -->`; `--rows` writes the page of single rows.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections import defaultdict
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeAlias

from verify_corpus import name_of

Row: TypeAlias = dict[str, Any]
PAPER_NAMES = {"GD": "Goedel", "LK": "Lukasiewicz", "RC": "Product", "YG": "Yager"}


def logic_of(name: str) -> tuple[str, str]:
    """Name and parameter of a logic as the paper's table gives them."""
    base, _, parameter = name.partition("_")
    return PAPER_NAMES.get(base, base), parameter or ("2" if base == "YG" else "")


def spread(values: list[float]) -> str:
    """Mean and sample deviation, as the paper reports them."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.1f} ± {deviation:.1f}"


def rate(rows: list[Row], status: str) -> list[float]:
    """Per cent of the queries of each row with this verdict."""
    return [
        100.0 * sum(v == status for v in row["statuses"]) / len(row["statuses"]) for row in rows
    ]


def cell(rows: list[Row]) -> str:
    if not rows:
        return ""
    unknown = statistics.fmean(rate(rows, "unknown"))
    return spread(rate(rows, "verified")) + (f" ({unknown:.1f})" if unknown else "")


def paper_cell(row: Row | None, suffix: str) -> str:
    if row is None or row[f"CSat{suffix}"] is None:
        return ""
    mean, deviation = row[f"CSat{suffix}"]
    unknown = (row[f"unknown{suffix}"] or [0.0])[0]
    return f"{mean:.1f} ± {deviation:.1f}" + (f" ({unknown:.1f})" if unknown else "")


def csat(ours: list[Row], published: list[Row], paper: list[Row]) -> str:
    lines = [
        "| property, data | logic | half: ours | published | paper | full: ours | published "
        "| paper |",
        "|---|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[str, str, str], dict[Fraction, list[Row]]] = defaultdict(dict)
    for row in ours:
        key = (row["constraint"], row["dataset"], row["logic"])
        groups[key].setdefault(Fraction(row["epsilon"]), []).append(row)
    for (constraint, dataset, logic), by_epsilon in groups.items():
        name, parameter = logic_of(logic)
        printed = next(
            (
                r
                for r in paper
                if (r["constraint"], r["dataset"], r["logic"]) == (constraint, dataset, name)
                and str(r["parameter"] or "") == parameter
            ),
            None,
        )
        cells = [f"{constraint}, {dataset}", f"{name} {parameter}".strip()]
        for suffix, epsilon in zip(("_half", ""), sorted(by_epsilon), strict=True):
            rows = by_epsilon[epsilon]
            names = {name_of(row) for row in rows}
            theirs = [row for row in published if name_of(row) in names]
            cells += [cell(rows), cell(theirs), paper_cell(printed, suffix)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def summary(rows: list[Row]) -> str:
    lines = [
        "| property | data | rows | queries | verified | falsified | unknown | Marabou unknown "
        "| contradictions | CPU s |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["constraint"], row["dataset"]].append(row)
    for (constraint, dataset), members in [*groups.items(), (("**all**", ""), rows)]:
        sums = {
            k: sum(r[k] for r in members)
            for k in ("verified", "falsified", "unknown", "published_unknown", "contradictions")
        }
        queries = sum(len(r["statuses"]) for r in members)
        share = {k: f" ({100 * sums[k] / queries:.2f} %)" for k in ("unknown", "published_unknown")}
        lines.append(
            f"| {constraint} | {dataset} | {len(members)} | {queries} | {sums['verified']} "
            f"| {sums['falsified']} | {sums['unknown']}{share['unknown']} "
            f"| {sums['published_unknown']}{share['published_unknown']} "
            f"| {sums['contradictions']} | {sum(r['cpu_seconds'] for r in members):.0f} |"
        )
    return "\n".join(lines)


def page(rows: list[Row]) -> str:
    lines = [
        "# Verifier: the published networks, row by row",
        "",
        "Made by `bench/csat_table.py` from a run of `bench/verify_corpus.py`; see",
        "[results](results.md). `Marabou unknown` is what the published run left open at 30 s.",
        "",
        "| property / data / seed / logic / epsilon | verified | falsified | unknown "
        "| Marabou unknown | contradictions | CPU s | slowest query, s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        slowest = max(v["seconds"] for v in row["verdicts"])
        lines.append(
            f"| {name_of(row)} | {row['verified']} | {row['falsified']} | {row['unknown']} "
            f"| {row['published_unknown']} | {row['contradictions']} | {row['cpu_seconds']:.1f} "
            f"| {slowest:.2f} |"
        )
    return "\n".join(lines) + "\n"


def put(text: str, name: str, body: str) -> str:
    """``text`` with the part of this name replaced."""
    pattern = re.compile(rf"(<!-- csat_table: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    if not pattern.search(text):
        raise SystemExit(f"the page has no part '<!-- csat_table: {name} --> ... <!-- end -->'")
    return pattern.sub(lambda m: f"{m[1]}\n{body}\n\n{m[2]}", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus_json", type=Path)
    parser.add_argument("--paper", type=Path, required=True)
    parser.add_argument("--verdicts", type=Path)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--rows", type=Path)
    arguments = parser.parse_args()
    ours = json.loads(arguments.corpus_json.read_text())["rows"]
    for row in ours:
        row["statuses"] = [v["status"] for v in row["verdicts"]]
    published: list[Row] = []
    if arguments.verdicts is not None:
        published = json.loads(arguments.verdicts.read_text())
        for row in published:
            row["statuses"] = row["verdicts"]
    parts = {
        "summary": summary(ours),
        "csat": csat(ours, published, json.loads(arguments.paper.read_text())),
    }
    if arguments.write is None:
        print(f"{parts['summary']}\n\n{parts['csat']}")
    else:
        text = arguments.write.read_text()
        for name, body in parts.items():
            text = put(text, name, body)
        arguments.write.write_text(text)
    if arguments.rows is not None:
        arguments.rows.write_text(page(ours))


if __name__ == "__main__":
    main()
