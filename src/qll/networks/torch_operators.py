"""What each torch module, function and tensor method means, as layers of the op graph."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from qll.networks.activations import ACTIVATIONS
from qll.networks.activations.base import torch_things
from qll.networks.activations.clip import clip
from qll.networks.activations.gelu import Gelu
from qll.networks.activations.leaky_relu import LeakyRelu
from qll.networks.activations.softplus import Softplus
from qll.networks.layers import (
    Apply,
    AveragePool,
    BatchNorm,
    Concat,
    Convolution,
    Extremum,
    LayerNorm,
    Linear,
    MatrixProduct,
    MaxPool,
    Mean,
    ParametricRelu,
    Softmax,
    Sum,
)
from qll.networks.models import Normalize
from qll.networks.torch_products import (
    divide,
    inverse_root,
    layer_norm,
    multiply,
    power,
    reciprocal,
    softmax,
    square_root,
)
from qll.networks.torch_reading import Activation, TorchReading
from qll.networks.torch_shapes import (
    cat,
    dropout,
    flatten,
    pad,
    permute,
    read_getattr,
    read_getitem,
    refuse,
    reshape,
    same,
    several,
    size,
    squeeze,
    transpose,
    unflatten,
    unsqueeze,
)
from qll.networks.windows import Window, same_padding

Read: TypeAlias = Callable[..., Any]


# Arithmetic. Operands that are plain numbers (shapes) stay plain numbers.


def _arithmetic(plain: Callable[[Any, Any], Any], combine: Read) -> Read:
    def read(reading: TorchReading, a: Any, b: Any, *, alpha: Any = 1) -> Any:
        if alpha != 1:
            raise refuse("a sum has a factor", "alpha = 1", alpha)
        if not isinstance(a, Activation) and not isinstance(b, Activation):
            return plain(a, b)
        return combine(reading, a, b)

    return read


def _sum(sign: int) -> Read:
    def read(reading: TorchReading, a: Any, b: Any) -> Activation:
        return reading.add(Sum((1, sign)), reading.activation(a), reading.activation(b))

    return read


def _negate(reading: TorchReading, x: Any) -> Any:
    return reading.add(Sum((-1,)), x) if isinstance(x, Activation) else -x


def _linear(reading: TorchReading, x: Activation, weight: Any, bias: Any = None) -> Activation:
    matrix = reading.array(weight)
    offset = np.zeros(matrix.shape[0]) if bias is None else reading.array(bias)
    return reading.add(Linear(matrix, offset), x)


def _matmul(reading: TorchReading, a: Any, b: Any) -> Activation:
    if isinstance(a, Activation) and isinstance(b, Activation):
        return reading.add(MatrixProduct(), a, b)
    if not isinstance(a, Activation) or b.dim() != 2:
        raise refuse("a matrix product", "an activation times a constant matrix", "another form")
    return _linear(reading, a, b.T)


def _mean(
    reading: TorchReading, x: Activation, dim: Any = None, keepdim: bool = False
) -> Activation:
    axes = range(len(reading.shape(x))) if dim is None else several(dim, 1)
    return reading.add(Mean(tuple(axes), keepdim), x)


def _total(
    reading: TorchReading, x: Activation, dim: Any = None, keepdim: bool = False
) -> Activation:
    axes = range(len(reading.shape(x))) if dim is None else several(dim, 1)
    return reading.add(Mean(tuple(axes), keepdim, divide=False), x)


# Windows.


def _convolution(rank: int) -> Read:
    def read(
        reading: TorchReading,
        x: Activation,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Activation:
        kernel = reading.array(weight)
        window = _window(reading, x, kernel.shape[2:], stride, padding, dilation)
        if len(reading.shape(x)) != rank + 2:
            raise refuse("a convolution's input", f"rank {rank + 2}", reading.shape(x))
        offset = np.zeros(kernel.shape[0]) if bias is None else reading.array(bias)
        return reading.add(Convolution(kernel, offset, window, groups), x)

    return read


def _window(
    reading: TorchReading,
    x: Activation,
    kernel: tuple[int, ...],
    stride: Any,
    padding: Any,
    dilation: Any = 1,
    *,
    ceil: bool = False,
) -> Window:
    rank = len(kernel)
    zero = (0,) * rank
    plain = Window(kernel, several(stride, rank), zero, zero, several(dilation, rank), ceil)
    if padding == "valid":
        return plain
    if padding == "same":  # torch puts the odd one at the end, as ONNX's SAME_UPPER
        before, after = same_padding(reading.shape(x)[2:], plain, upper=True)
    else:
        before = after = several(padding, rank)
    return Window(kernel, plain.stride, before, after, plain.dilation, ceil)


def _max_pool(rank: int) -> Read:
    def read(
        reading: TorchReading,
        x: Activation,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Activation:
        if return_indices:
            raise refuse("a pooling layer returns indices", "return_indices=False", "True")
        kernel = several(kernel_size, rank)
        window = _window(reading, x, kernel, stride or kernel, padding, dilation, ceil=ceil_mode)
        return reading.add(MaxPool(window), x)

    return read


def _average_pool(rank: int) -> Read:
    def read(
        reading: TorchReading,
        x: Activation,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: Any = None,
    ) -> Activation:
        if divisor_override is not None:
            raise refuse("a pooling layer has its own divisor", "none", divisor_override)
        kernel = several(kernel_size, rank)
        window = _window(reading, x, kernel, stride or kernel, padding, ceil=ceil_mode)
        return reading.add(AveragePool(window, count_include_pad), x)

    return read


def _adaptive(layer: Callable[[Window], Any], rank: int) -> Read:
    def read(reading: TorchReading, x: Activation, output_size: Any) -> Activation:
        spatial = reading.shape(x)[2:]
        wanted = (output_size,) * rank if not isinstance(output_size, tuple) else output_size
        target = tuple(s if w is None else w for s, w in zip(spatial, wanted, strict=True))
        if any(size % out for size, out in zip(spatial, target, strict=True)):
            raise refuse("an adaptive pooling", f"an output that divides {spatial}", target)
        kernel = tuple(size // out for size, out in zip(spatial, target, strict=True))
        return reading.add(layer(_window(reading, x, kernel, kernel, 0)), x)

    return read


# Bends.


def _leaky_relu(
    reading: TorchReading, x: Activation, negative_slope: float = 0.01, inplace: bool = False
) -> Activation:
    return reading.add(Apply(LeakyRelu(float(reading.array(negative_slope)))), x)


def _prelu(reading: TorchReading, x: Activation, weight: Any) -> Activation:
    """One slope for all entries, or one a channel."""
    slope = reading.array(weight)
    if slope.size == 1:
        return _leaky_relu(reading, x, float(slope.reshape(())))
    shape = reading.shape(x)
    return reading.add(ParametricRelu(slope.reshape(1, -1, *(1,) * (len(shape) - 2))), x)


def _clamp(reading: TorchReading, x: Activation, min: Any = None, max: Any = None) -> Activation:
    lower = -math.inf if min is None else float(reading.array(min))
    upper = math.inf if max is None else float(reading.array(max))
    return reading.add(Apply(clip(lower, upper)), x)


def _entrywise(function: Any) -> Read:
    """An activation without settings."""

    def read(reading: TorchReading, x: Activation, inplace: bool = False) -> Activation:
        return reading.add(Apply(function), x)

    return read


def _gelu(reading: TorchReading, x: Activation, approximate: str = "none") -> Activation:
    if approximate != "none":
        raise refuse("a GELU is approximated", "approximate='none'", repr(approximate))
    return reading.add(Apply(Gelu()), x)


def _softplus(
    reading: TorchReading, x: Activation, beta: float = 1.0, threshold: float = 20.0
) -> Activation:
    """Without the threshold, beyond which torch takes the identity: less than 3e-9 away."""
    if beta != 1.0 or threshold < 20.0:
        raise refuse("a softplus has settings", "beta=1 and threshold=20", (beta, threshold))
    return reading.add(Apply(Softplus()), x)


def _extremum(sign: int) -> Read:
    def read(reading: TorchReading, a: Any, b: Any) -> Activation:
        return reading.add(Extremum(sign), reading.activation(a), reading.activation(b))

    return read


# Modules with state.


def _batch_norm(reading: TorchReading, layer: Any, x: Activation) -> Activation:
    if layer.running_mean is None or layer.running_var is None:
        raise refuse("a batch norm", "running statistics", "track_running_stats=False")
    mean, variance = reading.array(layer.running_mean), reading.array(layer.running_var)
    gain = reading.array(layer.weight) if layer.affine else np.ones(mean.shape)
    shift = reading.array(layer.bias) if layer.affine else np.zeros(mean.shape)
    # ONNX stores epsilon as a float32: round here, so that module and file are one function.
    epsilon = float(np.float32(layer.eps))
    return reading.add(BatchNorm(gain, shift, mean, variance, epsilon), x)


def _normalize(reading: TorchReading, layer: Normalize, x: Activation) -> Activation:
    """``(x - mean) * (1 / std)`` with ``1 / std`` rounded to the weights' type: a batch norm, the
    one form of a normalisation that ONNX Runtime and Marabou both read (Marabou takes no division,
    and turns a subtraction into an addition)."""
    channels = reading.shape(x)[1]
    mean = np.broadcast_to(reading.array(layer.mean), (channels,))
    gain = reading.array(torch.reciprocal(layer.std.detach().double()))
    gain = np.broadcast_to(gain, (channels,))
    zeros, ones = np.zeros(channels), np.ones(channels)
    return reading.add(BatchNorm(gain, zeros, mean, ones, 0.0), x)


def _conv_module(reading: TorchReading, layer: Any, x: Activation) -> Activation:
    if layer.padding_mode != "zeros":
        raise refuse("a convolution's padding", "zeros", layer.padding_mode)
    rank = len(layer.kernel_size)
    read = _convolution(rank)
    return read(  # type: ignore[no-any-return]
        reading,
        x,
        layer.weight,
        layer.bias,
        layer.stride,
        layer.padding,
        layer.dilation,
        layer.groups,
    )


def _with(function: Read, *names: str) -> Read:
    """A stateless module as the function it wraps, its attributes passed by name."""

    def read(reading: TorchReading, layer: nn.Module, x: Activation) -> Any:
        return function(reading, x, **{name: getattr(layer, name) for name in names})

    return read


_MAX = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
_AVERAGE = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad")

MODULES: dict[type[nn.Module], Read] = {
    Normalize: _normalize,
    nn.Linear: lambda reading, layer, x: _linear(reading, x, layer.weight, layer.bias),
    nn.Conv1d: _conv_module,
    nn.Conv2d: _conv_module,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.ReLU6: lambda reading, layer, x: _clamp(reading, x, 0.0, 6.0),
    nn.Hardtanh: lambda reading, layer, x: _clamp(reading, x, layer.min_val, layer.max_val),
    nn.LeakyReLU: _with(_leaky_relu, "negative_slope"),
    nn.Softplus: _with(_softplus, "beta", "threshold"),
    nn.GELU: _with(_gelu, "approximate"),
    nn.Flatten: _with(flatten, "start_dim", "end_dim"),
    nn.Unflatten: lambda reading, layer, x: unflatten(
        reading, x, layer.dim, layer.unflattened_size
    ),
    nn.MaxPool1d: _with(_max_pool(1), *_MAX),
    nn.MaxPool2d: _with(_max_pool(2), *_MAX),
    nn.AvgPool1d: _with(_average_pool(1), *_AVERAGE),
    nn.AvgPool2d: _with(_average_pool(2), *_AVERAGE, "divisor_override"),
    nn.AdaptiveAvgPool1d: _with(_adaptive(AveragePool, 1), "output_size"),
    nn.AdaptiveAvgPool2d: _with(_adaptive(AveragePool, 2), "output_size"),
    nn.AdaptiveMaxPool2d: _with(_adaptive(MaxPool, 2), "output_size"),
    nn.Identity: _with(same),
    nn.Dropout: _with(same),
    nn.Dropout1d: _with(same),
    nn.Dropout2d: _with(same),
    nn.ZeroPad2d: lambda reading, layer, x: pad(reading, x, layer.padding),
    nn.ConstantPad2d: lambda reading, layer, x: pad(reading, x, layer.padding, value=layer.value),
}

_add = _arithmetic(operator.add, _sum(1))
_subtract = _arithmetic(operator.sub, _sum(-1))
_mul = _arithmetic(operator.mul, multiply)
_div = _arithmetic(operator.truediv, divide)

METHODS: dict[str, Read] = {
    "size": size,
    "view": reshape,
    "reshape": reshape,
    "flatten": flatten,
    "unflatten": unflatten,
    "squeeze": squeeze,
    "unsqueeze": unsqueeze,
    "permute": permute,
    "transpose": transpose,
    "contiguous": same,
    "clone": same,
    "clamp": _clamp,
    "clip": _clamp,
    "add": _add,
    "sub": _subtract,
    "mul": _mul,
    "div": _div,
    "neg": _negate,
    "mean": _mean,
    "sum": _total,
    "matmul": _matmul,
    "bmm": _matmul,
    "reciprocal": reciprocal,
    "sqrt": square_root,
    "rsqrt": inverse_root,
    "pow": power,
}

FUNCTIONS: dict[Any, Read] = {
    getattr: read_getattr,
    operator.getitem: read_getitem,
    operator.add: _add,
    operator.iadd: _add,
    operator.sub: _subtract,
    operator.isub: _subtract,
    operator.mul: _mul,
    operator.truediv: _div,
    operator.neg: _negate,
    operator.matmul: _matmul,
    torch.add: _add,
    torch.sub: _subtract,
    torch.mul: _mul,
    torch.div: _div,
    torch.neg: _negate,
    torch.matmul: _matmul,
    torch.bmm: _matmul,
    torch.clamp: _clamp,
    torch.maximum: _extremum(1),
    torch.max: _extremum(1),
    torch.minimum: _extremum(-1),
    torch.min: _extremum(-1),
    torch.flatten: flatten,
    torch.reshape: reshape,
    torch.squeeze: squeeze,
    torch.unsqueeze: unsqueeze,
    torch.permute: permute,
    torch.transpose: transpose,
    torch.mean: _mean,
    torch.sum: _total,
    torch.reciprocal: reciprocal,
    torch.sqrt: square_root,
    torch.rsqrt: inverse_root,
    torch.pow: power,
    operator.pow: power,
    functional.leaky_relu: _leaky_relu,
    functional.relu6: lambda reading, x, inplace=False: _clamp(reading, x, 0.0, 6.0),
    functional.hardtanh: lambda reading, x, min_val=-1.0, max_val=1.0, inplace=False: _clamp(
        reading, x, min_val, max_val
    ),
    functional.gelu: _gelu,
    functional.softplus: _softplus,
    functional.linear: _linear,
    functional.conv1d: _convolution(1),
    functional.conv2d: _convolution(2),
    functional.max_pool1d: _max_pool(1),
    functional.max_pool2d: _max_pool(2),
    functional.avg_pool1d: _average_pool(1),
    functional.avg_pool2d: _average_pool(2),
    functional.adaptive_avg_pool1d: _adaptive(AveragePool, 1),
    functional.adaptive_avg_pool2d: _adaptive(AveragePool, 2),
    functional.pad: pad,
    functional.dropout: dropout,
}


def _called(names: tuple[str, ...], read: Read, *settings: str) -> None:
    """All that torch calls a layer, where a module's attributes are the function's arguments."""
    for thing in torch_things(names):
        if isinstance(thing, str):
            METHODS[thing] = read
        elif isinstance(thing, type):
            MODULES[thing] = _with(read, *settings)
        else:
            FUNCTIONS[thing] = read


_called(Softmax.in_torch, softmax, "dim")
_called(LayerNorm.in_torch, layer_norm, "normalized_shape", "weight", "bias", "eps")
_called(ParametricRelu.in_torch, _prelu, "weight")
_called(Concat.in_torch, cat)
for _record in ACTIVATIONS.values():
    if _record.in_torch:
        _called(_record.in_torch, _entrywise(_record()))

# What may share memory with its operand.
VIEWS: frozenset[Any] = frozenset(
    {
        *("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze"),
        *("permute", "transpose", "contiguous"),
        *(torch.flatten, torch.reshape, torch.squeeze, torch.unsqueeze),
        *(torch.permute, torch.transpose, operator.getitem),
    }
)
