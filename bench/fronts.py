"""The trade-off of accuracy and proved share at full length, a table and a picture for each task.

    python bench/fronts.py [RECORDS ...] --paper PUBLISHED.json [--figures docs/figures]
                           [--write docs/fronts.md] [--json OUT] [--quick]

RECORDS are those of bench/fronts.toml, of the paper's grid, whose rows are the points at alpha 0.5,
and of certified runs (default: results/fronts, results/paper, results/certified). Points are
compared by the regions that all were asked about, those of the paper's test images; a run that was
asked about others alone is listed and not compared. A point is on the front if no other of its task
is at least as good in both figures and better in one; *certified is better* says whether certified
training has such a point. --quick is accepted for the sake of scripts that pass it to every
benchmark: nothing is run here.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qll.data.digits import verified_rows
from qll.reports.records import Run, Verification, read_runs

BEGIN, END = "<!-- fronts: begin -->", "<!-- fronts: end -->"
RECORDS = ("results/fronts", "results/paper", "results/certified")
KINDS = {"DL2": "#c0504d", "QLL 5": "#1f5f99", "certified": "#2e7d32"}
FEW, IMAGES = 100, 10_000  # regions of the paper's verifier, test images of the data sets of digits


@dataclass(frozen=True)
class Point:
    task: str
    kind: str
    setting: str
    seed: int
    pacc: float
    csat: float
    """Of all regions that were asked about."""
    regions: int
    published: float | None
    """CSat of the paper's images; None if some of them were not asked about."""

    def beats(self, other: Point) -> bool:
        """At least as good in both, better in one."""
        if self.published is None or other.published is None:
            return False
        mine, its = (self.pacc, self.published), (other.pacc, other.published)
        return mine != its and all(a >= b for a, b in zip(mine, its, strict=True))


def published_csat(asked: Verification) -> float | None:
    """Of as many regions as the paper has they are the paper's, of more the first test images."""
    answers = asked.answers
    if len(answers) > FEW:
        if len(answers) < IMAGES:
            return None
        answers = tuple(answers[row] for row in verified_rows(IMAGES))
    return 100 * Verification(asked.epsilon, answers).share("verified").value


def point_of(run: Run) -> Point | None:
    config, figures = run.config, run.figures
    pacc, csat = figures.get("PAcc"), figures.get("CSat")
    if pacc is None or csat is None:
        return None
    asked = next(v for v in run.verifications if v.epsilon == run.epsilon)
    attacked = config.method == "attack"
    kind = {"dl2": "DL2", "qll:5": "QLL 5"}.get(config.logic) if attacked else "certified"
    if kind is None:
        return None
    setting = f"alpha {config.alpha:g}" if attacked else f"{config.method}, reach {config.reach:g}"
    if not attacked and config.weight is not None:
        setting += f", lambda {config.weight:g}"
    stages = [stage.get("views", {}) for stage in config.stages]
    if any(any(dict(views).values()) for views in (config.views, *stages)):
        setting += ", views"
    if not attacked:
        setting += f", {config.epochs} epochs"
    if config.validation:
        setting += f", {config.validation:,} images held out"
    task, regions = f"{config.property}, {config.data}", asked.share("verified").total
    return Point(task, kind, setting, config.seed, pacc, csat, regions, published_csat(asked))


def points_of(folders: Sequence[Path]) -> list[Point]:
    """Of the tasks that have certified points and others."""
    found = [p for p in map(point_of, read_runs(folders).runs) if p is not None]
    shown = {p.task for p in found if p.kind == "certified"}
    shown &= {p.task for p in found if p.kind != "certified"}
    return sorted((p for p in found if p.task in shown),
                  key=lambda p: (p.task, p.kind, -p.pacc, -p.csat))  # fmt: skip


def table(points: Sequence[Point]) -> str:
    head = (
        "task",
        "training",
        "setting",
        "seed",
        "PAcc",
        "CSat, paper's images",
        "CSat, all that were asked",
        "on the front",
        "certified is better",
    )
    lines = [
        f"| {' | '.join(head)} |",
        "|---|---|---|---:|---:|---:|---:|---|---|",
    ]
    for point in points:
        others = [p for p in points if p.task == point.task]
        front = point.published is not None and not any(other.beats(point) for other in others)
        certified = any(other.beats(point) for other in others if other.kind == "certified")
        published = "" if point.published is None else f"{point.published:.1f}"
        lines.append(
            f"| {point.task} | {point.kind} | {point.setting} | {point.seed} | {point.pacc:.1f} | "
            f"{published} | {point.csat:.1f} of {point.regions:,} | {'yes' if front else ''} | "
            f"{'yes' if certified else ''} |"
        )
    return "\n".join(lines)


def draw(points: Sequence[Point], paper: Sequence[dict[str, Any]], path: Path) -> None:
    """One task: every trained point, the paper's rows, and the step of each kind's own front."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.8, 3.6), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    for kind, colour in KINDS.items():
        own = [p for p in points if p.kind == kind and p.published is not None]
        if not own:
            continue
        front = sorted((p for p in own if not any(o.beats(p) for o in own)), key=lambda p: p.pacc)
        panel.scatter([p.pacc for p in own], [p.published for p in own], s=18, color=colour,
                      label=kind)  # fmt: skip
        panel.step([p.pacc for p in front], [p.published for p in front], where="pre",
                   color=colour, linewidth=1)  # fmt: skip
    task = points[0].task
    theirs = [row for row in paper if f"{row['constraint']}, {row['dataset']}" == task]
    panel.scatter([row["PAcc"][0] for row in theirs], [row["CSat"][0] for row in theirs], s=22,
                  facecolors="none", edgecolors="#777777", label="paper, every logic")  # fmt: skip
    panel.set_title(task, fontsize=10)
    panel.set_xlabel("PAcc, %", fontsize=9)
    panel.set_ylabel("CSat of the paper's images, %", fontsize=9)
    panel.tick_params(labelsize=8)
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(frameon=False, fontsize=8)
    figure.savefig(path)


def replaced(page: str, text: str) -> str:
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("records", type=Path, nargs="*", default=[Path(name) for name in RECORDS])
    parser.add_argument("--paper", type=Path, required=True, help="the paper's result table")
    parser.add_argument("--figures", type=Path, help="the folder of the pictures")
    parser.add_argument("--write", type=Path, help="replace the section in this file")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    points = points_of(given.records)
    text = table(points)
    print(text)
    if given.figures:
        paper = json.loads(given.paper.read_text())
        for task in sorted({p.task for p in points}):
            name = f"front-{task.replace(', ', '-')}.png"
            draw([p for p in points if p.task == task], paper, given.figures / name)
    if given.json:
        given.json.write_text(json.dumps([asdict(p) for p in points], indent=1) + "\n")
    if given.write:
        page = given.write.read_text(encoding="utf-8")
        given.write.write_text(replaced(page, text), encoding="utf-8")


if __name__ == "__main__":
    main()
