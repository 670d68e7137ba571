"""A claim that you wrote, to compare certificates with: the only way to trust someone else's.

property = "not-both"           # a shipped one, a .qll file beside this one, or the text itself
parameters = {epsilon = "4/255"}
network = "net.onnx"            # a file beside this one, or "sha256:" and 64 digits
against = "new.onnx"            # the network of x2, where it is another one
points = "points.npy"           # one row for each data point, in raw input units, or the numbers;
                                # a property without x0, y0 and labels needs none
labels = [3, 0, 7]              # one for each point; lists where a point has several
mean = 0.1307                   # if the network takes (x - mean) / std
std = 0.3081
ties = "satisfy"                # what a value exactly on the boundary does; or "violate"
arithmetic = "real"             # in which the network computes; or "float32"
verdict = "verified"            # optional: nothing else will do
"""

from __future__ import annotations

import io
import math
import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from qll.audit.layout import digest
from qll.audit.network import Array, NotConfirmed
from qll.audit.onnx_file import network_bytes
from qll.audit.statement import MEANS, TIES, Statement
from qll.errors import InputError
from qll.formula.fold import walk
from qll.formula.nodes import Label
from qll.formula.parse import parse_specification
from qll.formula.question import canonical, is_closed

KEYS = {"property", "parameters", "outputs", "network", "against", "points", "labels", "mean",
        "std", "ties", "arithmetic", "verdict"}  # fmt: skip
Labels = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, eq=False)
class Expected:
    """``text`` is canonical (`qll.formula.question.canonical`), ``network`` a SHA-256, ``labels``
    are sorted, one row for each of the ``points`` (count, inputs)."""

    text: str
    network: str
    points: Array
    labels: Labels | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    tie_violates: bool = False
    verdict: str | None = None
    arithmetic: str = "real"
    against: str | None = None  # a SHA-256 too

    def compare(self, said: Statement) -> int:
        """The number of the point that a certificate is about; every difference is an error."""
        header, found = said.header, list[str]()
        if self.verdict not in (None, header.verdict):
            found.append(f"the verdict is {header.verdict}, not {self.verdict}")
        if self.text != header.text:
            found.append(_difference(header.text, self.text))
        if self.network != header.network:
            found.append(f"the network is {header.network}, not {self.network}")
        if self.against != header.against:
            names = [sha or "that of x" for sha in (header.against, self.against)]
            found.append(f"the network of x2 is {names[0]}, not {names[1]}")
        if self.tie_violates != header.tie_violates:
            found.append(f"a tie {TIES[header.tie_violates]}")
        if self.arithmetic != header.arithmetic:
            found.append(f"the arithmetic is {header.arithmetic}, not {self.arithmetic}")
        for name, mine, theirs in (
            ("mean", self.mean, header.mean), ("deviation", self.std, header.std),
        ):  # fmt: skip
            if not _same_scale(mine, theirs, said.input_shape or (said.x0.size,)):
                found.append(f"the normalisation's {name} is {theirs}, not {mine}"[:400])
        rows = self._rows(said.x0)
        labels = [None if self.labels is None else self.labels[row] for row in rows]
        if not rows:
            found.append(self._nearest(said.x0))
        elif header.labels not in labels:
            found.append(f"labels are {header.labels}, not {labels[0]} as of point {rows[0]}")
        if found:
            raise NotConfirmed("not what the claim says: " + "; ".join(found))
        return rows[labels.index(header.labels)]

    def _rows(self, x0: Array) -> list[int]:
        if not self.points.shape[1]:  # it depends on no data point
            return [0]
        same = self.points.shape[1] == x0.size and (self.points == x0).all(axis=1)
        return np.flatnonzero(same).tolist()

    def _nearest(self, x0: Array) -> str:
        none = f"the data point is none of the claim's {len(self.points)}"
        if self.points.shape[1] != x0.size or not len(self.points):
            return none
        far = np.abs(self.points - x0).max(axis=1)
        return f"{none}; number {int(far.argmin())} is nearest, {far.min():.3g} away"


def _difference(theirs: str, mine: str) -> str:
    """The first line in which two texts differ."""
    pairs = [text.split("\n") for text in (theirs, mine)]
    for number, (one, other) in enumerate(zip(*pairs), start=1):
        if one != other:
            return f"line {number} of the property is {ascii(one)[:400]}, not {ascii(other)[:400]}"
    return f"the property has {len(pairs[0])} lines, not {len(pairs[1])}"


