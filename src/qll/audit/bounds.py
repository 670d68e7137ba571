"""Rigorous lower bounds of linear functions of a ReLU chain over a box, from any multipliers.

**The bound.** For ``f = b . z_k + d . x + e`` (an exact function: b, d, e are the floats at hand)
substitute ``z_k = bias + W a_{k-1}`` and relax ``a = relu(z)`` with coefficient A and bounds [l, u]:

* A >= 0: ``A relu(z) >= B z`` for every B in [0, A]; B = fl(A alpha), clipped.
* A < 0: ``A relu(z) - B z`` is concave for B in [A, 0], so it is least at an end of [l, u]:
  ``A relu(z) >= B z + min(-B l, (A - B) u)``. A stable neuron is exact: B = A (l >= 0), 0 (u <= 0).
* A neuron known to satisfy ``s z >= 0``: subtract ``beta s z``, beta >= 0. Rounding is monotone, so
  fl(B - beta s) differs from B by some admissible multiplier.

In each case B is a float for which the inequality holds *exactly*: relaxing costs no rounding error.
Finally ``q . x >= q . mid - |q| . rad``. In groups of first-layer neurons the terms A < 0 may stay:
``sum_i A_i relu(z_i)`` is the least of ``sum_{i in S} A_i z_i`` over subsets S, and each group is
minimised over its own copy of the inputs; the coefficients of the copies of an input add up to its
total coefficient (the multipliers delta are made to sum to 0, whatever they are).

**The error.** Every remaining step is a sum of products in floats. With g >= gamma_n for the longest
(see `qll.audit.network`), a float coefficient vector fl(B M) differs from the exact ``B W`` by at
most ``|B| (R + g |M|)`` by entries, which changes f by at most ``|B| (R + g |M|) U`` where U bounds
the sizes of what it multiplies (activations: proved bounds of the whole box; inputs: |mid| + rad).
Rounding in ``B . bias`` is at most ``g |B| |bias|``, in ``q . mid - |q| . rad`` at most g times
``|q| U <= |B| |M| U (1 + g)``. In groups: own coefficients (error g w_c, with w_c the sum of |B_i W_ic|
over a group), totals and shares (g each, of w_c, |d| and |delta|), subtracted chords (g w_c) and
subset sums (g of the same and of |A_i W_ic|, |A_i bias_i|) are at most 12 such terms. So, with
``cost = (R + 16 g |M|) U + bias radius + 16 g |bias|`` per layer, the whole error is at most

    sum_k |B_k| . cost_k + 16 g (|d| . U + sum |delta_c| U_c + sum |min(...)| + |e|),

where a neuron kept in a hull counts with |A| >= |B|. That sum is itself computed in floats, all terms
positive, and inflated. Products that underflow lose at most 2^-1075 each, times U < 2^200, fewer than
2^60 of them: TINY. Overflow gives infinities or NaN, and a bound that is not a number proves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from qll.audit.network import Array, Network, gamma
from qll.audit.container import require

SAFETY = 16.0
TINY = 2.0**-800
MOST_HULL = 5  # neurons of a group whose subsets are enumerated
MOST_BLOCKS = 1 << 24


class Groups:
    """A partition of the first layer's neurons, with the inputs that each group reads."""

    def __init__(self, network: Network, neurons: list[Any], inputs: list[Any]) -> None:
        layer = network.layers[0]
        n, m = layer.middle.shape
        require(len(neurons) == len(inputs) > 0, "groups without inputs")
        flat = np.concatenate(neurons)
        require((np.sort(flat) == np.arange(n)).all() if flat.size == n else 0, "not a partition")
        self.copy_input = np.concatenate(inputs)
        require((self.copy_input < m).all(), "a group reads an input that does not exist")
        tall, wide = max(map(len, neurons)), max(map(len, inputs))
        require(len(neurons) * tall * wide <= MOST_BLOCKS, "groups that are too large")
        self.neuron = np.full((len(neurons), tall), n)
        column = np.full((len(neurons), wide), m)
        for g, (rows, columns) in enumerate(zip(neurons, inputs, strict=True)):
            require(len(set(columns.tolist())) == len(columns), "a group reads an input twice")
            self.neuron[g, : len(rows)] = rows
            column[g, : len(columns)] = columns
        self.copy = np.flatnonzero(column.ravel() < m)  # place of each copy in (group, slot)
        padded = [np.pad(t, ((0, 1), (0, 1))) for t in (layer.middle, layer.radius)]
        self.weight, self.radius = (t[self.neuron[:, :, None], column[:, None, :]] for t in padded)
        for whole, block in ((layer.middle, self.weight), (layer.radius, self.radius)):
            complete = np.count_nonzero(whole) == np.count_nonzero(block)
            require(complete, "a group lacks an input that its neurons read")
        self.column, self.shape = column, column.shape
        self.hull = np.zeros(n + 1, dtype=bool)
        for rows in neurons:
            self.hull[rows] = len(rows) <= MOST_HULL
        self.order = np.argsort(self.copy_input, kind="stable")
        self.used, self.first = np.unique(self.copy_input[self.order], return_index=True)
        counts = np.bincount(self.copy_input, minlength=m)
        self.share = 1.0 / counts[self.copy_input]
        self.home = self.order[self.first]
        self.others = np.setdiff1d(np.arange(self.copy_input.size), self.home)

    def totals(self, copies: Array) -> Array:
        """Sums over the copies of each used input; ``copies`` is (copies, problems)."""
        return np.asarray(np.add.reduceat(copies[self.order], self.first, axis=0))


