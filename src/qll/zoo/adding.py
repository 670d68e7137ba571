"""A trained and proved run as a network of the zoo."""

from __future__ import annotations

import io
import json
import lzma
import re
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from qll.audit import read_claim
from qll.errors import InputError
from qll.files import read_json, write_atomically, write_error
from qll.formula.question import canonical
from qll.metrics import is_vacuous, tally
from qll.properties import parse
from qll.property import Property
from qll.zoo.archive import CLAIM, POINTS, SUFFIX
from qll.zoo.card import NAME, Card, Proved, card_text
from qll.zoo.check import check, parameters_of
from qll.zoo.made import made
from qll.zoo.shelf import ProvedNetwork

_LABELS = "labels = "
_EARLIEST = (1980, 1, 1, 0, 0, 0)  # the same archive whenever it is made


def add(
    name: str,
    run: Path,
    verdicts: Path,
    certificates: Path,
    out: Path,
    *,
    count: int,
    licence: str,
    data: str = "",
    recipe: Sequence[str] = (),
) -> Card:
    """``verdicts`` and ``certificates`` are what ``qll verify --count 0 --json V --certificate C``
    wrote of the network of a run or a cycle; the evidence of the first ``count`` regions is kept.
    ``data`` is what the data are called, ``recipe`` the commands where the run's own is not all.
    Nothing is added that ``check`` does not confirm."""
    _require_name(name)
    origin = made(run, "\n".join(recipe))
    values = read_json(verdicts, "verdicts")
    digest = sha256(origin.network).hexdigest()
    if values.get("network_sha256") != digest:
        raise InputError(
            "these verdicts are about another network",
            where=str(verdicts),
            expected=digest,
            found=str(values.get("network_sha256")),
            fix="verify the run's model.onnx again",
        )
    prop = parse(values["text"], name=str(verdicts))
    _require_same(prop, digest, certificates)
    rows = [_confirmed(row, certificates) for row in values["verdicts"]]
    rows.sort(key=lambda row: int(row["point"]))
    config = origin.config
    card = Card(
        name=name,
        rule=Path(config.property).stem,
        parameters=parameters_of(prop),
        data=data or Path(config.data).stem,
        recipe=origin.recipe,
        seed=config.seed,
        accuracy=origin.accuracy,
        r2=origin.r2,
        closed=prop.is_closed,
        proved=Proved(**tally(rows)),
        timeout=float(values["timeout"]),
        machine=origin.machine,
        licence=licence,
        network_sha256=digest,
    )
    hashes = "".join(_hashed(row, certificates) for row in rows)
    files = {
        "network.onnx": origin.network,
        "rule.qll": prop.show().encode(),
        "hashes.xz": lzma.compress(hashes.encode("ascii"), preset=9),
        "certificates.zip": _archive(certificates, 1 if card.closed else count, closed=card.closed),
        NAME: card_text(card).encode(),
    }
    with tempfile.TemporaryDirectory() as trial:
        _write(files, Path(trial) / name)
        _require_confirmed(ProvedNetwork(Path(trial) / name, card), certificates)
    _write(files, out / name)
    return card


def _write(files: Mapping[str, bytes], place: Path) -> None:
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(place, error) from error
    for name, data in files.items():
        write_atomically(place / name, data)


def _require_confirmed(entry: ProvedNetwork, certificates: Path) -> None:
    """As anyone will check it."""
    if failures := check(entry, sample=0).failures:
        raise InputError(
            "the evidence is not what the verdicts say",
            where=str(certificates),
            expected="certificates that qll zoo check confirms",
            found=failures[0] + (f" (and {len(failures) - 1} more)" if failures[1:] else ""),
            fix="verify the run's network again with --json and --certificate",
        )


def _require_name(name: str) -> None:
    """A folder of the zoo, and none elsewhere."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise InputError(
            "a network of the zoo cannot be called that",
            expected="letters, digits, '-', '_' and '.', a letter or digit first",
            found=repr(name),
            fix="choose a name such as mnist-robust",
        )


def _file(certificates: Path, point: int) -> Path:
    return certificates / f"{point:05d}{SUFFIX}"


def _require_same(prop: Property, digest: str, certificates: Path) -> None:
    """Of the rule that was verdicted, and of this network."""
    claim = read_claim(certificates / CLAIM)
    text = canonical(prop.specification, parameters_of(prop))
    for what, mine, theirs in (("rule", text, claim.text), ("network", digest, claim.network)):
        if mine != theirs:
            raise InputError(
                f"these certificates are about another {what}",
                where=str(certificates / CLAIM),
                expected=mine,
                found=theirs,
                fix="pass --json and --certificate of one and the same qll verify",
            )


def _confirmed(row: Mapping[str, Any], certificates: Path) -> dict[str, Any]:
    """A verdict without evidence is not one that a card speaks of."""
    bare = not is_vacuous(row) and not _file(certificates, int(row["point"])).is_file()
    return {**row, "status": "unknown"} if bare else dict(row)


def _hashed(row: Mapping[str, Any], certificates: Path) -> str:
    path = _file(certificates, int(row["point"]))
    digest = sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
    return f"{row['point']} {row['status']} {digest}".rstrip() + "\n"


def _archive(certificates: Path, count: int, *, closed: bool) -> bytes:
    """The certificates of the first ``count`` points, of those that have one; and the points with
    their labels, unless the rule is ``closed``: then nothing depends on them."""
    points = read_claim(certificates / CLAIM).points[:count]
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        if not closed:
            held = io.BytesIO()
            np.save(held, points, allow_pickle=False)
            _store(archive, CLAIM, _claim(certificates / CLAIM, len(points)))
            _store(archive, POINTS, held.getvalue())
        for point in range(len(points)):
            path = _file(certificates, point)
            if path.is_file():
                _store(archive, path.name, path.read_bytes())
    return content.getvalue()


def _claim(path: Path, count: int) -> bytes:
    """The claim as it was written, with the labels of the first points alone."""
    lines = path.read_text(encoding="utf-8").splitlines()
    for k, line in enumerate(lines):
        if line.startswith(_LABELS):  # of the file's own entries, no other begins so
            lines[k] = f"{_LABELS}{json.loads(line.removeprefix(_LABELS))[:count]}"
    return ("\n".join(lines) + "\n").encode()


def _store(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    item = zipfile.ZipInfo(name, _EARLIEST)
    item.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(item, data)
