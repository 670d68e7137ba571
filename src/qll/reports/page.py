"""One self-contained HTML page from the records: it opens offline and asks the network nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import qll
from qll.errors import QllError
from qll.reports.comparison import agreements, rankings
from qll.reports.numbers import same_epsilon
from qll.reports.paper import Paper
from qll.reports.records import METRICS, LeftOut, Records, Run
from qll.reports.style import BASELINE, colours, data_name, property_name, require, shaded, write
from qll.reports.table_latex import latex
from qll.reports.table_text import (
    LAYOUTS,
    RANKING_NOTE,
    columns_of,
    comparison_markdown,
    csv_text,
    departure_mark,
    epsilon_text,
    left_out_markdown,
    markdown,
    metric_of,
    stat_text,
)
from qll.reports.tables import Row, Table, build_table
from qll.reports.witnesses import read_witnesses, rule_of

_CURVES = (
    "pacc",
    "train_csec",
    "prediction_loss",
    "property_loss",
    "lambda",
    "prediction_norm",
    "property_norm",
)
_SCRIPTS = ("report.js", "report_legends.js", "report_plots.js")
_MOST_EPOCHS = 200  # points of a curve; longer ones are thinned, evenly
_WITNESSES = 48  # of all rows alike; at least one of each
Group = tuple[str, str, float | None, int]  # of rows that can be compared: see Row.group
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "star", "cross", "pentagon")


def write_report(
    records: Records, out: Path, *, paper: Paper | None = None, title: str = "qll report"
) -> list[Path]:
    """``index.html`` and the tables as Markdown, CSV and LaTeX, in ``out``."""
    table = build_table(records, paper)
    files = {"index.html": render_page(records, table, title=title)}
    left_out = left_out_markdown((str(item.path), item.reason) for item in records.left_out)
    for layout in LAYOUTS:
        files[f"table-{layout}.md"] = markdown(table, layout) + left_out
        files[f"table-{layout}.tex"] = latex(table, layout)
    files["table.csv"] = csv_text(table)
    if table.paper:
        files["comparison.md"] = comparison_markdown(table)
    # The names of folders need not be UTF-8.
    contents = {name: text.encode(errors="backslashreplace") for name, text in files.items()}
    return [write(out / name, content) for name, content in contents.items()]


def render_page(records: Records, table: Table, *, title: str) -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise require("plotly", "drawing the report's plots") from error
    gallery, recorded, unread = _gallery(table)
    context = {
        "title": title,
        "version": qll.__version__,
        "table": table,
        "layouts": {name: _layout(table, name) for name in LAYOUTS},
        "agreements": agreements(table) if table.paper else [],
        "rankings": rankings(table) if table.paper else [],
        "ranking_note": RANKING_NOTE,
        "rules": _rules(table),
        "chance_known": any(row.chance is not None for row in table.rows),
        "notes": table.notes(),
        "runs": [_run_line(run) for run in records.runs],
        "left_out": [*records.left_out, *unread],
        "witnesses": gallery,
        "witnesses_total": sum(recorded.values()),
        "counts": _counts(records, table),
        "style": template("report.css"),
        "script": "".join(map(template, _SCRIPTS)),
        "plotly": get_plotlyjs(),
        "data": embed(_data(table, recorded)),
    }
    return render("report.html", context)


# --- templates ---


def template(name: str) -> str:
    return resources.files("qll.reports").joinpath("templates", name).read_text(encoding="utf-8")


def render(name: str, context: dict[str, Any]) -> str:
    try:
        import jinja2
    except ImportError as error:
        raise require("jinja2", "writing pages") from error
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(template),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name).render(context)


def embed(value: Any) -> str:
    """JSON that may stand inside a ``script`` element: no text in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


# --- what the page holds ---


def _groups(table: Table) -> list[Group]:
    """In the table's order of experiments; of one experiment, the longest training first."""
    return [
        group
        for rows in table.experiments()
        for group in sorted(dict.fromkeys(row.group for row in rows), key=lambda group: -group[3])
    ]


