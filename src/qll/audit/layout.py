"""The file of a certificate: every field and every array, declared once for writer and checker.

The file is magic, the SHA-256 of the rest, then compressed: a JSON header, and the bytes of the
arrays in the order below. The header says how long each array is, and nothing of its type: that is
fixed here, and so are its length and its range, by the network and by the arrays before it. All of
it is checked before a number is used: no index of a proof is negative, none wraps around, no
multiplier is infinite, and nothing is left over. Nothing but numbers is ever built.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from qll.audit.network import NotConfirmed, require

MAGIC, FORMAT, MOST_BYTES = b"QLLCERT2", 2, 1 << 28
ARITHMETICS = ("real", "float32")  # in which the network computes
# Kinds of nodes.
BOUND, CROWN, EMPTY, CASE, SPLIT, TIGHTEN, HALVE, OPEN, ALWAYS, SLOPE, POINT = range(11)


@dataclass(frozen=True)
class Header:
    """What is claimed, but for the data point. ``ground`` and ``region`` are hashes of what the
    prover made of the text; ``precision`` are the bits of alpha and delta. ``member`` is a point of
    the region, where that has constraints: the variables as fractions. ``against`` is the network
    of x2, where it is another one; the normalisation is that of both. ``point`` is a witness in
    fractions, variable by variable, where no floats solve an equation of the region."""

    format: int
    verdict: str
    network: str
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    text: str
    labels: tuple[int, ...] | None
    tie_violates: bool
    arithmetic: str
    ground: str
    region: str
    precision: int
    member: tuple[str, ...] | None = None
    against: str | None = None
    point: tuple[str, ...] | None = None


class Sizes:
    """How long the arrays of one certificate are, from the network and from those before."""

    def __init__(self, widths: list[int], precision: int, data: int, entries: int) -> None:
        self.inputs, self.neurons = widths[0], sum(widths[1:-1])
        self.data, self.entries = data, entries  # of the data point, and of all points
        self.first, self.precision = (widths[1] if len(widths) > 2 else 0), precision
        self.found: dict[str, Any] = {}

    def node_limits(self) -> tuple[Any, Any]:
        """The least and the largest argument of each node: a neuron, an input, a number of bounds;
        which disjunctions wait is known at the node itself."""
        most = np.zeros(POINT + 1, np.int64)
        most[CASE], most[TIGHTEN] = (1 << 32) - 1, 2 * self.neurons
        most[SPLIT], most[HALVE] = self.neurons - 1, self.inputs - 1
        return (self.found["kinds"] == TIGHTEN).astype(np.int64), most[self.found["kinds"]]

    def targets(self) -> int:
        return int(self.found["arguments"][self.found["kinds"] == TIGHTEN].sum(dtype=np.int64))

    def problems(self) -> int:
        """Bounds that come with multipliers."""
        return self.targets() + int((self.found["kinds"] == BOUND).sum())

    def table(self, column: int) -> int:
        groups = [int(v) for v in self.found["groups"]]
        return groups[0] * groups[column]

    def loose(self) -> int:
        return int(np.unpackbits(self.found["loose"]).sum())

    @cached_property
    def ties(self) -> int:
        """Copies of inputs in groups, but for the first of each."""
        copies = self.found["group_inputs"]
        copies = copies[copies < self.inputs]
        return int(copies.size - np.unique(copies).size)


Limit = Callable[[Sizes], Any]
_no_limit: Limit = lambda s: None  # noqa: E731 - the walk of the tree uses it up exactly


@dataclass(frozen=True)
class Column:
    """An array: its one type (or one for each precision), its length and the range of its numbers,
    which are finite. A length None: as many as the nodes of the proof take, none left over."""

    kind: str | dict[int, str]
    length: Limit
    least: Limit = lambda s: -np.inf
    most: Limit = lambda s: np.inf

    def type(self, precision: int) -> Any:
        return np.dtype(self.kind if isinstance(self.kind, str) else self.kind[precision])


COLUMNS = {
    "x0": Column("<f8", lambda s: s.data),
    "witness": Column("<f8", lambda s: s.entries),
    "kinds": Column("u1", _no_limit, most=lambda s: POINT),
    "arguments": Column(
        "<u4",
        lambda s: s.found["kinds"].size,
        lambda s: s.node_limits()[0],
        lambda s: s.node_limits()[1],
    ),
    # twice a hidden neuron; one more: its upper bound
    "targets": Column("<u4", lambda s: s.targets(), most=lambda s: 2 * s.neurons - 1),
    # bits of the hidden neurons that have an alpha
    "loose": Column("u1", lambda s: (s.neurons + 7) // 8),
    # how many, the most neurons and the most inputs of one; padded with their numbers
    "groups": Column("<u4", lambda s: 3),
    "group_neurons": Column("<u4", lambda s: s.table(1), most=lambda s: s.first),
    "group_inputs": Column("<u4", lambda s: s.table(2), most=lambda s: s.inputs),
    # alpha is in [0, 1] and delta in [-1, 1]; 255ths and 127ths above 128 as bytes
    "alpha": Column(
        {8: "u1", 16: "<f2", 32: "<f4"},
        lambda s: s.problems() * s.loose(),
        lambda s: 0,
        lambda s: {8: 255}.get(s.precision, 1),
    ),
    "delta": Column(
        {8: "u1", 16: "<f2", 32: "<f4"},
        lambda s: s.problems() * s.ties,
        lambda s: {8: 1}.get(s.precision, -1),
        lambda s: {8: 255}.get(s.precision, 1),
    ),
    "delta_scale": Column("<f4", lambda s: s.problems() if s.ties else 0, lambda s: 0),
    # where neurons with another activation than ReLU are split
    "points": Column("<f8", _no_limit),
    "beta": Column("<f4", _no_limit, lambda s: 0),
    "weights": Column("<f4", _no_limit, lambda s: 0),
}
OF_VERDICT = {
    "falsified": ("x0", "witness"),
    "verified": tuple(name for name in COLUMNS if name != "witness"),
}


def digest(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()


def unpack(data: bytes) -> tuple[Header, dict[str, Any]]:
    """Header and arrays, with their types. The checksum finds accidents; a forger's file has a
    fitting one."""
    start = len(MAGIC) + 32
    require(data[:7] == MAGIC[:7], "not a certificate")
    fresh = data.startswith(MAGIC)
    require(fresh, f"a certificate of another version than {FORMAT}: write it again")
    require(len(data) > start, "the file is cut")
    intact = hashlib.sha256(data[start:]).digest() == data[len(MAGIC) : start]
    require(intact, "the file is damaged: its checksum differs")
    try:
        reader = zlib.decompressobj()
        raw = reader.decompress(data[start:], MOST_BYTES)
        require(reader.eof and not reader.unused_data, "the file is cut or too large")
        at = 4 + int.from_bytes(raw[:4], "little")
        require(at <= len(raw), "the header is cut")
        given = json.loads(raw[4:at].decode(), object_pairs_hook=_once, parse_constant=_no_number)
        lengths = given.pop("arrays")
        header, arrays = _header(given), dict[str, Any]()
        known = type(lengths) is dict and tuple(lengths) == _names(header.verdict, lengths)
        require(known, "other arrays than those of a proof")
        for name, size in lengths.items():
            kind = COLUMNS[name.partition(".")[0]].type(header.precision)
            require(type(size) is int and size >= 0, f"a length of {name}")
            end = at + size * kind.itemsize
            require(end <= len(raw), f"{name} is cut")
            arrays[name] = np.frombuffer(raw[at:end], dtype=kind)
            at = end
        require(at == len(raw), "bytes are left over")
    except (zlib.error, ValueError, TypeError, KeyError, RecursionError) as error:
        raise NotConfirmed(f"the file is damaged: {error}") from error
    return header, arrays


def names(verdict: str, parts: int) -> tuple[str, ...]:
    """Of the arrays of a proof in ``parts`` cases: of the first as they are declared, of the others
    with the case's number after a dot, but for the data point."""
    first = OF_VERDICT[verdict]
    more = [f"{name}.{k}" for k in range(1, parts) for name in first if name != "x0"]
    return (*first, *more)


