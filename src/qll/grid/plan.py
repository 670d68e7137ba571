"""Grids as data: rows of property, data set and logic, trained with several seeds.

name = "mine"
seeds = [0, 1, 2]

[settings]                    # of every row: any setting of a training run
epochs = 20

[[rows]]
property = "not-both"         # a shipped one, or a .qll file beside this one
data = "dice"
logics = ["baseline", "qll:5"]
label = "wide"                # optional: tells rows apart that differ in their settings alone
settings = { alpha = 0.3 }    # optional
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from qll.data.base import data_sets
from qll.errors import InputError, QllError
from qll.files import parse_toml
from qll.grid.experiment import run_name
from qll.registry import suggest
from qll.training.config import TrainConfig, resolve

Seed = Annotated[int, Field(ge=0, lt=2**32)]
# Of a row or of the command, never of a grid's settings: each has a key of its own.
_OWN_KEYS = ("property", "data", "logic", "seed")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _Rows(_Part):
    property: str
    data: str
    logics: list[str] = Field(min_length=1)
    label: str = Field(default="", pattern=r"^[A-Za-z0-9_.-]*$")
    settings: dict[str, Any] = Field(default_factory=dict)


class _File(_Part):
    # the name of a folder below runs/, so no way out of it
    name: str = Field(default="grid", pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")
    seeds: list[Seed] = Field(default=[0], min_length=1)
    settings: dict[str, Any] = Field(default_factory=dict)
    rows: list[_Rows] = Field(min_length=1)


@dataclass(frozen=True)
class Row:
    """One line of a result table: what its seeds share."""

    property: str
    data: str
    logic: str
    label: str
    settings: Mapping[str, Any]

    @builtins.property
    def name(self) -> str:
        parts = (Path(self.property).stem, self.data, self.logic, self.label)
        return "/".join(part for part in parts if part)

    def config(self, **options: Any) -> TrainConfig:
        return resolve(
            self.property,
            self.data,
            options={**self.settings, "logic": self.logic, **_given(options)},
        )

    def matches(self, pattern: str) -> bool:
        """``pattern`` is a text or a regular expression, of the row's name or of its folders'."""
        names = (self.name, self.name.replace(":", "").replace("/", "-"))
        if any(pattern in name for name in names):
            return True
        try:
            return any(re.search(pattern, name) for name in names)
        except re.error:
            return False


@dataclass(frozen=True)
class Planned:
    """One run of a grid."""

    name: str
    row: Row
    config: TrainConfig


@dataclass(frozen=True)
class Grid:
    name: str
    rows: tuple[Row, ...]
    seeds: tuple[int, ...]

    def choose(self, patterns: Sequence[str]) -> Grid:
        """The rows that match any of the patterns; every pattern must match one."""
        for pattern in patterns:
            if not any(row.matches(pattern) for row in self.rows):
                known = [row.name for row in self.rows]
                raise InputError(
                    f"no row of the grid '{self.name}' matches '{pattern}'",
                    expected="a part of a row's name, or a regular expression",
                    found=f"'{pattern}'",
                    fix=suggest(pattern, known) if len(known) < 9 else _near(pattern, known),
                )
        kept = tuple(r for r in self.rows if not patterns or any(r.matches(p) for p in patterns))
        return Grid(self.name, kept, self.seeds)

    def runs(self, seeds: Iterable[int] | None = None, **options: Any) -> list[Planned]:
        """All runs, the first seed of every row first: a table is complete as early as can be."""
        configs = [(row, row.config(**options)) for row in self.rows]
        found = []
        for seed in self.seeds if seeds is None else dict.fromkeys(seeds):
            for row, config in configs:
                own = config.model_copy(update={"seed": seed})
                found.append(Planned(run_name(own, row.label), row, own))
        return found


def paper_grid() -> Grid:
    """The paper's 52 rows."""
    return _grid(_shipped().read_text(encoding="utf-8"), "paper.toml", Path())


def read_grid(path: str | Path) -> Grid:
    """A grid from a TOML file; everything in it is checked before anything runs."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            "the grid cannot be read",
            where=str(path),
            expected="a TOML file in UTF-8",
            found=str(getattr(error, "strerror", None) or "bytes that are not UTF-8"),
            fix="check the path given to --grid",
        ) from error
    return _grid(text, str(path), path.parent)


def _shipped() -> Any:
    return resources.files("qll.grid").joinpath("paper.toml")


def _grid(text: str, where: str, folder: Path) -> Grid:
    try:
        held = _File.model_validate(parse_toml(text))
    except ValidationError as error:
        raise _wrong(error, where) from error
    except ValueError as error:
        raise InputError(
            "the grid is not TOML",
            where=where,
            expected="tables such as [[rows]] with lines such as 'data = \"dice\"'",
            found=str(error),
            fix="correct that line",
        ) from error
    rows = []
    for part in held.rows:
        settings = _merged(held.settings, part.settings)
        _check_settings(settings, where)
        local = folder / part.property
        prop = str(local.resolve()) if part.property.endswith(".qll") else part.property
        rows += [Row(prop, part.data, logic, part.label, settings) for logic in part.logics]
    _check_rows(rows, where)
    return Grid(held.name, tuple(rows), tuple(dict.fromkeys(held.seeds)))


def _wrong(error: ValidationError, where: str) -> InputError:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = _Rows.model_fields if first["loc"][0] == "rows" else _File.model_fields
        return InputError(
            f"unknown key '{key}'",
            where=where,
            expected="a key of a grid",
            found=f"'{first['loc'][-1]}'",
            fix=f"{suggest(str(first['loc'][-1]), sorted(known))}; settings of training go to "
            "a table 'settings'",
        )
    missing = first["type"] == "missing"
    return InputError(
        f"key '{key}' is missing" if missing else f"key '{key}' has a wrong value",
        where=where,
        expected=str(first["msg"]),
        found="nothing" if missing else repr(first["input"]),
        fix="write it as the paper's grid does: qll reproduce --list shows its rows",
    )


def _check_settings(settings: Mapping[str, Any], where: str) -> None:
    for key in _OWN_KEYS:
        if key in settings:
            raise InputError(
                f"'{key}' is not a setting of a row",
                where=where,
                expected="property, data and logics in [[rows]], seeds at the top",
                found=f"'{key}' among the settings",
                fix="move it there",
            )


def _check_rows(rows: Sequence[Row], where: str) -> None:
    """Every row can be run, and no two would write to one folder."""
    seen: dict[str, Row] = {}
    for row in rows:
        place = f"{where}, row {row.name}"
        try:
            _ = data_sets[row.data]  # an unknown one is named, with a near one
            name = run_name(row.config(seed=0), row.label)
        except QllError as error:
            raise error.at(f"{place}: {error.where}" if error.where else place) from error
        if name in seen:
            raise InputError(
                "two rows have one name",
                where=place,
                expected="rows that differ in property, data set, logic or label",
                found=f"'{row.name}' twice",
                fix='give one of them a label = "...", or remove it',
            )
        seen[name] = row


def _merged(common: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """A row's settings win; tables such as 'parameters' are merged key by key."""
    values = dict(common)
    for key, value in own.items():
        held = values.get(key)
        both = isinstance(held, dict) and isinstance(value, dict)
        values[key] = {**held, **value} if both else value  # type: ignore[dict-item]
    return values


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _near(pattern: str, known: Sequence[str]) -> str:
    parts = sorted({part for name in known for part in name.split("/")})
    return f"qll reproduce --list shows all rows; {suggest(pattern, parts)}"
