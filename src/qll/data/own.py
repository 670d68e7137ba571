"""Data of your own: files, folders, factories, arrays, frames and torch data sets, as a `DataSet`.

A schema stands in a TOML file beside the table (``cars.csv``, ``cars.toml``), is given itself in
place of the table (with ``file = "cars.csv"`` in it), or is read off the cells.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qll.data.base import DataSet, Split, Task, data_sets
from qll.data.formats import Arrays, read_data
from qll.data.guess import filled, guess_schema
from qll.data.schema import Feature, Schema
from qll.data.schema_file import SchemaFile, read_schema
from qll.data.spelling import DECIMALS, is_number, with_points
from qll.data.table import Table, complete_rows, encode
from qll.errors import DataError

_BATCH = 64
_FOLDER_WORDS = ("/", os.sep)


def is_own(source: Any) -> bool:
    """Whether ``source`` is none of the data sets by name: an object, a path or a factory."""
    if not isinstance(source, str):
        return True
    if source in data_sets:
        return False
    looks_like_path = any(sign in source for sign in _FOLDER_WORDS) or Path(source).suffix != ""
    return looks_like_path or ":" in source or Path(source).exists()


@dataclass(frozen=True, eq=False)
class Opened:
    """What a source holds: a table with its schema, or images. ``test`` are rows of their own."""

    name: str
    content: Table | Arrays
    schema: Schema | None
    test: Table | None = None
    path: Path | None = None
    decimal: str = "."


def load_own(
    source: Any,
    data_dir: Path | None = None,
    *,
    target: str = "",
    features: str = "",
    task: str = "",
    test: float = 0.0,
    seed: int = 0,
    labels: str = "",
    decimal: str = "",
    missing: str | float = "",
) -> DataSet:
    """The data set. ``target`` and ``features`` are columns, with commas between them; ``test`` is
    the share of the rows to test on (0: what the schema says, else 0.2), ``labels`` a file of
    them beside images or arrays. Of a table without a schema, ``decimal`` says how numbers are
    written ("." or ",") and ``missing`` what is done about empty cells."""
    options: dict[str, Any] = {
        "target": target,
        "features": features,
        "task": task,
        "labels": labels,
        "decimal": decimal,
        "missing": missing,
    }
    given: dict[str, Any] = {k: v for k, v in options.items() if v != ""}
    given |= {k: v for k, v in (("test", test), ("seed", seed)) if v}
    if isinstance(source, str) and _is_factory(source):
        source = _made(source)
    if isinstance(source, DataSet):
        return source
    opened = open_source(source, data_dir, **options, test=test, seed=seed)
    if isinstance(opened.content, Table):
        data = _table_set(opened)
    else:
        data = _image_set(opened.content, opened.name, test or 0.2, seed)
    if data_dir is not None:
        given["data_dir"] = str(data_dir)
    object.__setattr__(data, "options", given)
    return data


def open_source(
    source: Any,
    data_dir: Path | None = None,
    *,
    target: str = "",
    features: str = "",
    task: str = "",
    test: float = 0.0,
    seed: int = 0,
    labels: str = "",
    decimal: str = "",
    missing: str | float = "",
) -> Opened:
    """Read a source and find its schema, without encoding it."""
    path: Path | None = None
    written: SchemaFile | None = None
    name = "data"
    if isinstance(source, str) and _is_factory(source):
        name, source = source, _made(source)
    if isinstance(source, str | os.PathLike):
        path = _located(Path(os.path.expandvars(str(source))).expanduser(), data_dir)
        name = path.stem
        if path.suffix == ".toml":
            written = read_schema(path)
            path = _beside(written, written.file, "file")
        elif path.with_suffix(".toml").is_file():
            written = read_schema(path.with_suffix(".toml"))
        content = read_data(
            path,
            () if written is None else written.columns,
            Path(labels) if labels else None,
        )
    else:
        from qll.data.memory import content_of

        content = content_of(source, name)
    if isinstance(content, Arrays) and content.x.ndim == 2:
        content, held = _as_table(content)
    else:
        held = None
    if isinstance(content, Arrays):
        return Opened(name, content, None, path=path)
    decimal = decimal or (written.decimal if written is not None else DECIMALS[0])
    if decimal not in DECIMALS:
        raise DataError(
            "this is no decimal sign",
            where=name,
            expected="a point or a comma",
            found=f"'{decimal}'",
            fix="pass --decimal . or --decimal ,",
        )
    content = with_points(content) if decimal == "," else content
    schema, rows = _schema(
        content, written, name, target, features, task, test, seed, held, decimal, missing
    )
    return Opened(name, content, schema, rows if rows is not None else held, path, decimal)


def _schema(
    table: Table,
    written: SchemaFile | None,
    name: str,
    target: str,
    features: str,
    task: str,
    test: float,
    seed: int,
    held: Table | None,
    decimal: str,
    missing: str | float,
) -> tuple[Schema, Table | None]:
    """The schema with every range, and the rows of the file of tests that it names."""
    wanted, chosen = _listed(target), _listed(features)
    if written is not None:
        if wanted or task:
            written = replace(written, target=tuple(wanted) or written.target, task=task)
        if chosen:
            given = {column: written.features.get(column, {}) for column in chosen}
            written = replace(written, features=given)
        if test:
            written = replace(written, test=test)
        if seed:
            written = replace(written, seed=seed)
        if missing != "":
            written = replace(written, missing=_stand_in(missing))
        schema = written.schema(table, name)
    else:
        schema = guess_schema(
            table, target=wanted, features=chosen, task=task, test=test or 0.2, seed=seed, name=name
        )
        if missing != "":
            given_up = _stand_in(missing)
            schema = replace(
                schema, features=tuple(_filled_by(f, given_up) for f in schema.features)
            )
    rows = held
    if isinstance(schema.test, str):
        if written is None:  # pragma: no cover - only a schema names a file
            raise AssertionError
        found = read_data(_beside(written, schema.test, "test"), written.columns)
        if not isinstance(found, Table):
            raise DataError(
                "the rows to test on are no table",
                where=str(written.path),
                expected="a table with the same columns",
                found="arrays",
                fix="correct 'test' in the schema",
            )
        rows = with_points(found) if decimal == "," else found
    both = table if rows is None else _joined(schema, table, rows)
    return filled(schema, both), rows


def _stand_in(missing: str | float) -> str | float:
    """A number is one, however it was given."""
    return float(missing) if is_number(missing) else missing


def _filled_by(feature: Feature, missing: str | float) -> Feature:
    """A category has no mean: its commonest value stands for it."""
    if missing == "mean" and feature.kind in ("category", "binary"):
        missing = "commonest"
    return replace(feature, missing=missing)


def _joined(schema: Schema, table: Table, rows: Table) -> Table:
    names = [f.name for f in (*schema.features, *schema.targets)]
    return Table(
        {n: np.concatenate([table.column(n).astype(object), rows.column(n)]) for n in names},
        table.source,
    )


def _table_set(opened: Opened) -> DataSet:
    table, schema = opened.content, opened.schema
    if not isinstance(table, Table) or schema is None:  # pragma: no cover - by construction
        raise AssertionError
    x, y = encode(schema, complete_rows(schema, table))
    if opened.test is not None:
        train, test = Split(x, y), Split(*encode(schema, complete_rows(schema, opened.test)))
    else:
        train, test = _split(x, y, schema.test, schema.seed, opened.name)
    mean, std = train.stored.mean(0, dtype=np.float64), train.stored.std(0, dtype=np.float64)
    std[std == 0] = 1.0  # a constant column moves nothing, whatever it is divided by
    target_mean: NDArray[Any] = np.zeros(0)
    target_std: NDArray[Any] = np.zeros(0)
    if schema.task == "regression":
        target_mean = train.labels.mean(0, dtype=np.float64)
        target_std = train.labels.std(0, dtype=np.float64)
        target_std[target_std == 0] = 1.0
    schema = _scaled(schema, std, target_std)
    tasks: dict[str, Task] = {
        "classes": "single-label",
        "binary": "multi-label",
        "labels": "multi-label",
        "regression": "regression",
    }
    return DataSet(
        name=opened.name,
        train=train,
        test=test,
        classes=schema.output_names,
        task=tasks[schema.task],
        mean=tuple(mean.tolist()),
        std=tuple(std.tolist()),
        batch_size=_BATCH,
        lower=-np.inf,
        upper=np.inf,
        schema=schema,
        target_mean=tuple(target_mean.tolist()),
        target_std=tuple(target_std.tolist()),
    )


def _scaled(schema: Schema, std: NDArray[Any], target_std: NDArray[Any]) -> Schema:
    """With the deviation of the training rows where no scale is given."""
    # Four digits: a scale is a yardstick, and is written to be read.
    by_feature = {
        e.feature.name: float(f"{s:.4g}") for e, s in zip(schema.inputs, std, strict=True)
    }
    features = tuple(
        replace(f, scale=by_feature[f.name]) if f.scale is None and f.kind in _NUMBERS else f
        for f in schema.features
    )
    targets = schema.targets
    if len(target_std):
        targets = tuple(
            replace(t, scale=float(f"{s:.4g}")) if t.scale is None else t
            for t, s in zip(targets, target_std, strict=True)
        )
    return replace(schema, features=features, targets=targets)


_NUMBERS = ("real", "integer")


def _split(
    x: NDArray[Any], y: NDArray[Any], share: float | str, seed: int, name: str
) -> tuple[Split, Split]:
    count = round(float(share) * len(x))
    if not 0 < count < len(x):
        raise DataError(
            "there are too few rows to split",
            where=name,
            expected="rows to train on and rows to test on",
            found=f"{len(x)} in all, of which {float(share):g} are for the test",
            fix='add rows, or name a file of them: test = "test.csv" in the schema',
        )
    order = np.random.RandomState(seed).permutation(len(x))
    train, test = np.sort(order[count:]), np.sort(order[:count])
    return Split(x[train], y[train]), Split(x[test], y[test])


def _image_set(arrays: Arrays, name: str, share: float, seed: int) -> DataSet:
    """Images (rows, [channels,] height, width), bytes or numbers from 0 to 1, one label each."""
    from qll.data.dice import channel_statistics

    if arrays.y is None:
        raise DataError(
            "the labels of these images are missing",
            where=arrays.source,
            expected="a file of labels",
            found="none",
            fix="pass labels= with their file, or put it beside the images",
        )
    x, y = _channels_first(arrays.x), _class_numbers(arrays.y, arrays.source)
    if arrays.test is not None:
        x_test, y_test = _channels_first(arrays.test[0]), arrays.test[1]
        train, test = Split(x, y), Split(x_test, _class_numbers(y_test, arrays.source))
    else:
        if len(x) != len(y):
            raise DataError(
                "images and labels differ in number",
                where=arrays.source,
                expected=f"{len(x)} labels, one an image",
                found=f"{len(y)}",
                fix="use the image file and the label file of the same split",
            )
        train, test = _split(x, y, share, seed, name)
    several = y.ndim == 2
    count = y.shape[1] if several else int(max(y.max(initial=0), test.labels.max(initial=0))) + 1
    classes = arrays.classes or tuple(str(k) for k in range(count))
    scaled = x if x.dtype == np.uint8 else x * np.float32(255)
    mean, std = channel_statistics(scaled)
    return DataSet(
        name=name,
        train=train,
        test=test,
        classes=classes,
        task="multi-label" if several else "single-label",
        mean=mean,
        std=tuple(s or 1.0 for s in std),
        batch_size=_BATCH,
    )


def _channels_first(x: NDArray[Any]) -> NDArray[Any]:
    images = x[:, None] if x.ndim == 3 else x
    if images.ndim == 4 and images.shape[1] not in (1, 3) and images.shape[3] in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    kept = images if images.dtype == np.uint8 else images.astype(np.float32)
    return np.ascontiguousarray(kept)


def _class_numbers(y: NDArray[Any], source: str) -> NDArray[np.int64]:
    flat = y.reshape(len(y)) if y.ndim == 2 and y.shape[1] == 1 else y
    numbers = flat.astype(np.int64) if flat.dtype.kind in "iufb" else None
    if numbers is None or not np.array_equal(numbers, flat):
        raise DataError(
            "the labels of these images are no classes",
            where=source,
            expected="whole numbers from 0",
            found=f"{y.dtype} of shape {y.shape}",
            fix="number the classes; regression from images is not taken",
        )
    return numbers


def _as_table(arrays: Arrays) -> tuple[Table, Table | None]:
    """Arrays of two axes are columns: those of ``x``, then the target's."""
    if arrays.y is None:
        raise DataError(
            "there is nothing to predict",
            where=arrays.source,
            expected="an array of targets beside that of the inputs",
            found="none",
            fix="store y beside x, or pass labels= with its file",
        )
    width = arrays.x.shape[1]
    names = arrays.names or tuple(f"x{k}" for k in range(width))
    if len(names) != width:
        raise DataError(
            "the names do not fit the columns of the array",
            where=arrays.source,
            expected=f"{width} names",
            found=f"{len(names)}",
            fix="give a name for each column",
        )

    def table(x: NDArray[Any], y: NDArray[Any]) -> Table:
        if len(x) != len(y):
            raise DataError(
                "inputs and targets differ in number",
                where=arrays.source,
                expected=f"{len(x)} targets, one a row",
                found=f"{len(y)}",
                fix="pass both of the same rows",
            )
        columns = {name: x[:, k] for k, name in enumerate(names)}
        if y.ndim == 1 or y.shape[1] == 1:
            cells = y.reshape(len(y))
            words = dict(enumerate(arrays.classes))
            columns["target"] = (
                np.array([words.get(int(c), str(c)) for c in cells], dtype=object)
                if words
                else cells
            )
        else:
            for k in range(y.shape[1]):
                columns[arrays.classes[k] if arrays.classes else f"target {k}"] = y[:, k]
        return Table(columns, arrays.source)

    train = table(arrays.x, arrays.y)
    return train, None if arrays.test is None else table(*arrays.test)


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _located(path: Path, data_dir: Path | None) -> Path:
    within = None if data_dir is None else data_dir / path
    return within if within is not None and within.exists() else path


