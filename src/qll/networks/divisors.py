"""Divisors and arguments of roots: layers for what is known to stay away from 0."""

from __future__ import annotations

from qll.errors import NetworkError
from qll.networks.activations.power import Power
from qll.networks.layers import Apply, Layer, Sum
from qll.networks.layers.base import Range

LEAST = 2.0**-60  # nearer to 0 a quotient has no digits left


def inverse(known: Range) -> list[Layer]:
    """The layers of ``1 / x``, one after the other, for x in this range."""
    low, high = known
    if low >= LEAST:
        return [Apply(Power(-1.0, low))]
    if high <= -LEAST:
        return [Sum((-1,)), Apply(Power(-1.0, -high)), Sum((-1,))]
    raise _near_zero("a divisor", known)


def root(known: Range) -> list[Layer]:
    """The layers of ``sqrt(x)``."""
    if known[0] >= LEAST:
        return [Apply(Power(0.5, known[0]))]
    raise _near_zero("what a root is taken of", known)


def _near_zero(what: str, known: Range) -> NetworkError:
    return NetworkError(
        f"{what} depends on the input and may be 0",
        expected=f"a value that is at least {LEAST:.0e} away from 0 whatever the input, "
        "as exp(x) + 1 or x * x + 1e-5",
        found=f"one between {known[0]:g} and {known[1]:g}",
        fix="add a constant to it, or clamp it, as numerically safe code does",
    )