def _layout(table: Table, name: str) -> dict[str, Any]:
    shown = table.short() if name == "short" else table
    columns = columns_of(table, name)
    best, low, notes = shown.best(), shown.near_chance(), table.notes()
    blocks = []
    for group in _groups(shown):
        rows = [row for row in shown.rows if row.group == group]
        lines = []
        for k, row in enumerate(rows):
            cells = []
            for column in columns:
                metric = metric_of(row, column, name)
                stat, published = row.stat(metric), table.published(row, metric)
                mark = departure_mark(row.counted_as_published(metric), published)
                cells.append((metric, stat_text(stat, metric), published, mark))
            lines.append(
                {
                    "id": table.rows.index(row),
                    "new_family": k > 0 and row.family != rows[k - 1].family,
                    "name": row.name,
                    "marks": [notes.index(note) + 1 for note in row.notes],
                    "seeds": len(row.runs),
                    "best": row in best,
                    "near_chance": row in low,
                    "cells": cells,
                }
            )
        chance = next((row.chance for row in rows if row.chance is not None), None)
        blocks.append({**_describe(group), "chance": chance, "rows": lines})
    spans = [
        (span, sum(c.group == span for c in columns))
        for span in dict.fromkeys(c.group for c in columns)
    ]
    return {"columns": columns, "spans": spans, "blocks": blocks}


def _describe(group: Group) -> dict[str, Any]:
    prop, data, epsilon, epochs = group
    return {
        "property": property_name(prop),
        "data": data_name(data),
        "epsilon": epsilon_text(epsilon),
        "epochs": epochs,
    }


