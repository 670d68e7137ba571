"""What a certificate is about: a property, labels and a data point; or a query's own text."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qll.exchange.rules import text_of
from qll.files import write_atomically, write_error
from qll.formula.parse import parse_specification
from qll.formula.question import canonical
from qll.networks import Network
from qll.property import Property
from qll.verify.condition import Array
from qll.verify.query import Query

CLAIM = "claim.toml"


@dataclass(frozen=True, eq=False)
class Subject:
    """What a query was made from: the property's canonical text, which holds the values of its
    parameters in their declared units, the labels and the data point."""

    text: str
    labels: tuple[int, ...] | None
    x0: Array

    @classmethod
    def of(cls, prop: Property, x0: Array, labels: int | Sequence[int] | None = None) -> Subject:
        pattern = (int(labels),) if isinstance(labels, (int, np.integer)) else labels
        values = {p.name: prop.value_of(p.name) for p in prop.specification.parameters}
        spoken = pattern is not None and prop.uses_labels
        return cls(
            canonical(prop.specification, values),
            tuple(sorted({int(v) for v in pattern or ()})) if spoken else None,
            np.asarray(x0, dtype=np.float64).reshape(-1),
        )


def explicit(query: Query) -> Subject:
    """A query that did not come from a property, as the text of one."""

    def numbers(values: Array) -> str:
        return "[" + ", ".join(repr(float(v)) for v in values) + "]"

    region = [f"box({numbers(query.lower)}, {numbers(query.upper)})"]
    region += [text_of(constraint) for constraint in query.constraints]
    if query.integers is not None:
        whole = [f"x[{k}]" for k in np.flatnonzero(query.integers)]
        region += [f"integer({', '.join(whole)})"] if whole else []
    text = f"forall x in {' and '.join(region)}:\n  {text_of(query.condition)}\n"
    return Subject(canonical(parse_specification(text)), None, query.lower)


def short(values: Array | None, shape: tuple[int, ...]) -> tuple[float, ...] | None:
    """One number, or one a channel, where that says it all."""
    if values is None:
        return None
    if (values == values[0]).all():
        return (float(values[0]),)
    rows = values.reshape(shape[0], -1)
    if (rows == rows[:, :1]).all():
        return tuple(float(v) for v in rows[:, 0])
    return tuple(float(v) for v in values)


def _toml(text: str) -> str:
    """As a text of several lines, unless a name in it ends that."""
    if "'''" not in text:
        return f"property = '''\n{text}'''"
    signs = {'"': '\\"', "\n": "\\n"}  # there are no backslashes
    return 'property = "' + "".join(signs.get(c, c) for c in text) + '"'


def write_claim(
    folder: Path,
    prop: Property,
    network: Network,
    points: Array,
    *,
    labels: Sequence[Sequence[int]] | None,
    arithmetic: str | None,
    against: Network | None = None,
) -> Path:
    """What was asked, beside the certificates: a start for a claim of one's own."""
    subject = Subject.of(prop, points[:1])
    scales = network.normalisation or (None, None)
    lines = [
        "# What these certificates are about. Whoever wrote them wrote this file as well: before",
        "# you rely on it, see that it says what you want to be proved, and of your own files.",
        _toml(subject.text),
        f'network = "sha256:{network.sha256}"',
        *([] if against is None else [f'against = "sha256:{against.sha256}"']),
        'points = "points.npy"',
    ]
    if labels is not None:
        lines.append(f"labels = {[sorted(set(row)) for row in labels]}")
    for name, values in zip(("mean", "std"), scales, strict=True):
        said = short(values, network.input_shape)
        lines += [] if said is None else [f"{name} = {list(said)}"]
    content = io.BytesIO()
    np.save(content, points.reshape(len(points), -1), allow_pickle=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(folder, error) from error
    write_atomically(folder / "points.npy", content.getvalue())
    lines += ['ties = "satisfy"', f'arithmetic = "{arithmetic or "real"}"', ""]
    write_atomically(folder / CLAIM, "\n".join(lines).encode())
    return folder / CLAIM
