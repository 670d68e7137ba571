"""Networks by name: the paper's two and a wider one, and any factory of the user's.

A factory for images takes ``in_channels, height, width, outputs, mean, std``, one for tables
``inputs, outputs, mean, std`` and, for a regression, ``target_mean, target_std``. Normalisation is
a layer, so that the network takes raw input and answers in raw units.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import partial
from importlib.util import find_spec
from typing import TypeAlias

import torch
from torch import Tensor, nn

from qll.errors import InputError, NetworkError
from qll.registry import Registry

Factory: TypeAlias = Callable[..., nn.Module]

networks: Registry[Factory] = Registry("network")


class Normalize(nn.Module):
    """``(x - mean) / std`` by channel, for inputs (batch, channels, ...).

    >>> Normalize((0.5,), (0.25,))(torch.ones(1, 1, 1, 1)).item()
    2.0
    """

    mean: Tensor  # (channels,)
    std: Tensor

    def __init__(self, mean: Sequence[float] | float, std: Sequence[float] | float) -> None:
        super().__init__()
        centre = torch.as_tensor(mean, dtype=torch.float32).reshape(-1)
        width = torch.as_tensor(std, dtype=torch.float32).reshape(-1)
        usable = centre.isfinite().all() and width.isfinite().all() and (width > 0).all()
        if not usable or centre.shape != width.shape:
            raise InputError(
                "a normalisation is not usable",
                expected="as many finite means as deviations above 0",
                found=f"mean {mean}, std {std}",
                fix="pass the mean and deviation of the training images, one pair per channel",
            )
        self.register_buffer("mean", centre)
        self.register_buffer("std", width)

    def forward(self, x: Tensor) -> Tensor:
        shape = (1, -1) + (1,) * (x.dim() - 2)
        return (x - self.mean.view(shape)) / self.std.view(shape)

    def extra_repr(self) -> str:
        return f"mean={self.mean.tolist()}, std={self.std.tolist()}"


def _two_convolutions(
    channels: tuple[int, int],
    hidden: int,
    *,
    in_channels: int,
    height: int,
    width: int,
    outputs: int,
    mean: Sequence[float] | float,
    std: Sequence[float] | float,
) -> nn.Sequential:
    """Two strided 3x3 convolutions, ReLU after the first only, then two linear layers: as published
    (so the second convolution and the first linear layer are one affine map)."""
    first, second = channels
    small = [(size + 3) // 4 for size in (height, width)]  # two strides of 2, padding 1
    return nn.Sequential(
        Normalize(mean, std),
        nn.Conv2d(in_channels, first, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(first, second, 3, stride=2, padding=1),
        nn.Flatten(),
        nn.Linear(second * small[0] * small[1], hidden),
        nn.ReLU(),
        nn.Linear(hidden, outputs),
    )


@networks.register("paper-mnist")
def paper_mnist(
    *,
    in_channels: int = 1,
    height: int = 28,
    width: int = 28,
    outputs: int = 10,
    mean: Sequence[float] | float = 0.1307,
    std: Sequence[float] | float = 0.3081,
) -> nn.Module:
    """The paper's network for MNIST and Fashion-MNIST: 4 and 8 channels, 16 hidden."""
    return _two_convolutions(
        (4, 8),
        16,
        in_channels=in_channels,
        height=height,
        width=width,
        outputs=outputs,
        mean=mean,
        std=std,
    )


@networks.register("paper-dice")
def paper_dice(
    *,
    in_channels: int = 3,
    height: int = 28,
    width: int = 28,
    outputs: int = 6,
    mean: Sequence[float] | float = (0.7232479453086853, 0.7257601618766785, 0.6415771842002869),
    std: Sequence[float] | float = (0.32942402362823486, 0.24738003313541412, 0.2831753194332123),
) -> nn.Module:
    """The paper's network for Dice: the same with three input channels and six outputs."""
    return paper_mnist(
        in_channels=in_channels, height=height, width=width, outputs=outputs, mean=mean, std=std
    )


