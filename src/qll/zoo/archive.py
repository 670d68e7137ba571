"""The files of a network of the zoo, as they are read: what is damaged is named, and nothing of an
archive is written elsewhere than where it belongs."""

from __future__ import annotations

import lzma
import re
import zipfile
import zlib
from pathlib import Path

from qll.errors import InputError
from qll.files import MOST_BYTES
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
        reader = lzma.LZMADecompressor(format=lzma.FORMAT_XZ)
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
    try:
        with zipfile.ZipFile(entry.certificates) as archive:
            items = archive.infolist()
            if sum(item.file_size for item in items) > MOST_BYTES:
                raise ValueError(f"more than {MOST_BYTES:,} bytes")
            for item in items:
                if Path(item.filename).name != item.filename:
                    raise ValueError(f"{item.filename!r} is not a plain file")
                (place / item.filename).write_bytes(archive.read(item))
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:
        raise damaged(entry.certificates, "certificates, claim and points", error) from error


def damaged(path: Path, expected: str, error: Exception) -> InputError:
    return InputError(
        "a file of the zoo is damaged",
        where=str(path),
        expected=expected,
        found=str(getattr(error, "strerror", None) or error),
        fix="get it again from the repository",
    )
