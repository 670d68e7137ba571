"""The paper's training rows beside ours, from run folders: a Markdown table.

    python bench/reproduce_training.py RUNS --paper RESULTS.json [--write docs/results.md]

RUNS is a folder of run folders (``qll train --out RUNS/...``). Runs of one property, data set and
logic are one row: mean and sample standard deviation over their seeds. With --write, the section
between the two training marks of that file is replaced (or added at its end).
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from qll.errors import QllError
from qll.metrics import Evaluation, Share
from qll.training.config import TrainConfig
from qll.training.run import RunFolder

BEGIN, END = "<!-- training: begin -->", "<!-- training: end -->"
METRICS = (
    ("PAcc", "pacc"),
    ("CAcc", "cacc"),
    ("CSec_self", "csec_self"),
    ("CSec_qll", "csec_qll"),
    ("CSat_half", "csat_half"),
    ("CSat", "csat"),
)
HEADINGS = ("PAcc", "CAcc", "CSec (self)", "CSec (QLL)", "CSat, half epsilon", "CSat")
# Whether we agree with the paper is asked of what training gives. CSat is another verifier's: the
# paper's counts what Marabou did not finish as not proved.
TRAINED = METRICS[:4]
ORDER = ("baseline", "dl2", "goedel", "lukasiewicz", "product", "yager", "stl", "qll")

Key = tuple[str, str, str]


def our_logic(row: dict[str, Any]) -> str:
    """The paper's name of a logic as ours: QLL and 5 is ``qll:5``."""
    name = str(row["logic"]).lower()
    return name if row["parameter"] is None else f"{name}:{row['parameter']:g}"


def read_paper(path: Path) -> dict[Key, dict[str, Any]]:
    rows = json.loads(path.read_text(encoding="utf-8"))
    return {(row["constraint"], row["dataset"], our_logic(row)): row for row in rows}


def read_runs(folder: Path) -> tuple[dict[Key, list[tuple[TrainConfig, Evaluation]]], list[str]]:
    """Finished runs by row, and what was left out and why."""
    found: dict[Key, list[tuple[TrainConfig, Evaluation]]] = defaultdict(list)
    left_out: list[str] = []
    for path in sorted(p.parent for p in folder.rglob("config.json")):
        run = RunFolder(path)
        try:
            config, evaluation = run.config(), run.evaluation()
        except QllError as error:
            left_out.append(f"{path.name}: {error.what}")
            continue
        if evaluation is None:
            left_out.append(f"{path.name}: {len(run.rows())} of {config.epochs} epochs")
            continue
        found[config.property, config.data, config.logic].append((config, evaluation))
    return found, left_out


def figure(evaluation: Evaluation, name: str) -> Share | None:
    if not name.startswith("csat"):
        found: Share | None = getattr(evaluation, name)
        return found
    by_size = sorted(evaluation.csat, key=float)
    if len(by_size) < 2:
        return None
    return evaluation.csat[by_size[0 if name == "csat_half" else -1]]


def ours(evaluations: list[Evaluation], name: str) -> tuple[float, float | None] | None:
    shares = [figure(evaluation, name) for evaluation in evaluations]
    values = [100 * share.value for share in shares if share is not None]
    if not values:
        return None
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def cell(
    found: tuple[float, float | None] | None, paper: list[float] | None, *, starred: bool
) -> str:
    """Ours (paper's); a star where ours lies outside the paper's standard deviation."""
    if found is None:
        return "" if paper is None else f"– ({paper[0]:.1f} ± {paper[1]:.1f})"
    mean, spread = found
    text = f"{mean:.1f}" + ("" if spread is None else f" ± {spread:.1f}")
    if paper is None:
        return text
    near = abs(mean - paper[0]) <= max(paper[1], 0.05)
    star = "" if near or not starred else " \\*"
    return f"{text} ({paper[0]:.1f} ± {paper[1]:.1f}){star}"


def table(runs: dict[Key, list[tuple[TrainConfig, Evaluation]]], paper: dict[Key, Any]) -> str:
    lines = ["| property, data | logic | seeds | epochs | " + " | ".join(HEADINGS) + " |"]
    lines.append("|" + "---|" * (4 + len(HEADINGS)))

    def rank(key: Key) -> tuple[str, str, int, float]:
        name, _, parameter = key[2].partition(":")
        place = ORDER.index(name) if name in ORDER else len(ORDER)
        return key[0], key[1], place, float(parameter or 0)

    for key in sorted(runs, key=rank):
        configs = [config for config, _ in runs[key]]
        evaluations = [evaluation for _, evaluation in runs[key]]
        row = paper.get(key, {})
        cells = [
            cell(ours(evaluations, our), row.get(their), starred=(their, our) in TRAINED)
            for their, our in METRICS
        ]
        epochs = "/".join(sorted({str(config.epochs) for config in configs}))
        lines.append(
            f"| {key[0]}, {key[1]} | {key[2]} | {len(configs)} | {epochs} | {' | '.join(cells)} |"
        )
    return "\n".join(lines)


def agreement(runs: dict[Key, list[tuple[TrainConfig, Evaluation]]], paper: dict[Key, Any]) -> str:
    inside = outside = 0
    for key, members in runs.items():
        row = paper.get(key, {})
        for their, our in TRAINED:
            found, stated = ours([e for _, e in members], our), row.get(their)
            if found is not None and stated is not None:
                near = abs(found[0] - stated[0]) <= max(stated[1], 0.05)
                inside, outside = inside + near, outside + (not near)
    return f"{inside} of {inside + outside} figures lie within the paper's standard deviation."


def section(folder: Path, paper_path: Path) -> str:
    paper = read_paper(paper_path)
    runs, left_out = read_runs(folder)
    published = {config.as_published for members in runs.values() for config, _ in members}
    how = {
        frozenset({True}): "All runs follow the published runs (`as_published`).",
        frozenset({False}): "All runs follow the paper's text, not its published runs.",
    }.get(frozenset(published), "Some runs follow the published runs, some the paper's text.")
    parts = [
        "Ours, with the paper's in brackets; mean ± sample standard deviation over the seeds, in "
        "per cent, on the whole test set; a star marks a mean outside the paper's standard "
        f"deviation. {how} {agreement(runs, paper)}",
        "",
        table(runs, paper),
    ]
    if left_out:
        parts += ["", "Left out: " + "; ".join(left_out) + "."]
    return "\n".join(parts) + "\n"


def write_section(path: Path, text: str) -> None:
    marked = f"{BEGIN}\n{text}{END}\n"
    old = path.read_text(encoding="utf-8") if path.exists() else "# Results\n\n"
    if BEGIN in old and END in old:
        head, rest = old.split(BEGIN, 1)
        new = head + marked + rest.split(END, 1)[1].lstrip("\n")
    else:
        new = old.rstrip("\n") + "\n\n## Training\n\n" + marked
    path.write_text(new, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path)
    parser.add_argument("--paper", type=Path, required=True, help="the paper's result table, JSON")
    parser.add_argument("--write", type=Path, help="a Markdown file whose section is replaced")
    options = parser.parse_args()
    text = section(options.runs, options.paper)
    print(text, end="")
    if options.write:
        write_section(options.write, text)


if __name__ == "__main__":
    main()