@dataclass(frozen=True, eq=False)
class Area:
    """A box, or a stack (D, 1, inputs) of boxes, with what the network does on it at most."""

    mid: Array
    rad: Array
    reach: Array
    low: list[Array]  # of z_k by interval arithmetic, the output last
    high: list[Array]
    cost: list[Array]
    output_reach: Array


class Bounder:
    def __init__(self, network: Network, groups: Groups | None = None) -> None:
        self.network, self.groups = network, groups
        self.g = SAFETY * gamma(2 * sum(network.widths))
        self.size = [np.abs(layer.middle) for layer in network.layers]
        self.error = [
            layer.radius + self.g * size
            for layer, size in zip(network.layers, self.size, strict=True)
        ]

    def area(self, lower: Array, upper: Array) -> Area:
        """Interval arithmetic through all layers, outward."""
        require((lower <= upper).all() and np.isfinite(upper - lower).all(), "an empty box")
        mid, rad = _middle(lower, upper)
        reach, first = _reach(mid, rad), (mid, rad)
        require(reach.max() < 2.0**100, "a box that is too large")
        lows, highs, costs, least = [], [], [], reach
        for layer, size, error in zip(self.network.layers, self.size, self.error, strict=True):
            centre = mid @ layer.middle.T + layer.bias
            cost = _reach(mid, rad) @ error.T + layer.bias_radius + self.g * np.abs(layer.bias)
            spread = (rad @ size.T + cost) * (1 + self.g) + TINY
            low, high = centre - spread * (1 + self.g), centre + spread * (1 + self.g)
            lows.append(low)
            highs.append(high)
            costs.append(cost * (1 + self.g))
            least = np.maximum(np.abs(low), np.abs(high))
            mid, rad = _middle(np.maximum(low, 0), np.maximum(high, 0))
        require(least.max() < 2.0**200, "outputs that are too large")
        return Area(*first, reach, lows, highs, costs, least)

    def lower(
        self,
        area: Area,
        layer: int,
        b: Array,
        low: list[Array],
        high: list[Array],
        *,
        alpha: list[Array] | None = None,
        push: list[Array] | None = None,
        delta: Array | None = None,
        direct: Array | None = None,
        extra: Array | float = 0.0,
    ) -> Array:
        """Below ``b . z_layer + direct . x`` wherever ``low <= z <= high`` and ``push`` holds.

        Shapes (..., n); ``push`` is beta times sign; ``delta`` (with groups: (P, others)); ``extra``
        is the caller's own error. A missing ``alpha`` takes the nearer of 0 and 1.
        """
        g, value, slack = self.g, np.zeros(b.shape[:-1]), np.zeros(b.shape[:-1]) + extra
        if direct is not None:
            slack = slack + g * (np.abs(direct) * area.reach).sum(-1)
        for k in range(layer, 0, -1):
            stored = self.network.layers[k - 1]
            a, rest = b, np.zeros(1)
            if k < layer:
                l, u = low[k - 1], high[k - 1]
                loose = (l < 0) & (u > 0)
                l, u = np.where(loose, l, 0.0), np.where(loose, u, low[k - 1] >= 0)
                slope = (u > -l) * 1.0 if alpha is None else np.where(loose, alpha[k - 1], u)
                chord = np.where(loose, u / np.where(loose, u - l, 1.0), u)
                b = a * np.where(a < 0, np.minimum(chord, 1), np.clip(slope, 0, 1))
                rest = np.where((a < 0) & loose, np.minimum(-b * l, (a - b) * u), 0.0)
            if push is not None and k <= len(push):
                b = b - push[k - 1]
            if k == 1 and self.groups is not None and layer > 1:
                free = loose & (a < 0) & self.groups.hull[:-1]
                kept = np.where(free, 0.0, rest)
                value = value + kept.sum(-1) + np.where(free, 0.0, b) @ stored.bias
                slack = slack + np.where(free, np.abs(a), np.abs(b)) @ area.cost[0]
                slack = slack + g * np.abs(kept).sum(-1)
                return self._settle(
                    value + self._grouped(area, a, b, free, delta, direct, slack), slack
                )
            value = value + b @ stored.bias + rest.sum(-1)
            slack = slack + (np.abs(b) * area.cost[k - 1]).sum(-1) - g * rest.sum(-1)
            b = b @ stored.middle
        pixel = b if direct is None else b + direct
        value = value + (pixel * area.mid).sum(-1) - (np.abs(pixel) * area.rad).sum(-1)
        return self._settle(value, slack)

    def _settle(self, value: Array, slack: Array) -> Array:
        return np.nextafter(value - (slack * (1 + self.g) + TINY), -np.inf)

    def _grouped(
        self,
        area: Area,
        a: Array,
        b: Array,
        free: Any,
        delta: Array | None,
        direct: Array | None,
        slack: Array,
    ) -> Array:
        """The least value of what depends on the first layer's inputs, over the box."""
        groups, count = self.groups, len(b)
        assert groups is not None  # noqa: S101 - the caller has checked
        wide = np.pad(np.stack([b, np.where(free, a, 0.0)]), ((0, 0), (0, 0), (0, 1)))
        mine, kept = wide.transpose(0, 2, 1)[:, groups.neuron]  # each (groups, neurons, problems)
        weight = groups.weight.transpose(0, 2, 1)
        own = (weight @ mine).reshape(-1, count)[groups.copy]
        chords = (weight @ np.where(kept < 0, mine, 0.0)).reshape(-1, count)[groups.copy]
        pixel = np.zeros((self.network.widths[0], count)) if direct is None else direct.T.copy()
        pixel[groups.used] += groups.totals(own)
        q = pixel[groups.copy_input] * groups.share[:, None] - chords
        if delta is not None:
            tied = np.zeros_like(q)
            tied[groups.others] = delta.T
            slack += self.g * (np.abs(tied) * area.reach[groups.copy_input, None]).sum(0)
            tied[groups.home] = -groups.totals(tied)
            q = q + tied
        pixel[groups.used] = 0.0
        value = area.mid @ pixel - area.rad @ np.abs(pixel)
        mid, rad = (np.append(t, 0.0)[groups.column] for t in (area.mid, area.rad))
        spread = np.zeros((groups.column.size, count))
        spread[groups.copy] = q
        spread = spread.reshape(*groups.shape, count)
        least = (spread * mid[:, :, None] - np.abs(spread) * rad[:, :, None]).sum(1)
        bias = np.append(self.network.layers[0].bias, 0.0)[groups.neuron]
        members = (kept < 0).sum(1)
        for size in range(1, int(members.max(initial=0)) + 1):
            group, problem = np.nonzero(members == size)
            if group.size:
                coefficients = kept[group, :, problem]
                chosen = np.argsort(coefficients, axis=1)[:, :size]
                factor = np.take_along_axis(coefficients, chosen, axis=1)
                term = factor[:, :, None] * groups.weight[group[:, None], chosen]
                offset = factor * bias[group[:, None], chosen]
                r, e = spread[group, :, problem][:, None], np.zeros((group.size, 1))
                for i in range(size):
                    r = np.concatenate([r, r + term[:, i, None]], axis=1)
                    e = np.concatenate([e, e + offset[:, i, None]], axis=1)
                e = e + (r @ mid[group, :, None] - np.abs(r) @ rad[group, :, None])[..., 0]
                least[group, problem] = e.min(axis=1)
        return np.asarray(value + least.sum(0))


def _middle(lower: Array, upper: Array) -> tuple[Array, Array]:
    """A middle and a radius whose interval contains both ends."""
    mid = lower + (upper - lower) / 2
    rad = np.nextafter(np.maximum(upper - mid, mid - lower), np.inf)
    return mid, np.where(lower == upper, 0.0, rad)


def _reach(mid: Array, rad: Array) -> Array:
    return np.nextafter(np.abs(mid) + rad, np.inf)
