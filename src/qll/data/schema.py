"""What the columns of a table mean: features with their kinds, ranges, units and scales, and what
is to be predicted. A network's inputs and outputs follow from it, by name, in raw units.

Nothing here knows of formulas: `qll.properties.load(rule, schema=...)` gives a rule these names,
and ``domain`` this box.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

from qll.errors import DataError

Kind = Literal["real", "integer", "binary", "category"]
Encoding = Literal["one-hot", "code"]
TableTask = Literal["classes", "binary", "labels", "regression"]
KINDS: tuple[Kind, ...] = get_args(Kind)
ENCODINGS: tuple[Encoding, ...] = get_args(Encoding)
TABLE_TASKS: tuple[TableTask, ...] = get_args(TableTask)
# What is done about a cell without a value; a number or a value of the category stands in for it.
MISSING = ("refuse", "drop", "mean", "commonest")
# Networks compute in float32, which has every integer up to here.
MOST_INTEGER = 2**24


@dataclass(frozen=True)
class Feature:
    """One column. ``lower`` and ``upper`` are its range, ``scale`` what counts as a step of it (the
    deviation of the training rows, where nothing is said), both in raw units; ``values`` those of a
    category in the order of their codes, or the two of a binary column, the first of them 0."""

    name: str
    kind: Kind = "real"
    lower: float | None = None
    upper: float | None = None
    unit: str = ""
    scale: float | None = None
    protected: bool = False
    values: tuple[str, ...] = ()
    encoding: Encoding = "one-hot"
    missing: str | float = "refuse"

    def __post_init__(self) -> None:
        _check_feature(self)

    @property
    def is_one_hot(self) -> bool:
        return self.kind == "category" and self.encoding == "one-hot"

    @property
    def range(self) -> tuple[float, float]:
        """Both ends, in the numbers that the network sees."""
        if self.kind == "category":
            return 0.0, float(max(len(self.values) - 1, 0))
        if self.kind == "binary":
            return 0.0, 1.0
        return (
            -math.inf if self.lower is None else self.lower,
            math.inf if self.upper is None else self.upper,
        )


@dataclass(frozen=True)
class Input:
    """One entry of ``x``: a feature, or of a one-hot category one of its values."""

    name: str
    feature: Feature
    value: str | None
    lower: float
    upper: float

    @property
    def is_integer(self) -> bool:
        return self.feature.kind != "real"


@dataclass(frozen=True)
class Schema:
    """``targets`` are the columns to predict: one of ``classes`` (an output each), one ``binary``
    (a single logit, above 0 for the second value), several ``labels`` of 0 and 1, or numbers
    (``regression``). ``test`` is the share of rows to test on, or a file of them.

    >>> credit = Feature("credit", "binary", values=("bad", "good"))
    >>> Schema((Feature("age", "integer", 18, 90),), (credit,), "binary").output_names
    ('good',)
    """

    features: tuple[Feature, ...]
    targets: tuple[Feature, ...]
    task: TableTask
    test: float | str = 0.2
    seed: int = 0
    name: str = "table"

    def __post_init__(self) -> None:
        _check_schema(self)

    @cached_property
    def inputs(self) -> tuple[Input, ...]:
        """The entries of ``x``, in order."""
        found: list[Input] = []
        for feature in self.features:
            if feature.is_one_hot:
                found += [
                    Input(f"{feature.name}={value}", feature, value, 0.0, 1.0)
                    for value in feature.values
                ]
            else:
                found.append(Input(feature.name, feature, None, *feature.range))
        return tuple(found)

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(entry.name for entry in self.inputs)

    @cached_property
    def output_names(self) -> tuple[str, ...]:
        """The entries of ``y``: classes, what a single logit stands for, or the targets."""
        first = self.targets[0]
        if self.task == "classes":
            return first.values
        if self.task == "binary":
            return (first.values[1] if first.values not in ((), ("0", "1")) else first.name,)
        return tuple(target.name for target in self.targets)

    @property
    def lower(self) -> tuple[float, ...]:
        return tuple(entry.lower for entry in self.inputs)

    @property
    def upper(self) -> tuple[float, ...]:
        return tuple(entry.upper for entry in self.inputs)

    @property
    def integers(self) -> tuple[int, ...]:
        """The inputs that take whole numbers only."""
        return tuple(k for k, entry in enumerate(self.inputs) if entry.is_integer)

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The inputs of each one-hot category: exactly one of them is 1."""
        found: dict[str, list[int]] = {}
        for k, entry in enumerate(self.inputs):
            if entry.value is not None:
                found.setdefault(entry.feature.name, []).append(k)
        return tuple(tuple(members) for members in found.values())

    @property
    def protected(self) -> tuple[str, ...]:
        """The inputs that a fair decision does not depend on."""
        return tuple(entry.name for entry in self.inputs if entry.feature.protected)

    @property
    def input_scales(self) -> tuple[float, ...]:
        """For a comparison of inputs: 1 where nothing is known, and for one-hot entries."""
        return tuple(
            1.0 if entry.value is not None else entry.feature.scale or 1.0 for entry in self.inputs
        )

    @property
    def output_scales(self) -> tuple[float, ...]:
        """For a comparison of outputs: the scale of each number to predict; logits have 1."""
        if self.task != "regression":
            return (1.0,) * len(self.output_names)
        return tuple(target.scale or 1.0 for target in self.targets)


