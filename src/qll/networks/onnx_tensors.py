"""ONNX bytes to a model, and its stored tensors to arrays, distrusting every number in the file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from qll.errors import MissingExtra, NetworkError

MAX_FILE = 1 << 29  # bytes; protobuf itself stops at 2 GiB
OLDEST_OPSET = 7  # before it, broadcasting and batch norm meant something else
FLOATS = {"FLOAT", "DOUBLE"}
INTEGERS = {"INT64", "INT32", "BOOL"}


def onnx_package() -> Any:
    try:
        import onnx
        import onnx.numpy_helper
    except ImportError as error:
        raise MissingExtra.of("onnx", "onnx", "reading an ONNX network") from error
    return onnx


def read_bytes(path: Path) -> bytes:
    try:
        if path.is_file() and path.stat().st_size > MAX_FILE:
            raise NetworkError(
                "the network's file is too large",
                expected=f"at most {MAX_FILE:,} bytes",
                found=f"{path.stat().st_size:,}",
                fix="use a smaller network",
                where=str(path),
            )
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise NetworkError(
            "the network's file cannot be read",
            expected="a readable ONNX file",
            found=getattr(error, "strerror", None) or str(error),
            fix="check the path",
            where=str(path),
        ) from error


def parse_model(data: bytes) -> Any:
    onnx = onnx_package()
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    if len(data) > MAX_FILE:
        raise NetworkError(
            "the network is too large",
            expected=f"at most {MAX_FILE:,} bytes",
            found=f"{len(data):,}",
            fix="use a smaller network",
        )
    try:
        model = onnx.ModelProto.FromString(data)
    except (DecodeError, RuntimeError, ValueError) as error:
        raise NetworkError(
            "the bytes are not an ONNX model",
            expected="a complete ONNX file",
            found=f"{len(data):,} bytes that do not parse",
            fix="check that the file was copied whole and is ONNX, not another format",
        ) from error
    if not model.HasField("graph") or not model.graph.node:
        raise NetworkError(
            "the ONNX model is empty or cut off",
            expected="a graph with at least one node",
            found="no graph" if not model.HasField("graph") else "a graph without nodes",
            fix="check that the file was copied whole",
        )
    _check_opset(model)
    return model


def _check_opset(model: Any) -> None:
    versions = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    if len(versions) != 1 or versions[0] < OLDEST_OPSET:
        raise NetworkError(
            "the ONNX model's operator set is not one we take",
            expected=f"one standard operator set of version {OLDEST_OPSET} or later",
            found=str(versions[0]) if versions else "none",
            fix="export the network again with a recent opset (18, say)",
        )


def opset(model: Any) -> int:
    return int(next(e.version for e in model.opset_import if e.domain in ("", "ai.onnx")))


def tensor_array(tensor: Any, name: str) -> np.ndarray:
    """A stored tensor as float64 or int64, checked: complete, finite, inside the file."""
    onnx = onnx_package()
    if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data:
        raise NetworkError(
            f"the weights '{name}' are in another file",
            expected="a single ONNX file that holds its weights",
            found="a reference to external data",
            fix="save the model as one file (onnx.save with save_as_external_data=False)",
        )
    kind = _kind(tensor.data_type)
    if kind not in FLOATS | INTEGERS:
        raise NetworkError(
            f"the tensor '{name}' has a type we do not take",
            expected="float32 or float64 (or integers, for shapes)",
            found=kind.lower(),
            fix="export the network in float32",
        )
    size = math.prod(tensor.dims)
    if any(dim < 0 for dim in tensor.dims) or size != _stored(tensor, kind):
        raise NetworkError(
            f"the tensor '{name}' is damaged",
            expected=f"{size:,} entries for shape {tuple(tensor.dims)}",
            found=f"{_stored(tensor, kind):,}",
            fix="export the network again",
        )
    array = onnx.numpy_helper.to_array(tensor)
    if kind in INTEGERS:
        return np.asarray(array, dtype=np.int64)
    with np.errstate(invalid="ignore"):  # a signalling NaN; it is refused below
        values = np.asarray(array, dtype=np.float64)
    if not np.all(np.isfinite(values)):
        raise NetworkError(
            f"the weights '{name}' are not all numbers",
            expected="finite weights",
            found=f"{int((~np.isfinite(values)).sum())} NaN or infinite of {values.size}",
            fix="train again from a state without NaN; the network has no meaning as it is",
        )
    return values


def _kind(code: int) -> str:
    onnx = onnx_package()
    names: dict[int, str] = {v: k for k, v in onnx.TensorProto.DataType.items()}
    return names.get(code, f"type {code}")


def _stored(tensor: Any, kind: str) -> int:
    bytes_each = {"FLOAT": 4, "DOUBLE": 8, "INT64": 8, "INT32": 4, "BOOL": 1}[kind]
    if tensor.HasField("raw_data"):
        whole, rest = divmod(len(tensor.raw_data), bytes_each)
        return whole if not rest else -1
    field = {"FLOAT": "float_data", "DOUBLE": "double_data", "INT64": "int64_data"}
    return len(getattr(tensor, field.get(kind, "int32_data")))


def is_float(code: int) -> bool:
    return _kind(code) in FLOATS
