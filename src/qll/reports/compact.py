"""A finished run as one small file: what every table and page needs, without its network, images
and witnesses. Such files stay in a repository where run folders cannot.

The content is JSON under LZMA, the same bytes for the same run. Figures by epoch and verdicts are
stored by column; losses and times with six digits, everything that is counted exactly.
"""

from __future__ import annotations

import hashlib
import json
import lzma
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qll.errors import QllError, RunError
from qll.files import MOST_BYTES, parse_json, read_json
from qll.metrics import is_vacuous
from qll.training.run import RunFolder

SUFFIX = ".run.xz"
FORMAT = "qll run 1"
# Of a verdicts' file, beside the verdicts themselves.
_ASKED = (
    "property",
    "text",
    "parameters",
    "network_sha256",
    "points_sha256",
    "labels_sha256",
    "mean",
    "std",
    "timeout",
    "backend",
    "certified",
    "count",
)
_DIGITS = 6


@dataclass(frozen=True)
class Pieces:
    """The records of a run as values, from a folder or from a compact file."""

    config: Mapping[str, Any]
    epochs: Sequence[Mapping[str, Any]]
    evaluation: Mapping[str, Any] | None
    verdicts: Mapping[str, Mapping[str, Any]]
    environment: Mapping[str, Any]
    task: Mapping[str, Any] | None
    failure: str | None
    network: str | None
    """The SHA-256 of the network's file."""


def folder_pieces(path: Path) -> Pieces:
    folder = RunFolder.open(path)

    def held(name: str, what: str) -> dict[str, Any] | None:
        return read_json(path / name, what) if (path / name).is_file() else None

    failure = held("failure.json", "failure")
    network = folder.onnx_path
    return Pieces(
        config=read_json(folder.config_path, "configuration"),
        epochs=folder.rows(),
        evaluation=held("evaluation.json", "evaluation"),
        verdicts={
            file.name: read_json(file, "verdicts") for file in sorted(path.glob("verdicts*.json"))
        },
        environment=held("environment.json", "environment") or {},
        task=held("task.json", "task"),
        failure=None if failure is None else str(failure.get("reason", "no reason recorded")),
        network=hashlib.sha256(network.read_bytes()).hexdigest() if network.is_file() else None,
    )


def compacted(pieces: Pieces) -> bytes:
    """The content of a compact record."""
    values = {
        "format": FORMAT,
        # Where the data lay is the machine's affair.
        "config": {k: v for k, v in pieces.config.items() if k != "data_dir"},
        "epochs": _columns(pieces.epochs),
        "evaluation": pieces.evaluation,
        "verdicts": {name: _packed(held) for name, held in pieces.verdicts.items()},
        "environment": pieces.environment,
        "task": pieces.task,
        "failure": pieces.failure,
        "network": pieces.network,
    }
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME)


def read_compact(path: Path) -> Pieces:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _no_record(path, error) from error
    return compact_pieces(content, path)


def compact_pieces(content: bytes, path: Path) -> Pieces:
    """What is in the record that ``path`` names, for messages alone."""
    try:
        values = parse_json(_unpacked(content))
        if values["format"] != FORMAT:
            raise ValueError(f"format {values['format']!r}")
        if not all(_is(values[name], kind) for name, kind in _KINDS.items()):
            raise ValueError(f"{', '.join(_KINDS)}: not each a text, a table or nothing")
        return Pieces(
            config=dict(values["config"]),
            epochs=_rows(values["epochs"]),
            evaluation=values["evaluation"],
            verdicts={name: _verdicts(held) for name, held in values["verdicts"].items()},
            environment=dict(values["environment"]),
            task=values["task"],
            failure=values["failure"],
            network=values["network"],
        )
    except QllError:
        raise
    except (lzma.LZMAError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise _no_record(path, error) from error


def _no_record(path: Path, error: Exception) -> RunError:
    return RunError(
        "this is not the compact record of a run",
        where=str(path),
        expected=f"a file {SUFFIX} as 'qll record' writes it ({FORMAT})",
        found=f"{type(error).__name__}: {error}",
        fix="record the run again, or remove the file",
    )


# What may be missing; the rest has to be there.
_KINDS = {"evaluation": dict, "task": dict, "failure": str, "network": str}


def _is(value: Any, kind: type) -> bool:
    return value is None or isinstance(value, kind)


def _unpacked(packed: bytes) -> bytes:
    """A few bytes of LZMA can stand for gigabytes: no more than a text may have is unpacked."""
    reader = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=MOST_BYTES)
    content = reader.decompress(packed, max_length=MOST_BYTES)
    if not reader.eof or reader.unused_data:
        raise ValueError("a stream that is torn, too long or followed by something else")
    return content


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [_rounded(row.get(name)) for row in rows] for name in names}


def _rows(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    names = list(columns)
    return [dict(zip(names, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _packed(held: Mapping[str, Any]) -> dict[str, Any]:
    """Status, stage, reason and evidence are few words used often: each is stored once, with its
    rows."""
    rows = held["verdicts"]
    asked = {name: held[name] for name in _ASKED if name in held}
    points = [row["point"] for row in rows]
    evidence = _grouped([row.get("evidence") for row in rows])
    return {
        **asked,
        "points": len(points) if points == list(range(len(points))) else points,
        "status": "".join(str(row["status"])[0] for row in rows),
        "vacuous": [k for k, row in enumerate(rows) if is_vacuous(row)],
        "stage": _grouped([row.get("stage") for row in rows]),
        "reason": _grouped([row.get("reason") for row in rows]),
        # Verdicts from before it was kept have none: their records stay the same bytes.
        **({"evidence": evidence} if evidence else {}),
        "nodes": [row.get("nodes") for row in rows],
        "seconds": [_rounded(row["seconds"]) for row in rows],
    }


_STATUS = {"v": "verified", "f": "falsified", "u": "unknown"}


def _verdicts(packed: Mapping[str, Any]) -> dict[str, Any]:
    statuses = [_STATUS[letter] for letter in packed["status"]]
    count = len(statuses)
    points = packed["points"]
    if isinstance(points, int) and points != count:  # before a list of that length is made
        raise ValueError(f"{points} points with {count} verdicts")
    columns = {
        "point": list(range(points)) if isinstance(points, int) else points,
        "status": statuses,
        "vacuous": _marked(packed["vacuous"], count),
        "stage": _spread(packed["stage"], count),
        "reason": _spread(packed["reason"], count),
        "evidence": _spread(packed.get("evidence", {}), count),
        "nodes": packed["nodes"],
        "seconds": packed["seconds"],
    }
    return {**{k: v for k, v in packed.items() if k in _ASKED}, "verdicts": _rows(columns)}


def _grouped(values: Sequence[str | None]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for row, value in enumerate(values):
        if value is not None:
            found.setdefault(value, []).append(row)
    return found


def _spread(groups: Mapping[str, Sequence[int]], count: int) -> list[str | None]:
    values: list[str | None] = [None] * count
    for value, rows in groups.items():
        for row in rows:
            if not 0 <= row < count:
                raise ValueError(f"verdict {row} of {count}")
            values[row] = value
    return values


def _marked(rows: Sequence[int], count: int) -> list[bool]:
    marked = [False] * count
    for row in rows:
        if not 0 <= row < count:
            raise ValueError(f"verdict {row} of {count}")
        marked[row] = True
    return marked


def _rounded(value: Any) -> Any:
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value
