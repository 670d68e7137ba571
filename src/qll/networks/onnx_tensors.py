"""ONNX bytes to a model, and its stored tensors to arrays, distrusting every number in the file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from qll.errors import MissingExtra, NetworkError

MAX_FILE = 1 << 29  # bytes; protobuf itself stops at 2 GiB

# Element types by their code in the file: what ONNX calls them, the field that holds them where
# they are not raw bytes, and how numpy stores them.
TYPES: dict[int, tuple[str, str, str]] = {
    1: ("tensor(float)", "float_data", "<f4"),
    11: ("tensor(double)", "double_data", "<f8"),
    6: ("tensor(int32)", "int32_data", "<i4"),
    7: ("tensor(int64)", "int64_data", "<i8"),
    9: ("tensor(bool)", "int32_data", "|b1"),
}
FLOATS = ("tensor(float)", "tensor(double)")
DATA = {"raw_data", "string_data", "uint64_data", *(field for _, field, _ in TYPES.values())}


def onnx_package() -> Any:
    try:
        import onnx
        import onnx.defs
        import onnx.numpy_helper
    except ImportError as error:
        raise MissingExtra.of("onnx", "onnx", "reading an ONNX network") from error
    return onnx


def read_bytes(path: Path) -> bytes:
    try:
        if path.is_file() and path.stat().st_size > MAX_FILE:
            raise too_large(path.stat().st_size, where=str(path))
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise NetworkError(
            "the network's file cannot be read",
            expected="a readable ONNX file",
            found=getattr(error, "strerror", None) or str(error),
            fix="check the path",
            where=str(path),
        ) from error


def too_large(size: int, *, where: str | None = None) -> NetworkError:
    return NetworkError(
        "the network is too large",
        expected=f"at most {MAX_FILE:,} bytes",
        found=f"{size:,}",
        fix="use a smaller network",
        where=where,
    )


def parse_model(data: bytes) -> Any:
    onnx = onnx_package()
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    if len(data) > MAX_FILE:
        raise too_large(len(data))
    try:
        model = onnx.ModelProto.FromString(data)
    except (DecodeError, RuntimeError, ValueError) as error:
        raise NetworkError(
            "the bytes are not an ONNX model",
            expected="a complete ONNX file",
            found=f"{len(data):,} bytes that do not parse",
            fix="check that the file was copied whole and is ONNX, not another format",
        ) from error
    whole = model.ByteSize()
    model.DiscardUnknownFields()
    if model.ByteSize() != whole:
        raise NetworkError(
            "the ONNX model has fields that this version of onnx does not know",
            expected="fields of the ONNX format, with values that they can have",
            found=f"{whole - model.ByteSize():,} bytes of others",
            fix="check that the file is not damaged, update onnx, or export the network again",
        )
    if not model.HasField("graph") or not model.graph.node:
        raise NetworkError(
            "the ONNX model is empty or cut off",
            expected="a graph with at least one node",
            found="no graph" if not model.HasField("graph") else "a graph without nodes",
            fix="check that the file was copied whole",
        )
    return model


def tensor_array(tensor: Any, name: str) -> np.ndarray:
    """A stored tensor in its own type, checked: complete, finite, inside the file."""
    onnx = onnx_package()
    if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data:
        raise NetworkError(
            f"the weights '{name}' are in another file",
            expected="a model that holds its weights, or a path to a file beside which they lie",
            found="a reference to external data",
            fix="pass the path of the ONNX file, or save the model as one file (onnx.save)",
        )
    if tensor.data_type not in TYPES:
        raise NetworkError(
            f"the tensor '{name}' has a type we do not take",
            expected="float32 or float64 (or integers, for shapes)",
            found=type_name(tensor.data_type),
            fix="export the network in float32",
        )
    _, field, kind = TYPES[tensor.data_type]
    size, stored = math.prod(tensor.dims), _stored(tensor, field, np.dtype(kind).itemsize)
    if any(dim < 0 for dim in tensor.dims) or size != stored:
        raise NetworkError(
            f"the tensor '{name}' is damaged",
            expected=f"{size:,} entries for shape {tuple(tensor.dims)}, stored in one place",
            found=f"{stored:,}" if stored >= 0 else "others",
            fix="export the network again",
        )
    if tensor.HasField("raw_data"):
        array = np.frombuffer(tensor.raw_data, kind)
    else:
        array = np.array(getattr(tensor, field)).astype(kind)
    if array.dtype.kind == "f" and not np.all(np.isfinite(array)):
        raise NetworkError(
            f"the weights '{name}' are not all numbers",
            expected="finite weights",
            found=f"{int((~np.isfinite(array)).sum())} NaN or infinite of {array.size}",
            fix="train again from a state without NaN; the network has no meaning as it is",
        )
    return array.reshape(tuple(tensor.dims))


def _stored(tensor: Any, field: str, bytes_each: int) -> int:
    """How many entries are there; -1 if not all are in the place that belongs to the type."""
    raw = tensor.HasField("raw_data")
    filled = {entry.name for entry, _ in tensor.ListFields()} & DATA
    if tensor.HasField("segment") or not filled <= {"raw_data" if raw else field}:
        return -1
    if not raw:
        return len(getattr(tensor, field))
    whole, rest = divmod(len(tensor.raw_data), bytes_each)
    return whole if not rest else -1


def type_name(code: int) -> str:
    onnx = onnx_package()
    names: dict[int, str] = {v: k.lower() for k, v in onnx.TensorProto.DataType.items()}
    return names.get(code, f"type {code}")


def type_of(array: np.ndarray) -> str:
    """ONNX's name for the type of a constant."""
    return next(name for name, _, kind in TYPES.values() if array.dtype == np.dtype(kind))
