"""Interval bounds of any torch module: the module itself is run, on boxes instead of points.

A `Box` stands for a tensor of which each entry lies between two others. torch hands every function
that is called on one to `Box.__torch_function__`, so the module's own ``forward`` runs as it is,
with live weights, hooks and branches on shapes; whatever has no rule is refused by name.
An affine map takes middle and radius, an activation its image of an interval (`Activation.image`),
a pooling or a maximum both ends, and what only moves entries moves both.

A linear layer at the end is kept apart until something reads it: composed with the question (a
difference of two logits, say) it gives better bounds than bounded by itself.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from qll.bounds.composed import Root, layer_norm, matrix_product, softmax
from qll.errors import NetworkError
from qll.networks.activations import ACTIVATIONS, Activation
from qll.networks.activations.base import torch_things
from qll.networks.activations.clip import Clip
from qll.networks.activations.leaky_relu import LeakyRelu
from qll.networks.activations.square import SQUARE

Ends = tuple[Tensor, Tensor]
Rule = Callable[..., Any]


class Box:
    """Entries between ``lower`` and ``upper``; ``linear`` are the box, weight and bias whose image
    it is, if a linear layer gave it."""

    def __init__(
        self, lower: Tensor, upper: Tensor, linear: tuple[Box, Tensor, Tensor | None] | None = None
    ) -> None:
        self.lower, self.upper, self.linear = lower, upper, linear

    @classmethod
    def around(cls, middle: Tensor, radius: Tensor) -> Box:
        return cls(middle - radius, middle + radius)

    @property
    def middle(self) -> Tensor:
        return (self.lower + self.upper) / 2

    @property
    def radius(self) -> Tensor:
        return (self.upper - self.lower) / 2

    @property
    def shape(self) -> torch.Size:
        return self.lower.shape

    @property
    def ndim(self) -> int:
        return self.lower.ndim

    @property
    def dtype(self) -> torch.dtype:
        return self.lower.dtype

    @property
    def device(self) -> torch.device:
        return self.lower.device

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        return self.lower.dim()

    def __len__(self) -> int:
        return len(self.lower)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        rule = RULES.get(function)
        if rule is None:
            raise unknown(getattr(function, "__name__", str(function)))
        return rule(*args, **(kwargs or {}))

    def __getattr__(self, name: str) -> Any:
        method = getattr(Tensor, name, None)
        if name.startswith("__") or (method is None and not hasattr(Tensor, name)):
            raise AttributeError(name)
        if method not in RULES:
            raise unknown(name)
        return lambda *args, **kwargs: RULES[method](self, *args, **kwargs)

    def __getitem__(self, key: Any) -> Box:
        return Box(self.lower[key], self.upper[key])

    def __neg__(self) -> Box:
        return Box(-self.upper, -self.lower)

    def __add__(self, other: Any) -> Box:
        if isinstance(other, Box):
            return Box(self.lower + other.lower, self.upper + other.upper)
        return Box(self.lower + other, self.upper + other)

    def __sub__(self, other: Any) -> Box:
        return self.__add__(-other)

    def __rsub__(self, other: Any) -> Box:
        return (-self).__add__(other)

    def __mul__(self, other: Any) -> Box:
        if other is self:
            _see(self.lower, self.upper)
            return Box(*SQUARE.image(self.lower, self.upper))
        if isinstance(other, Box):
            _see(self.lower, self.upper)
            _see(other.lower, other.upper)
            corners = torch.stack(
                [a * b for a in (self.lower, self.upper) for b in (other.lower, other.upper)]
            )
            return Box(corners.amin(0), corners.amax(0))
        size = other.abs() if isinstance(other, Tensor) else abs(other)
        return Box.around(self.middle * other, self.radius * size)

    def __truediv__(self, other: Any) -> Box:
        if isinstance(other, Box):
            return self.__mul__(torch.reciprocal(other))  # type: ignore[arg-type]
        return self.__mul__(1.0 / other)

    def __rtruediv__(self, other: Any) -> Box:
        inverse: Box = torch.reciprocal(self)  # type: ignore[arg-type, assignment]
        return inverse.__mul__(other)

    def __pow__(self, exponent: Any) -> Box:
        found: Box = RULES[torch.pow](self, exponent)
        return found

    def __matmul__(self, other: Any) -> Box:
        if isinstance(other, Box):
            product: Box = matrix_product(self, other)
            return product
        return Box.around(self.middle @ other, self.radius @ other.abs())

    def _compared(self, other: object) -> bool:
        raise unknown("a comparison of a value that depends on the input")

    __radd__, __rmul__ = __add__, __mul__
    __lt__ = __le__ = __gt__ = __ge__ = _compared

    def __bool__(self) -> bool:
        raise unknown("a branch on a value that depends on the input")


def unknown(name: str) -> NetworkError:
    return NetworkError(
        f"there is no bound rule for '{name}'",
        expected="linear, convolution, pooling, normalisation and activation layers, sums, "
        "products and moves of entries",
        found=f"'{name}'",
        fix="replace that layer, or train with --method attack",
    )


def output_box(module: torch.nn.Module, lower: Tensor, upper: Tensor) -> Box:
    """The box of the module's outputs for inputs between ``lower`` and ``upper``."""
    from qll.networks.torch_reader import evaluation_mode

    with evaluation_mode(module):
        found = module(Box(lower, upper))
    if not isinstance(found, Box):
        raise NetworkError(
            "the module does not return one tensor that depends on its input",
            expected="a tensor",
            found=type(found).__name__,
            fix="return only the outputs that the property speaks of",
        )
    return found


