"""Rigorous replay of a point on the stored weights: what the network's value really is there.

A network is its real-arithmetic function with the stored numbers taken exactly (see ``program``).

**Enclosure.** Every value is carried as a centre ``c`` and a radius ``r`` with ``|v - c| <= r``, in
float64 with unit roundoff ``u = 2^-53``. For an affine step ``w = b + sum_j M_j v_j`` whose rows
have at most ``K`` products, the computed centre ``c' = fl(b + sum_j M_j c_j)`` obeys, in whatever
order the additions are done and with or without fused multiply-add (Higham, *Accuracy and
Stability*, section 3.1),

    |c' - (b + sum M c)| <= gamma (|b| + sum |M| |c|) + (K + 1) eta,

where ``gamma = (K+1) u / (1 - (K+1) u)`` and ``eta = 2^-1074`` covers products that underflow.
With ``|M (v - c)| <= |M| r`` therefore

    |w - c'| <= rho := sum |M| (r + gamma |c|) + gamma |b| + (K + 1) eta.

``rho`` itself is computed with rounding: it is a sum of non-negative products, so the computed
value is at least ``1 - gamma'`` times the true one, with ``gamma'`` for ``K + 6`` operations. We
use one ``g = 1.01 (K + 16) u`` for both and return ``fl(rho (1 + 2 g)) + (K + 1) 2^-1000``; since
``(1 - g)(1 + 2g)(1 - u)^4 >= 1`` for ``16 u <= g <= 1/4``, that is an upper bound. A quotient by
the exact ``d`` adds the rounding of one division, ``u |q|``. ReLU is 1-Lipschitz, so it keeps the
radius, and where ``c <= -r`` the value is exactly 0; any other activation encloses its image of the
interval itself. The ends ``c - r`` and ``c + r`` are rounded
outwards. Anything that is not finite ends as the whole line, which is always true.

The analysis needs gradual underflow; a process that flushes denormals (as after
``torch.set_flush_denormal``) gets the whole line too, and so the exact path.

**Exact.** Vectors of integers over one common denominator: no rounding at all, and slow; where all
activations are piecewise linear.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np

from qll import limits
from qll.errors import InputError
from qll.networks.activations import RELU, Activation
from qll.networks.matrices import Array, Matrix, absolute, entries, longest_row, rows_of
from qll.networks.program import Activate, AffineMap, Program

UNIT = 2.0**-53
TINY = 2.0**-1000  # far above anything lost to underflow, far below any value of interest
MAX_G = 0.25
EXACT_BYTES = 120  # of an entry: a Python float, two integers and their places in lists


class HasProgram(Protocol):
    @property
    def program(self) -> Program: ...


def enclose(network: HasProgram, x: Array) -> tuple[Array, Array]:
    """Lower and upper ends, each (outputs,), or (points, outputs) for several points, of float64
    intervals that contain the exact outputs at the exact ``x``."""
    return Enclosure(network.program)(x)


def evaluate_exact(network: HasProgram, x: Array) -> tuple[Fraction, ...]:
    """The outputs at one point as fractions."""
    return ExactReplay(network.program)(x)


@dataclass(frozen=True, eq=False)
class _Prepared:
    """An affine step with what its bound needs: ``|M|``, ``g |b|`` and the underflow allowance."""

    terms: tuple[tuple[int, Matrix, Matrix], ...]  # source, M, |M|
    bias: Array
    g: float
    slack: Array  # g |b| + (K + 1) TINY
    divisor: Array | None


class Enclosure:
    """Prepared once for a program; a call costs two matrix products a layer."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._steps = [
            step if isinstance(step, Activate) else _prepare(step) for step in program.steps
        ]

    def __call__(self, x: Array, radius: Array | None = None) -> tuple[Array, Array]:
        """At ``x``, or at every point within ``radius`` of it, entry by entry."""
        points = _points(x, self._program.widths[0], single=False)
        if not _gradual_underflow() or not np.all(np.isfinite(points)):
            return self._whole_line(points)
        around = np.zeros_like(points) if radius is None else radius.reshape(points.shape)
        with np.errstate(all="ignore"):
            lower, upper = self._run(points, around)
        known = np.isfinite(lower) & np.isfinite(upper)
        return np.where(known, lower, -np.inf), np.where(known, upper, np.inf)

    def _run(self, points: Array, around: Array) -> tuple[Array, Array]:
        # (entries,) for one point, (entries, points) for several: CSR wants the batch last.
        centres = [points.T]
        radii = [around.T]
        for step in self._steps:
            if isinstance(step, Activate):
                c, r = _through(step.function, centres[step.source], radii[step.source])
                centres.append(c)
                radii.append(r)
            else:
                c, r = _affine(step, centres, radii)
                centres.append(c)
                radii.append(r)
        c, r = centres[-1], radii[-1]
        return np.nextafter(c - r, -np.inf).T, np.nextafter(c + r, np.inf).T

    def _whole_line(self, points: Array) -> tuple[Array, Array]:
        shape = (*points.shape[:-1], self._program.widths[-1])
        return np.full(shape, -np.inf), np.full(shape, np.inf)


