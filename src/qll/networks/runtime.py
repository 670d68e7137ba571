"""The network as its users run it: ONNX Runtime, single precision, one thread."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from qll.errors import InputError, MissingExtra, NetworkError
from qll.networks.matrices import Array
from qll.networks.onnx_external import network_bytes

CHUNK = 1024  # points a call, so that memory stays flat however many there are


class OnnxRuntime:
    """``runtime(x)`` maps points (B, ...) to outputs (B, m): float64 with ONNX Runtime's values.

    ``normalisation`` (flattened mean and deviation) is applied before, in float64 and rounded once.
    A model with an open batch axis takes many points a call, any other one at a time.
    """

    def __init__(
        self,
        source: str | Path | bytes,
        *,
        normalisation: tuple[Array, Array] | None = None,
        input_shape: tuple[int, ...] | None = None,
    ) -> None:
        data = source if isinstance(source, bytes) else network_bytes(Path(source))
        self._session = _session(data)
        entries = self._session.get_inputs()
        if len(entries) != 1:
            raise NetworkError(
                "the network does not have one input",
                expected="exactly one input tensor",
                found=f"{len(entries)}",
                fix="export the network with its other inputs fixed as constants",
            )
        self._name = entries[0].name
        self._dtype = np.float64 if entries[0].type == "tensor(double)" else np.float32
        declared = list(entries[0].shape)
        self._batched = len(declared) >= 2 and not (
            isinstance(declared[0], int) and declared[0] != 1
        )
        self._open_batch = self._batched and not isinstance(declared[0], int)
        rest = declared[1:] if self._batched else declared
        if input_shape is None:
            if not all(isinstance(size, int) for size in rest):
                raise NetworkError(
                    "the network's input has an open shape",
                    expected="a fixed shape; only the leading batch axis may be open",
                    found=str(declared),
                    fix="pass the shape of one input, without the batch, as input_shape",
                )
            input_shape = tuple(rest)
        self._shape = input_shape
        self._normalisation = normalisation

    def __call__(self, x: Array) -> Array:
        points = np.asarray(x, dtype=np.float64)
        size = math.prod(self._shape)
        if points.size == size and points.ndim <= 1:
            points = points.reshape(1, size)
        if points.ndim < 2 or math.prod(points.shape[1:]) != size:
            raise InputError(
                "the points do not fit the network",
                expected=f"an array of shape (points, {', '.join(map(str, self._shape))})",
                found=f"shape {points.shape}",
                fix="pass points of the network's input shape",
            )
        flat = points.reshape(points.shape[0], size)
        if self._normalisation is not None:
            mean, std = self._normalisation
            flat = (flat - mean) / std
        step = CHUNK if self._open_batch else 1
        with np.errstate(over="ignore"):  # beyond float32: infinite, as it is for the network
            rows = flat.astype(self._dtype)
        parts = [self._run(rows[start : start + step]) for start in range(0, flat.shape[0], step)]
        return np.concatenate(parts) if parts else np.zeros((0, 0))

    def _run(self, rows: Any) -> Array:
        shape = (rows.shape[0], *self._shape) if self._batched else self._shape
        try:
            (result,) = self._session.run(None, {self._name: rows.reshape(shape)})
        except Exception as error:
            if rows.shape[0] > 1:  # a shape fixed to one point somewhere inside
                return np.concatenate([self._run(row[None]) for row in rows])
            raise NetworkError(
                "ONNX Runtime cannot run the network",
                expected="an output for one point",
                found=str(error).splitlines()[0],
                fix="check the model with onnx.checker, or export it again",
            ) from error
        if rows.shape[0] > 1 and (result.ndim < 1 or result.shape[0] != rows.shape[0]):
            return np.concatenate([self._run(row[None]) for row in rows])
        return np.asarray(result, dtype=np.float64).reshape(rows.shape[0], -1)


def _session(data: bytes) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtra.of("onnxruntime", "onnx", "running an ONNX network") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    providers = ["CPUExecutionProvider"]
    try:
        try:
            return onnxruntime.InferenceSession(data, options, providers=providers)
        except Exception:  # its optimiser fails on some sound models (a float64 Clip after a ReLU)
            plain = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            options.graph_optimization_level = plain
            return onnxruntime.InferenceSession(data, options, providers=providers)
    except Exception as error:
        raise NetworkError(
            "ONNX Runtime refuses the network",
            expected="a valid ONNX model",
            found=str(error).splitlines()[0] if str(error) else type(error).__name__,
            fix="check the model with onnx.checker, or export it again",
        ) from error