def _names(verdict: str, given: Any) -> tuple[str, ...]:
    parts = sum(name.partition(".")[0] == "kinds" for name in given)
    return names(verdict, parts if verdict == "verified" else 1)


def part(arrays: dict[str, Any], number: int) -> dict[str, Any]:
    """The arrays of one case, by their plain names."""
    if number == 0:
        return {name: values for name, values in arrays.items() if "." not in name}
    end = f".{number}"
    return {name.removesuffix(end): v for name, v in arrays.items() if name.endswith(end)}


def fit(
    arrays: dict[str, Any], widths: list[int], precision: int, data: int, entries: int
) -> dict[str, Any]:
    """The arrays, once every length and every number is what it may be for this network. Indices
    become signed integers of 64 bits, which none of them fills."""
    sizes = Sizes(widths, precision, data, entries)
    for name, array in arrays.items():
        column = COLUMNS[name]
        length = column.length(sizes)
        require(length is None or array.size == length, f"{name} of another length")
        least, most = column.least(sizes), column.most(sizes)
        whole = np.ndim(least) > 0 or not array.size
        ends = array if whole else np.array([array.min(), array.max()])
        # A comparison with NaN is false, and what has a NaN has no other least or largest number.
        inside = (ends >= least) & (ends <= most) & np.isfinite(ends)
        require(inside.all(), f"{name} out of range")
        sizes.found[name] = array.astype(np.int64) if column.kind == "<u4" else array
    if "loose" in arrays:
        bits = np.unpackbits(arrays["loose"])
        require(not bits[sizes.neurons :].any(), "loose out of range")
    return sizes.found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    require(len(found) == len(pairs), "a name stands twice in the header")
    return found