def _prepare(step: AffineMap) -> _Prepared:
    products = sum(longest_row(matrix) for _, matrix in step.terms)
    g = 1.01 * (products + 16) * UNIT
    if g > MAX_G:  # 2^49 products: out of reach of MAX_ENTRIES
        raise InputError(
            "a sum is too long to bound its rounding error",
            expected=f"at most {int(MAX_G / UNIT)} products",
            found=str(products),
            fix="use a smaller network",
        )
    limits.check()
    limits.need(sum(12 * entries(matrix).size for _, matrix in step.terms), "an enclosure")
    terms = tuple((source, matrix, absolute(matrix)) for source, matrix in step.terms)
    slack = g * np.abs(step.bias) + (products + 1) * TINY
    return _Prepared(terms, step.bias, g, slack, step.divisor)


def _affine(step: _Prepared, centres: list[Array], radii: list[Array]) -> tuple[Array, Array]:
    points = centres[0].shape[1:]

    def spread(vector: Array) -> Array:
        return vector[:, None] if points else vector

    centre = np.broadcast_to(spread(step.bias), (step.bias.size, *points)).copy()
    radius = np.broadcast_to(spread(step.slack), centre.shape).copy()
    for source, matrix, magnitude in step.terms:
        centre += matrix @ centres[source]
        radius += magnitude @ (radii[source] + step.g * np.abs(centres[source]))
    radius *= 1.0 + 2.0 * step.g
    radius += TINY
    if step.divisor is not None:
        divisor = spread(step.divisor)
        centre = centre / divisor
        radius = (radius / np.abs(divisor) + 4.0 * UNIT * np.abs(centre)) * (1.0 + 16.0 * UNIT)
        radius += TINY
    return centre, radius


def _through(function: Activation, centre: Array, radius: Array) -> tuple[Array, Array]:
    if function == RELU:
        return np.maximum(centre, 0.0), np.where(centre <= -radius, 0.0, radius)
    ends = np.nextafter(centre - radius, -np.inf), np.nextafter(centre + radius, np.inf)
    low, high = function.enclose(*ends)
    middle = low + (high - low) / 2
    return middle, np.nextafter(np.maximum(high - middle, middle - low), np.inf)


