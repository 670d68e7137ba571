"""What an activation states, and what follows from it for every reading.

A record says what the function is: its value, its derivative, where it turns (stops rising or
falling) and where it bends (the derivative stops rising or falling; for a piecewise linear one, its
kinks). From that come the enclosure of an interval, the linear relaxation, and the points to split.

**The relaxation.** For every slope s, ``f(z) >= s z + min over [l, u] of (f(t) - s t)``: a valid
line whatever s is, so the slope is a free parameter, here ``alpha`` in [0, 1] between the least and
the largest derivative on the interval. The minimum lies at an end or where ``f' = s``, and between
two bends there is at most one such point. A convex or concave function has one side on which only
the chord is worth taking (Zhang et al. 2018; for optimised slopes Xu et al. 2021).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qll.late import late
from qll.registry import Registry

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = late("torch")

Array: TypeAlias = NDArray[np.float64]
Line: TypeAlias = "tuple[Tensor, Tensor]"  # slope and intercept

ACTIVATIONS: Registry[type[Activation]] = Registry("activation", "qll.networks.activations")

# Halvings of an interval in the search for a point with a given derivative: the value there is off
# by the square of what is left.
_HALVINGS = 40
# What numpy, scipy and torch lose at most in the last places of a value, with room.
_RELATIVE_ERROR = 2.0**-44
_TINY = 2.0**-150  # and what they lose far out, where a value is almost 0


class Activation(ABC):
    """A function of one real number, applied entry by entry."""

    name: ClassVar[str]
    onnx: ClassVar[tuple[str, ...]] = ()  # its ONNX operators
    has_settings: ClassVar[bool] = False  # a record of numbers, which operators give
    # Where torch has it, from torch on: modules and functions without settings, and methods of
    # Tensor (what has settings is read in `torch_operators`).
    in_torch: ClassVar[tuple[str, ...]] = ()
    rising: ClassVar[bool] = False  # strictly: it keeps the order of any two values
    # Rational values at rational points: exact replay, and proofs that end in linear programs.
    piecewise_linear: ClassVar[bool] = False

    @abstractmethod
    def apply(self, z: Tensor) -> Tensor:
        """The values, differentiable."""

    @abstractmethod
    def derivative(self, z: Tensor) -> Tensor: ...

    @property
    @abstractmethod
    def bends(self) -> tuple[float, ...]:
        """Inflections or kinks, rising."""

    @property
    def turns(self) -> tuple[float, ...]:
        """Where a rising function begins to fall or the other way round."""
        return ()

    def value(self, z: NDArray[Any]) -> NDArray[Any]:
        """The values of an array, in its own type."""
        result: NDArray[Any] = self.apply(torch.from_numpy(np.ascontiguousarray(z))).numpy()
        return result

    def gradient(self, z: NDArray[Any]) -> NDArray[Any]:
        """The derivatives of an array, in its own type."""
        result: NDArray[Any] = self.derivative(torch.from_numpy(np.ascontiguousarray(z))).numpy()
        return result

    @abstractmethod
    def kernel(self) -> tuple[Callable[..., None], tuple[float, ...]]:
        """Value and derivative for compiled code, and the numbers that the function is given.

        ``function(z, n, params, value, slope)`` sets ``value[i]`` and ``slope[i]`` for ``i < n``. A
        row ``z[i]`` is an array for numpy and a vector of lanes when compiled: only what
        ``qll.kernels.lanes`` spells may be done to it. Float32 in and out: an error of 1e-6 is
        allowed, which a test holds it to.
        """

    def exact(self, z: Fraction) -> Fraction:
        raise TypeError(f"{self.name} has irrational values")

    def enclose(self, low: Array, high: Array) -> tuple[Array, Array]:
        """The least and the largest value on [low, high], rounded outward."""
        given = (torch.from_numpy(np.ascontiguousarray(end, np.float64)) for end in (low, high))
        least, most = (end.numpy() for end in self.image(*given))
        return (
            least - _RELATIVE_ERROR * np.abs(least) - _TINY,
            most + _RELATIVE_ERROR * np.abs(most) + _TINY,
        )

    def image(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """The least and the largest value on [low, high], differentiable, not rounded outward."""
        ends = [self.apply(low), self.apply(high)]
        for turn in self.turns:
            inside = (low < turn) & (turn < high)
            ends.append(torch.where(inside, self.apply(torch.full_like(low, turn)), ends[0]))
        stacked = torch.stack(ends)
        return stacked.amin(0), stacked.amax(0)

    def slopes(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """The least and the largest derivative on [low, high]."""
        found = [self.derivative(low), self.derivative(high)]
        for bend in self.bends:
            inside = (low < bend) & (bend < high)
            found.append(torch.where(inside, self.derivative(torch.full_like(low, bend)), found[0]))
        stacked = torch.stack(found)
        return stacked.amin(0), stacked.amax(0)

    def chord(self, low: Tensor, high: Tensor) -> Tensor:
        """The slope between the ends; where these are too near, that of the middle."""
        wide = high - low > 1e-6 * (1.0 + low.abs() + high.abs())
        run = torch.where(wide, high - low, torch.ones_like(low))
        slope = (self.apply(high) - self.apply(low)) / run
        return torch.where(wide, slope, self.derivative((low + high) / 2))

    def is_linear(self, low: Tensor, high: Tensor) -> Tensor:
        """Whether the function is linear on [low, high], so that nothing is left to split."""
        return high <= low

    def start(self, low: Tensor, high: Tensor) -> Tensor:
        """The parameter to begin with: the slope of the chord."""
        least, most = self.slopes(low, high)
        room = torch.where(most > least, most - least, torch.ones_like(least))
        return ((self.chord(low, high) - least) / room).clamp(0.0, 1.0)

    def lower_line(self, low: Tensor, high: Tensor, alpha: Tensor) -> Line:
        """``slope * z + intercept <= f(z)`` on [low, high]."""
        slope = self._slope(low, high, alpha)
        return slope, self._offsets(slope, low, high).amin(0)

    def upper_line(self, low: Tensor, high: Tensor, alpha: Tensor) -> Line:
        """``slope * z + intercept >= f(z)`` on [low, high]."""
        slope = self._slope(low, high, alpha)
        return slope, self._offsets(slope, low, high).amax(0)

    def image_error(self, low: Tensor, high: Tensor) -> Tensor:
        """How far `image` may be off, in the units of `qll.bounds.rounding` (at least 2^-46): what
        torch's functions lose (2^-44 of a value), the point of touching (the square of 2^-26 at
        most) and a handful of roundings, with room."""
        least, most = self.image(low, high)
        slope = torch.maximum(*(side.abs() for side in self.slopes(low, high)))
        reach = torch.maximum(low.abs(), high.abs())
        return 64.0 * (1.0 + torch.maximum(least.abs(), most.abs()) + (1.0 + slope) * reach)

    def line_error(self, low: Tensor, high: Tensor) -> Tensor:
        """The same of the lines, for a coefficient of 1."""
        return self.image_error(low, high)

    def split_point(self, low: Array, high: Array) -> Array:
        """Where two halves have the better relaxations: a bend well inside, else the middle."""
        middle = low + (high - low) / 2
        point = middle.copy()
        nearest = np.full_like(middle, 0.4)  # of the width, from the middle
        for bend in self.bends:
            away = np.abs(bend - middle) / np.maximum(high - low, 1e-300)
            point = np.where(away < nearest, bend, point)
            nearest = np.minimum(nearest, away)
        return point

    def _slope(self, low: Tensor, high: Tensor, alpha: Tensor) -> Tensor:
        least, most = self.slopes(low, high)
        return least + alpha * (most - least)

    def _offsets(self, slope: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """``f(t) - slope t`` at every t in [low, high] at which it may be least or largest."""
        inner = self.touching(slope.detach(), low.detach(), high.detach())
        if low.requires_grad or high.requires_grad:
            # A point at an end moves with it; one inside need not (the derivative there is 0).
            inner = [torch.where(t <= low, low, torch.where(t >= high, high, t)) for t in inner]
        points = [low, high, *inner]
        return torch.stack([self.apply(t) - slope * t for t in points])

    def touching(self, slope: Tensor, low: Tensor, high: Tensor) -> list[Tensor]:
        """Points of [low, high] where the derivative is ``slope``, one between each two bends (any
        other point where there is none)."""
        found = []
        for first, last in pairwise((-np.inf, *self.bends, np.inf)):
            left, right = low.clamp(first, last), high.clamp(first, last)
            rising = self.derivative(right) >= self.derivative(left)
            for _ in range(_HALVINGS):
                middle = (left + right) / 2
                after = (self.derivative(middle) < slope) == rising
                left, right = torch.where(after, middle, left), torch.where(after, right, middle)
            found.append(((left + right) / 2).clamp(low, high))
        return found


def torch_things(names: tuple[str, ...]) -> list[Any]:
    """What `in_torch` names: modules, functions, and methods by their name alone."""
    return [
        name.removeprefix("Tensor.") if name.startswith("Tensor.") else attrgetter(name)(torch)
        for name in names
    ]


def _pieces(z: Any, n: int, params: Any, value: Any, slope: Any) -> None:
    """From the value at the first kink on, by what the slope gains at each."""
    kinks = int(params[0])
    for i in range(n):
        x = z[i]
        total = params[2] + params[3] * (x - params[1])
        rise = x * 0.0 + params[3]
        for k in range(kinks):
            gain = params[4 + kinks + k]
            total = total + gain * np.maximum(x - params[4 + k], 0.0)
            rise = rise + np.where(x >= params[4 + k], gain, 0.0)
        value[i] = total
        slope[i] = rise


class PiecewiseLinear(Activation):
    """Linear between its kinks: every relaxation is exact arithmetic on slopes and kinks."""

    piecewise_linear = True

    @property
    @abstractmethod
    def pieces(self) -> tuple[float, ...]:
        """The slope before the first kink, between each two, and after the last."""

    def kernel(self) -> tuple[Callable[..., None], tuple[float, ...]]:
        first = self.bends[0] if self.bends else 0.0
        anchor = float(self.value(np.array([first]))[0])
        rises = (after - before for before, after in pairwise(self.pieces))
        return _pieces, (float(len(self.bends)), first, anchor, self.pieces[0], *self.bends, *rises)

    def derivative(self, z: Tensor) -> Tensor:
        slope = torch.full_like(z, self.pieces[0])
        for kink, after in zip(self.bends, self.pieces[1:], strict=True):
            slope = torch.where(z >= kink, torch.full_like(z, after), slope)
        return slope

    def slopes(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        ends = (-np.inf, *self.bends, np.inf)
        least, most = torch.full_like(low, np.inf), torch.full_like(low, -np.inf)
        for slope, (first, last) in zip(self.pieces, pairwise(ends), strict=True):
            met = (low < last) & (high > first)
            least = torch.where(met, least.clamp(max=slope), least)
            most = torch.where(met, most.clamp(min=slope), most)
        point = self.derivative(low)  # of an interval that is one point, on a kink
        return torch.where(least <= most, least, point), torch.where(least <= most, most, point)

    def is_linear(self, low: Tensor, high: Tensor) -> Tensor:
        least, most = self.slopes(low, high)
        return least == most

    def touching(self, slope: Tensor, low: Tensor, high: Tensor) -> list[Tensor]:
        return [torch.full_like(low, kink).clamp(low, high) for kink in self.bends]

    def split_point(self, low: Array, high: Array) -> Array:
        """The kink nearest to the middle of the interval."""
        middle = low + (high - low) / 2
        away = np.stack([np.abs(kink - middle) for kink in self.bends])
        result: Array = np.asarray(self.bends)[away.argmin(0)]
        return result


class Convex(Activation):
    """Lies below its chord and above its tangents: only these are worth taking."""

    def upper_line(self, low: Tensor, high: Tensor, alpha: Tensor) -> Line:
        slope = self.chord(low, high)
        return slope, self._offsets(slope, low, high).amax(0)
