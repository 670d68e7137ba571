"""Weights that lie in a second file, as PyTorch's exporter writes them: read into the model.

What a network is, its hash and its certificates are about one file with everything in it. It has
the bytes that ``onnx.load(path).SerializeToString()`` gives, so that anyone can make it.

The second file must lie in the folder of the model, under a plain name: a model cannot point at
other files of the machine.
"""

from __future__ import annotations

import gzip
import io
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from qll.errors import NetworkError
from qll.networks.onnx_tensors import (
    MAX_FILE,
    TYPES,
    onnx_package,
    parse_model,
    read_bytes,
    too_large,
)

GZIP = b"\x1f\x8b"
KEYS = {"location", "offset", "length", "checksum"}


def network_bytes(path: Path) -> bytes:
    """An ONNX file with its weights, be they in a file beside it; it may be compressed by gzip, as
    the competitions' are."""
    data = read_bytes(path)
    if data.startswith(GZIP):
        data = _unpacked(data, path)
    try:
        return self_contained(data, path.parent)
    except NetworkError as error:
        raise (error if error.where is not None else error.at(str(path))) from error


def _unpacked(data: bytes, path: Path) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            found = stream.read(MAX_FILE + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise NetworkError(
            "the network cannot be unpacked",
            expected="a whole file of gzip",
            found=str(error)[:80] or "damage",
            fix="check that the file was copied whole",
            where=str(path),
        ) from error
    if len(found) > MAX_FILE:
        raise too_large(len(found), where=str(path))
    return found


def self_contained(data: bytes, folder: Path) -> bytes:
    """The model with its weights inside; the same bytes if they already are."""
    if b"location" not in data:  # no tensor can name a file
        return data
    model = parse_model(data)
    tensors = [tensor for tensor in _tensors(model.graph) if _is_external(tensor)]
    if not tensors:
        return data
    files: dict[str, bytes] = {}
    total = len(data)
    for tensor in tensors:
        where = {entry.key: entry.value for entry in tensor.external_data}
        if len(where) != len(tensor.external_data) or not set(where) <= KEYS:
            raise _refuse(tensor, "a location, an offset and a length", str(sorted(where)))
        name = where.get("location", "")
        if name not in files:
            files[name] = _read(tensor, name, folder)
            total += len(files[name])
            if total > MAX_FILE:
                raise too_large(total)
        tensor.raw_data = _part(tensor, where, files[name])
        del tensor.external_data[:]
        tensor.data_location = onnx_package().TensorProto.DEFAULT
    return bytes(model.SerializeToString())


def _tensors(graph: Any) -> list[Any]:
    """Where the reader takes tensors; any other that is external is refused there."""
    values = [attribute.t for node in graph.node for attribute in node.attribute]
    return [*graph.initializer, *values]


def _is_external(tensor: Any) -> bool:
    return bool(tensor.data_location == onnx_package().TensorProto.EXTERNAL)


def _read(tensor: Any, name: str, folder: Path) -> bytes:
    plain = name not in ("", ".", "..") and not any(c in name for c in "/\\:\0")
    if not plain:
        raise _refuse(tensor, "the plain name of a file beside the model", repr(name))
    path = folder / name
    try:
        if path.is_symlink():  # it may lead anywhere, and onnx does not follow it either
            raise _refuse(tensor, "a file beside the model", f"'{name}', a symbolic link")
        if not path.is_file():
            raise _refuse(tensor, f"'{name}' beside the model", "no such file")
        if path.stat().st_size > MAX_FILE:
            raise too_large(path.stat().st_size, where=str(path))
        return path.read_bytes()
    except OSError as error:
        raise _refuse(tensor, f"a readable file '{name}'", error.strerror or "none") from error


def _part(tensor: Any, where: dict[str, str], content: bytes) -> bytes:
    if tensor.data_type not in TYPES:
        raise _refuse(tensor, "float32, float64 or integers", f"type {tensor.data_type}")
    size = math.prod(tensor.dims) * np.dtype(TYPES[tensor.data_type][2]).itemsize
    start = _number(tensor, where.get("offset", "0"))
    length = _number(tensor, where["length"]) if "length" in where else len(content) - start
    if any(dim < 0 for dim in tensor.dims) or length != size or start + size > len(content):
        found = f"{length:,} from {start:,} of {len(content):,}"
        raise _refuse(tensor, f"{size:,} bytes for shape {tuple(tensor.dims)}", found)
    return content[start : start + size]


def _number(tensor: Any, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise _refuse(tensor, "a number of bytes", repr(text[:40]))
    return int(text)


def _refuse(tensor: Any, expected: str, found: str) -> NetworkError:
    return NetworkError(
        f"the weights '{tensor.name}' lie in another file that we do not take",
        expected=expected,
        found=found,
        fix="keep both files in one folder, or save the model as one file: "
        "onnx.save(onnx.load('net.onnx'), 'one.onnx')",
    )
