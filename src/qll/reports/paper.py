"""Published results to stand beside ours. They are given by the user, never shipped.

A list of rows: constraint, dataset, logic, parameter (or null), and for each metric
``[mean, standard deviation]`` in percent or null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qll.errors import InputError
from qll.reports.records import METRICS

Key = tuple[str, str, str, float | None]
"""Property, data set, logic (or ``baseline``), hardness."""

_ROUNDING = 0.05  # published figures have one decimal


@dataclass(frozen=True)
class Published:
    mean: float
    deviation: float

    def departure(self, mean: float) -> float:
        """Ours minus theirs if it is outside of their standard deviation, else 0."""
        gap = mean - self.mean
        return 0.0 if abs(gap) <= max(self.deviation, _ROUNDING) + 1e-9 else gap


@dataclass(frozen=True)
class Paper:
    rows: Mapping[Key, Mapping[str, Published]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.rows)

    def get(self, key: Key, metric: str) -> Published | None:
        return self.rows.get(key, {}).get(metric)


def read_paper(path: Path) -> Paper:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        rows = {_key(row): _figures(row) for row in values}
    except (OSError, UnicodeDecodeError) as error:
        problem = str(getattr(error, "strerror", None) or "bytes that are not UTF-8")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        problem = f"{type(error).__name__}: {error}"
    else:
        return Paper(rows)
    raise InputError(
        "the published results cannot be read",
        where=str(path),
        expected="a JSON list of rows with constraint, dataset, logic, parameter and metrics",
        found=problem,
        fix="check the file given to --paper",
    )


def _key(row: Mapping[str, Any]) -> Key:
    parameter = row["parameter"]
    hardness = None if parameter is None else float(parameter)
    return str(row["constraint"]), str(row["dataset"]), str(row["logic"]).lower(), hardness


def _figures(row: Mapping[str, Any]) -> dict[str, Published]:
    found = {}
    for metric in METRICS:
        pair = row.get(metric)
        if pair is not None:
            mean, deviation = (float(v) for v in pair)
            if not (math.isfinite(mean) and deviation >= 0):
                raise ValueError(f"{metric} of {_key(row)} is {pair}")
            found[metric] = Published(mean, deviation)
    return found
