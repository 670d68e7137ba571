"""The IDX format of the MNIST files: two zero bytes, a type, the number of axes, the sizes as
32-bit big-endian numbers, then the values, big-endian, last axis fastest. Plain or gzipped.

The reader believes nothing: sizes are compared with the file before memory is asked for."""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import struct
import zlib
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from qll.errors import DataError
from qll.files import write_atomically

TYPES: dict[int, np.dtype[Any]] = {
    0x08: np.dtype(">u1"),
    0x09: np.dtype(">i1"),
    0x0B: np.dtype(">i2"),
    0x0C: np.dtype(">i4"),
    0x0D: np.dtype(">f4"),
    0x0E: np.dtype(">f8"),
}
_CODES = {(t.kind, t.itemsize): code for code, t in TYPES.items()}
_GZIP_MAGIC = b"\x1f\x8b"
# Deflate cannot shrink anything by more than 1032; a file that claims more lies about its size.
_DEFLATE_MOST = 1032
_NUMPY_AXES = 32
MAX_BYTES = 1 << 32
"""Larger arrays are refused: the largest published file that we read has 47 million bytes."""


def read_idx(path: str | Path, *, sha256: str | None = None) -> NDArray[Any]:
    """The array of an IDX file in native byte order. With ``sha256`` (of the uncompressed file) a
    file with other contents is refused."""
    where = str(path)
    try:
        with Path(path).open("rb") as file:
            stored = os.fstat(file.fileno()).st_size
            zipped = file.read(2) == _GZIP_MAGIC
            file.seek(0)
            if not zipped:
                return _read(file, where, most=stored, exact=True, sha256=sha256)
            with gzip.GzipFile(fileobj=file) as unzipped:
                most = stored * _DEFLATE_MOST
                return _read(unzipped, where, most=most, exact=False, sha256=sha256)
    except (OSError, EOFError, zlib.error) as error:
        # gzip reports damage as BadGzipFile (an OSError), EOFError or zlib.error.
        raise DataError(
            "cannot read the file",
            where=where,
            expected="a readable IDX file, plain or gzipped",
            found=str(error) or type(error).__name__,
            fix="check the path and its permissions, or fetch the file again",
        ) from error


def _read(
    file: IO[bytes] | gzip.GzipFile, where: str, *, most: int, exact: bool, sha256: str | None
) -> NDArray[Any]:
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in TYPES or magic[3] == 0:
        if magic and magic[:2] != b"\0\0":
            raise DataError(
                "this is not an IDX file",
                where=where,
                expected="two zero bytes at its beginning, as MNIST's files have them",
                found=f"a text ('{magic.decode()}...')"
                if magic.isascii() and magic.decode().isprintable()
                else magic.hex(" "),
                fix="pass tables, NPZ and folders of images to --data; damaged files, fetch again",
            )
        kinds = ", ".join(f"{code:02x}" for code in TYPES)
        _refuse(where, f"two zero bytes, a type ({kinds}) and a number of axes", magic.hex(" "))
    dtype, axes = TYPES[magic[2]], magic[3]
    if axes > _NUMPY_AXES:
        _refuse(where, f"at most {_NUMPY_AXES} axes", f"{axes}")
    sizes = file.read(4 * axes)
    if len(sizes) < 4 * axes:
        _refuse(where, f"the sizes of {axes} axes", f"{len(sizes)} bytes after the first four")
    shape = struct.unpack(f">{axes}I", sizes)
    header = 4 + 4 * axes
    wanted = math.prod(shape) * dtype.itemsize
    if wanted > MAX_BYTES or header + wanted > most or (exact and header + wanted != most):
        there = f"{most - header} in the file" if exact else f"room for at most {most - header}"
        limit = f" (and no more than {MAX_BYTES})" if wanted > MAX_BYTES else ""
        _refuse(where, f"{wanted} bytes for {dtype.name} of shape {shape}{limit}", there)
    # One byte more than is wanted: it brings the gzip check of the end, and shows what trails.
    content = file.read(wanted + 1)
    if len(content) != wanted:
        there = "more" if len(content) > wanted else f"{len(content)}"
        _refuse(where, f"{wanted} bytes for {dtype.name} of shape {shape}", there)
    if sha256 is not None:
        check_digest(hashlib.sha256(magic + sizes + content).hexdigest(), sha256, where)
    values: NDArray[Any] = np.frombuffer(content, dtype=dtype).reshape(shape)
    return values.astype(dtype.newbyteorder("="))


def check_digest(found: str, expected: str, where: str) -> None:
    if found != expected:
        raise DataError(
            "the file is not the published one",
            where=where,
            expected=f"SHA-256 {expected}",
            found=found,
            fix="delete it and fetch it again, or pass checksum=False to use it as it is",
        )


def _refuse(where: str, expected: str, found: str) -> NoReturn:
    raise DataError(
        "damaged IDX file",
        where=where,
        expected=expected,
        found=found or "an empty file",
        fix="fetch the file again",
    )


def write_idx(path: str | Path, values: NDArray[Any]) -> None:
    """Write an array; a name that ends in ``.gz`` is gzipped, the same bytes every time."""
    code = _CODES.get((values.dtype.kind, values.dtype.itemsize))
    if code is None or not 1 <= values.ndim <= _NUMPY_AXES:
        known = ", ".join(dtype.name for dtype in TYPES.values())
        raise DataError(
            "IDX cannot hold the array",
            where=str(path),
            expected=f"1 to {_NUMPY_AXES} axes of {known}",
            found=f"{values.ndim} axes of {values.dtype}",
            fix="convert the array first",
        )
    content = struct.pack(f">BBBB{values.ndim}I", 0, 0, code, values.ndim, *values.shape)
    content += np.ascontiguousarray(values, dtype=TYPES[code]).tobytes()
    if Path(path).suffix == ".gz":
        content = gzip.compress(content, mtime=0)
    write_atomically(Path(path), content)
