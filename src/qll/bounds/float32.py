"""How far an evaluation in IEEE float32 may be from the real network: a rigorous radius.

**The claim.** Every operator of the file is computed in float32, its sums in any order, with fused
multiply-adds or without, with gradual underflow and without overflow; wider accumulators and fused
bias additions do less rounding and are covered too. Convolutions by Winograd's method or by Fourier
transforms are not sums in another order: of them nothing is said.

**One affine map.** Let the operators between activations compute ``z`` from float32 values ``a``.
Every term of the unfolded sum is rounded at most K times on its way, so that (Higham, *Accuracy and
Stability of Numerical Algorithms*, 2002, sections 3.1 and 3.5)

    |computed z - z| <= r = gamma_K S,   gamma_K = K u / (1 - K u),   u = 2^-24,

where S is the sum of the sizes of all terms (`qll.bounds.rounding`). A row of n terms and a bias
has at most n additions and a product for each term; a row of entries +1 and -1 has no rounded
product, and a copy none at all. A divisor counts five: it may be rounded itself, be a rounded root
of a rounded sum, and be applied as a rounded reciprocal. What is stored in more than 24 bits counts
one more. A product that underflows is off by at most 2^-150 <= u 2^-126: in S it counts 2^-125.

**The network.** Between the real and the computed values an activation has a slope within those of
the real bounds widened by the error there, so the error of a row ``c`` of outputs is

    sum_k |L_k| r_k,   L_k in c W_L D_{L-1} W_{L-1} ... D_k,

with slopes D_k for all k at once. Rows of intervals (a centre and a radius) go back through the
layers; where all neurons are stable they are points. An activation with slopes besides 0, 1 and -1
rounds once more. All of this is computed in float64; what is lost by that is at most 2^-20 of the
error bound without any cancellation, ``|c| |W_L| |D_{L-1}| ...``, and is added.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch

from qll.bounds.rounding import Rounding
from qll.networks.activations import Activation
from qll.networks.matrices import Array, Matrix, absolute, is_sparse
from qll.networks.program import Activate, Affine

UNIT = 2.0**-24
# In a sum of sizes this covers a product that underflows, since every gamma is at least 2^-24.
UNDERFLOW = 2.0**-125
MOST = 2.0**126  # sums of sizes below it cannot overflow
DIVISOR = 5
# Of float64 against float32, with room: sums of fewer than 2^28 terms.
LOST = 2.0**-20


class Float32:
    """The radii of one network."""

    def __init__(self, rounding: Rounding) -> None:
        self.rounding = rounding
        self.form = rounding.form
        counts, self.extra = [0.0], dict[int, Array]()
        self._counts: list[Any] = []  # by values: the most roundings of a term of each entry
        for index, step in enumerate(rounding.steps):
            if isinstance(step, Activate):
                self._counts.append(np.zeros(1))
                counts.append(0.0)
                continue
            before = max((counts[source] for source, _ in step.terms), default=0.0)
            own, tiny = _own_roundings(step)
            self.extra[index] = tiny
            self._counts.append(before + own)
            counts.append(float(self._counts[-1].max(initial=0.0)))

    @cached_property
    def gammas(self) -> list[Array]:
        """Of every layer, the output last."""
        found = []
        for layer, source in zip(self.form.layers, self.rounding.sources, strict=True):
            own = self._counts[source - 1] if source else np.zeros(1)  # value 0 is the input
            count = np.broadcast_to(own, (layer.width,)) * UNIT
            with np.errstate(divide="ignore"):
                found.append(np.where(count < 0.5, count / (1.0 - count), np.inf))
        return found

    @cached_property
    def _absolute(self) -> list[list[tuple[int, Matrix]]]:
        return [[(j, absolute(w)) for j, w in layer.terms] for layer in self.form.layers]

    def radii(
        self, lower: Array, upper: Array, low: Sequence[Array], high: Sequence[Array], rows: Array
    ) -> Array:
        """(B, m): how far ``rows`` (m, outputs) of the computed outputs may be from those of the
        real network on each of B boxes (B, inputs), where ``low`` and ``high`` are bounds of the
        hidden layers, each (B, neurons). Infinite where nothing is known."""
        with np.errstate(all="ignore"):
            local, slopes, last = self._forward(lower, upper, low, high)
            plain = last @ np.abs(rows).T
            found = self._backward(rows, local, slopes) * (1 + LOST) + plain * LOST
        return np.where(np.isfinite(found), found, np.inf)

    def enclose(self, point: Array) -> tuple[Array, Array]:
        """Ends of what any evaluation gives at ``point`` (inputs,), both (outputs,). Computed
        values are float32 numbers: ends move inward to the next of these."""
        steps, layer = self.rounding.steps, 0
        sizes, sides = [np.abs(point)[:, None]], [(point, np.zeros_like(point))]
        with np.errstate(all="ignore"):
            for index, step in enumerate((*steps, None)):
                if isinstance(step, Affine):
                    sizes.append(self._size_of(index, step, sizes))
                    continue
                size = sizes[self.rounding.sources[layer]][:, 0]
                centre, gamma = self.form.layers[layer].bias, self.gammas[layer]
                rounded = np.where(gamma == 0, 0.0, gamma * np.where(size < MOST, size, np.inf))
                spread = self.unit * size
                for source, weight in self.form.layers[layer].terms:
                    centre = centre + weight @ sides[source][0]
                    if sides[source][1].any():
                        spread = spread + abs(weight) @ sides[source][1] * (1 + LOST)
                ends = centre - spread, centre + spread
                spread = spread + rounded * (1 + LOST)
                low, high = _inward(centre - spread, centre + spread)
                # One rounding, and nothing else, is known: it is monotone.
                once = gamma == UNIT / (1 - UNIT)
                low, high = (
                    np.where(once, end.astype(np.float32), wide)
                    for end, wide in zip(ends, (low, high), strict=True)
                )
                if step is None:
                    break
                bent = self.form.layers[layer].activation
                more = _bent(bent, low, high)[2]
                low, high = bent.enclose(low, high)
                if more is not None:
                    low, high = _inward(low - more, high + more)
                middle = low + (high - low) / 2
                radius = np.where(low == high, 0.0, np.maximum(high - middle, middle - low))
                sides.append((middle, radius * (1 + LOST)))
                sizes.append(np.maximum(np.abs(low), np.abs(high))[:, None])
                layer += 1
        known = np.isfinite(low) & np.isfinite(high)
        return np.where(known, low, -np.inf), np.where(known, high, np.inf)

    @property
    def unit(self) -> float:
        """What the sums of an enclosure lose in float64, of their sizes, fold included."""
        return 4.0 * self.rounding.longest * 2.0**-53

    def _forward(
        self, lower: Array, upper: Array, low: Sequence[Array], high: Sequence[Array]
    ) -> tuple[list[Any], list[Any], Array]:
        """Of every layer the radii (before and after its activation) and slopes, and the error of
        the outputs without cancellation, all (B, width)."""
        steps, sizes = self.rounding.steps, [np.maximum(np.abs(lower), np.abs(upper)).T]
        errors: list[Any] = [None]  # of the activations, by layers; the input has none
        local, slopes, error = list[Any](), list[Any](), np.zeros((1, 1))
        layer = 0
        for index, step in enumerate((*steps, None)):
            if isinstance(step, Affine):
                sizes.append(self._size_of(index, step, sizes))
                continue
            size = sizes[self.rounding.sources[layer]]
            radius = self.gammas[layer][:, None] * np.where(size < MOST, size, np.inf)
            radius = np.where(self.gammas[layer][:, None] == 0, 0.0, radius)
            error = radius
            for source, weight in self._absolute[layer]:
                if errors[source] is not None:
                    error = error + weight @ errors[source]
            if step is None:
                local.append((radius.T, None))
                break
            ends = low[layer].T - error, high[layer].T + error
            bent = self.form.layers[layer].activation
            least, most, more = _bent(bent, *ends)
            local.append((radius.T, None if more is None else more.T))
            slopes.append((least.T, most.T))
            steep = np.maximum(np.abs(least), np.abs(most))
            passed = np.where(steep == 0, 0.0, steep * error)
            errors.append(passed if more is None else passed + more)
            image = bent.enclose(*ends)
            sizes.append(np.maximum(np.abs(image[0]), np.abs(image[1])))
            layer += 1
        return local, slopes, error.T

    def _size_of(self, index: int, step: Affine, sizes: Sequence[Array]) -> Array:
        total = np.repeat((np.abs(step.bias) + self.extra[index])[:, None], sizes[0].shape[1], 1)
        for number, (source, matrix) in enumerate(step.terms):
            total += self.rounding._magnitude(index, number, matrix) @ sizes[source]
        if step.divisor is not None:
            total = total / np.abs(step.divisor)[:, None] + UNDERFLOW
        return total * (1 + LOST)

    def _backward(self, rows: Array, local: list[Any], slopes: list[Any]) -> Array:
        boxes = len(local[-1][0])
        total = local[-1][0] @ np.abs(rows).T
        centre = np.broadcast_to(rows, (boxes, *rows.shape))
        flowing: dict[int, Any] = {}
        spread: Any = None
        for k in range(len(self.form.layers), 0, -1):
            if k < len(self.form.layers):
                if k not in flowing:
                    continue
                centre, spread = flowing.pop(k)
                radius, after = local[k - 1]
                if after is not None:
                    total = total + _times(np.abs(centre) + spread, after)
                ends = centre - spread, centre + spread
                corners = [end * slope[:, None] for end in ends for slope in slopes[k - 1]]
                least, most = np.minimum.reduce(corners), np.maximum.reduce(corners)
                centre, spread = (least + most) / 2, (most - least) / 2
                total = total + _times(np.abs(centre) + spread, radius)
            if k == 1:
                break
            signed = dict(self.form.layers[k - 1].terms)
            for source, size in self._absolute[k - 1]:
                if source == 0:
                    continue
                here = _through(centre, signed[source])
                room = 0.0 if spread is None else _through(spread, size)
                before = flowing.get(source)
                if before is not None:
                    here, room = here + before[0], room + before[1]
                flowing[source] = here, room
        return np.asarray(total)


def above(value: Array) -> Array:
    """The least float32 number that is not less."""
    nearest = value.astype(np.float32)
    low = nearest.astype(np.float64) < value
    return np.where(low, np.nextafter(nearest, np.float32(np.inf)), nearest).astype(np.float64)


def _inward(low: Array, high: Array) -> tuple[Array, Array]:
    return above(low), -above(-high)


def _times(rows: Array, radius: Array) -> Array:
    """(B, m, n) by (B, n); what has no weight has no share, however large it is."""
    products = np.where(rows == 0, 0.0, rows * radius[:, None])
    return np.asarray(products.sum(axis=2))


def _through(rows: Array, matrix: Matrix) -> Array:
    """(B, m, n) times (n, s)."""
    flat = rows.reshape(-1, rows.shape[2])
    product = (matrix.T @ flat.T).T if is_sparse(matrix) else flat @ matrix
    return np.asarray(product).reshape(*rows.shape[:2], -1)


def _own_roundings(step: Affine) -> tuple[Array, Array]:
    """How often a term of each row is rounded at most, and what its underflows count as."""
    addends = (step.bias != 0).astype(np.float64)
    products, wide = np.zeros(step.width), np.zeros(step.width)
    terms = np.zeros(step.width)
    for _, matrix in step.terms:
        addends += _count(matrix, lambda v: v != 0)
        terms += _count(matrix, lambda v: v != 0)
        products = np.maximum(products, _count(matrix, lambda v: (v != 0) & (np.abs(v) != 1)) > 0)
        wide = np.maximum(wide, _count(matrix, _is_wide) > 0)
    wide = np.maximum(wide, _is_wide(step.bias))
    own = np.maximum(addends - 1, 0) + products + wide
    if step.divisor is not None:
        own = own + DIVISOR
    return own, UNDERFLOW * terms * products


def _is_wide(values: Array) -> Any:
    """Numbers that are not float32."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32).astype(np.float64) != values


def _count(matrix: Matrix, what: Any) -> Array:
    """Entries of each row that are so; absent ones of a sparse matrix are 0."""
    if not is_sparse(matrix):
        return np.asarray(what(matrix).sum(axis=1), dtype=np.float64)
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    found = np.bincount(rows, what(matrix.data).astype(np.float64), matrix.shape[0])
    return np.asarray(found, dtype=np.float64)


def _bent(bent: Activation, low: Array, high: Array) -> tuple[Array, Array, Array | None]:
    """The least and the largest slope between the ends, and what its own rounding adds."""
    ends = (torch.from_numpy(np.ascontiguousarray(end)) for end in (low, high))
    least, most = (side.numpy() for side in bent.slopes(*ends))
    exact = all(slope in (0.0, 1.0, -1.0) for slope in bent.pieces)  # type: ignore[attr-defined]
    if exact:
        return least, most, None
    steep = np.maximum(np.abs(least), np.abs(most))
    size = np.maximum(np.abs(low), np.abs(high))
    return least, most, UNIT * steep * size * (1 + LOST) + 2.0**-149
