"""The trade-off of accuracy and proved share: studies of ``qll tune`` as one figure and a table.

    python bench/certified_fronts.py STUDIES --paper RESULTS.json [--figure OUT.png] [--quick]
                                     [--json OUT] [--write docs/results.md]

STUDIES is a folder of studies (``qll tune ... --out STUDIES/NAME``). The trials are judged on
validation images, the paper's rows on test images: the figure says which is which.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from qll.cli.tune import dials

BEGIN, END = "<!-- fronts: begin -->", "<!-- fronts: end -->"


def read_studies(folder: Path) -> list[dict[str, Any]]:
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*/front.json"))]
    if not found:
        raise SystemExit(f"{folder}: no study that 'qll tune' finished")
    return found


def table(studies: list[dict[str, Any]]) -> str:
    lines = [
        "| property, data | trials | PAcc | CSat | method | dials |",
        "|---|---:|---:|---:|---|---|",
    ]
    for study in studies:
        name = f"{study['property']}, {study['data']}"
        for point in sorted(study["front"], key=lambda p: -p["pacc"]):
            lines.append(
                f"| {name} | {len(study['trials'])} | {100 * point['pacc']:.1f} | "
                f"{100 * point['csat']:.1f} | {point['settings']['method']} | "
                f"{dials(point['settings'])} |"
            )
    return "\n".join(lines)


def draw(studies: list[dict[str, Any]], paper: list[dict[str, Any]], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(3, len(studies))
    rows = -(-len(studies) // columns)
    figure = Figure(figsize=(3.6 * columns, 3.1 * rows), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel, study in zip(panels, studies, strict=False):
        front = sorted(study["front"], key=lambda p: p["pacc"])
        pairs = [(100 * p["pacc"], 100 * p["csat"]) for p in study["trials"]]
        panel.step(
            [100 * p["pacc"] for p in front], [100 * p["csat"] for p in front], where="pre",
            color="#1f5f99", linewidth=1,
        )  # fmt: skip
        panel.scatter(*zip(*pairs, strict=True), s=14, color="#1f5f99", label="qll, validation")
        key = (study["property"], study["data"])
        theirs = [
            (row["PAcc"][0], row["CSat"][0])
            for row in paper
            if (row["constraint"], row["dataset"]) == key
        ]
        if theirs:
            panel.scatter(
                *zip(*theirs, strict=True), s=18, facecolors="none", edgecolors="#c0504d",
                label="paper, test",
            )  # fmt: skip
        panel.set_title(f"{key[0]}, {key[1]}", fontsize=9)
        panel.set_xlabel("PAcc, %", fontsize=8)
        panel.set_ylabel("CSat, %", fontsize=8)
        panel.tick_params(labelsize=7)
        panel.spines[["top", "right"]].set_visible(False)
    for panel in panels[len(studies) :]:
        panel.axis("off")
    panels[0].legend(frameon=False, fontsize=7)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("studies", type=Path)
    parser.add_argument("--paper", type=Path, required=True, help="the paper's result table")
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--quick", action="store_true", help="the first study only")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--write", type=Path, help="replace the section in this file")
    arguments = parser.parse_args()
    studies = read_studies(arguments.studies)
    if arguments.quick:
        studies = studies[:1]
    text = table(studies)
    print(text)
    if arguments.figure:
        draw(studies, json.loads(arguments.paper.read_text()), arguments.figure)
    if arguments.json:
        arguments.json.write_text(json.dumps({"studies": studies}, indent=1) + "\n")
    if arguments.write:
        held = arguments.write.read_text(encoding="utf-8")
        section = f"{BEGIN}\n{text}\n{END}"
        if BEGIN not in held:
            raise SystemExit(f"{arguments.write} has no place for it: put {BEGIN} and {END} there")
        held = held[: held.index(BEGIN)] + section + held[held.index(END) + len(END) :]
        arguments.write.write_text(held, encoding="utf-8")


if __name__ == "__main__":
    main()