def _titled(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Each with a title that no other has: epsilon and epochs only where they tell groups apart."""
    described = []
    for group in groups:
        own = _describe(group)
        peers = [_describe(g) for g in groups if g[:2] == group[:2]]
        title = f"{own['property']}, {own['data']}"
        if len({peer["epsilon"] for peer in peers}) > 1:
            title += f", ε = {own['epsilon']}"
        if len({peer["epochs"] for peer in peers}) > 1:
            title += f", {own['epochs']} epochs"
        described.append({**own, "title": title})
    return described


def _rules(table: Table) -> list[dict[str, str]]:
    """The property of every experiment as it is judged: what the figures are about."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for row in table.rows:
        try:
            prop = rule_of(row.runs[0])
        except QllError as error:  # a file that has moved since, or names that only a table has
            text = _text(Path(row.prop)) or f"cannot be shown: {error.what}"
            rule = {"name": property_name(row.prop), "text": text, "about": ""}
            found.setdefault((row.prop, text), rule)
            continue
        text = prop.show("unicode").rstrip()
        about = prop.documentation
        body = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
        found.setdefault(
            (row.prop, body), {"name": property_name(row.prop), "text": body, "about": about}
        )
    return list(found.values())


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip() if path.suffix == ".qll" else ""
    except (OSError, ValueError):
        return ""


def _counts(records: Records, table: Table) -> dict[str, Any]:
    states = [run.state for run in records.runs]
    queries = sum(
        len(v.answers) for row in table.rows for run in row.runs for v in run.verifications
    )
    return {
        "finished": states.count("finished"),
        "unfinished": states.count("unfinished"),
        "failed": states.count("failed"),
        "rows": len(table.rows),
        "experiments": len(table.experiments()),
        "queries": queries,
        "hours": sum(run.seconds for run in records.runs) / 3600,
    }


def _run_line(run: Run) -> dict[str, Any]:
    packages = run.environment.get("packages", {})
    return {
        "name": run.name,
        "property": property_name(run.config.property),
        "data": data_name(run.config.data),
        "logic": run.config.logic,
        "method": run.config.method,
        "seed": run.config.seed,
        "state": run.state,
        "reason": run.failure or "",
        "epochs": f"{len(run.epochs)} of {run.config.epochs}",
        "seconds": run.seconds,
        "started": str(run.environment.get("started", "")),
        "versions": ", ".join(f"{k} {v}" for k, v in packages.items() if k in ("qll", "torch")),
        "processor": str(run.environment.get("processor", "")),
    }


def _gallery(table: Table) -> tuple[list[dict[str, Any]], dict[Path, int], list[LeftOut]]:
    """The witnesses that are shown, and how many are recorded of each run."""
    shown: list[dict[str, Any]] = []
    unread: list[LeftOut] = []
    recorded: dict[Path, int] = {}
    for number, row in enumerate(table.rows):
        room = max(1, _WITNESSES // len(table.rows))
        for run in row.runs:
            try:
                found, count = read_witnesses(run, room)
            except QllError as error:
                unread.append(LeftOut.of(run.path, error))
                continue
            recorded[run.path] = count
            room -= len(found)
            shown += [{"row": row, "id": number, "run": run, "witness": w} for w in found]
    return shown, recorded, unread


def _data(table: Table, recorded: Mapping[Path, int]) -> dict[str, Any]:
    """Everything that the plots need, once."""
    hardnesses = sorted({row.hardness for row in table.rows if row.hardness is not None})
    groups, notes = _groups(table), table.notes()
    palette = colours()
    return {
        "metrics": METRICS,
        "groups": _titled(groups),
        "rows": [
            {
                "group": groups.index(row.group),
                "name": row.name,
                "baseline": row.logic == BASELINE,
                "chance": row.chance,
                "colour": _colour(row, palette, table),
                "symbol": _SYMBOLS[
                    hardnesses.index(row.hardness) % len(_SYMBOLS) if row.hardness else 0
                ],
                "marks": [notes.index(note) + 1 for note in row.notes],
                "short": any(note.startswith("short run") for note in row.notes),
                "paper": _published(table, row),
            }
            for row in table.rows
        ],
        "runs": [
            {
                "row": number,
                "seed": run.config.seed,
                "figures": [run.figures[metric] for metric in METRICS],
                "published": [run.published[metric] for metric in METRICS],
                "curves": _curves(run),
                "times": _times(run),
                "witnesses": recorded.get(run.path, 0),
            }
            for number, row in enumerate(table.rows)
            for run in row.runs
        ],
    }


def _colour(row: Row, palette: Mapping[str, str], table: Table) -> str:
    """The logic's own; of a logic at several hardnesses, the harder the darker."""
    colour = palette.get(row.logic, palette[BASELINE])
    own = sorted({r.hardness or 0.0 for r in table.rows if r.logic == row.logic})
    if len(own) < 2:
        return colour
    return shaded(colour, own.index(row.hardness or 0.0) / (len(own) - 1))


def _published(table: Table, row: Row) -> list[Sequence[float] | None]:
    found = [table.published(row, metric) for metric in METRICS]
    return [None if p is None else (p.mean, p.deviation) for p in found]


def _curves(run: Run) -> dict[str, list[float | None]]:
    step = math.ceil(len(run.epochs) / _MOST_EPOCHS) or 1
    rows = [row for k, row in enumerate(run.epochs, start=1) if k % step == 0 or k == 1]
    curves: dict[str, list[float | None]] = {"epoch": [_short(row.get("epoch")) for row in rows]}
    for name in _CURVES:
        values = [_short(row.get(name)) for row in rows]
        if any(value is not None for value in values):
            curves[name] = values
    return curves


def _times(run: Run) -> list[float | None]:
    """Seconds of the decided queries at the run's own epsilon, ascending."""
    found = [
        answer.seconds
        for verification in run.verifications
        if same_epsilon(verification.epsilon, run.epsilon)
        for answer in verification.answers
        if answer.status != "unknown"
    ]
    return [_short(value) for value in sorted(found)]


def _short(value: Any) -> float | None:
    """Four digits are more than a plot shows; what is not finite is not drawn."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(f"{value:.4g}")
