"""Activations other than ReLU: rigorous values, and what a linear function leaves of them.

**Values.** Everything is made of additions, multiplications and divisions of floats and a scaling
by powers of two, so that its error can be stated. With u = 2^-53:

* exp(x), |x| <= 700: x = k log 2 + r with |r| <= 0.35, r off by at most 2u; fifteen terms of the
  series leave less than 2^-62, Horner's scheme errs by at most 2 * 15 u of the sum of sizes, which
  is at most twice the value: together below 2^-45 of the value. Beyond, 0 or infinity is on one
  side, and the value at +-700 on the other.
* sigmoid and tanh are quotients of 1 and t = exp(-|z|) or exp(-2|z|), at most 1: below 2^-42.
* log(1 + t) for t in [0, 1] is ``2 atanh(s)``, s = t / (2 + t) <= 1/3: positive terms, of which 24
  leave less than 2^-75 of the value.
* The normal distribution by ``erf(x) = 2 x / sqrt(pi) exp(-x^2) sum (2 x^2)^n / (2n+1)!!``,
  positive terms, until all that follow are below 2^-60 of the sum (for x <= 6.1 at the 220th at the
  latest). Beyond, it is within 2^-56 of 1. The rounding of x^2 <= 37 moves exp by 2^-46 of itself
  at most.

* Squares, reciprocals and roots are a few correctly rounded operations: below 2^-50 of the value.
  Below its ``floor`` a power goes on along its tangent there: a value that is never below may be
  taken to be what it likes there, and so has bounds though an interval reaches too far.

So every value v and derivative at z is within ``ERROR (1 + |z| + |v|)`` of the true one, and of a
*relative* curve within ``ERROR |v|``; ERROR is 2^-38, which leaves room for the handful of
operations in between.

**What a line leaves.** For any A and B, ``A f(z) >= B z + c`` on [l, u] if c is at most the least
value there of ``g(z) = A f(z) - B z``. Between two bends f is convex or concave: where A f is
concave, g is least at an end; where it is convex, g lies above its tangent at any point m, whose
least value is at an end too. Bends of GELU and SiLU are irrational and stored to 2^-50: f is so
flat there that it is within 2^-90 of a function that bends where it is stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from qll.audit.exact import Array
from qll.audit.onnx_file import require

ERROR, TINY = 2.0**-38, 2.0**-500
_LOG2_HIGH, _LOG2_LOW = 0.6931471803691238, 1.9082149292705877e-10  # the first has 33 bits


def _exp(x: Array) -> Array:
    x = np.clip(x, -700.0, 700.0)
    k = np.rint(x * 1.4426950408889634)
    r = (x - k * _LOG2_HIGH) - k * _LOG2_LOW
    total = np.ones_like(r)
    for i in range(15, 0, -1):
        total = total * r / i + 1.0
    return np.ldexp(total, k.astype(np.int64))


def _sigmoid(z: Array) -> Array:
    t = _exp(-np.abs(z))
    return np.where(z >= 0, 1.0, t) / (1.0 + t)


def _sigmoid_slope(z: Array) -> Array:
    t = _exp(-np.abs(z))
    return t / (1.0 + t) / (1.0 + t)


def _tanh(z: Array) -> Array:
    t = _exp(-2.0 * np.abs(z))
    return np.sign(z) * (1.0 - t) / (1.0 + t)


def _log1p(t: Array) -> Array:
    s = t / (2.0 + t)
    total, square = np.zeros_like(s), s * s
    for i in range(24, -1, -1):
        total = total * square + 1.0 / (2 * i + 1)
    return 2.0 * s * total


def _softplus(z: Array) -> Array:
    return np.maximum(z, 0.0) + _log1p(_exp(-np.abs(z)))


def _normal(z: Array) -> Array:
    """The share of the normal distribution below z."""
    x = np.minimum(np.abs(z) * 0.7071067811865476, 6.1)
    double = 2.0 * x * x
    total = term = np.ones_like(x)
    for n in range(1, 220):
        term = term * double / (2 * n + 1)
        total = total + term
        # From here on each term is at most half of the one before.
        if (2.0 * double < 2 * n + 3).all() and (term <= 2.0**-60 * total).all():
            break
    half = 0.5641895835477563 * x * _exp(-x * x) * total  # erf / 2
    return 0.5 + np.sign(z) * np.minimum(half, 0.5)


def _density(z: Array) -> Array:
    return 0.3989422804014327 * _exp(-0.5 * z * z)


@dataclass(frozen=True)
class Curve:
    """``bends`` are where the derivative stops rising or falling, in order; ``first_convex`` says
    what it is before the first. ``least`` is below the value at the only turn, if there is one."""

    value: Callable[[Array], Array]
    slope: Callable[[Array], Array]
    bends: tuple[float, ...] = ()
    first_convex: bool = True
    turn: tuple[float, float] | None = None  # between these, and where the value is least
    least: float = 0.0
    rough: bool = False  # piecewise linear: the slope jumps at the bends
    convex: bool = False  # on the whole line: above it only the chord is worth taking
    exact: Callable[[Fraction], Fraction] | None = None
    most: float = np.inf  # beyond, a value is no longer finite
    above: float = -np.inf  # not defined below
    relative: bool = False  # values err by a part of themselves alone

    def error(self, z: Array, value: Array) -> Array:
        return ERROR * (np.abs(value) + (TINY if self.relative else 1.0 + np.abs(z)))

    def ends(self, low: Array, high: Array) -> tuple[Array, Array]:
        """Outward ends of the values on [low, high]."""
        require((high <= self.most).all(), "an activation that is too large")
        require((low >= self.above).all(), "a divisor or a root that comes too near to 0")
        a, b = self.value(low), self.value(high)
        least = np.minimum(a - self.error(low, a), b - self.error(high, b))
        most = np.maximum(a + self.error(low, a), b + self.error(high, b))
        if self.turn is not None:
            least = np.where((low <= self.turn[1]) & (high >= self.turn[0]), self.least, least)
        return least, most

    def slopes(self, low: Array, high: Array) -> tuple[Array, Array]:
        """About the least and the largest derivative: a choice, of which nothing depends."""
        # At a kink: what it is inside the interval.
        last = np.nextafter(high, -np.inf) if self.rough else high
        found = [self.slope(low), self.slope(last)]
        for bend in self.bends:
            inside = (low < bend) & (bend < high)
            for side in (bend, np.nextafter(bend, -np.inf)) if self.rough else (bend,):
                found.append(np.where(inside, self.slope(np.full_like(low, side)), found[0]))
        return np.minimum.reduce(found), np.maximum.reduce(found)

    @property
    def has_slopes(self) -> bool:
        """Whether `between` is known: of what is piecewise linear, and of smooth curves that rise
        everywhere."""
        return self.rough or (self.turn is None and not self.relative)

    def between(self, low: Array, high: Array) -> tuple[Array, Array]:
        """Outward ends of ``(f(b) - f(a)) / (b - a)`` for a and b in [low, high]."""
        if self.rough:
            first, last = self.bends[0], self.bends[-1]
            ends = [first - 1.0 - abs(first), *self.bends, last + 1.0 + abs(last)]
            pieces = [float(self.slope(np.array((a + b) / 2))) for a, b in pairwise(ends)]
            met = np.logical_or.reduce([(low <= bend) & (high >= bend) for bend in self.bends])
            own = self.slope(low)
            return np.where(met, min(pieces), own), np.where(met, max(pieces), own)
        require((high <= self.most).all(), "an activation that is too large")
        found = [self.slope(low), self.slope(high)]
        for bend in self.bends:  # between two of them the derivative rises or falls
            inside = (low < bend) & (bend < high)
            found.append(np.where(inside, self.slope(np.full_like(low, bend)), found[0]))
        least, most = np.minimum.reduce(found), np.maximum.reduce(found)
        error = ERROR * (1.0 + np.maximum(np.abs(low), np.abs(high)) + most)
        return np.maximum(least - error, 0.0), most + error

    def chord(self, low: Array, high: Array) -> Array:
        wide = high - low > 1e-6 * (1.0 + np.abs(low) + np.abs(high))
        run = np.where(wide, high - low, 1.0)
        middle = self.slope(low + (high - low) / 2)
        return np.where(wide, (self.value(high) - self.value(low)) / run, middle)

    def floor(self, a: Array, b: Array, low: Array, high: Array) -> Array:
        """At most ``a f(z) - b z`` for every z in [low, high], rounding and all."""
        shape = np.broadcast_shapes(a.shape, b.shape, low.shape)
        a, b, low, high = (np.broadcast_to(t, shape) for t in (a, b, low, high))
        reach = np.maximum(np.abs(low), np.abs(high))
        found, convex = np.full(shape, np.inf), self.first_convex
        for first, last in pairwise((-np.inf, *self.bends, np.inf)):
            left, right = np.clip(low, first, last), np.clip(high, first, last)
            met = (low <= last) & (high >= first)
            at_ends = [a * self.value(t) - b * t for t in (left, right)]
            least = np.minimum(*at_ends)
            if not self.rough:
                m = self._flat(a, b, left, right)
                slope = a * self.slope(m) - b
                tangent = a * self.value(m) - b * m
                tangent = tangent + np.minimum(slope * (left - m), slope * (right - m))
                least = np.where((a >= 0) == convex, tangent, least)
            found = np.where(met, np.minimum(found, least), found)
            convex = not convex
        values = np.abs(self.value(low)) + np.abs(self.value(high))
        if self.relative:  # of the tangent, too: it is steepest at an end
            steep = np.abs(self.slope(low)) + np.abs(self.slope(high))
            values = values + steep * (high - low) + TINY
        else:
            values = (values + 1.0 + reach) * (1.0 + high - low)
        size = np.abs(a) * values + np.abs(b) * reach
        return np.asarray(np.nextafter(found - 8.0 * ERROR * size, -np.inf))

    def _flat(self, a: Array, b: Array, left: Array, right: Array) -> Array:
        """About where ``a f - b z`` is least between two bends; any point there would do."""
        rising = a * (self.slope(right) - self.slope(left)) >= 0
        for _ in range(28):
            middle = left + (right - left) / 2
            after = (a * self.slope(middle) < b) == rising
            left, right = np.where(after, middle, left), np.where(after, right, middle)
        return np.asarray(left + (right - left) / 2)


def _leaky(slope: float) -> Curve:
    return Curve(
        lambda z: np.where(z >= 0, z, slope * z),
        lambda z: np.where(z >= 0, 1.0, slope),
        (0.0,),
        turn=(0.0, 0.0) if slope < 0 else None,
        rough=True,
        exact=lambda z: z if z >= 0 else Fraction(slope) * z,
    )


def _clip(lower: float, upper: float) -> Curve:
    require(lower < upper, "a clip without room")

    def exact(z: Fraction) -> Fraction:
        above = Fraction(lower) if z < lower else z  # comparisons with infinity hold
        return Fraction(upper) if z > upper else above

    return Curve(
        lambda z: np.clip(z, lower, upper),
        lambda z: np.where((z >= lower) & (z < upper), 1.0, 0.0),
        tuple(end for end in (lower, upper) if np.isfinite(end)),
        rough=True,
        exact=exact,
    )


def _power(exponent: float, floor: float, strict: bool = False) -> Curve:
    """``z ** exponent`` from the floor on, its tangent there before; ``strict``: nothing before."""
    require(exponent in (-1.0, -0.5, 0.5) and 0.0 < floor < np.inf, "such a power")

    def of(z: Array) -> Array:
        root = z if exponent == -1.0 else np.sqrt(z)
        return root if exponent > 0 else 1.0 / root

    def value(z: Array) -> Array:
        # One sign in all terms, or a single difference: no digits are lost.
        steep = of(np.full(1, floor)) / floor
        along = ((1.0 - exponent) * floor + exponent * z) * steep
        return np.where(z >= floor, of(np.maximum(z, floor)), along)

    def slope(z: Array) -> Array:
        inside = np.maximum(z, floor)
        return exponent * of(inside) / inside

    return Curve(
        value,
        slope,
        first_convex=exponent < 0,
        convex=exponent < 0,
        above=floor if strict else -np.inf,
        relative=True,
    )


_KNOWN: dict[str, Callable[..., Curve]] = {
    "leaky-relu": _leaky,
    "clip": _clip,
    "abs": lambda: Curve(
        np.abs,
        lambda z: np.where(z >= 0, 1.0, -1.0),
        (0.0,),
        turn=(0.0, 0.0),
        rough=True,
        convex=True,
        exact=abs,
    ),
    "power": _power,
    "square": lambda: Curve(
        lambda z: z * z, lambda z: 2.0 * z, turn=(0.0, 0.0), convex=True, relative=True
    ),
    "sigmoid": lambda: Curve(_sigmoid, _sigmoid_slope, (0.0,)),
    "tanh": lambda: Curve(_tanh, lambda z: 4.0 * _sigmoid_slope(2.0 * z), (0.0,)),
    "softplus": lambda: Curve(_softplus, _sigmoid, convex=True),
    "exp": lambda: Curve(_exp, _exp, most=700.0, convex=True),
    "gelu": lambda: Curve(
        lambda z: z * _normal(z),
        lambda z: _normal(z) + z * _density(z),
        (-1.4142135623730951, 1.4142135623730951),
        first_convex=False,
        turn=(-0.752, -0.751),
        least=-0.17005,
    ),
    # A parabola between two lines: whichever way these are said to bend.
    "hardswish": lambda: Curve(
        lambda z: z * np.clip(z + 3.0, 0.0, 6.0) / 6.0,
        lambda z: np.where(z < -3.0, 0.0, np.where(z > 3.0, 1.0, (2.0 * z + 3.0) / 6.0)),
        (-3.0, 3.0),
        first_convex=False,
        turn=(-1.5, -1.5),
        least=-0.375,
    ),
    "silu": lambda: Curve(
        lambda z: z * _sigmoid(z),
        lambda z: _sigmoid(z) + z * _sigmoid_slope(z),
        (-2.399357280515468, 2.399357280515468),
        first_convex=False,
        turn=(-1.279, -1.278),
        least=-0.27847,
    ),
}


@cache  # so that the same activation of two networks is one
def curve(name: str, *given: Any) -> Curve:
    require(name in _KNOWN, f"activation {name} is not understood")
    return _KNOWN[name](*given)