def _same_scale(mine: Any, theirs: Any, shape: tuple[int, ...]) -> bool:
    """One number, one for each channel, one for each input may say the same."""
    if mine is None or theirs is None:
        return mine is theirs
    width = math.prod(shape)
    if any(len(row) not in (1, shape[0], width) for row in (mine, theirs)):
        return False
    spread = [np.repeat(row, width // len(row)) for row in (mine, theirs)]
    return bool((spread[0] == spread[1]).all())


# --- reading one ---


def read_claim(path: str | Path) -> Expected:
    """The claim in a TOML file, as in this module's docstring."""
    path = Path(path)
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        found = str(getattr(error, "strerror", None) or error)
        raise _error(path, "the claim cannot be read", "a TOML file in UTF-8", found) from error
    unknown = set(given) - KEYS
    if unknown or not {"property", "network"} <= set(given):
        wanted = "property, network, points and perhaps labels, parameters, against, mean, std, "
        wanted += "ties, arithmetic, verdict"
        found = ", ".join(sorted(unknown or given)) or "nothing"
        raise _error(path, "the claim has other entries than it should", wanted, found)
    text, speaks, closed = _property(path, given)
    if "points" not in given and not closed:
        wanted = "property, network, points: it depends on data points"
        raise _error(path, "the claim has no points", wanted, "none")
    points = _points(path, given["points"]) if "points" in given else np.zeros((1, 0))
    labels = _labels(path, given.get("labels"), len(points))
    if speaks != (labels is not None):
        wanted = "labels" if speaks else "no labels: the property does not speak of them"
        found = "none" if speaks else "labels"
        raise _error(path, "labels do not go with the property", wanted, found)
    ties, verdict = given.get("ties", "satisfy"), given.get("verdict")
    if ties not in ("satisfy", "violate"):
        raise _error(
            path, "it is not said what a tie is", "ties = 'satisfy' or 'violate'", f"{ties}"
        )
    numbers = given.get("arithmetic", "real")
    if numbers not in MEANS:
        raise _error(path, "there is no such arithmetic", "'real' or 'float32'", f"{numbers}")
    if verdict not in (None, "verified", "falsified"):
        raise _error(path, "there is no such verdict", "'verified' or 'falsified'", f"{verdict}")
    mean, std = (_scale(path, name, given.get(name)) for name in ("mean", "std"))
    if (mean is None) != (std is None):
        raise _error(path, "half a normalisation", "both mean and std, or neither", "one")
    network = _network(path, given["network"])
    against = _network(path, given["against"]) if "against" in given else None
    return Expected(
        text, network, points, labels, mean, std, ties == "violate", verdict, numbers,
        None if against == network else against,
    )  # fmt: skip


def _error(path: Path, what: str, expected: str, found: str) -> InputError:
    fix = "see docs/trust.md for an example"
    return InputError(what, expected=expected, found=found[:200], fix=fix, where=str(path))


def _property(path: Path, given: dict[str, Any]) -> tuple[str, bool, bool]:
    """Its canonical text, whether it speaks of labels, and whether it needs no data point."""
    name, parameters = given["property"], given.get("parameters", {})
    if type(name) is not str or type(parameters) is not dict:
        raise _error(path, "no property", "property = 'NAME'; parameters = {a = 1}", f"{name}")
    shipped = resources.files("qll") / "properties" / f"{name}.qll"
    if re.fullmatch("[a-z0-9-]+", name) and shipped.is_file():
        name, source = shipped.read_text(encoding="utf-8"), name
    elif name.endswith(".qll"):
        name, source = _bytes(path, name).decode(errors="replace"), name
    else:
        source = f"{path}: property"
    specification = parse_specification(name, name=source)
    outputs = given.get("outputs")
    if outputs is not None:
        if type(outputs) is not int:
            raise _error(path, "outputs is not a number", "outputs = 10", f"{outputs}")
        specification = replace(specification, outputs=outputs)
    values = {key: _number(path, key, value) for key, value in parameters.items()}
    roots = [specification.formula, *(d.body for d in specification.definitions)]
    speaks = any(isinstance(node, Label) for root in roots for node in walk(root))
    return canonical(specification, values), speaks, is_closed(specification)


def _number(path: Path, name: str, value: Any) -> float:
    """0.1, or "4/255" as it would be written in a property."""
    try:
        if type(value) is str:
            return float(Fraction(value))
        if type(value) in (int, float) and math.isfinite(value):
            return float(value)
    except (ValueError, ZeroDivisionError, OverflowError):
        pass
    raise _error(path, f"'{name}' is not a number", "0.1, or '4/255' in quotes", f"{value}")


def _bytes(path: Path, name: str, read: Callable[[Path], bytes] = Path.read_bytes) -> bytes:
    try:
        return read(path.parent / name)
    except (OSError, ValueError) as error:  # a name with a NUL in it is the latter
        found = str(getattr(error, "strerror", None) or error)
        raise _error(path, f"'{name}' cannot be read", "a file beside the claim", found) from error


def _network(path: Path, name: Any) -> str:
    if type(name) is not str:
        raise _error(path, "no network", "network = 'net.onnx' or 'sha256:...'", f"{name}")
    if name.startswith("sha256:"):
        if not re.fullmatch("sha256:[0-9a-f]{64}", name):
            raise _error(path, "no hash of a network", "sha256: and 64 digits of 0-9a-f", name)
        return name.removeprefix("sha256:")
    return digest(_bytes(path, name, network_bytes))


def _points(path: Path, given: Any) -> Array:
    points = _array(path, "points", given)
    points = points[None] if points.ndim == 1 else points
    if points.dtype.kind not in "fiu" or not points.size or not np.isfinite(points).all():
        found = f"{points.dtype} of shape {points.shape}"
        raise _error(path, "no data points", "finite numbers, one row for each point", found)
    return np.asarray(points.reshape(len(points), -1), dtype=np.float64)


def _array(path: Path, name: str, given: Any) -> Any:
    try:
        if type(given) is not str:
            return np.array(given)
        return _stored(_bytes(path, given))
    except (ValueError, OverflowError) as error:
        raise _error(
            path, f"'{name}' cannot be read", "numbers, or a .npy file", f"{error}"
        ) from error


def _stored(content: bytes) -> Any:
    """The numbers of a .npy file. Its header is believed only as far as the file goes: nothing is
    allocated for numbers that are not there."""
    file = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0
        if version != (1, 0):
            read = np.lib.format.read_array_header_2_0
        shape, by_columns, dtype = read(file)
    except Exception as error:  # whatever numpy stumbles over, it is no header
        raise ValueError(f"no .npy file: {error}") from error
    if dtype.kind not in "fiub":
        raise ValueError(f"{dtype} where numbers should be")
    count = math.prod(shape)
    size, held = count * dtype.itemsize, len(content) - file.tell()
    if size > held or min(shape, default=0) < 0:
        raise ValueError(f"a shape of {shape}, which is {size} bytes, and {held} bytes in the file")
    flat = np.frombuffer(content, dtype, count, file.tell())
    return flat.reshape(shape, order="F" if by_columns else "C")


def _labels(path: Path, given: Any, count: int) -> Labels | None:
    if given is None:
        return None
    rows: Sequence[Any] = given if type(given) is list else []
    if type(given) is str:
        array = _array(path, "labels", given)
        if array.ndim not in (1, 2) or len(array) != count:
            raise _misfit(path, count, f"numbers of shape {array.shape}")
        rows = [np.flatnonzero(r) for r in array] if array.ndim == 2 else array
    found = []
    for row in rows:
        kinds = row if isinstance(row, list | np.ndarray) else [row]
        if not all(isinstance(v, int | np.integer) and not isinstance(v, bool) for v in kinds):
            raise _error(path, "a label is not a class", "classes, counted from 0", f"{row}")
        found.append(tuple(sorted({int(v) for v in kinds})))
    if len(found) != count:
        raise _misfit(path, count, f"{len(found)}")
    return tuple(found)


def _misfit(path: Path, count: int, found: str) -> InputError:
    wanted = f"{count}, one for each point (or a list for each)"
    return _error(path, "labels do not fit the points", wanted, found)


def _scale(path: Path, name: str, given: Any) -> tuple[float, ...] | None:
    if given is None:
        return None
    rows = given if type(given) is list else [given]
    return tuple(_number(path, name, value) for value in rows)
