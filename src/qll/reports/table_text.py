"""The two layouts of the paper's tables as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from qll.reports.comparison import agreements, not_compared, rankings
from qll.reports.paper import Published
from qll.reports.records import METRICS, REGRESSION
from qll.reports.style import data_name, number, property_name
from qll.reports.tables import Row, Stat, Table

ABOVE, BELOW = "▲", "▼"
UNKNOWN_NOTE = "“unknown”: neither proved nor refuted within the verifier's time limit"
RANKING_NOTE = (
    "The order is by the product of mean PAcc and mean CSat. Clear pairs: logics whose published "
    "CSat differ by more than their deviations together, and how many of them ours orders alike."
)
BASELINE_NOTE = "the baseline has no logic of its own: attacked with the QLL oracle"


@dataclass(frozen=True)
class Column:
    group: str
    title: str
    metric: str
    unit: str = "%"


LONG = (
    Column("", "PAcc", "PAcc"),
    Column("", "CAcc", "CAcc"),
    Column("CSec", "self", "CSec_self"),
    Column("CSec", "QLL oracle", "CSec_qll"),
    Column("CSat at ε/2", "verified", "CSat_half"),
    Column("CSat at ε/2", "unknown", "unknown_half"),
    Column("CSat at ε", "verified", "CSat"),
    Column("CSat at ε", "unknown", "unknown"),
)
SHORT = (
    Column("", "PAcc", "PAcc"),
    Column("", "CSec", "CSec_self"),
    Column("CSat at ε", "verified", "CSat"),
    Column("CSat at ε", "unknown", "unknown"),
)
LAYOUTS = {"short": SHORT, "long": LONG}
REGRESSIONS = (Column("", "R²", "R2"), Column("", "RMSE", "RMSE", unit=""))


def columns_of(table: Table, layout: str) -> tuple[Column, ...]:
    """Of the layout, with those of a regression where one is."""
    first = [c for c in LAYOUTS[layout] if c.metric == "PAcc" and c.metric in table.metrics]
    some = [c for c in REGRESSIONS if c.metric in table.metrics]
    return (*first, *some, *(c for c in LAYOUTS[layout] if c.metric != "PAcc"))


def stat_text(stat: Stat | None, metric: str) -> str:
    """``93.1 ± 0.4``; of an error in the units of the target three digits.

    >>> stat_text(Stat(0.012345, 0.001, 3), "RMSE"), stat_text(Stat(93.14, None, 1), "PAcc")
    ('0.0123 ± 0.001', '93.1')
    """
    if stat is None:
        return "n/a"
    if metric != "RMSE":
        return str(stat)
    spread = "" if stat.deviation is None else f" ± {stat.deviation:.2g}"
    return f"{stat.mean:.3g}{spread}"


def metric_of(row: Row, column: Column, layout: str) -> str:
    """The short layout has one CSec: a row's own, and the QLL oracle's for the baseline."""
    fallback = layout == "short" and column.metric == "CSec_self" and row.stat("CSec_self") is None
    return "CSec_qll" if fallback else column.metric


def epsilon_text(epsilon: float | None) -> str:
    """``0.1``, ``4/255``.

    >>> epsilon_text(4 / 255), epsilon_text(0.1), epsilon_text(None)
    ('4/255', '0.1', 'none')
    """
    if epsilon is None:
        return "none"
    byte = Fraction(epsilon * 255).limit_denominator(2)
    plain = f"{epsilon:g}"
    if len(plain) > 5 and math.isclose(float(byte), epsilon * 255, rel_tol=1e-6):
        return f"{byte.numerator}/{255 * byte.denominator}"
    return plain


def departure_mark(stat: Stat | None, published: Published | None) -> str:
    """``▲`` above, ``▼`` below the published mean by more than its deviation."""
    if stat is None or published is None:
        return ""
    gap = published.departure(stat.mean)
    return "" if gap == 0 else ABOVE if gap > 0 else BELOW


def chance_text(table: Table) -> str:
    """PAcc of the best constant answer by data set, and what it is for; nothing in old records."""
    known = {data_name(row.data): row.chance for row in table.rows if row.chance is not None}
    if not known:
        return ""
    shown = ", ".join(f"{chance:.1f} % ({data})" for data, chance in known.items())
    return (
        f"Chance, the PAcc of the best constant answer: {shown}. Rows nearer to it than to the "
        "most accurate row of their group are not called the best."
    )


# --- Markdown ---


def markdown(table: Table, layout: str) -> str:
    shown = table.short() if layout == "short" else table
    columns = columns_of(table, layout)
    best, low, notes = shown.best(), shown.near_chance(), shown.notes()
    titles = [f"{c.group} {c.title}{f' ({c.unit})' if c.unit else ''}".strip() for c in columns]
    head = ["Property", "Data", "Logic", "Seeds", *titles]
    lines = ["| " + " | ".join(head) + " |", "|---|---|---|---|" + "---:|" * len(columns)]
    for row in shown.rows:
        label = row.name + "".join(f" [{notes.index(note) + 1}]" for note in row.notes)
        label += " (near chance)" if row in low else ""
        where = f"{property_name(row.prop)} (ε = {epsilon_text(row.epsilon)})"
        bold = "**" if row in best else ""
        first = [where, data_name(row.data), f"{bold}{label}{bold}", str(len(row.runs))]
        found = [_markdown_cell(shown, row, metric_of(row, c, layout)) for c in columns]
        cells = [f"{bold}{ours}{bold}{theirs}" for ours, theirs in found]
        lines.append("| " + " | ".join([*first, *cells]) + " |")
    lines += ["", *_remarks(shown, layout)]
    return "\n".join(lines) + "\n"


def _markdown_cell(table: Table, row: Row, metric: str) -> tuple[str, str]:
    stat, published = row.stat(metric), table.published(row, metric)
    theirs = ""
    if published is not None:
        same = row.counted_as_published(metric)
        mark = departure_mark(same, published)
        gap = f" {mark}{abs(same.mean - published.mean):.1f}" if same and mark else ""
        theirs = f" ({published.mean:.1f} ± {published.deviation:.1f}{gap})"
    return stat_text(stat, metric), theirs


def _remarks(table: Table, layout: str) -> list[str]:
    lines = [
        "Mean and sample standard deviation over the seeds. Bold: the best product of PAcc and "
        "CSat in its experiment."
    ]
    if found := chance_text(table):
        lines.append(found)
    if any(row.stat("unknown") for row in table.rows):
        lines.append(f"{UNKNOWN_NOTE}.")
    if layout == "short":
        lines.append(
            f"{BASELINE_NOTE[0].upper()}{BASELINE_NOTE[1:]}. Of a logic trained at several "
            f"hardnesses, {number(5)} is shown."
        )
    if table.paper:
        lines.append(
            f"In brackets: the published value; {ABOVE} and {BELOW} mark a mean that lies outside "
            "of its standard deviation, and by how much."
        )
    lines += [f"[{k}] {note}." for k, note in enumerate(table.notes(), start=1)]
    return [line for text in lines for line in (text, "")][:-1]


def comparison_markdown(table: Table) -> str:
    """Row by row it is in the tables; this is what they add up to."""
    lines = [
        "| Metric | rows within the published deviation | of short runs | largest departure |",
        "|---|---:|---:|---|",
    ]
    for found in agreements(table):
        far = "none" if found.largest is None else f"{found.largest[0]:+.1f} ({found.largest[1]})"
        full = f"{found.within} of {found.total}" if found.total else ""
        short = f"{found.short_within} of {found.short_total}" if found.short_total else ""
        lines.append(f"| {found.metric} | {full} | {short} | {far} |")
    if left := not_compared(table):
        lines += ["", f"Not compared, since they ask something else: {'; '.join(left)}."]
    ranked = rankings(table)
    if ranked:
        lines += ["", "| Experiment | published order | our order | Kendall's tau | clear pairs |"]
        lines.append("|---|---|---|---:|---:|")
        for ranking in ranked:
            tau = "n/a" if math.isnan(ranking.tau) else f"{ranking.tau:.2f}"
            theirs, ours = (", ".join(order) for order in (ranking.theirs, ranking.ours))
            clear = f"{ranking.kept} of {ranking.clear}" if ranking.clear else ""
            lines.append(f"| {ranking.experiment} | {theirs} | {ours} | {tau} | {clear} |")
        lines += ["", f"{RANKING_NOTE}"]
    return "\n".join(lines) + "\n"


def left_out_markdown(items: Iterable[tuple[str, str]]) -> str:
    """What was given and is in no table: paths, and why. Both come from files: nothing in them is
    taken for markup."""
    lines = [f"- {_plain(path)}: {_plain(reason)}" for path, reason in items]
    return "\n".join(["", f"Left out ({len(lines)}):", "", *lines, ""]) if lines else ""


def _plain(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>&|~#$])", r"\\\1", " ".join(text.split()))


# --- CSV ---


def csv_text(table: Table) -> str:
    """Everything, one line a row, for other programs."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    named = ["property", "data", "logic", "hardness", "method", "epsilon", "epochs", "seeds"]
    parts = ("mean", "std", "n", "paper_mean", "paper_std", "departure")
    metrics = (*METRICS, *(m for m in REGRESSION if m in table.metrics))
    measured = [f"{m}_{part}" for m in metrics for part in parts]
    judged = ["product", "best", "chance", "near_chance", "vacuous"]
    writer.writerow([*named, *judged, *measured, "notes"])
    best, low = table.best(), table.near_chance()
    for row in table.rows:
        config = row.runs[0].config
        cells: list[str | float | int] = [
            row.prop,
            row.data,
            row.logic,
            "" if row.hardness is None else row.hardness,
            config.method,
            "" if row.epsilon is None else row.epsilon,
            config.epochs,
            " ".join(str(seed) for seed in row.seeds),
            "" if row.product is None else round(row.product, 4),
            int(row in best),
            "" if row.chance is None else round(row.chance, 4),
            int(row in low),
            " ".join(str(share.vacuous) for run in row.runs if (share := run.shares["CSat"])),
        ]
        for metric in metrics:
            same = row.counted_as_published(metric)
            cells += _csv_cells(row.stat(metric), same, table.published(row, metric))
        writer.writerow([*cells, "; ".join(row.notes)])
    return out.getvalue()


def _csv_cells(
    stat: Stat | None, same: Stat | None, published: Published | None
) -> list[str | float | int]:
    ours: list[str | float | int] = ["", "", 0]
    if stat is not None:
        spread = "" if stat.deviation is None else round(stat.deviation, 4)
        ours = [round(stat.mean, 4), spread, stat.count]
    if published is None:
        return [*ours, "", "", ""]
    gap = "" if same is None else round(published.departure(same.mean), 4)
    return [*ours, published.mean, published.deviation, gap]