def _beside(written: SchemaFile, file: str | None, key: str) -> Path:
    """A file that a schema names: from the schema's folder, environment variables replaced."""
    if file is None:
        raise DataError(
            "the schema does not name its table",
            where=str(written.path),
            expected=f'{key} = "table.csv"',
            found="none",
            fix="add it, or pass the table to --data",
        )
    text = os.path.expandvars(file)
    if "$" in text:
        raise DataError(
            "a file of the schema hangs on an environment variable that is not set",
            where=str(written.path),
            expected="its value",
            found=f"'{text}'",
            fix=f"set {text[text.index('$') :].split('/')[0]}",
        )
    path = Path(text).expanduser()
    path = path if path.is_absolute() else written.path.parent / path
    if not path.exists():
        raise DataError(
            f"the schema names a file that is not there: {key} = {file!r}",
            where=str(written.path),
            expected="a file, from the folder of the schema",
            found=f"nothing at {path}",
            fix=f"correct '{key}' in the schema",
        )
    return path


def _is_factory(source: str) -> bool:
    return ":" in source and not Path(source).exists()


def _made(name: str) -> Any:
    """What a factory returns: ``package.module:factory``, called without arguments."""
    module_name, _, attribute = name.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise DataError(
            f"the factory '{name}' is not found",
            expected="package.module:factory, importable from here",
            found=str(error),
            fix="check the spelling, and that the package is installed or on PYTHONPATH",
        ) from error
    return found() if callable(found) else found