def _no_number(text: str) -> Any:
    raise NotConfirmed(f"the header says {text}")


def _is_fraction(text: Any) -> bool:
    wanted = r"-?[0-9]{1,2000}/[1-9][0-9]{0,2000}"
    return type(text) is str and re.fullmatch(wanted, text, re.ASCII) is not None


def _header(given: Any) -> Header:
    """Exactly these fields, each of exactly its type."""
    require(type(given) is dict, "no fields")
    given.setdefault("arithmetic", "real")  # it used to be the only one
    given.setdefault("member", None)  # there used to be none
    given.setdefault("against", None)
    given.setdefault("point", None)
    require(set(given) == set(Header.__annotations__), "other fields")
    for name in ("mean", "std", "labels"):
        wanted = int if name == "labels" else float
        values = given[name]
        fine = values is None or (type(values) is list and all(type(v) is wanted for v in values))
        require(fine, f"{name} that are not numbers")
        given[name] = None if values is None else tuple(values)
    scales = [v for name in ("mean", "std") for v in given[name] or ()]
    both = (given["mean"] is None) == (given["std"] is None)
    require(both and all(map(math.isfinite, scales)), "a normalisation that is none")
    require(given["mean"] is None or scales, "a normalisation that is none")
    for name in ("network", "ground", "region", "against"):
        value = given[name]
        fine = type(value) is str and len(value) == 64 and set(value) <= set("0123456789abcdef")
        require(fine or (name == "against" and value is None), f"{name} is not a hash")
    require(given["against"] != given["network"], "a network against itself")
    require(type(given["format"]) is int and given["format"] == FORMAT, "another version")
    require(type(given["text"]) is str, "no text of a property")
    require(type(given["tie_violates"]) is bool, "it is not said what a tie is")
    numbers = type(given["arithmetic"]) is str and given["arithmetic"] in ARITHMETICS
    require(numbers, "an arithmetic that is neither real nor float32")
    for name in ("member", "point"):
        held = given[name]
        fine = held is None or (type(held) is list and all(map(_is_fraction, held)))
        require(fine, "a point that is none")
        given[name] = None if held is None else tuple(held)
    require(type(given["precision"]) is int and given["precision"] in (8, 16, 32), "a precision")
    known = type(given["verdict"]) is str and given["verdict"] in OF_VERDICT
    require(known, "a verdict that is neither verified nor falsified")
    return Header(**given)
