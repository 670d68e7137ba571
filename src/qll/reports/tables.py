"""Rows of a report: runs that differ in nothing but the seed, with mean and sample deviation."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qll.errors import QllError
from qll.grid.experiment import experiment
from qll.reports.fields import is_bounded
from qll.reports.paper import Key, Paper, Published
from qll.reports.records import METRICS, REGRESSION, Records, Run
from qll.reports.style import BASELINE, data_name, logic_name, number, property_name
from qll.training.config import paper_defaults
from qll.training.methods import METHODS

# In the short layout, of a logic that was trained at several hardnesses, this one is shown.
SHORT_HARDNESS = 5.0
_OWN_NAMES = {"property", "data", "logic", "method", "epochs"}  # shown in columns of their own


@dataclass(frozen=True)
class Stat:
    """Mean and sample standard deviation (n - 1) of the seeds; None for one seed."""

    mean: float
    deviation: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Stat | None:
        if not values:
            return None
        deviation = statistics.stdev(values) if len(values) > 1 else None
        return cls(statistics.fmean(values), deviation, len(values))

    def __str__(self) -> str:
        spread = "" if self.deviation is None else f" ± {self.deviation:.1f}"
        return f"{self.mean:.1f}{spread}"


@dataclass(frozen=True, eq=False)
class Row:
    """One line of a table."""

    runs: tuple[Run, ...]
    notes: tuple[str, ...]
    comparable: bool

    @property
    def prop(self) -> str:
        return self.runs[0].config.property

    @property
    def data(self) -> str:
        return self.runs[0].config.data

    @property
    def pair(self) -> tuple[str, str]:
        return self.prop, self.data

    @property
    def group(self) -> tuple[str, str, float | None, int]:
        """Rows that can be compared with each other: one question, trained for as long."""
        return self.prop, self.data, self.epsilon, self.runs[0].config.epochs

    @property
    def logic(self) -> str:
        record = self.runs[0].logic
        return BASELINE if record is None else record.name

    @property
    def hardness(self) -> float | None:
        record = self.runs[0].logic
        return None if record is None or math.isnan(record.hardness) else record.hardness

    @property
    def epsilon(self) -> float | None:
        return self.runs[0].epsilon

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(run.config.seed for run in self.runs)

    @property
    def key(self) -> Key:
        return self.prop, self.data, self.logic, self.hardness

    @property
    def name(self) -> str:
        """``QLL 5``, with the method where it is not the paper's."""
        shown = "Baseline" if self.logic == BASELINE else logic_name(self.logic)
        if self.hardness is not None:
            shown += f" {number(self.hardness)}"
        method = self.runs[0].config.method
        return shown if method == "attack" or self.logic == BASELINE else f"{shown}, {method}"

    @property
    def is_short(self) -> bool:
        """Trained for fewer epochs than the paper's."""
        epochs = self.runs[0].config.epochs
        return bool(epochs < _usual(self.runs[0]).get("epochs", epochs))

    @property
    def family(self) -> int:
        """Rows of one family stand together, as in the paper."""
        record = self.runs[0].logic
        if record is None or record.name == "dl2":
            return 0
        return 1 if is_bounded(record) else 3 if record.name == "qll" else 2

    def stat(self, metric: str) -> Stat | None:
        found = [run.figures[metric] for run in self.runs]
        return Stat.of([value for value in found if value is not None])

    def counted_as_published(self, metric: str) -> Stat | None:
        """What a published figure is compared with: it counts what holds vacuously."""
        found = [run.published.get(metric) for run in self.runs]
        return Stat.of([value for value in found if value is not None])

    @property
    def chance(self) -> float | None:
        """PAcc of the best constant answer; None if no record has it."""
        return next((run.chance for run in self.runs if run.chance is not None), None)

    @property
    def product(self) -> float | None:
        """Of the means of PAcc (of a regression R2) and CSat: what the best row of an experiment is
        chosen by."""
        accuracy, proved = self.stat("PAcc") or self.stat("R2"), self.stat("CSat")
        if accuracy is None or proved is None:
            return None
        return max(accuracy.mean, 0.0) * proved.mean / 100


