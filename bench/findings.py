"""The tables of docs/findings.md: what the paper's experiments say when every region is decided.

    python bench/findings.py --paper results.json --verdicts verdicts.json [--results results]
                             [--corpus CORPUS_JSON] [--write docs/findings.md] [--json OUT]

`verdicts.json` are the published ones. Ours, and our own runs, are the records in the folder
`results`; with --corpus the record of the corpus is made anew from what
`bench/verify_corpus.py --json` wrote.
--quick is accepted for the sake of scripts that pass it to every benchmark: nothing is run here.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from csat_table import logic_of
from verify_corpus import name_of

from qll.reports.paper import read_paper
from qll.reports.records import read_runs
from qll.reports.tables import Row as ReportRow
from qll.reports.tables import build_table

Record: TypeAlias = dict[str, Any]
CORPUS = "corpus.json"
LETTERS = {"verified": "v", "falsified": "f", "unknown": "u"}


def condensed(rows: Sequence[Record]) -> list[Record]:
    """What stays of a run over the corpus: the verdict of every region, a letter each."""
    kept = ("constraint", "dataset", "seed", "logic", "epsilon")
    return [
        {k: row[k] for k in kept}
        | {"cpu_seconds": round(row["cpu_seconds"], 2)}
        | {"statuses": "".join(LETTERS[v["status"]] for v in row["verdicts"])}
        for row in rows
    ]


class Group(NamedTuple):
    """The published networks of one experiment and logic, at the full epsilon."""

    constraint: str
    dataset: str
    logic: str
    parameter: str
    rows: list[Record]
    printed: Record | None

    @property
    def experiment(self) -> str:
        return f"{self.constraint}, {self.dataset}"

    @property
    def name(self) -> str:
        return f"{self.logic} {self.parameter}".strip()

    def share(self, status: str) -> float:
        return statistics.fmean(
            100 * row["statuses"].count(LETTERS[status]) / len(row["statuses"]) for row in self.rows
        )

    def published(self, metric: str) -> float | None:
        value = None if self.printed is None else self.printed[metric]
        return None if value is None else float(value[0])


def groups_of(ours: Sequence[Record], paper: Sequence[Record]) -> list[Group]:
    found: dict[tuple[str, str, str], dict[Fraction, list[Record]]] = defaultdict(dict)
    for row in ours:
        key = row["constraint"], row["dataset"], row["logic"]
        found[key].setdefault(Fraction(row["epsilon"]), []).append(row)
    groups = []
    for (constraint, dataset, logic), by_epsilon in found.items():
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
        rows = by_epsilon[max(by_epsilon)]
        groups.append(Group(constraint, dataset, name, parameter, rows, printed))
    return groups


def table(head: Sequence[str], lines: Sequence[Sequence[str]], words: int = 2) -> str:
    rule = ["---"] * words + ["---:"] * (len(head) - words)
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, rule, *lines])


def shown(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.1f}"


def overstated(groups: Sequence[Group]) -> str:
    """CSec by the run's own attack and by the QLL oracle, beside the exact CSat."""
    lines = []
    for g in groups:
        exact, own, oracle = g.share("verified"), g.published("CSec_self"), g.published("CSec_qll")
        over = [None if value is None else value - exact for value in (own, oracle)]
        lines.append(
            [g.experiment, g.name, shown(own), shown(oracle), shown(exact), *map(shown, over)]
        )
    head = ["experiment", "logic", "CSec self", "CSec QLL oracle", "CSat, exact"]
    return table([*head, "self overstates by", "oracle overstates by"], lines)


def hidden(ours: Sequence[Record], published: Sequence[Record]) -> str:
    """What became of the regions that the published run left open, at both epsilons."""
    theirs = {name_of(row): row["verdicts"] for row in published}
    counts: dict[str, dict[str, int]] = {}
    for row in ours:
        key = f"{row['constraint']}, {row['dataset']}"
        held = counts.setdefault(key, dict.fromkeys(LETTERS.values(), 0))
        for after, before in zip(row["statuses"], theirs[name_of(row)], strict=True):
            if before == "unknown":
                held[after] += 1
    total = {k: sum(held[k] for held in counts.values()) for k in LETTERS.values()}
    lines = [
        [name, str(sum(held.values())), *(str(held[k]) for k in total)]
        for name, held in [*counts.items(), ("**all**", total)]
    ]
    return table(["experiment", "left open", "hold", "do not", "still open"], lines, 1)


