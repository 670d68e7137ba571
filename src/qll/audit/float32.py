"""What IEEE float32 may make of a network: radii around its real values, and grids of numbers.

A claim in float32 is about every evaluation of the file's operators in that arithmetic, rounded to
nearest, with gradual underflow: sums in any order, products fused with additions or not, partial
results kept in more bits or not. It is about float32 inputs of the region. The tree of a proof is
about the real network all the same; only what its leaves show has to hold by the radius of the
leaf's box.

**One map.** `qll.audit.network` keeps for every entry of a map how often a term of its unfolded sum
is rounded at most (its *count* K) and the sum of sizes of all terms (its *size* S, an affine map of
the sizes of the state). Computed and exact value of one map of the same float32 state differ by

    r = gamma_K S,    gamma_K = K u / (1 - K u),    u = 2^-24

at most (Higham 2002, sections 3.1 and 3.5). Of the K roundings h are additions of the last sum,
each of some of its terms. If values are between -N and P, with S taken of N + P and D the map
itself of P - N, then no such sum exceeds ``M = (S + |D|) / 2``, but for gamma_K S, and

    r = gamma_{K - h} S + h u (M + gamma_K S).

A product that underflows is off by 2^-150 at most: it counts 2^-125 in S, and K is at least 1. No
sum overflows where S < 2^126.

**All maps.** Let e be the error of the state, zero for the input. Before the activation of map k it
is at most ``e_k = r_k + |W_k| e``; the activation has, between the real and the computed value, a
slope within those on the bounds widened by e_k (and rounds once more if it multiplies). With W_k
and these slopes D the error of a row c of outputs is a sum of products ``c W D W ... D r_k``: rows
of intervals are taken back through the maps. What floats of 53 bits lose on the way is less than
2^-20 of ``|c| e`` for sums of fewer than 2^28 terms; ten times that is added.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np

from qll.audit.bounds import Bounder, _image, _middle
from qll.audit.network import Array, Network, NotConfirmed, require

UNIT, MOST, ROOM = 2.0**-24, 2.0**126, 10 * 2.0**-20
LARGEST = 0x7F7FFFFF  # the bits of the largest float32


class Errors:
    def __init__(self, network: Network) -> None:
        require(network.roundings is not None, "a network that is not read for float32")
        self.network, self.bounder = network, Bounder(network)
        self.sizes = [each.size.blocks(network.starts) for each in network.roundings or ()]
        self.counts = [each.count for each in network.roundings or ()]
        self.sums = [each.sums for each in network.roundings or ()]
        require(all(c.max(initial=0) < 1 << 20 for c in self.counts), "sums that are too long")
        for bent in network.curves:
            if bent is not None and not bent.rough:
                raise NotConfirmed("an activation of which the float32 error is not known")

    def _radius(self, k: int, ends: tuple[list[Any], list[Any]]) -> Array:
        """Of map k for a state between these ends, the upper ones first."""
        (blocks, bias), (signed, value) = self.sizes[k], self.network.floats[k]
        above = [np.maximum(end, 0) for end in ends[0]]
        below = [np.maximum(-end, 0) for end in ends[1]]
        size = np.abs(bias) + np.zeros_like(above[0][..., :1])
        for source, _, weight in blocks:
            size = size + (above[source] + below[source]) @ weight.T
        for source, weight, _ in signed:
            value = value + (above[source] - below[source]) @ weight.T
        size = np.where(size < MOST, size * (1 + ROOM), np.inf)
        count, sums = self.counts[k], self.sums[k]
        most = (size + np.abs(value)) / 2 + _gamma(count) * size
        radius = np.minimum(_gamma(count - sums) * size + sums * UNIT * most, _gamma(count) * size)
        return np.where(count == 0, 0, radius * (1 + ROOM))

    def radii(self, box: tuple[Array, Array], ends: tuple[Array, Array], rows: Array) -> Array:
        """(..., m): of ``rows`` (m, outputs) on boxes (..., inputs) with bounds (..., neurons) of
        all hidden neurons; infinite where nothing is known."""
        state: tuple[list[Any], list[Any]] = [box[1]], [box[0]]  # upper ends first
        errors: list[Any] = [np.zeros_like(box[0])]
        kept, layers = list[Any](), self.network.floats
        for k, bent in enumerate((*self.network.curves, None)):
            error = radius = self._radius(k, state)
            for source, _, weight in layers[k][0]:
                error = error + errors[source] @ weight.T * (1 + ROOM)
            if k == len(self.network.curves):
                break
            part = self.bounder.part(k + 1)
            low, high = ends[0][..., part] - error, ends[1][..., part] + error
            least, most, more = _slopes(bent, low, high)
            kept.append((radius, least, most, more))
            steep = np.maximum(np.abs(least), np.abs(most))
            errors.append(np.where(steep == 0, 0, steep * error) + more)
            image = _image(bent, low, np.maximum(low, high))
            state[0].append(image[1])
            state[1].append(image[0])
        plain = error @ np.abs(rows).T
        found = self._back(rows, radius, kept) * (1 + ROOM) + plain * ROOM
        return np.where(np.isfinite(found), found, np.inf)

    def _back(self, rows: Array, last: Array, kept: list[Any]) -> Array:
        total, layers = last @ np.abs(rows).T, self.network.floats
        low = high = np.zeros((*last.shape[:-1], 1, 1)) + rows  # (..., m, outputs)
        flowing: dict[int, Any] = {}
        for k in range(len(kept), -1, -1):
            if k < len(kept):
                if k + 1 not in flowing:
                    continue
                low, high = flowing.pop(k + 1)
                radius, least, most, more = (t[..., None, :] for t in kept[k])
                total = total + _weighed(low, high, more)
                corners = [end * slope for end in (low, high) for slope in (least, most)]
                low, high = np.minimum.reduce(corners), np.maximum.reduce(corners)
                total = total + _weighed(low, high, radius)
            mid, rad = (low + high) / 2, (high - low) / 2
            for source, weight, size in layers[k][0]:
                if source:
                    centre, spread = mid @ weight, rad @ size
                    before = flowing.get(source, (0.0, 0.0))
                    flowing[source] = before[0] + centre - spread, before[1] + centre + spread
        return np.asarray(total)

    def outputs(self, point: Array) -> tuple[Array, Array]:
        """Ends of what any evaluation gives at a float32 point, every value moved to the float32
        numbers that there are."""
        sides, state = [_middle(point, point)], ([point], [point])
        for k, bent in enumerate((*self.network.curves, None)):
            low, high, _ = self.bounder._through(k, sides)
            radius = self._radius(k, state)
            once = self.counts[k] == 1  # a single rounding is monotone
            low = np.where(once, low.astype(np.float32), _upward(low - radius * (1 + ROOM)))
            high = np.where(once, high.astype(np.float32), -_upward(-high - radius * (1 + ROOM)))
            if k == len(self.network.curves):
                break
            more = _slopes(bent, low, high)[2]
            low, high = _image(bent, low, high)
            low, high = low - more, high + more
            sides.append(_middle(low, high))
            state[0].append(high)
            state[1].append(low)
        return np.asarray(low, np.float64), np.asarray(high, np.float64)

    def at(self, point: Array, rows: Array) -> Array:
        """The radii at a point."""
        real = self.bounder.crown(self.bounder.area(point[None, None], point[None, None]))
        return self.radii((point, point), (real.low[0, 0], real.high[0, 0]), rows)


def _gamma(count: Array) -> Array:
    return count * UNIT / (1 - count * UNIT)


def _weighed(low: Array, high: Array, radius: Array) -> Array:
    size = np.maximum(np.abs(low), np.abs(high))
    return np.asarray(np.where(size == 0, 0.0, size * radius).sum(-1))


def _upward(values: Array) -> Array:
    """To the next float32 number that is not below."""
    near = values.astype(np.float32)
    next_ = np.nextafter(near, np.float32(np.inf))
    return np.where(near < values, next_, near).astype(np.float64)


def _slopes(bent: Any, low: Array, high: Array) -> tuple[Array, Array, Array]:
    """Ends of the slopes between two points of [low, high], and what rounding a product adds."""
    bends = (0.0,) if bent is None else bent.bends
    slope = (lambda z: np.where(z > 0, 1.0, 0.0)) if bent is None else bent.slope
    first, last = bends[0], bends[-1]
    points = [first - 1.0 - abs(first), *((a + b) / 2 for a, b in pairwise(bends))]
    points.append(last + 1.0 + abs(last))
    pieces = [float(slope(np.array(p))) for p in points]
    met = [(low <= bend) & (high >= bend) for bend in bends]
    inside = np.logical_or.reduce(met)
    least = np.where(inside, min(pieces), slope(low))
    most = np.where(inside, max(pieces), slope(low))
    if set(pieces) <= {0.0, 1.0, -1.0}:
        return least, most, np.zeros_like(least)
    size = np.maximum(np.abs(low), np.abs(high)) * max(map(abs, pieces))
    return least, most, UNIT * (1 + ROOM) * size + 2.0**-149


def _number(place: int) -> Fraction:
    """Float32 numbers in their order, 0 at 0."""
    bits = np.array(abs(place), np.uint32)
    return (1 if place > 0 else -1) * Fraction(float(bits.view(np.float32)))


def beyond(bound: Fraction, *, reached: bool) -> Fraction:
    """The least float32 number above ``bound``, or not below it if ``reached``; itself if there is
    none."""
    below, place = -LARGEST - 1, LARGEST
    top = _number(place)
    if top < bound or (top == bound and not reached):
        return bound
    while place - below > 1:
        middle = (below + place) // 2
        value = _number(middle)
        if value > bound or (reached and value == bound):
            place = middle
        else:
            below = middle
    return _number(place)