@dataclass(frozen=True)
class Table:
    """All rows of a report, in order, and the published results beside them."""

    rows: tuple[Row, ...]
    paper: Paper

    def published(self, row: Row, metric: str) -> Published | None:
        """None also for what was proved on fewer regions than the paper's."""
        proved = metric.startswith(("CSat", "unknown"))
        if not row.comparable or (proved and _proved_on_fewer(row.runs)):
            return None
        return self.paper.get(row.key, metric)

    def short(self) -> Table:
        """The paper's selection: one hardness of each logic."""
        kept = []
        for row in self.rows:
            peers = [
                r
                for r in self.rows
                if (r.pair, r.logic, r.runs[0].config.method)
                == (row.pair, row.logic, row.runs[0].config.method)
            ]
            known = [r for r in peers if self.paper.rows.get(r.key)] or peers
            fixed = [r for r in known if r.hardness == SHORT_HARDNESS] or known
            if row.hardness is None or len(peers) == 1 or row in fixed:
                kept.append(row)
        return Table(tuple(kept), self.paper)

    def near_chance(self) -> list[Row]:
        """Rows whose PAcc is nearer to chance than to that of the most accurate row of their group:
        what is proved of them says little, and none is called the best."""
        found = []
        for row in self.rows:
            peers = [r.stat("PAcc") for r in self.rows if r.group == row.group]
            top = max((stat.mean for stat in peers if stat is not None), default=0.0)
            own, chance = row.stat("PAcc"), row.chance
            if own is None or chance is None:
                continue
            if own.mean <= chance or own.mean - chance < (top - chance) / 2:
                found.append(row)
        return found

    def best(self) -> list[Row]:
        """In each group the rows with the largest product of PAcc and CSat, but for those near
        chance; a row without others to be better than is none."""
        low = self.near_chance()
        groups: dict[tuple[Any, ...], list[Row]] = {}
        for row in self.rows:
            groups.setdefault(row.group, []).append(row)
        found: list[Row] = []
        for rows in [rows for rows in groups.values() if len(rows) > 1]:
            scored = [
                (round(row.product, 1), row)
                for row in rows
                if row.product is not None and row not in low
            ]
            top = max((score for score, _ in scored), default=0.0)
            found += [row for score, row in scored if score == top and top > 0]
        return found

    def experiments(self) -> list[list[Row]]:
        """Rows by pair of property and data set."""
        groups: dict[tuple[str, str], list[Row]] = {}
        for row in self.rows:
            groups.setdefault(row.pair, []).append(row)
        return list(groups.values())

    @property
    def metrics(self) -> tuple[str, ...]:
        """Those of a regression only where one is, and PAcc only where something is classified."""
        some = [m for m in REGRESSION if any(row.stat(m) for row in self.rows)]
        known = [m for m in METRICS if m != "PAcc" or not some or any(r.stat(m) for r in self.rows)]
        return (*known[: known.index("CAcc")], *some, *known[known.index("CAcc") :])

    def notes(self) -> list[str]:
        """Every remark of the rows, once, in order: footnotes are numbered by it."""
        return list(dict.fromkeys(note for row in self.rows for note in row.notes))


def build_table(records: Records, paper: Paper | None = None) -> Table:
    """Rows of all finished runs."""
    groups: dict[str, list[Run]] = {}
    for run in records.runs:
        if run.state == "finished":
            settings = sorted(experiment(run.config).items(), key=str)
            groups.setdefault(str(settings), []).append(run)
    rows = []
    for runs in groups.values():
        runs.sort(key=lambda run: run.config.seed)
        rows.append(_row(tuple(runs)))
    rows.sort(key=_order(paper or Paper()))
    return Table(tuple(rows), paper or Paper())


