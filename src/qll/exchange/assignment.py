"""A satisfying assignment as others read it: the standard's text, its folder of tensors, and the
competition's list for version 1."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qll.exchange.document import Document, Tensor
from qll.files import write_atomically, write_error

Array = NDArray[np.float64]


def lines(document: Document, x: Array, y: Array) -> Iterator[str]:
    """In the order of declaration, elements in row-major order, each number read back exactly."""
    if document.version[0] == 1:
        pairs = [(f"X_{k}", v) for k, v in enumerate(x)] + [(f"Y_{k}", v) for k, v in enumerate(y)]
        for k, (name, value) in enumerate(pairs):
            before, after = "((" if k == 0 else " (", "))" if k == len(pairs) - 1 else ")"
            yield f"{before}{name} {_text(value)}{after}"
        return
    for tensor in document.tensors:
        yield f"{tensor.name} {tensor.element} [{','.join(map(str, tensor.shape))}]"
        yield from map(_text, _values(tensor, x, y))


def serialise(document: Document, x: Array, y: Array, folder: Path) -> None:
    """One file ``NAME.pb`` for each variable, an ONNX TensorProto. Reals are written as float64,
    float32 numbers as what they are."""
    import onnx.numpy_helper

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(folder, error) from error
    for tensor in document.tensors:
        kind = np.float32 if tensor.element.lower() == "float32" else np.float64
        array = _values(tensor, x, y).reshape(tensor.shape).astype(kind)
        proto = onnx.numpy_helper.from_array(array, tensor.name)
        write_atomically(folder / f"{tensor.name}.pb", proto.SerializeToString())


def _values(tensor: Tensor, x: Array, y: Array) -> Array:
    vector = x if tensor.source == "x" else y
    return vector[tensor.offset : tensor.offset + tensor.size]


def _text(value: float) -> str:
    return repr(float(value))
