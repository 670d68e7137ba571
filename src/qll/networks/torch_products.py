"""torch functions of several values: products, quotients, roots, softmax, normalisations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qll.networks.activations.square import SQUARE
from qll.networks.divisors import inverse, root
from qll.networks.layers import Apply, Layer, LayerNorm, Product, Scale, Softmax
from qll.networks.torch_reading import Activation, TorchReading
from qll.networks.torch_shapes import refuse


def multiply(reading: TorchReading, a: Any, b: Any) -> Activation:
    if isinstance(a, Activation) and isinstance(b, Activation):
        layer = Apply(SQUARE) if a == b else Product()
        return reading.add(layer, *((a,) if a == b else (a, b)))
    x, factor = (a, b) if isinstance(a, Activation) else (b, a)
    return reading.add(Scale(reading.array(factor)), x)


def divide(reading: TorchReading, a: Any, b: Any) -> Activation:
    if isinstance(b, Activation):
        return multiply(reading, a, reciprocal(reading, b))
    divisor = reading.array(b)
    if not np.all(divisor):
        raise refuse("a tensor is divided by zero", "a divisor without zeros", "a zero")
    return reading.add(Scale(np.ones(()), divisor), a)


def reciprocal(reading: TorchReading, x: Activation) -> Activation:
    return _chain(reading, inverse(reading.builder.range(x.index)), x)


def square_root(reading: TorchReading, x: Activation) -> Activation:
    return _chain(reading, root(reading.builder.range(x.index)), x)


def inverse_root(reading: TorchReading, x: Activation) -> Activation:
    return reciprocal(reading, square_root(reading, x))


def power(reading: TorchReading, x: Any, exponent: Any) -> Any:
    if not isinstance(x, Activation) and not isinstance(exponent, Activation):
        return x**exponent
    known: dict[float, Callable[[], Activation]] = {
        2.0: lambda: reading.add(Apply(SQUARE), x),
        1.0: lambda: x,
        0.5: lambda: square_root(reading, x),
        -0.5: lambda: inverse_root(reading, x),
        -1.0: lambda: reciprocal(reading, x),
    }
    if isinstance(exponent, Activation) or exponent not in known:
        raise refuse("a power is not one we take", "an exponent of 2, 1, 0.5, -0.5, -1", exponent)
    return known[exponent]()


def _chain(reading: TorchReading, layers: list[Layer], x: Activation) -> Activation:
    for layer in layers:
        x = reading.add(layer, x)
    return x


def softmax(
    reading: TorchReading,
    x: Activation,
    dim: int | None = None,
    _stacklevel: int = 3,
    dtype: Any = None,
) -> Activation:
    if dim is None or dtype is not None:
        raise refuse("a softmax", "a dim and no type of its own", f"dim={dim}, dtype={dtype}")
    return reading.add(Softmax(dim % len(reading.shape(x))), x)


def layer_norm(
    reading: TorchReading,
    x: Activation,
    normalized_shape: Any,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
) -> Activation:
    shape = tuple(normalized_shape)
    if shape != reading.shape(x)[len(reading.shape(x)) - len(shape) :]:
        raise refuse("a layer norm's shape", f"the last axes of {reading.shape(x)}", shape)
    gain = np.ones(shape) if weight is None else reading.array(weight)
    shift = np.zeros(shape) if bias is None else reading.array(bias)
    # ONNX stores epsilon as a float32: round here, so that module and file are one function.
    return reading.add(LayerNorm(len(shape), gain, shift, float(np.float32(eps))), x)