def _exactly(function: Activation, numbers: list[int], below: int) -> tuple[list[int], int]:
    if function == RELU:
        return [max(n, 0) for n in numbers], below
    found = [function.exact(Fraction(n, below)) for n in numbers]
    common = math.lcm(*(v.denominator for v in found))
    return [v.numerator * (common // v.denominator) for v in found], common


def _gradual_underflow() -> bool:
    smallest = np.array([5e-324])
    return bool((smallest * 1.0 + 0.0 > 0.0)[0])


class ExactReplay:
    """Integers over a common denominator, converted from the stored weights once."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._steps = [
            step if isinstance(step, Activate) else _IntegerStep(step) for step in program.steps
        ]

    def __call__(self, x: Array) -> tuple[Fraction, ...]:
        point = _points(x, self._program.widths[0], single=True)
        return self.at([Fraction(v) for v in point.tolist()])

    def at(self, point: Sequence[Fraction]) -> tuple[Fraction, ...]:
        """The outputs at a point that floats may not have."""
        below = math.lcm(*(v.denominator for v in point))
        values = [([v.numerator * (below // v.denominator) for v in point], below)]
        for step in self._steps:
            if isinstance(step, Activate):
                values.append(_exactly(step.function, *values[step.source]))
            else:
                values.append(step.apply(values))
        numbers, denominator = values[-1]
        return tuple(Fraction(n, denominator) for n in numbers)


class _IntegerStep:
    def __init__(self, step: AffineMap) -> None:
        self.bias = _over_common_denominator(step.bias.tolist())
        self.divisor = None if step.divisor is None else _fractions(step.divisor.tolist())
        self.terms = []
        for source, matrix in step.terms:
            limits.check()
            limits.need(EXACT_BYTES * entries(matrix).size, "an exact replay")
            rows = rows_of(matrix)
            scale = 1
            for _, row in rows:  # floats are dyadic: the common denominator is the largest
                limits.check()
                scale = max(scale, max((v.as_integer_ratio()[1] for v in row), default=1))
            integer_rows = []
            for columns, row in rows:
                limits.check()
                ratios = (v.as_integer_ratio() for v in row)
                integer_rows.append((columns, [n * (scale // d) for n, d in ratios]))
            self.terms.append((source, integer_rows, scale))

    def apply(self, values: list[tuple[list[int], int]]) -> tuple[list[int], int]:
        bias, bias_scale = self.bias
        scales = [scale * values[source][1] for source, _, scale in self.terms]
        common = math.lcm(bias_scale, *scales)
        total = [b * (common // bias_scale) for b in bias]
        for (source, rows, _), scale in zip(self.terms, scales, strict=True):
            vector, lift = values[source][0], common // scale
            for i, (columns, weights) in enumerate(rows):
                limits.check()
                product = sum(w * vector[k] for k, w in zip(columns, weights, strict=True))
                total[i] += product * lift
        if self.divisor is None:
            return total, common
        # n / common / (p / q) = n q / (common p); one denominator for all: lcm of the p.
        shared = math.lcm(*(d.numerator for d in self.divisor))
        lifted = [
            n * d.denominator * (shared // d.numerator)
            for n, d in zip(total, self.divisor, strict=True)
        ]
        return lifted, common * shared


def _fractions(values: list[float]) -> list[Fraction]:
    return [Fraction(v) for v in values]


def _over_common_denominator(values: list[float]) -> tuple[list[int], int]:
    """Floats are dyadic, so the common denominator is simply the largest."""
    ratios = [v.as_integer_ratio() for v in values]
    common = max((d for _, d in ratios), default=1)
    return [n * (common // d) for n, d in ratios], common


def _points(x: Array, size: int, *, single: bool) -> Array:
    points = np.asarray(x, dtype=np.float64)
    if points.size == size:
        flat = points.reshape(-1)
        if not single and points.ndim == 2 and points.shape == (1, size):
            return points
        if single and not np.all(np.isfinite(flat)):
            raise InputError(
                "the point is not finite",
                expected="finite numbers",
                found="NaN or infinity",
                fix="pass a point of the region",
            )
        return flat
    if not single and points.ndim >= 2 and points[0].size == size:
        return points.reshape(points.shape[0], size)
    raise InputError(
        "the point does not fit the network",
        expected=f"{size} numbers" + ("" if single else ", or one row of them per point"),
        found=f"shape {points.shape}",
        fix="pass a point of the network's input shape",
    )
