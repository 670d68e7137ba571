"""How far an evaluation in IEEE float32 may be from the real network: a rigorous radius.

**The claim.** Every operator of the file is computed in float32, its sums in any order, with fused
multiply-adds or without, with gradual underflow and without overflow; wider accumulators and fused
bias additions do less rounding and are covered too. Convolutions by Winograd's method or by Fourier
transforms are not sums in another order: of them nothing is said.

**One affine map.** Let the operators between activations compute ``z`` from float32 values ``a``.
Every term of the unfolded sum is rounded at most K times on its way, so that (Higham, *Accuracy and
Stability of Numerical Algorithms*, 2002, sections 3.1 and 3.5)

    |computed z - z| <= r = gamma_K S,   gamma_K = K u / (1 - K u),   u = 2^-24,

where S is the sum of the sizes of all terms (`qll.bounds.rounding`). The additions of the last sum
on the way, h of the K roundings, each round a sum of some of its terms, which is at most M, the
larger of what its positive and its negative terms amount to, but for ``gamma_K S``: then

    r = gamma_{K - h} S + h u (M + gamma_K S),   M = (S + |D|) / 2,

with D the same sum of the terms themselves, at the ends of their ranges that are larger in size
(ranges that contain 0). A row of n terms and a bias
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

from qll.bounds.rounding import Rounding
from qll.networks.activations import RELU, Activation
from qll.networks.matrices import Array, Matrix, absolute, is_sparse
from qll.networks.program import Activate, AffineMap

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
        # By values: the most roundings of a term of each entry, and those that are additions of the
        # last sum. The input and activations have none.
        self._counts: list[Array] = [np.zeros(1)]
        self._sums: list[Array] = [np.zeros(1)]
        self.extra = dict[int, Array]()
        for index, step in enumerate(rounding.steps):
            if isinstance(step, Activate):
                self._counts.append(np.zeros(1))
                self._sums.append(np.zeros(1))
                continue
            before = max((self._counts[j].max(initial=0.0) for j, _ in step.terms), default=0.0)
            own, sums, self.extra[index] = _own_roundings(step)
            if not own.any() and len(step.terms) == 1:  # entries are moved
                ((source, matrix),) = step.terms
                wide = np.broadcast_to(self._sums[source], (matrix.shape[1],))
                sums = np.asarray(abs(matrix) @ wide)
            self._counts.append(before + own)
            self._sums.append(np.minimum(sums, before + own))

    @cached_property
    def _roundings(self) -> list[tuple[Array, Array, Array]]:
        """Of every layer, the output last: gamma of all roundings and of those before the last
        sum, and the additions of that sum."""
        found = []
        for layer, source in zip(self.form.layers, self.rounding.sources, strict=True):
            shape = (layer.width,)
            count, sums = (np.broadcast_to(t[source], shape) for t in (self._counts, self._sums))
            found.append((_gamma(count), _gamma(count - sums), sums))
        return found

    def _radius(self, k: int, size: Array, value: Array) -> Array:
        """Of a layer whose sums have these sizes and these values, (width, ...) each."""
        gamma, before, sums = (_column(t, size) for t in self._roundings[k])
        size = np.where(size < MOST, size, np.inf)
        most = (size + np.abs(value)) / 2 + gamma * size
        found = before * size + sums * UNIT * most
        return np.where(gamma == 0, 0.0, np.minimum(found, gamma * size))

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
                if isinstance(step, AffineMap):
                    sizes.append(self._size_of(index, step, sizes))
                    continue
                size = sizes[self.rounding.sources[layer]][:, 0]
                centre = self.form.layers[layer].bias
                rounded = self._radius(layer, size, size)
                spread = self.unit * size
                for source, weight in self.form.layers[layer].terms:
                    centre = centre + weight @ sides[source][0]
                    if sides[source][1].any():
                        spread = spread + abs(weight) @ sides[source][1] * (1 + LOST)
                ends = centre - spread, centre + spread
                spread = spread + rounded * (1 + LOST)
                low, high = _inward(centre - spread, centre + spread)
                # One rounding, and nothing else, is known: it is monotone.
                once = self._roundings[layer][0] == _gamma(np.ones(1))
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
        steps, sizes = self.rounding.steps, [_size(lower, upper).T]
        sides = [_leaning(lower, upper).T]  # of the sources: see D in the docstring
        errors: list[Any] = [None]  # of the activations, by layers; the input has none
        local, slopes, error = list[Any](), list[Any](), np.zeros((1, 1))
        layer = 0
        for index, step in enumerate((*steps, None)):
            if isinstance(step, AffineMap):
                sizes.append(self._size_of(index, step, sizes))
                continue
            size = sizes[self.rounding.sources[layer]]
            value = self.form.layers[layer].bias[:, None]
            for source, weight in self.form.layers[layer].terms:
                value = value + weight @ sides[source]
            radius = self._radius(layer, size, value)
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
            sizes.append(_size(*image))
            sides.append(_leaning(*image))
            layer += 1
        return local, slopes, error.T

    def _size_of(self, index: int, step: AffineMap, sizes: Sequence[Array]) -> Array:
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


def _gamma(count: Array) -> Array:
    with np.errstate(divide="ignore"):
        lost = count * UNIT
        return np.where(lost < 0.5, lost / (1.0 - lost), np.inf)


def _column(values: Array, like: Array) -> Array:
    return values if like.ndim == 1 else values[:, None]


def _size(low: Array, high: Array) -> Array:
    """What positive and negative values amount to together, at most."""
    return np.asarray(np.maximum(high, 0.0) - np.minimum(low, 0.0))


def _leaning(low: Array, high: Array) -> Array:
    """The same, their difference."""
    return np.asarray(np.maximum(high, 0.0) + np.minimum(low, 0.0))


def _times(rows: Array, radius: Array) -> Array:
    """(B, m, n) by (B, n); what has no weight has no share, however large it is."""
    products = np.where(rows == 0, 0.0, rows * radius[:, None])
    return np.asarray(products.sum(axis=2))


def _through(rows: Array, matrix: Matrix) -> Array:
    """(B, m, n) times (n, s)."""
    flat = rows.reshape(-1, rows.shape[2])
    product = (matrix.T @ flat.T).T if is_sparse(matrix) else flat @ matrix
    return np.asarray(product).reshape(*rows.shape[:2], matrix.shape[1])


def _own_roundings(step: AffineMap) -> tuple[Array, Array, Array]:
    """How often a term of each row is rounded at most, how many of these are additions with nothing
    after them, and what underflows count as."""
    addends = (step.bias != 0).astype(np.float64)
    products, wide = np.zeros(step.width), np.zeros(step.width)
    terms = np.zeros(step.width)
    for _, matrix in step.terms:
        addends += _count(matrix, lambda v: v != 0)
        terms += _count(matrix, lambda v: v != 0)
        products = np.maximum(products, _count(matrix, lambda v: (v != 0) & (np.abs(v) != 1)) > 0)
        wide = np.maximum(wide, _count(matrix, _is_wide) > 0)
    wide = np.maximum(wide, _is_wide(step.bias))
    sums = np.maximum(addends - 1, 0)
    own = sums + products + wide
    if step.divisor is not None:
        own, sums = own + DIVISOR, np.zeros_like(sums)
    return own, sums, UNDERFLOW * terms * products


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
    if bent == RELU:
        return (low > 0).astype(np.float64), (high >= 0).astype(np.float64), None
    import torch

    ends = (torch.from_numpy(np.ascontiguousarray(end)) for end in (low, high))
    least, most = (side.numpy() for side in bent.slopes(*ends))
    exact = all(slope in (0.0, 1.0, -1.0) for slope in bent.pieces)  # type: ignore[attr-defined]
    if exact:
        return least, most, None
    steep = np.maximum(np.abs(least), np.abs(most))
    size = np.maximum(np.abs(low), np.abs(high))
    return least, most, UNIT * steep * size * (1 + LOST) + 2.0**-149
