"""``qll data``: what a table is understood to be, and a schema of it to edit."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qll.cli.answers import JsonFile, plain_console, store
from qll.cli.options import Features, Target

if TYPE_CHECKING:
    from rich.console import Console

    from qll.data.base import DataSet
    from qll.data.own import Opened
    from qll.data.schema import Feature
    from qll.data.table import Table

# Values of a category that are listed; the rest are counted.
_SHOWN = 6
_NAMES_ITS_ROW = "a row number?"


def data(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="A table, images, a schema in TOML, or package.module:factory."
        ),
    ],
    target: Target = "",
    features: Features = "",
    task: Annotated[str, typer.Option(help="classes, binary, labels or regression.")] = "",
    decimal: Annotated[
        str, typer.Option(help="How numbers are written: a point or a comma (1.234,5).")
    ] = "",
    missing: Annotated[
        str, typer.Option(help="For empty cells: mean, commonest, drop (the row) or a value.")
    ] = "",
    write: Annotated[
        bool, typer.Option("--write", help="Write the schema beside the table, to edit.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write the schema here instead.")] = None,
    json_path: JsonFile = None,
) -> None:
    """Show the schema of a table as it is understood: kinds, ranges and counts of its columns, what
    is predicted from them, and the split. Every cell is checked.

    Example: qll data cars.csv --target mpg --write
    """
    from qll.data import data_sets
    from qll.data.own import load_own, open_source
    from qll.data.source import load

    console = plain_console()
    if source in data_sets:
        _show_images(console, load(source), json_path)
        return
    given: dict[str, Any] = {"target": target, "features": features, "task": task}
    given |= {"decimal": decimal, "missing": missing}
    opened = open_source(source, **given)
    if opened.schema is None:
        _show_images(console, load_own(source), json_path)
        return
    found = load_own(source, **given)
    _show_table(console, opened, found)
    if write or out is not None:
        _write(console, opened, found, out)
    if json_path is not None:
        _store(json_path, found, opened)


def _store(path: Path, found: DataSet, opened: Opened | None = None) -> None:
    from dataclasses import asdict

    said: dict[str, Any] = {
        "name": found.name,
        "task": found.task,
        "rows": {"train": len(found.train), "test": len(found.test)},
        "shape": list(found.shape),
        "outputs": list(found.classes),
    }
    if found.schema is not None and opened is not None:
        said["inputs"] = list(found.schema.input_names)
        said["features"] = [
            {**asdict(f), "remarks": _remarks(f, opened.content)}  # type: ignore[arg-type]
            for f in found.schema.features
        ]
        said["targets"] = [asdict(t) for t in found.schema.targets]
    store(path, said)


def _show_images(console: Console, found: DataSet, json_path: Path | None) -> None:
    from rich.markup import escape

    console.print(
        f"{escape(found.name)}: {len(found.train)} {found.kind} to train on, {len(found.test)} to "
        f"test on, {' x '.join(map(str, found.shape))}; {found.task}"
    )
    console.print("classes: " + escape(", ".join(found.classes)))
    if json_path is not None:
        _store(json_path, found)


def _show_table(console: Console, opened: Opened, found: DataSet) -> None:
    from rich.markup import escape
    from rich.table import Table as Grid

    from qll.data.table import Table

    schema, table = found.schema, opened.content
    if schema is None or not isinstance(table, Table):  # pragma: no cover - by construction
        raise AssertionError
    rows = f"{len(found.train)} rows to train on, {len(found.test)} to test on"
    console.print(f"{escape(str(opened.path or opened.name))}: {rows}", soft_wrap=True)
    grid = Grid(show_edge=False, pad_edge=False)
    units = any(f.unit for f in (*schema.features, *schema.targets))
    for column in ("column", "kind", "range", *(["unit"] if units else []), "scale", "entry", ""):
        grid.add_column(column, justify="right" if column == "scale" else "left")
    place = 0
    for feature in schema.features:
        width = len(feature.values) if feature.is_one_hot else 1
        last = place + width - 1
        grid.add_row(
            escape(feature.name),
            _kind(feature),
            escape(_range(feature)),
            *([escape(feature.unit)] if units else []),
            "" if feature.scale is None else f"{feature.scale:.4g}",
            f"x[{place}]" if width == 1 else f"x[{place}..{last}]",
            escape(_remarks(feature, table)),
        )
        place += width
    for k, target in enumerate(schema.targets):
        where = f"y[{k}]" if schema.task != "classes" else f"y[0..{len(target.values) - 1}]"
        grid.add_row(
            f"[bold]{escape(target.name)}[/bold]",
            schema.task,
            escape(_range(target)),
            *([escape(target.unit)] if units else []),
            "" if target.scale is None else f"{target.scale:.4g}",
            where,
            "[bold]to predict[/bold]" + escape(_counts(target, table)),
        )
    console.print(grid)
    named = [f.name for f in schema.features if _NAMES_ITS_ROW in _remarks(f, table)]
    if named:
        kept = shlex.quote(",".join(f.name for f in schema.features if f.name not in named))
        console.print(
            f"{', '.join(named)}: another value in each row. If that only names the row, leave it "
            f"out: --features {kept}",
            markup=False,
            soft_wrap=True,
        )


def _kind(feature: Feature) -> str:
    if feature.kind == "category":
        return f"category, {feature.encoding}"
    return feature.kind


def _range(feature: Feature) -> str:
    if feature.kind == "binary" and feature.values:  # which of them is 1 is not to be guessed
        return f"0 {feature.values[0]}, 1 {feature.values[1]}"
    if feature.values:
        listed = ", ".join(feature.values[:_SHOWN])
        more = len(feature.values) - _SHOWN
        return listed + (f", ... ({more} more)" if more > 0 else "")
    low, high = feature.range
    return f"{low:g} to {high:g}"


def _remarks(feature: Feature, table: Table) -> str:
    from qll.data.table import absent, text_of

    cells = table.column(feature.name)
    gone = int(absent(cells).sum())
    words = ["protected"] if feature.protected else []
    if gone:
        words.append(f"{gone} missing: {feature.missing}")
    if feature.kind == "integer" and len({text_of(cell) for cell in cells}) == len(cells):
        words.append(_NAMES_ITS_ROW)
    return ", ".join(words)


def _counts(target: Feature, table: Table) -> str:
    """How often each class occurs."""
    from collections import Counter

    from qll.data.table import text_of

    if not target.values:
        return ""
    counts = Counter(text_of(cell) for cell in table.column(target.name))
    listed = [f"{value} {counts[value]}" for value in target.values[:_SHOWN]]
    return ": " + ", ".join(listed) + (", ..." if target.values[_SHOWN:] else "")


def _write(console: Console, opened: Opened, found: DataSet, out: Path | None) -> None:
    import os

    from qll.data.schema_file import read_schema, schema_text
    from qll.errors import InputError
    from qll.files import write_atomically

    if opened.path is None and out is None:
        raise InputError(
            "there is no file beside which the schema could stand",
            expected="--out FILE",
            found="data from a factory",
            fix="pass --out schema.toml",
        )
    path = out or opened.path.with_suffix(".toml")  # type: ignore[union-attr]
    columns: tuple[str, ...] = ()
    if path.exists():
        read_schema(path)  # not one of ours: named, not overwritten
        raise InputError(
            "a schema is there already",
            where=str(path),
            expected="no file of this name",
            found="a schema",
            fix="edit it, move it away, or pass --out with another name",
        )
    names = list(opened.content.columns) if hasattr(opened.content, "columns") else []
    if names and all(name == f"column {k}" for k, name in enumerate(names, start=1)):
        columns = tuple(names)
    file = None
    if opened.path is not None:
        file = os.path.relpath(opened.path, path.parent)
    if found.schema is None:  # pragma: no cover
        raise AssertionError
    text = schema_text(found.schema, file=file, columns=columns, decimal=opened.decimal)
    write_atomically(path, text.encode())
    console.print(f"schema: {path}", markup=False)


def register(app: typer.Typer) -> None:
    app.command()(data)
