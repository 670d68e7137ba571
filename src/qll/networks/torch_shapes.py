"""What torch's shape functions and methods mean: views, slices, padding, concatenation.

``shape`` and ``size`` give plain numbers (the batch is 1), so arithmetic on them is free.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qll.errors import NetworkError
from qll.networks.layers import Concat, Pad, Reshape, Slice, Transpose
from qll.networks.torch_reading import Activation, TorchReading


def refuse(what: str, expected: str, found: object) -> NetworkError:
    return NetworkError(what, expected=expected, found=str(found), fix="replace this layer")


def several(value: Any, rank: int) -> tuple[int, ...]:
    return (int(value),) * rank if isinstance(value, int) else tuple(int(v) for v in value)


def size(reading: TorchReading, x: Activation, dim: int | None = None) -> Any:
    return reading.shape(x) if dim is None else reading.shape(x)[dim]


def read_getattr(reading: TorchReading, x: Any, name: str) -> Any:
    if isinstance(x, Activation):
        if name != "shape":
            raise refuse("an attribute of a tensor is read", "only .shape", f".{name}")
        return reading.shape(x)
    return getattr(x, name)


def read_getitem(reading: TorchReading, x: Any, key: Any) -> Any:
    if not isinstance(x, Activation):
        return x[key]
    parts = key if isinstance(key, tuple) else (key,)
    rank = len(reading.shape(x))
    if Ellipsis in parts:
        at = parts.index(Ellipsis)
        missing = rank - len(parts) + 1
        parts = (*parts[:at], *(slice(None),) * missing, *parts[at + 1 :])
    slices, drop = [], []
    for axis, part in enumerate(parts):
        if isinstance(part, slice):
            slices.append((part.start, part.stop, part.step))
        elif isinstance(part, int):
            slices.append((part, part + 1 if part != -1 else None, None))
            drop.append(axis)
        else:
            raise refuse("a tensor is indexed", "integers and slices", key)
    taken = reading.add(Slice(tuple(slices)), x)
    kept = [size for axis, size in enumerate(reading.shape(taken)) if axis not in drop]
    return reading.add(Reshape(tuple(kept)), taken)


def reshape(reading: TorchReading, x: Activation, *shape: Any) -> Activation:
    target = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
    probe = np.broadcast_to(np.zeros(()), reading.shape(x))
    return reading.add(Reshape(probe.reshape(tuple(target)).shape), x)


def flatten(
    reading: TorchReading, x: Activation, start_dim: int = 0, end_dim: int = -1
) -> Activation:
    shape = reading.shape(x)
    first, last = start_dim % len(shape), end_dim % len(shape)
    joined = math.prod(shape[first : last + 1])
    return reading.add(Reshape((*shape[:first], joined, *shape[last + 1 :])), x)


def unflatten(reading: TorchReading, x: Activation, dim: int, sizes: Any) -> Activation:
    shape = reading.shape(x)
    axis = dim % len(shape)
    return reshape(reading, x, (*shape[:axis], *sizes, *shape[axis + 1 :]))


def squeeze(reading: TorchReading, x: Activation, dim: Any = None) -> Activation:
    shape = reading.shape(x)
    axes = range(len(shape)) if dim is None else [d % len(shape) for d in several(dim, 1)]
    kept = tuple(s for axis, s in enumerate(shape) if not (axis in axes and s == 1))
    return reading.add(Reshape(kept), x)


def unsqueeze(reading: TorchReading, x: Activation, dim: int) -> Activation:
    probe = np.broadcast_to(np.zeros(()), reading.shape(x))
    return reading.add(Reshape(np.expand_dims(probe, dim).shape), x)


def permute(reading: TorchReading, x: Activation, *dims: Any) -> Activation:
    order = dims[0] if len(dims) == 1 and not isinstance(dims[0], int) else dims
    rank = len(reading.shape(x))
    return reading.add(Transpose(tuple(d % rank for d in order)), x)


def transpose(reading: TorchReading, x: Activation, dim0: int, dim1: int) -> Activation:
    order = list(range(len(reading.shape(x))))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return reading.add(Transpose(tuple(order)), x)


def same(reading: TorchReading, x: Activation, *args: Any, **kwargs: Any) -> Activation:
    return reading.add(Reshape(reading.shape(x)), x)


def dropout(
    reading: TorchReading,
    x: Activation,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> Activation:
    if training:
        raise refuse("a dropout is in training mode", "training=self.training", "training=True")
    return same(reading, x)


def cat(reading: TorchReading, tensors: Any, dim: int = 0) -> Activation:
    return reading.add(Concat(dim), *(reading.activation(t) for t in tensors))


def pad(
    reading: TorchReading, x: Activation, pad: Any, mode: str = "constant", value: Any = None
) -> Activation:
    if mode != "constant":
        raise refuse("a padding mode is not one we take", "constant", mode)
    rank = len(reading.shape(x))
    before, after = [0] * rank, [0] * rank
    for place, axis in enumerate(range(rank - 1, rank - 1 - len(pad) // 2, -1)):
        before[axis], after[axis] = pad[2 * place], pad[2 * place + 1]
    fill = float(reading.array(value or 0.0))
    return reading.add(Pad(tuple(before), tuple(after), fill), x)