def _check_feature(feature: Feature) -> None:
    where = f"column '{feature.name}'"
    ends = (feature.lower, feature.upper)
    problems = [
        (feature.kind not in KINDS, "kind", " or ".join(KINDS), feature.kind),
        (feature.encoding not in ENCODINGS, "encode", " or ".join(ENCODINGS), feature.encoding),
        (
            any(end is not None and not math.isfinite(end) for end in ends),
            "range",
            "two finite numbers",
            f"{list(ends)}",
        ),
        (
            feature.lower is not None
            and feature.upper is not None
            and feature.lower > feature.upper,
            "range",
            "[least, most]",
            f"{list(ends)}",
        ),
        (
            feature.scale is not None and not (math.isfinite(feature.scale) and feature.scale > 0),
            "scale",
            "a number above 0",
            f"{feature.scale}",
        ),
        (
            feature.kind == "binary" and len(feature.values) not in (0, 2),
            "values",
            "two of them",
            f"{len(feature.values)}",
        ),
        (
            len(set(feature.values)) < len(feature.values),
            "values",
            "each value once",
            "one that occurs twice",
        ),
        (
            feature.kind == "integer" and any(e is not None and e != round(e) for e in ends),
            "range",
            "whole numbers",
            f"{list(ends)}",
        ),
        (
            feature.kind == "integer"
            and any(e is not None and abs(e) > MOST_INTEGER for e in ends),
            "range",
            f"integers up to {MOST_INTEGER:,}, which float32 has exactly",
            f"{list(ends)}",
        ),
        (
            isinstance(feature.missing, str) and feature.missing not in (*MISSING, *feature.values),
            "missing",
            f"{', '.join(MISSING)}, or a value that stands in",
            f"'{feature.missing}'",
        ),
    ]
    for wrong, key, expected, found in problems:
        if wrong:
            raise DataError(
                f"'{key}' of a column is wrong",
                where=where,
                expected=expected,
                found=str(found),
                fix=f"correct '{key}' in the schema ('qll data FILE --write' writes one to edit)",
            )


def _check_schema(schema: Schema) -> None:
    one = schema.task in ("classes", "binary")
    taken = {target.name for target in schema.targets}
    twice = [f.name for f in schema.features if f.name in taken]
    share = schema.test if isinstance(schema.test, float | int) else 0.5
    kinds = [target.kind for target in schema.targets]
    problems = [
        (schema.task not in TABLE_TASKS, "task", " or ".join(TABLE_TASKS), f"'{schema.task}'"),
        (not schema.features, "features", "at least one", "none"),
        (not schema.targets, "target", "a column to predict", "none"),
        (one and len(schema.targets) > 1, "target", f"one column for '{schema.task}'", "several"),
        (
            bool(twice),
            "features",
            "columns that are not predicted",
            f"'{twice[0]}', the target" if twice else "",
        ),
        (not 0 < share < 1, "test", "a share of the rows between 0 and 1", f"{schema.test}"),
        (
            schema.task == "regression" and any(k in ("category", "binary") for k in kinds),
            "task",
            "numbers to predict",
            "a column of classes",
        ),
        (
            schema.task == "classes" and bool(schema.targets) and len(schema.targets[0].values) < 2,
            "target",
            "at least two classes",
            "one value in the whole column",
        ),
    ]
    for wrong, key, expected, found in problems:
        if wrong:
            raise DataError(
                f"'{key}' of the schema is wrong",
                where=schema.name,
                expected=expected,
                found=found,
                fix=f"correct '{key}' in the schema, or pass --{key}"
                if key in ("target", "features", "task")
                else f"correct '{key}' in the schema",
            )
    names = [*schema.input_names]
    if len(set(names)) < len(names):
        again = next(name for name in names if names.count(name) > 1)
        raise DataError(
            "two inputs have one name",
            where=schema.name,
            expected="a name of its own for each input",
            found=f"'{again}' twice",
            fix="rename a column",
        )
