"""The trade-off of accuracy and proved share at full length, a table and a picture for each task.

    python bench/fronts.py [RECORDS ...] --paper PUBLISHED.json [--figures docs/figures]
                           [--write docs/fronts.md] [--json OUT] [--quick]

RECORDS are those of bench/fronts.toml, of the paper's grid, whose rows are the points at alpha 0.5,
and of certified runs (default: results/fronts, results/paper, results/certified). A point is a
setting: the mean over its seeds, so that none is picked by its test figures. Points are compared by
the regions that all were asked about, those of the paper's test images; a run that was asked about
others alone is listed and not compared. A point is on the front if no other of its task is at least
as good in both figures and better in one; *certified is better* says whether certified training has
such a point. --quick is accepted for the sake of scripts that pass it to every benchmark: nothing
is run here.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qll.data.digits import verified_rows
from qll.reports.compact import read_compact
from qll.reports.records import Run, Verification, read_runs

BEGIN, END = "<!-- fronts: begin -->", "<!-- fronts: end -->"
RECORDS = ("results/fronts", "results/paper", "results/certified")
KINDS = {"DL2": "#c0504d", "QLL 5": "#1f5f99", "certified": "#2e7d32"}
IMAGES = {"mnist": 10_000, "fashion": 10_000, "dice": 68}
"""Of the whole test set."""
NAMES = {
    "classification-robustness": "Robustness",
    "clothing-footwear": "Clothing and footwear",
    "exactly-one": "Exactly one",
    "not-both": "Not both",
    "strong-classification-robustness": "Strong robustness",
    "fashion": "Fashion-MNIST",
    "mnist": "MNIST",
    "dice": "Dice",
}


@dataclass(frozen=True)
class Trained:
    """One run."""

    task: tuple[str, str]
    kind: str
    setting: str
    seed: int
    pacc: float
    csat: float
    """Of all regions that were asked about."""
    regions: int
    published: float | None
    """CSat of the paper's images; None if some of them were not asked about."""
    weight: float
    """Lambda, the mean over the epochs that have one."""


@dataclass(frozen=True)
class Point:
    """The runs of one setting."""

    runs: tuple[Trained, ...]

    @property
    def kind(self) -> str:
        return self.runs[0].kind

    @property
    def compared(self) -> tuple[Trained, ...]:
        """Those that were asked about the paper's images."""
        return tuple(run for run in self.runs if run.published is not None)

    @property
    def pacc(self) -> float:
        return statistics.mean(run.pacc for run in self.compared or self.runs)

    @property
    def published(self) -> float | None:
        found = [run.published for run in self.compared if run.published is not None]
        return statistics.mean(found) if found else None

    def beats(self, other: Point) -> bool:
        """At least as good in both, better in one."""
        if self.published is None or other.published is None:
            return False
        mine, its = (self.pacc, self.published), (other.pacc, other.published)
        return mine != its and all(a >= b for a, b in zip(mine, its, strict=True))


def published_csat(asked: Verification, data: str, papers: bool) -> float | None:
    """Of all test images the paper's count; of fewer only if ``papers`` says that it is these."""
    answers = {answer.index: answer for answer in asked.answers}
    if len(answers) == IMAGES[data]:
        rows = range(len(answers)) if data == "dice" else verified_rows(len(answers))
        answers = {row: answers[row] for row in rows}
    elif not papers:
        return None
    return 100 * Verification(asked.epsilon, tuple(answers.values())).share("verified").value


def asked_about(run: Run) -> str:
    """The SHA-256 of the data points of the run's verdicts."""
    return str(read_compact(run.path).verdicts["verdicts.json"]["points_sha256"])


def trained(run: Run, papers: Collection[str]) -> Trained | None:
    config, figures = run.config, run.figures
    pacc, csat = figures.get("PAcc"), figures.get("CSat")
    if pacc is None or csat is None:
        return None
    attacked = config.method == "attack"
    kind = {"dl2": "DL2", "qll:5": "QLL 5"}.get(config.logic) if attacked else "certified"
    if kind is None:
        return None
    asked = next(v for v in run.verifications if v.epsilon == run.epsilon)
    weights = [float(row["lambda"]) for row in run.epochs if row.get("lambda") is not None]
    return Trained(
        (config.property, config.data),
        kind,
        setting(run),
        config.seed,
        pacc,
        csat,
        asked.share("verified").total,
        published_csat(asked, config.data, asked_about(run) in papers),
        statistics.mean(weights) if weights else 0.0,
    )


def setting(run: Run) -> str:
    """What tells a point from others of its kind."""
    config = run.config
    attacked = config.method == "attack"
    if config.weight is None:
        weight = f"alpha {config.alpha:g}"
    else:
        weight = f"lambda {config.weight:g}"
    if attacked:
        return weight
    said = [config.method, f"reach {config.reach:g}"]
    if config.method != "projected":
        parts = [stage["weight"] for stage in config.stages if "weight" in stage]
        said.append(f"lambda {parts[-1]:g}" if parts else weight)
    stages = [stage.get("views", {}) for stage in config.stages]
    if any(any(dict(views).values()) for views in (config.views, *stages)):
        said.append("views")
    said.append(f"{config.epochs} epochs")
    if config.validation:
        said.append(f"{config.validation:,} images held out")
    return ", ".join(said)


