"""The files of a network of the zoo, as they are read: what is damaged is named, and nothing of an
archive is written elsewhere than where it belongs."""

from __future__ import annotations

import lzma
import os
import re
import struct
import zipfile
import zlib
from pathlib import Path

from qll.audit import Expected, read_claim
from qll.errors import InputError, QllError
from qll.files import MOST_BYTES, parse_toml
from qll.zoo.shelf import ProvedNetwork

SUFFIX = ".qllcert"
CLAIM, POINTS = "claim.toml", "points.npy"
_LINES = {
    "verified": re.compile("(0|[1-9][0-9]*) (verified)(?: ([0-9a-f]{64}))?"),
    "falsified": re.compile("(0|[1-9][0-9]*) (falsified) ([0-9a-f]{64})"),  # by a witness, always
    "unknown": re.compile("(0|[1-9][0-9]*) (unknown)(?: ([0-9a-f]{64}))?"),
}


def read_hashes(entry: ProvedNetwork) -> dict[int, tuple[str, str]]:
    """Status and SHA-256 (empty where there is no certificate) of every region, counted from 0."""
    try:
        reader = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=MOST_BYTES)
        text = reader.decompress(entry.hashes.read_bytes(), max_length=MOST_BYTES).decode("ascii")
        if not reader.eof or reader.unused_data:
            raise ValueError("a stream that is torn, too long or followed by something else")
        found: dict[int, tuple[str, str]] = {}
        for line in text.splitlines():
            status = line.partition(" ")[2].partition(" ")[0]
            matched = _LINES[status].fullmatch(line) if status in _LINES else None
            if matched is None:
                raise ValueError(f"the line {line[:100]!r}")
            if int(matched[1]) != len(found):  # one that is left out may be one that fails
                raise ValueError(f"region {matched[1]} in the place of region {len(found)}")
            found[len(found)] = (matched[2], matched[3] or "")
        return found
    except (OSError, lzma.LZMAError, ValueError) as error:
        raise damaged(entry.hashes, "lines of region, status and SHA-256", error) from error


def read_network(entry: ProvedNetwork) -> bytes:
    try:
        return entry.onnx.read_bytes()
    except OSError as error:
        raise damaged(entry.onnx, "the network as an ONNX file", error) from error


def unpack(entry: ProvedNetwork, place: Path) -> None:
    """The files of the archive, into an empty folder."""
    wanted = "certificates, claim and points, each stored or deflated"
    try:
        with zipfile.ZipFile(entry.certificates) as archive:
            items = archive.infolist()
            if sum(item.file_size for item in items) > MOST_BYTES:
                raise ValueError(f"more than {MOST_BYTES:,} bytes")
            for item in items:
                if Path(item.filename).name != item.filename or item.filename in ("", ".."):
                    raise ValueError(f"{item.filename!r} is not a plain file")
                if (place / item.filename).exists():
                    raise ValueError(f"{item.filename!r} is there twice")
                (place / item.filename).write_bytes(_content(archive, item))
    except _BROKEN as error:
        raise damaged(entry.certificates, wanted, error) from error


# What zipfile raises of files that are none, of torn ones, and of those that need a password.
_BROKEN = (
    OSError,
    ValueError,
    EOFError,
    RuntimeError,
    OverflowError,
    struct.error,
    zlib.error,
    zipfile.BadZipFile,
)


def _content(archive: zipfile.ZipFile, item: zipfile.ZipInfo) -> bytes:
    """Of no more bytes than are announced. Other methods of compression are not read: they have no
    such limit, and 'qll zoo add' uses none."""
    if item.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{item.filename!r} is compressed by method {item.compress_type}")
    with archive.open(item) as file:
        content = file.read(item.file_size)
    if len(content) != item.file_size:
        raise ValueError(f"{item.filename!r} is torn")
    return content


def claim_of(entry: ProvedNetwork, place: Path) -> Expected:
    """The claim of the archive, which was unpacked to ``place``. It may name files of the archive,
    and no others."""
    where = f"{entry.certificates}: "
    try:
        held = parse_toml((place / CLAIM).read_text(encoding="utf-8"))
        for name in ("points", "labels"):
            if isinstance(file := held.get(name), str) and Path(file).name != file:
                raise ValueError(f"{name} = {file!r}, which is no file of the archive")
        if str(held.get("property", "")).endswith(".qll"):
            raise ValueError("a rule that is a file, where its text should be")
        for name in ("network", "against"):
            if not str(held.get(name, "sha256:")).startswith("sha256:"):
                raise ValueError(f"{name} = {held[name]!r}, where a SHA-256 should be")
        return read_claim(place / CLAIM)
    except (OSError, ValueError) as error:
        raise damaged(f"{where}{CLAIM}", "the claim of its certificates", error) from error
    except QllError as error:
        # The folder is gone when this is read.
        inside = (error.where or CLAIM).replace(f"{place}{os.sep}", where)
        wanted, found = error.expected, ValueError(f"{error.what}: {error.found}")
        raise damaged(inside, wanted, found) from error


def damaged(path: Path | str, expected: str, error: Exception) -> InputError:
    return InputError(
        "a file of the zoo is damaged",
        where=str(path),
        expected=expected,
        found=str(getattr(error, "strerror", None) or error),
        fix="get it again from the repository",
    )