@networks.register("wide")
def wide(
    *,
    in_channels: int = 1,
    height: int = 28,
    width: int = 28,
    outputs: int = 10,
    mean: Sequence[float] | float = 0.1307,
    std: Sequence[float] | float = 0.3081,
) -> nn.Module:
    """The same shape, wider: 32 and 64 channels, 128 hidden."""
    return _two_convolutions(
        (32, 64),
        128,
        in_channels=in_channels,
        height=height,
        width=width,
        outputs=outputs,
        mean=mean,
        std=std,
    )


@networks.register("mlp")
def mlp(
    sizes: str = "64,32",
    *,
    inputs: int | None = None,
    in_channels: int = 1,
    height: int = 1,
    width: int = 1,
    outputs: int = 1,
    mean: Sequence[float] | float = 0.0,
    std: Sequence[float] | float = 1.0,
    target_mean: Sequence[float] = (),
    target_std: Sequence[float] = (),
) -> nn.Module:
    """Linear layers with ReLU between them: ``mlp:64,32`` has hidden layers of 64 and 32."""
    widths = _widths(sizes)
    layers: list[nn.Module] = [Normalize(mean, std)]
    if inputs is None:
        layers.append(nn.Flatten())
    before = in_channels * height * width if inputs is None else inputs
    for hidden in widths:
        layers += [nn.Linear(before, hidden), nn.ReLU()]
        before = hidden
    layers.append(nn.Linear(before, outputs))
    if len(target_std):  # x * std + mean
        shift = [-m / s for m, s in zip(target_mean, target_std, strict=True)]
        layers.append(Normalize(shift, [1.0 / s for s in target_std]))
    return nn.Sequential(*layers)


def _widths(sizes: str) -> list[int]:
    try:
        found = [int(part) for part in sizes.split(",") if part.strip()]
    except ValueError:
        found = []
    if not found or not all(0 < width <= 65_536 for width in found):
        raise InputError(
            "these are no sizes of hidden layers",
            expected="numbers with commas, such as mlp:64,32",
            found=f"'{sizes}'",
            fix="pass --network mlp:64,32",
        )
    return found


def create(name: str, **options: object) -> nn.Module:
    """A registered network, or ``package.module:factory`` of the user's, called with ``options``.

    >>> create("paper-mnist")(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    head, _, sizes = name.partition(":")
    factory: Factory
    if head in networks:  # with sizes of its own: mlp:64,32
        factory = partial(networks[head], sizes) if sizes else networks[head]
    else:
        # A module has a dotted name or is there: else it is a slip in the name of one of ours.
        ours = get_close_matches(head, networks, n=1, cutoff=0.6)
        if ":" not in name or (ours and "." not in head and find_spec(head) is None):
            factory = networks[head]
        else:
            factory = _factory(name)
    try:
        module = factory(**options)
    except TypeError as error:
        raise NetworkError(
            f"the network '{name}' cannot be built",
            expected=f"a factory that takes {', '.join(sorted(options)) or 'no options'}",
            found=str(error),
            fix="give the factory these keyword arguments, or **options",
        ) from error
    if not isinstance(module, nn.Module):
        raise NetworkError(
            f"the factory '{name}' does not build a network",
            expected="a torch.nn.Module",
            found=type(module).__name__,
            fix="return the module from the factory",
        )
    return module


def _factory(name: str) -> Factory:
    module_name, _, attribute = name.partition(":")
    try:
        found: object = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise NetworkError(
            f"the network '{name}' is not found",
            expected="package.module:factory, importable from here",
            found=str(error),
            fix="check the spelling, and that the package is installed or on PYTHONPATH",
        ) from error
    if not callable(found):
        raise NetworkError(
            f"'{name}' is not a factory",
            expected="a function or class",
            found=type(found).__name__,
            fix="name the function that builds the module",
        )
    return found