# Affine maps.


def _linear(x: Box, weight: Tensor, bias: Tensor | None = None) -> Box:
    centre, spread = functional.linear(x.middle, weight, bias), x.radius @ weight.abs().t()
    return Box(centre - spread, centre + spread, (x, weight, bias))


def _windowed(function: Callable[..., Tensor]) -> Rule:
    def rule(x: Box, weight: Tensor, bias: Tensor | None = None, *args: Any, **kw: Any) -> Box:
        centre = function(x.middle, weight, bias, *args, **kw)
        return Box.around(centre, function(x.radius, weight.abs(), None, *args, **kw))

    return rule


def _batch_norm(
    x: Box,
    mean: Tensor | None,
    variance: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Box:
    if training or mean is None or variance is None:
        raise unknown("a batch normalisation by the batch itself")
    scale = torch.rsqrt(variance + eps) * (1.0 if weight is None else weight)
    shift = (0.0 if bias is None else bias) - mean * scale
    places = (1, -1, *(1,) * (x.ndim - 2))
    return Box.around(
        x.middle * scale.reshape(places) + shift.reshape(places),
        x.radius * scale.abs().reshape(places),
    )


# Ends of what each curved step was given, in the order of the calls, for linear bounds.
_seen: ContextVar[list[Ends] | None] = ContextVar("seen", default=None)


@contextmanager
def seen() -> Iterator[list[Ends]]:
    """Inside, what the curved steps (activations, maxima) are given is written down."""
    ends: list[Ends] = []
    token = _seen.set(ends)
    try:
        yield ends
    finally:
        _seen.reset(token)


def _see(lower: Tensor, upper: Tensor) -> None:
    noted = _seen.get()
    if noted is not None:
        noted.append((lower, upper))


def _largest(function: Callable[..., Any]) -> Rule:
    both = _both(function)

    def rule(x: Any, *args: Any, **kw: Any) -> Box:
        _see(x.lower, x.upper)
        found: Box = both(x, *args, **kw)
        return found

    return rule


def _both(function: Callable[..., Any]) -> Rule:
    """Rising in each entry (pooling, sums, means), or only moving them."""

    def rule(x: Any, *args: Any, **kw: Any) -> Box:
        if kw.get("divisor_override") is not None or kw.get("return_indices"):
            raise unknown("a pooling with its own divisor, or with indices")
        return Box(function(x.lower, *args, **kw), function(x.upper, *args, **kw))

    return rule


def _extremum(function: Callable[..., Tensor]) -> Rule:
    def rule(a: Any, b: Any) -> Box:
        ends = [(t.lower, t.upper) if isinstance(t, Box) else (t, t) for t in (a, b)]
        lower, upper = (function(ends[0][i], ends[1][i]) for i in (0, 1))
        _see(ends[0][0] - ends[1][1], ends[0][1] - ends[1][0])  # of their difference
        return Box(lower, upper)

    return rule


def _cat(tensors: Any, dim: int = 0) -> Box:
    ends = [(t.lower, t.upper) if isinstance(t, Box) else (t, t) for t in tensors]
    lower, upper = (torch.cat([pair[i] for pair in ends], dim) for i in (0, 1))
    return Box(lower, upper)


def _dropout(x: Box, p: float = 0.5, training: bool = True, inplace: bool = False) -> Box:
    if training:
        raise unknown("a dropout in training mode")
    return x


# Activations: which record a call means.


def _plain(activation: Activation) -> Callable[..., Activation]:
    def read(*args: Any, inplace: bool = False, **kw: Any) -> Activation:
        if args or kw:
            raise unknown(f"a {activation.name} with settings")
        return activation

    return read


def _leaky(negative_slope: float = 0.01, inplace: bool = False) -> Activation:
    return LeakyRelu(negative_slope)


def _clamp(min: Any = None, max: Any = None, inplace: bool = False) -> Activation:
    lower = float("-inf") if min is None else float(min)
    upper = float("inf") if max is None else float(max)
    return Clip(lower, upper)


def _gelu(approximate: str = "none") -> Activation:
    if approximate != "none":
        raise unknown("an approximated GELU")
    return ACTIVATIONS["gelu"]()


def _softplus(beta: float = 1.0, threshold: float = 20.0) -> Activation:
    """Without the threshold, beyond which torch takes the identity: less than 3e-9 away."""
    if beta != 1.0 or threshold < 20.0:
        raise unknown("a softplus with settings")
    return ACTIVATIONS["softplus"]()


def _power(exponent: Any) -> Activation | Root:
    if isinstance(exponent, Box) or exponent not in (2, 0.5, -0.5, -1):
        raise unknown(f"a power of {exponent}")
    return SQUARE if exponent == 2 else Root(float(exponent))


def _curves() -> dict[Any, Callable[..., Activation | Root]]:
    curves: dict[Any, Callable[..., Activation | Root]] = {
        torch.pow: _power,
        Tensor.pow: _power,
        Tensor.__pow__: _power,
        functional.leaky_relu: _leaky,
        functional.hardtanh: lambda min_val=-1.0, max_val=1.0, inplace=False: _clamp(
            min_val, max_val
        ),
        functional.relu6: lambda inplace=False: _clamp(0.0, 6.0),
        functional.gelu: _gelu,
        functional.softplus: _softplus,
    }
    for record in ACTIVATIONS.values():
        for name in torch_things(record.in_torch):
            # A module calls its function.
            if not isinstance(name, type):
                function = getattr(Tensor, name) if isinstance(name, str) else name
                curves[function] = _plain(record())
    for name, exponent in (("reciprocal", -1.0), ("rsqrt", -0.5), ("sqrt", 0.5)):
        for home in (torch, Tensor):
            curves[getattr(home, name)] = lambda exponent=exponent: Root(exponent)
    for name in ("clamp", "clip"):
        for home in (torch, Tensor):
            curves[getattr(home, name)] = _clamp
    return curves


CURVES = _curves()


def _image(read: Callable[..., Activation | Root]) -> Rule:
    def rule(x: Box, *args: Any, **kw: Any) -> Box:
        _see(x.lower, x.upper)
        return Box(*on(read(*args, **kw), x.lower).image(x.lower, x.upper))

    return rule


def on(found: Activation | Root, low: Tensor) -> Activation:
    """The record of a call, on intervals with these lower ends."""
    return found.on(low) if isinstance(found, Root) else found


def slopes_by_channel(weight: Tensor, rank: int) -> Tensor:
    """A PReLU's slopes, to be broadcast over a batch of ``rank`` axes."""
    return weight.reshape(1, -1, *(1,) * (rank - 2)) if weight.numel() > 1 else weight


def _prelu(x: Box, weight: Tensor) -> Box:
    _see(x.lower, x.upper)
    slope = slopes_by_channel(weight, x.ndim)
    ends = [torch.where(end >= 0, end, slope * end) for end in (x.lower, x.upper)]
    least, most = torch.minimum(*ends), torch.maximum(*ends)
    inside = (x.lower < 0) & (x.upper > 0)  # a negative slope turns at 0
    return Box(torch.where(inside, least.clamp(max=0.0), least), most)


def _table() -> dict[Any, Rule]:
    moves = (
        *(
            "flatten",
            "reshape",
            "view",
            "permute",
            "transpose",
            "squeeze",
            "unsqueeze",
            "contiguous",
        ),
        *("unflatten", "clone", "mean", "sum"),
    )
    rules: dict[Any, Rule] = {
        functional.linear: _linear,
        functional.batch_norm: _batch_norm,
        functional.pad: _both(functional.pad),
        functional.dropout: _dropout,
        **{function: _image(read) for function, read in CURVES.items()},
        functional.prelu: _prelu,
        torch.prelu: _prelu,
        torch.cat: _cat,
        torch.concat: _cat,
        torch.maximum: _extremum(torch.maximum),
        torch.minimum: _extremum(torch.minimum),
        torch.neg: operator.neg,
        **dict.fromkeys((functional.softmax, torch.softmax, Tensor.softmax), softmax),
        **dict.fromkeys((functional.layer_norm, torch.layer_norm), layer_norm),
    }
    for name in ("conv1d", "conv2d"):
        rules[getattr(functional, name)] = rules[getattr(torch, name)] = _windowed(
            getattr(functional, name)
        )
    for rank in (1, 2):
        for kind in ("max", "avg", "adaptive_avg", "adaptive_max"):
            function = getattr(functional, f"{kind}_pool{rank}d")
            rule = _largest(function) if "max" in kind else _both(function)
            rules[function] = rules[getattr(torch, f"{kind}_pool{rank}d", function)] = rule
    for name in moves:
        for home in (torch, Tensor):
            function = getattr(home, name, None)
            if function is not None:
                rules[function] = _both(function)
    for name in ("add", "sub", "mul", "truediv", "matmul"):
        for home in (torch, Tensor):
            rules[getattr(home, {"truediv": "div"}.get(name, name))] = getattr(operator, name)
    rules[torch.bmm] = rules[Tensor.bmm] = rules[torch.matmul]
    # What torch calls when the tensor stands on the left.
    rules[Tensor.__add__] = rules[Tensor.__radd__] = operator.add
    rules[Tensor.__mul__] = rules[Tensor.__rmul__] = lambda a, b: b * a
    rules[Tensor.__sub__] = rules[torch.sub]
    rules[Tensor.__rsub__] = lambda a, b: b - a
    rules[Tensor.__truediv__] = rules[torch.div]
    rules[Tensor.__rtruediv__] = lambda a, b: b / a
    return rules


RULES = _table()
