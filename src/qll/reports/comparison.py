"""What the rows of a report add up to beside the published ones: how many agree, and whether the
logics come in the same order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from qll.reports.records import METRICS
from qll.reports.style import data_name, property_name, require
from qll.reports.tables import Row, Table, describe


@dataclass(frozen=True)
class Agreement:
    """How many rows lie within the published deviation, for one metric; short runs on their own,
    since they ask less of the network."""

    metric: str
    within: int
    total: int
    short_within: int
    short_total: int
    largest: tuple[float, str] | None


@dataclass(frozen=True)
class Ranking:
    """The order of the logics by PAcc times CSat in one experiment, ours against the paper's.

    ``clear`` counts the pairs of logics whose published CSat differ by more than their deviations
    together, and ``kept`` those that ours orders alike: the rest of an order is noise."""

    experiment: str
    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    tau: float
    kept: int
    clear: int

    @property
    def same_best(self) -> bool:
        return self.ours[:1] == self.theirs[:1]


def agreements(table: Table) -> list[Agreement]:
    found = []
    for metric in METRICS:
        gaps: list[tuple[float, Row]] = []
        for row in table.rows:
            stat, published = row.counted_as_published(metric), table.published(row, metric)
            if stat is not None and published is not None:
                gaps.append((published.departure(stat.mean), row))
        if gaps:
            far, row = max(gaps, key=lambda gap: abs(gap[0]))
            short = [gap for gap, row in gaps if row.is_short]
            full = [gap for gap, row in gaps if not row.is_short]
            largest = (far, describe(row)) if far else None
            found.append(
                Agreement(
                    metric, full.count(0), len(full), short.count(0), len(short), largest
                )
            )  # fmt: skip
    return found


def not_compared(table: Table) -> list[str]:
    """Rows that have a published counterpart and are left out, because they ask something else."""
    return [
        describe(row) for row in table.rows if table.paper.rows.get(row.key) and not row.comparable
    ]


def rankings(table: Table) -> list[Ranking]:
    """Experiments with several rows; of rows that were trained for other lengths, each length."""
    found = []
    for rows in table.experiments():
        lengths = sorted({row.runs[0].config.epochs for row in rows}, reverse=True)
        for epochs in lengths:
            alike = [row for row in rows if row.runs[0].config.epochs == epochs]
            title = f"{property_name(rows[0].prop)}, {data_name(rows[0].data)}"
            if len(lengths) > 1 or alike[0].is_short:
                title += f", {epochs} epochs"
            ranking = _ranking(table, alike, title)
            if ranking is not None:
                found.append(ranking)
    return found


def _ranking(table: Table, rows: Sequence[Row], title: str) -> Ranking | None:
    scored: list[tuple[str, float, float]] = []
    proved: list[tuple[float, float, float]] = []  # our CSat, the published one, its deviation
    for row in rows:
        accuracy, csat = (table.published(row, metric) for metric in ("PAcc", "CSat"))
        right, ours = (row.counted_as_published(metric) for metric in ("PAcc", "CSat"))
        if accuracy and csat and right and ours:
            product = right.mean * ours.mean / 100
            scored.append((row.name, product, accuracy.mean * csat.mean / 100))
            proved.append((ours.mean, csat.mean, csat.deviation))
    if len(scored) < 2:
        return None
    clear = [
        (a[0] - b[0]) * (a[1] - b[1]) > 0
        for a, b in combinations(proved, 2)
        if abs(a[1] - b[1]) > a[2] + b[2]
    ]
    return Ranking(
        title,
        _order([(s[0], s[1]) for s in scored]),
        _order([(s[0], s[2]) for s in scored]),
        _same_order(scored),
        sum(clear),
        len(clear),
    )


def _order(scored: Sequence[tuple[str, float]]) -> tuple[str, ...]:
    """Best first; rows with the same product, to a decimal, are one entry.

    >>> _order([("a", 0.0), ("b", 7.0), ("c", 0.01)])
    ('b', 'a = c')
    """
    shown: dict[float, list[str]] = {}
    for name, product in sorted(scored, key=lambda s: -round(s[1], 1)):
        shown.setdefault(round(product, 1), []).append(name)
    return tuple(" = ".join(names) for names in shown.values())


def _same_order(scored: Sequence[tuple[str, float, float]]) -> float:
    """Kendall's tau-b: 1 for the same order, -1 for the opposite one, NaN where all tie."""
    try:
        from scipy.stats import kendalltau
    except ImportError as error:
        raise require("scipy", "comparing orders") from error
    return float(kendalltau([s[1] for s in scored], [s[2] for s in scored]).statistic)
