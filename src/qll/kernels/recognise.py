"""Which torch modules the kernels know, each as an affine map with its adjoint, or a ReLU.

The layers refer to the module's parameters, so weights are read anew at every refresh. Modules are
read as in evaluation mode, which is how an attack runs them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from qll.networks.hooks import is_altered
from qll.networks.models import Normalize

Shape = tuple[int, ...]


class AffineLayer(ABC):
    """``forward`` and the adjoint of its linear part, on batches of ``in_shape``/``out_shape``."""

    in_shape: Shape
    out_shape: Shape

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def adjoint(self, g: Tensor) -> Tensor: ...


class Rectifier:
    """``max(x, 0)``."""


@dataclass
class Scale(AffineLayer):
    """``x * scale + shift`` by channel (or by feature): normalisation of any kind."""

    module: nn.Module
    in_shape: Shape

    @property
    def out_shape(self) -> Shape:  # type: ignore[override]
        return self.in_shape

    def scale_and_shift(self) -> tuple[Tensor, Tensor]:
        module = self.module
        if isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d):
            mean, variance = module.running_mean, module.running_var
            if mean is None or variance is None:  # refused by ``recognise``
                raise TypeError("a batch normalisation without running statistics is not affine")
            scale = torch.rsqrt(variance + module.eps)
            scale = scale if module.weight is None else scale * module.weight
            shift = -mean * scale
            return scale, shift if module.bias is None else shift + module.bias
        if not isinstance(module, Normalize):
            raise TypeError(f"{type(module).__name__} does not scale by channel")
        channels = self.in_shape[0]
        mean, std = module.mean.expand(channels), module.std.expand(channels)
        return 1.0 / std, -mean / std

    def _shaped(self, values: Tensor) -> Tensor:
        return values.reshape(1, -1, *(1,) * (len(self.in_shape) - 1))

    def forward(self, x: Tensor) -> Tensor:
        scale, shift = self.scale_and_shift()
        return x * self._shaped(scale) + self._shaped(shift)

    def adjoint(self, g: Tensor) -> Tensor:
        return g * self._shaped(self.scale_and_shift()[0])


@dataclass
class Reshape(AffineLayer):
    in_shape: Shape
    out_shape: Shape

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(-1, *self.out_shape)

    def adjoint(self, g: Tensor) -> Tensor:
        return g.reshape(-1, *self.in_shape)


@dataclass
class Dense(AffineLayer):
    module: nn.Linear

    @property
    def in_shape(self) -> Shape:  # type: ignore[override]
        return (self.module.in_features,)

    @property
    def out_shape(self) -> Shape:  # type: ignore[override]
        return (self.module.out_features,)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.module.weight, self.module.bias)

    def adjoint(self, g: Tensor) -> Tensor:
        return g @ self.module.weight


@dataclass
class Convolution(AffineLayer):
    """A two-dimensional convolution with zero padding; average pooling is one too."""

    module: nn.Conv2d | nn.AvgPool2d
    in_shape: Shape
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    kernel: tuple[int, int]
    out_channels: int

    @property
    def out_shape(self) -> Shape:  # type: ignore[override]
        size = (
            (self.in_shape[1 + a] + 2 * self.padding[a] - self.reach(a)) // self.stride[a] + 1
            for a in (0, 1)
        )
        return (self.out_channels, *size)

    def reach(self, axis: int) -> int:
        """How many input positions a window spans."""
        return self.dilation[axis] * (self.kernel[axis] - 1) + 1

    def weight(self) -> Tensor:
        if isinstance(self.module, nn.Conv2d):
            return self.module.weight
        return torch.full((self.out_channels, 1, *self.kernel), 1.0 / math.prod(self.kernel))

    def forward(self, x: Tensor) -> Tensor:
        bias = self.module.bias if isinstance(self.module, nn.Conv2d) else None
        return functional.conv2d(
            x, self.weight().to(x), bias, self.stride, self.padding, self.dilation, self.groups
        )

    def adjoint(self, g: Tensor) -> Tensor:
        rest = [
            self.in_shape[1 + a]
            - (self.out_shape[1 + a] - 1) * self.stride[a]
            + 2 * self.padding[a]
            - self.reach(a)
            for a in (0, 1)
        ]
        weight = self.weight().to(g)
        return functional.conv_transpose2d(
            g, weight, None, self.stride, self.padding, rest, self.groups, self.dilation
        )


Piece = AffineLayer | Rectifier


def recognise(
    module: nn.Module, input_shape: Shape, *, compiled: bool = True
) -> list[Piece] | None:
    """The module as a chain of known pieces, or None if some part of it is not one of them (or,
    for the compiled path, not in float32 on the CPU)."""
    shape = tuple(input_shape)
    pieces: list[Piece] = []
    for leaf in _leaves(module):
        if is_altered(leaf):
            return None
        if type(leaf) in (nn.Identity, nn.Dropout, nn.Dropout2d):
            continue
        if type(leaf) is nn.ReLU:
            pieces.append(Rectifier())
            continue
        piece = _affine(leaf, shape)
        if piece is None or piece.in_shape != shape or (compiled and not _plain_tensors(leaf)):
            return None
        pieces.append(piece)
        shape = piece.out_shape
    return pieces if len(shape) == 1 and pieces else None


def _leaves(module: nn.Module) -> Iterator[nn.Module]:
    """A ``Sequential`` that keeps its ``forward`` runs its parts one after the other; a part may
    stand in it more than once, which ``children()`` would hide."""
    plain = isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward
    if plain and not is_altered(module):
        for child in module._modules.values():
            if child is not None:
                yield from _leaves(child)
    else:
        yield module


def _plain_tensors(module: nn.Module) -> bool:
    tensors = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    floats = (t for t in tensors if t.is_floating_point())
    return all(t.device.type == "cpu" and t.dtype == torch.float32 for t in floats)


def _affine(leaf: nn.Module, shape: Shape) -> AffineLayer | None:
    # A subclass may compute anything: what is known is the class itself.
    match leaf:
        case nn.Linear() if type(leaf) is nn.Linear and len(shape) == 1:
            return Dense(leaf)
        case nn.Flatten() if (
            type(leaf) is nn.Flatten and leaf.start_dim == 1 and leaf.end_dim in (-1, len(shape))
        ):
            return Reshape(shape, (math.prod(shape),))
        case nn.Conv2d() if type(leaf) is nn.Conv2d and len(shape) == 3:
            return _convolution(leaf, shape)
        case nn.AvgPool2d() if type(leaf) is nn.AvgPool2d and len(shape) == 3:
            return _pooling(leaf, shape)
        case nn.BatchNorm2d() if type(leaf) is nn.BatchNorm2d and len(shape) == 3:
            return Scale(leaf, shape) if leaf.running_mean is not None else None
        case nn.BatchNorm1d() if type(leaf) is nn.BatchNorm1d and len(shape) == 1:
            return Scale(leaf, shape) if leaf.running_mean is not None else None
        case Normalize() if type(leaf) is Normalize and leaf.mean.numel() in (1, shape[0]):
            return Scale(leaf, shape)
    return None


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def _convolution(leaf: nn.Conv2d, shape: Shape) -> Convolution | None:
    if leaf.padding_mode != "zeros" or isinstance(leaf.padding, str):
        return None
    if leaf.in_channels != shape[0]:
        return None
    return Convolution(
        leaf,
        shape,
        _pair(leaf.stride),
        _pair(leaf.padding),
        _pair(leaf.dilation),
        leaf.groups,
        _pair(leaf.kernel_size),
        leaf.out_channels,
    )


def _pooling(leaf: nn.AvgPool2d, shape: Shape) -> Convolution | None:
    padding = _pair(leaf.padding)
    counts_padding = leaf.count_include_pad or padding == (0, 0)
    if leaf.ceil_mode or leaf.divisor_override is not None or not counts_padding:
        return None
    kernel, stride = _pair(leaf.kernel_size), _pair(leaf.stride)
    return Convolution(leaf, shape, stride, padding, (1, 1), shape[0], kernel, shape[0])