def ranked(values: Mapping[str, float]) -> str:
    """``A (3) > B (1) = C (1)``: equal to the digit that is shown."""
    best = sorted(values, key=lambda name: -values[name])
    words = [f"{name} ({values[name]:.0f})" for name in best]
    signs = ["=" if round(values[a]) == round(values[b]) else ">" for a, b in pairwise(best)]
    return "".join(
        f"{word} {sign} " for word, sign in zip(words, [*signs, ""], strict=True)
    ).strip()


def order(groups: Sequence[Group], paper: Sequence[Record]) -> str:
    """Logics by the product of PAcc and CSat: of every row as printed, and of those whose networks
    are published with the exact CSat."""
    lines = []
    for experiment in dict.fromkeys(g.experiment for g in groups):
        before = {
            f"{row['logic']} {row['parameter'] or ''}".strip(): row["PAcc"][0]
            * row["CSat"][0]
            / 100
            for row in paper
            if f"{row['constraint']}, {row['dataset']}" == experiment
        }
        after = {
            g.name: pacc * g.share("verified") / 100
            for g in groups
            if g.experiment == experiment and (pacc := g.published("PAcc")) is not None
        }
        lines.append([experiment, ranked(before), ranked(after)])
    head = ["experiment", "as printed, every row", "decided exactly, the published networks"]
    return table(head, lines, 3)


def hardness(groups: Sequence[Group]) -> str:
    """Rows of one logic at several hardnesses."""
    lines = []
    for experiment in dict.fromkeys(g.experiment for g in groups):
        for logic in ("QLL", "STL"):
            members = [g for g in groups if g.experiment == experiment and g.logic == logic]
            if len(members) > 1:
                members.sort(key=lambda g: float(g.parameter))
                lines.append(
                    [experiment, logic]
                    + [
                        f"{g.parameter}: {shown(g.published('PAcc'))} / {g.share('verified'):.1f}"
                        for g in members
                    ]
                )
    width = max((len(line) for line in lines), default=2)
    filled = [line + [""] * (width - len(line)) for line in lines]
    return table(["experiment", "logic", *["p: PAcc / CSat"] * (width - 2)], filled)


def own_runs(results: Path, paper: Path) -> str:
    """Our own networks at full length, from the records."""

    def value(row: ReportRow, metric: str) -> str:
        stat = row.stat(metric)
        return "n/a" if stat is None else str(stat)

    metrics = ("PAcc", "CSec_self", "CSec_qll", "CSat", "unknown")
    rows = build_table(read_runs([results]), read_paper(paper)).rows
    lines = [
        [
            f"{row.prop}, {row.data}",
            row.name,
            str(len(row.seeds)),
            *(value(row, m) for m in metrics),
        ]
        for row in rows
    ]
    head = [
        "experiment",
        "logic",
        "seeds",
        "PAcc",
        "CSec self",
        "CSec QLL oracle",
        "CSat",
        "unknown",
    ]
    return table(head, lines)


def put(text: str, name: str, body: str) -> str:
    pattern = re.compile(rf"(<!-- findings: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    if not pattern.search(text):
        raise SystemExit(f"the page has no part '<!-- findings: {name} --> ... <!-- end -->'")
    return pattern.sub(lambda m: f"{m[1]}\n{body}\n\n{m[2]}", text)


def filled(page: str, made: Mapping[str, str]) -> str:
    for name, body in made.items():
        page = put(page, name, body)
    return page


def parts(results: Path, paper: Path, verdicts: Path) -> dict[str, str]:
    """The tables of the page by name."""
    ours = json.loads((results / CORPUS).read_text(encoding="utf-8"))
    printed = json.loads(paper.read_text(encoding="utf-8"))
    groups = groups_of(ours, printed)
    return {
        "hidden": hidden(ours, json.loads(verdicts.read_text(encoding="utf-8"))),
        "order": order(groups, printed),
        "overstated": overstated(groups),
        "hardness": hardness(groups),
        "own": own_runs(results / "paper", paper),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--paper", type=Path, required=True)
    parser.add_argument("--verdicts", type=Path, required=True)
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.corpus is not None:
        rows = condensed(json.loads(options.corpus.read_text(encoding="utf-8"))["rows"])
        text = ",\n".join(json.dumps(row) for row in rows)
        (options.results / CORPUS).write_text(f"[{text}]\n", encoding="utf-8")
    made = parts(options.results, options.paper, options.verdicts)
    if options.write is None:
        print("\n\n".join(made.values()))
    else:
        options.write.write_text(
            filled(options.write.read_text(encoding="utf-8"), made), encoding="utf-8"
        )
    if options.json is not None:
        options.json.write_text(json.dumps(made, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
