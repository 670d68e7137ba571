"""The schema of a table that says nothing of itself: kinds, ranges and scales from its cells."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qll.data.schema import Feature, Schema, TableTask
from qll.data.spelling import refuse_misspelled
from qll.data.table import Table, absent, numbers, text_of
from qll.errors import DataError

# Whole numbers of at most so many values are classes, when they are to be predicted.
_MOST_CLASSES = 20
# A column of words with more values than this, or with one for every second row, names its rows.
_MOST_VALUES = 100
_LISTED = 20  # columns at most, to be copied from a message
TARGET_NAMES = ("target", "label", "labels", "class", "y", "output")


def guess_feature(name: str, table: Table, beside: Sequence[str] = ()) -> Feature:
    """A column's kind, by its cells; ranges and scales follow in `filled`. ``beside``: the columns
    that it could be left out of."""
    cells = table.column(name)
    known = cells[~absent(cells)]
    if not len(known):
        raise DataError(
            f"column '{name}' is empty",
            where=table.source,
            expected="values",
            found="none in any row",
            fix=_without(beside),
        )
    values = numbers(known)
    if values is None:
        refuse_misspelled(name, table)
        words = sorted({text_of(cell) for cell in known})
        if len(words) == 2:
            return Feature(name, "binary", values=tuple(words))
        if len(words) > _MOST_VALUES or len(words) > max(len(known) // 2, 12):
            raise DataError(
                f"column '{name}' has too many different texts for a category",
                where=table.source,
                expected=f"numbers, or at most {_MOST_VALUES} values",
                found=f"{len(words)} values in {len(known)} rows, such as '{words[0][:30]}'",
                fix=f"{_without(beside)}, or choose another --target",
            )
        return Feature(name, "category", values=tuple(words))
    if not np.isfinite(values).all():
        return Feature(name)
    if set(np.unique(values).tolist()) <= {0.0, 1.0}:
        return Feature(name, "binary")
    return Feature(name, "integer" if (values == np.round(values)).all() else "real")


def _without(beside: Sequence[str]) -> str:
    if not 0 < len(beside) <= _LISTED or any("," in name for name in beside):
        return "leave it out: --features with the other columns"
    return f"leave it out: --features {shlex.quote(','.join(beside))}"


def guess_target(names: Sequence[str], table: Table, task: str) -> tuple[tuple[Feature, ...], str]:
    """The columns to predict, and the task, where it is not given."""
    found = [guess_feature(name, table) for name in names]
    if not task:
        distinct = len({text_of(c) for c in table.column(names[0])}) if names else 0
        whole = all(feature.kind != "real" for feature in found)
        if len(found) > 1:
            task = "labels" if all(f.kind == "binary" for f in found) else "regression"
        elif whole and distinct <= _MOST_CLASSES:
            task = "classes"
        else:
            task = "regression"
    if task == "classes":
        return tuple(_classes(feature, table) for feature in found), task
    if task == "binary":
        return tuple(_two_values(feature, table) for feature in found), task
    if task == "regression":
        return tuple(
            replace(f, kind="real", values=()) if f.kind in ("integer", "binary") else f
            for f in found
        ), task
    return tuple(found), task


def _values(feature: Feature, table: Table) -> tuple[str, ...]:
    if feature.values:
        return feature.values
    cells = table.column(feature.name)
    words = {text_of(cell) for cell in cells[~absent(cells)]}
    order = numbers(np.array(sorted(words), dtype=object))
    if order is None:
        return tuple(sorted(words))
    return tuple(sorted(words, key=float))


def _classes(feature: Feature, table: Table) -> Feature:
    return Feature(feature.name, "category", values=_values(feature, table), missing="refuse")


def _two_values(feature: Feature, table: Table) -> Feature:
    values = _values(feature, table)
    if len(values) != 2:
        raise DataError(
            f"column '{feature.name}' is not binary",
            where=table.source,
            expected="two values, the second of them what the logit stands for",
            found=f"{len(values)}: {', '.join(values[:12])}",
            fix="pass --task classes, or choose another --target",
        )
    return Feature(feature.name, "binary", values=values)


def find_target(table: Table) -> str | None:
    """A column that is called what columns to predict are called."""
    lower = {name.lower(): name for name in table.columns}
    return next((lower[name] for name in TARGET_NAMES if name in lower), None)


def guess_schema(
    table: Table,
    *,
    target: Sequence[str] = (),
    features: Sequence[str] = (),
    task: str = "",
    test: float | str = 0.2,
    seed: int = 0,
    name: str = "table",
) -> Schema:
    """What can be read off the cells; the target has to be said, or called so."""
    wanted = list(target)
    if not wanted:
        likely = find_target(table)
        if likely is None:
            columns = list(table.columns)
            raise DataError(
                "it is not said which column is to be predicted",
                where=table.source,
                expected="--target, or a column called " + " or ".join(TARGET_NAMES[:4]),
                found=f"columns {', '.join(columns[:12])}{', ...' if columns[12:] else ''}",
                fix=f"pass --target {columns[-1]}, if it is that one",
            )
        wanted = [likely]
    targets, guessed = guess_target(wanted, table, task)
    chosen = list(features) or [column for column in table.columns if column not in wanted]
    kinds: TableTask = guessed  # type: ignore[assignment]
    return Schema(
        tuple(
            guess_feature(column, table, [other for other in chosen if other != column])
            for column in chosen
        ),
        targets,
        kinds,
        test=test,
        seed=seed,
        name=name,
    )


def filled(schema: Schema, table: Table) -> Schema:
    """With the ranges that were left open, from all rows (a rule's ``domain`` rests on them)."""

    def fill(feature: Feature) -> Feature:
        if feature.kind not in ("real", "integer"):
            return feature
        found = numbers(table.column(feature.name))
        known = np.empty(0) if found is None else found[np.isfinite(found)]
        if not len(known):
            return feature
        lower = float(known.min()) if feature.lower is None else feature.lower
        upper = float(known.max()) if feature.upper is None else feature.upper
        return replace(feature, lower=lower, upper=upper)

    return replace(
        schema,
        features=tuple(fill(feature) for feature in schema.features),
        targets=tuple(fill(target) for target in schema.targets)
        if schema.task == "regression"
        else schema.targets,
    )
