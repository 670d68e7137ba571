"""Schemas as TOML: what ``qll data FILE --write`` writes beside a table, to be edited.

target = "mpg"                  # or several: ["a", "b"]
task = "regression"             # classes, binary (one logit), labels, regression
test = 0.2                      # a share of the rows, or a file: "test.csv"
[features.age]
kind = "integer"                # real, integer, binary, category
range = [18, 90]
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qll.data.guess import guess_feature, guess_target
from qll.data.schema import Feature, Schema, TableTask
from qll.data.spelling import DECIMALS
from qll.data.table import Table
from qll.errors import DataError, QllError
from qll.files import parse_toml
from qll.registry import suggest

_TOP = (
    *("file", "columns", "decimal", "target", "task", "test", "seed"),
    *("features", "outputs", "missing"),
)
_OF_FEATURE = ("kind", "range", "unit", "scale", "protected", "values", "encode", "missing")
_OF_OUTPUT = ("range", "unit", "scale", "values")


@dataclass(frozen=True)
class SchemaFile:
    """A schema as it was written: what it leaves out is read off the table. ``columns`` names those
    of a file without a header; ``file`` is the table, from the schema's folder; ``decimal`` how its
    numbers are written."""

    path: Path
    file: str | None
    columns: tuple[str, ...]
    target: tuple[str, ...]
    task: str
    test: float | str
    seed: int
    missing: str | float
    features: Mapping[str, Mapping[str, Any]]
    outputs: Mapping[str, Mapping[str, Any]]
    decimal: str = "."

    def schema(self, table: Table, name: str) -> Schema:
        """For its table; every feature is one that is listed, or all others where none is."""
        try:
            return self._schema(table, name)
        except QllError as error:
            raise error.at(error.where or str(self.path)) from error

    def _schema(self, table: Table, name: str) -> Schema:
        if not self.target:
            raise _bad(self.path, "target", "the column to predict", "none")
        listed = list(self.features) or [c for c in table.columns if c not in self.target]
        features = tuple(
            self._feature(column, self.features.get(column, {}), table) for column in listed
        )
        targets, task = guess_target(self.target, table, self.task)
        for column in self.outputs:
            if column not in self.target:
                raise _bad(
                    self.path, f"outputs.{column}", f"one of: {', '.join(self.target)}", column
                )
        targets = tuple(self._output(f, self.outputs.get(f.name, {})) for f in targets)
        kind: TableTask = task  # type: ignore[assignment]
        return Schema(features, targets, kind, test=self.test, seed=self.seed, name=name)

    def _feature(self, column: str, given: Mapping[str, Any], table: Table) -> Feature:
        kind = given.get("kind")
        whole = kind is not None and (kind not in ("category",) or "values" in given)
        table.column(column)  # names one that is not there
        feature = Feature(column, kind) if whole else guess_feature(column, table)  # type: ignore[arg-type]
        if kind == "category" and not whole:
            targets, _ = guess_target([column], table, "classes")
            feature = targets[0]
        missing = given.get("missing", self.missing)
        return self._changed(feature, {**given, "missing": missing}, f"features.{column}")

    def _output(self, feature: Feature, given: Mapping[str, Any]) -> Feature:
        return self._changed(feature, given, f"outputs.{feature.name}")

    def _changed(self, feature: Feature, given: Mapping[str, Any], where: str) -> Feature:
        changes: dict[str, Any] = {}
        if "range" in given:
            ends = given["range"]
            if not isinstance(ends, list) or len(ends) != 2 or not all(map(_is_number, ends)):
                raise _bad(self.path, f"{where}.range", "[least, most]", repr(ends))
            changes["lower"], changes["upper"] = float(ends[0]), float(ends[1])
        for key, kind in (("unit", str), ("protected", bool)):
            if key in given:
                if not isinstance(given[key], kind):
                    raise _bad(self.path, f"{where}.{key}", f"a {kind.__name__}", repr(given[key]))
                changes[key] = given[key]
        if "scale" in given:
            if not _is_number(given["scale"]):
                raise _bad(self.path, f"{where}.scale", "a number above 0", repr(given["scale"]))
            changes["scale"] = float(given["scale"])
        if "values" in given:
            if not isinstance(given["values"], list):
                raise _bad(self.path, f"{where}.values", "a list", repr(given["values"]))
            changes["values"] = tuple(str(value) for value in given["values"])
        if "encode" in given:
            changes["encoding"] = given["encode"]
        if "missing" in given:
            changes["missing"] = given["missing"]
        return replace(feature, **changes)


def read_schema(path: Path) -> SchemaFile:
    """A TOML file; unknown keys are named."""
    try:
        values = parse_toml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or "bytes that are not UTF-8"
        raise DataError(
            "the schema cannot be read",
            where=str(path),
            expected="a TOML file in UTF-8",
            found=str(problem),
            fix="check the path, or write one with: qll data FILE --write",
        ) from error
    except ValueError as error:
        raise DataError(
            "the schema is not TOML",
            where=str(path),
            expected="lines such as 'target = \"mpg\"'",
            found=str(error),
            fix="correct that line",
        ) from error
    _known(path, "", values, _TOP)
    features, outputs = values.get("features", {}), values.get("outputs", {})
    for title, tables, keys in (
        ("features", features, _OF_FEATURE),
        ("outputs", outputs, _OF_OUTPUT),
    ):
        if not isinstance(tables, dict) or not all(isinstance(t, dict) for t in tables.values()):
            raise _bad(path, title, f"tables [{title}.NAME]", "something else")
        for column, table in tables.items():
            _known(path, f"{title}.{column}.", table, keys)
    target = values.get("target", [])
    wanted = [target] if isinstance(target, str) else target
    columns = values.get("columns", [])
    for key, names in (("target", wanted), ("columns", columns)):
        if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
            raise _bad(path, key, "names of columns", repr(names))
    test, seed = values.get("test", 0.2), values.get("seed", 0)
    if isinstance(test, bool) or not isinstance(test, str | float | int):
        raise _bad(path, "test", "a share of the rows, or a file", repr(test))
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise _bad(path, "seed", "a whole number from 0 to 2^32 - 1", repr(seed))
    decimal = values.get("decimal", ".")
    if decimal not in DECIMALS:
        raise _bad(path, "decimal", '"." or ","', repr(decimal))
    return SchemaFile(
        path,
        values.get("file"),
        tuple(columns),
        tuple(wanted),
        str(values.get("task", "")),
        test,
        seed,
        values.get("missing", "refuse"),
        features,
        outputs,
        decimal,
    )


def schema_text(
    schema: Schema,
    *,
    file: str | None = None,
    columns: tuple[str, ...] = (),
    decimal: str = ".",
) -> str:
    """The TOML of a schema; read again with its table, it is the same schema."""
    target = [t.name for t in schema.targets]
    lines = [
        "# What the columns mean; see docs/data.md. Edit it, then pass it, or the table, to --data."
    ]
    if file is not None:
        lines.append(f"file = {_toml(file)}")
    if columns:
        lines.append(f"columns = {_toml(list(columns))}")
    if decimal != ".":
        lines.append(f"decimal = {_toml(decimal)}  # 1.234,5")
    lines += [
        f"target = {_toml(target[0] if len(target) == 1 else target)}",
        f"task = {_toml(schema.task)}  # classes, binary (one logit), labels, regression",
        f"test = {_toml(schema.test)}  # a share of the rows, or a file of them",
        f"seed = {schema.seed}  # of the split",
    ]
    for feature in schema.features:
        lines += ["", f"[features.{_key(feature.name)}]", f"kind = {_toml(feature.kind)}"]
        lines += _feature_lines(feature)
    for target_column in schema.targets:
        more = _feature_lines(target_column)
        if more:
            lines += ["", f"[outputs.{_key(target_column.name)}]", *more]
    return "\n".join(lines) + "\n"


def _feature_lines(feature: Feature) -> list[str]:
    lines = []
    if feature.values:
        lines.append(f"values = {_toml(list(feature.values))}")
    if feature.kind == "category" and feature.encoding != "one-hot":
        lines.append(f"encode = {_toml(feature.encoding)}")
    if feature.lower is not None and feature.upper is not None:
        ends = [feature.lower, feature.upper]
        whole = feature.kind == "integer"
        lines.append(f"range = {_toml([int(e) for e in ends] if whole else ends)}")
    if feature.unit:
        lines.append(f"unit = {_toml(feature.unit)}")
    if feature.scale is not None:
        lines.append(f"scale = {_toml(feature.scale)}")
    if feature.protected:
        lines.append("protected = true")
    if feature.missing != "refuse":
        lines.append(f"missing = {_toml(feature.missing)}")
    return lines


def _toml(value: Any) -> str:
    """Strings, numbers and lists are written alike in TOML and JSON."""
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, float) and value == round(value) and abs(value) < 2**53:
        return f"{int(value)}.0"
    return json.dumps(value, ensure_ascii=False)


def _key(name: str) -> str:
    plain = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if plain else json.dumps(name, ensure_ascii=False)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _known(path: Path, prefix: str, values: Mapping[str, Any], keys: tuple[str, ...]) -> None:
    for key in values:
        if key not in keys:
            raise DataError(
                f"the schema has an unknown key '{prefix}{key}'",
                where=str(path),
                expected=f"one of: {', '.join(keys)}",
                found=f"'{key}'",
                fix=suggest(key, list(keys)),
            )


def _bad(path: Path, key: str, expected: str, found: str) -> DataError:
    return DataError(
        f"'{key}' of the schema is wrong",
        where=str(path),
        expected=expected,
        found=found,
        fix=f"correct '{key}'",
    )