def _row(runs: tuple[Run, ...]) -> Row:
    departures = _departures(runs[0])
    notes = []
    usual = _usual(runs[0])
    epochs = runs[0].config.epochs
    if epochs < usual.get("epochs", epochs):
        notes.append(f"short run: {epochs} epochs instead of {usual['epochs']}")
    elif epochs > usual.get("epochs", epochs):
        notes.append(f"{epochs} epochs instead of {usual['epochs']}")
    notes += [f"{name} = {_shown(value)}" for name, value in departures.items()]
    counted = {run.evaluation.pacc.total for run in runs if run.evaluation and run.evaluation.pacc}
    if len(counted) > 1:
        notes.append("seeds were evaluated on different numbers of images")
    notes += _proved_on_fewer(runs)
    notes += _vacuous(runs)
    remark = None if runs[0].config.is_baseline else METHODS[runs[0].config.method].remark
    notes += [] if remark is None else [remark]
    # Another epsilon, formula or method asks another question than the published row.
    other = {"parameters", "judged", "measured", "formula", "as_published", "oracle"} & set(
        departures
    )
    comparable = not other and (runs[0].config.method == "attack" or runs[0].config.is_baseline)
    return Row(runs, tuple(notes), comparable)


# The paper proves this many regions of a run, or all where there are fewer images.
_PROVED = 100


def _proved_on_fewer(runs: tuple[Run, ...]) -> list[str]:
    counts = set()
    for run in (run for run in runs if run.epsilon is not None):  # others ask one question of all
        whole = run.evaluation.cacc.with_vacuous.total if run.evaluation else _PROVED
        images = whole // run.config.samples if run.evaluation else _PROVED
        counts |= {
            len(v.answers) for v in run.verifications if len(v.answers) < min(_PROVED, images)
        }
    shown = " or ".join(map(str, sorted(counts)))
    return [f"CSat of {shown} regions instead of {_PROVED} or all"] if counts else []


def _vacuous(runs: tuple[Run, ...]) -> list[str]:
    """How many regions the property says nothing of."""
    counts = {(share.vacuous, share.total) for run in runs if (share := run.shares["CSat"])}
    some = sorted((v, v + total) for v, total in counts if v)
    if not some:
        return []
    shown = " or ".join(f"{vacuous} of {total}" for vacuous, total in some)
    return [
        f"{shown} regions hold whatever the network computes (the property says nothing of them) "
        "and are left out; the published figures have them in, and are compared so"
    ]


def _usual(run: Run) -> dict[str, Any]:
    return paper_defaults(run.config.property, run.config.data)


def _departures(run: Run) -> dict[str, Any]:
    """Settings that are not the paper's for this property and data set."""
    from qll.training.config import TrainConfig

    config = run.config
    held = experiment(config)
    try:
        base = TrainConfig.model_validate(
            {
                **_usual(run),
                "property": config.property,
                "data": config.data,
                "logic": config.logic,
                "method": config.method,
            }
        )
    except (QllError, ValueError):
        return {}
    usual = experiment(base)
    found: dict[str, Any] = {}
    for name, value in held.items():
        if name in _OWN_NAMES or value == usual.get(name):
            continue
        if name in ("parameters", "judged") and _close(value, usual.get(name)):
            continue
        found[name] = value
    return found


def _close(a: Mapping[str, float] | None, b: Mapping[str, float] | None) -> bool:
    if a is None or b is None or set(a) != set(b):
        return a == b
    return all(math.isclose(a[name], b[name], rel_tol=1e-6) for name in a)


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {_shown(v)}" for k, v in value.items()) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _order(paper: Paper) -> Callable[[Row], tuple[Any, ...]]:
    """The published order of the experiments, others after them by name; logics by family."""
    pairs = list(dict.fromkeys(key[:2] for key in paper.rows))

    def place(row: Row) -> tuple[Any, ...]:
        published = pairs.index(row.pair) if row.pair in pairs else len(pairs)
        name = "" if row.logic == BASELINE else row.logic
        return (published, row.pair, row.family, name, row.hardness or 0.0, row.name, row.notes)

    return place


def describe(row: Row) -> str:
    return f"{property_name(row.prop)}, {data_name(row.data)}, {row.name}"