def points_of(folders: Sequence[Path]) -> dict[tuple[str, str], list[Point]]:
    """Of the tasks that have certified points and others."""
    runs = read_runs(folders).runs
    papers = {asked_about(run) for run in runs if run.path.parent.name == "paper"}
    found: dict[tuple[str, str], dict[tuple[str, str], list[Trained]]] = defaultdict(dict)
    for made in (trained(run, papers) for run in runs):
        if made is not None:
            found[made.task].setdefault((made.kind, made.setting), []).append(made)
    points = {}
    for task, settings in sorted(found.items()):
        own = [Point(tuple(sorted(held, key=lambda r: r.seed))) for held in settings.values()]
        if {"certified"} < {point.kind for point in own}:
            points[task] = sorted(own, key=lambda p: (p.kind, -p.pacc))
    return points


def title(task: tuple[str, str]) -> str:
    return ", ".join(NAMES.get(part, part) for part in task)


def table(points: Sequence[Point]) -> str:
    """Of one task."""
    head = (
        "training",
        "setting",
        "lambda",
        "seeds",
        "PAcc",
        "CSat, paper's images",
        "CSat, all that were asked",
        "on the front",
        "certified is better",
    )
    lines = [f"| {' | '.join(head)} |", "|---|---|---:|---:|---:|---:|---:|---|---|"]
    for point in points:
        runs = point.runs
        front = point.published is not None and not any(other.beats(point) for other in points)
        certified = any(other.beats(point) for other in points if other.kind == "certified")
        cells = (
            point.kind,
            runs[0].setting,
            f"{statistics.mean(run.weight for run in runs):.3g}",
            ", ".join(str(run.seed) for run in runs),
            mean([run.pacc for run in runs]),
            papers(point),
            asked_for(runs),
            "yes" if front else "",
            "yes" if certified else "",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def papers(point: Point) -> str:
    found = [run.published for run in point.compared if run.published is not None]
    if not found or len(found) == len(point.runs):
        return mean(found) if found else ""
    return f"{mean(found)} (seed {', '.join(str(run.seed) for run in point.compared)})"


def mean(values: Sequence[float]) -> str:
    said = f"{statistics.mean(values):.1f}"
    return f"{said} ± {statistics.stdev(values):.1f}" if len(values) > 1 else said


def asked_for(runs: Sequence[Trained]) -> str:
    """Figures of different regions are not averaged."""
    parts = []
    for regions in sorted({run.regions for run in runs}):
        held = [run.csat for run in runs if run.regions == regions]
        parts.append(f"{mean(held)} % of {regions:,}")
    return "; ".join(parts)


def draw(
    task: tuple[str, str], points: Sequence[Point], paper: Sequence[dict[str, Any]], path: Path
) -> None:
    """Settings that can be compared, their seeds behind them, the step of each kind's own front,
    and the paper's rows. What fell to one answer would squeeze the others: it is in the table."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.0, 3.6), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    least = max(point.pacc for point in points) / 2
    theirs = [row for row in paper if (row["constraint"], row["dataset"]) == task]
    panel.scatter([row["PAcc"][0] for row in theirs], [row["CSat"][0] for row in theirs], s=22,
                  facecolors="none", edgecolors="#999999", label="paper, every logic")  # fmt: skip
    for kind, colour in KINDS.items():
        own = [p for p in points if p.kind == kind and p.published is not None and p.pacc > least]
        if not own:
            continue
        front = sorted((p for p in own if not any(o.beats(p) for o in own)), key=lambda p: p.pacc)
        runs = [run for p in own for run in p.compared if len(p.compared) > 1]
        panel.scatter([r.pacc for r in runs], [r.published for r in runs], s=8, color=colour,
                      alpha=0.4, linewidths=0)  # fmt: skip
        panel.scatter([p.pacc for p in own], [p.published for p in own], s=24, color=colour,
                      label=kind)  # fmt: skip
        panel.step([p.pacc for p in front], [p.published for p in front], where="pre",
                   color=colour, linewidth=1)  # fmt: skip
    panel.set_title(title(task), fontsize=10)
    panel.set_xlabel("PAcc, %", fontsize=9)
    panel.set_ylabel("CSat of the paper's images, %", fontsize=9)
    panel.set_ylim(-4, 104)
    panel.tick_params(labelsize=8)
    panel.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    figure.savefig(path)


def figure_name(task: tuple[str, str]) -> str:
    return f"front-{'-'.join(task)}.png"


def part(points: dict[tuple[str, str], list[Point]]) -> str:
    """What of the page is made of records."""
    return "\n\n".join(
        f"### {title(task)}\n\n![{title(task)}](figures/{figure_name(task)})\n\n{table(own)}"
        for task, own in points.items()
    )


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
    text = part(points)
    print(text)
    if given.figures:
        paper = json.loads(given.paper.read_text())
        for task, own in points.items():
            draw(task, own, paper, given.figures / figure_name(task))
    if given.json:
        runs = [asdict(run) for own in points.values() for point in own for run in point.runs]
        given.json.write_text(json.dumps(runs, indent=1) + "\n")
    if given.write:
        page = given.write.read_text(encoding="utf-8")
        given.write.write_text(replaced(page, text), encoding="utf-8")


if __name__ == "__main__":
    main()
