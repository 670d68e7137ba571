"""The certificate file: magic, SHA-256 of the rest, then compressed: a JSON header and raw arrays.

The header's ``arrays`` lists name, type and length of each array, in the order in which their bytes
follow. Every length is checked before anything is read, and nothing but numbers is ever built.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from typing import Any

import numpy as np

MAGIC = b"QLLCERT1"
TYPES = ("u1", "i1", "<u2", "<u4", "<f2", "<f4", "<f8")
MOST_BYTES = 1 << 30


class NotConfirmed(Exception):
    """The certificate does not prove its claim; the message says why."""


def require(truth: object, reason: str) -> None:
    if not truth:
        raise NotConfirmed(reason)


def digest(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    start = len(MAGIC) + 32
    require(data.startswith(MAGIC) and len(data) > start, "not a certificate")
    intact = hashlib.sha256(data[start:]).digest() == data[len(MAGIC) : start]
    require(intact, "the file is damaged: its checksum differs")
    return parse(data[start:])


def parse(body: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Header and arrays of the compressed part; damage that the checksum does not see ends here."""
    try:
        reader = zlib.decompressobj()
        raw = reader.decompress(body, MOST_BYTES)
        require(reader.eof and not reader.unused_data, "the file is cut or too large")
        at = 4 + int.from_bytes(raw[:4], "little")
        require(at <= len(raw), "the header is cut")
        header = json.loads(raw[4:at])
        arrays: dict[str, Any] = {}
        for name, kind, size in header["arrays"]:
            require(kind in TYPES and type(size) is int and size >= 0, "a bad array")
            end = at + size * np.dtype(kind).itemsize
            require(end <= len(raw) and name not in arrays, "an array is cut")
            arrays[str(name)] = np.frombuffer(raw[at:end], dtype=kind)
            at = end
        require(at == len(raw), "bytes are left over")
    except (zlib.error, ValueError, TypeError, KeyError, RecursionError) as error:
        raise NotConfirmed(f"the file is damaged: {error}") from error
    return header, arrays
