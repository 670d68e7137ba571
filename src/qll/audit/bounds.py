"""Rigorous lower bounds of linear functions of a ReLU chain over a box, from any multipliers.

**The bound.** For ``f = b . z_k + d . x`` (exact: b and d are the floats at hand) substitute
``z_k = bias + W a_{k-1}`` and relax ``a = relu(z)`` with coefficient A, where z is in [l, u]:

* A >= 0: ``A relu(z) >= B z`` for every B in [0, A]; B = fl(A alpha), clipped.
* A < 0: ``A relu(z) - B z`` is concave for B in [A, 0], so it is least at an end of [l, u]:
  ``A relu(z) >= B z + min(-B l, (A - B) u)``. A stable neuron is exact: B is A (l >= 0) or 0.
* A neuron known to satisfy ``s z >= 0``: subtract ``beta s z``, beta >= 0. Rounding is monotone,
  so fl(B - beta s) differs from B by some admissible multiplier.

In each case B is a float for which the inequality holds *exactly*: relaxing costs no rounding.
Finally ``q . x >= q . mid - |q| . rad``. In groups of first-layer neurons terms A < 0 may stay:
``sum_i A_i relu(z_i)`` is the least of ``sum_{i in S} A_i z_i`` over subsets S, and each group is
minimised over its own copy of the inputs; the coefficients of the copies of an input add up to its
total coefficient (the multipliers delta are made to sum to 0, whatever they are).

**The error.** Every remaining step is a sum of products in floats. With g >= gamma_n for the
longest (see `qll.audit.network`), a float coefficient vector fl(B M) differs from the exact ``B W``
by at most ``|B| (R + g |M|)`` by entries, which changes f by at most ``|B| (R + g |M|) U`` where U
bounds the sizes of what it multiplies (activations on the whole box; inputs: |mid| + rad). Rounding
in ``B . bias`` is at most ``g |B| |bias|``, in ``q . mid - |q| . rad`` at most ``g |q| U``, that is
``g |B| |M| U (1 + g)``. In groups, with w_c the sum of |B_i W_ic| over the group of copy c:
own coefficients err by g w_c, totals and shares by g each of w_c, |d| and |delta|, the subtracted
chords by g w_c, subset sums by g of all these and of |A_i W_ic| and |A_i bias_i|: at most 12 such
terms. So, with ``cost = (R + 16 g |M|) U + bias radius + 16 g |bias|``, the error is at most

    sum_k |B_k| . cost_k + 16 g (|d| . U + sum_c |delta_c| U_c + sum |min(...)|),

where a neuron kept in a hull counts with |A| >= |B|. That sum is computed in floats, all terms
positive, and inflated. Products that underflow lose at most 2^-1075 each, times U < 2^200, fewer
than 2^60 of them: TINY. Overflow gives infinities or NaN, and a bound that is not a number proves
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from qll.audit.container import require
from qll.audit.network import Array, Network, gamma

TINY = 2.0**-800
MOST_HULL = 5  # neurons of a group whose subsets are enumerated


class Groups:
    """A partition of the first layer's neurons with the inputs that each group reads, (groups, most
    neurons) and (groups, most inputs), padded with the number of neurons and of inputs."""

    def __init__(self, network: Network, neuron: Any, column: Any) -> None:
        layer = network.layers[0]
        n, m = layer.middle.shape
        require(neuron.size * column.shape[1] <= 1 << 24, "groups that are too large")
        once = np.bincount(neuron.ravel(), minlength=n + 1)[:n] == 1
        require(once.all() and column.max() <= m, "groups are not a partition of the neurons")
        self.neuron, self.column = neuron, column
        place = neuron[:, :, None], column[:, None, :]
        for whole in (layer.radius, layer.middle):
            self.weight, again = np.pad(whole, ((0, 1), (0, 1)))[place], np.zeros((n + 1, m + 1))
            np.add.at(again, place, self.weight)
            require((again[:n, :m] == whole).all(), "a group lacks an input of its neurons")
        self.has_hull = neuron.shape[1] <= MOST_HULL
        self.copy = np.flatnonzero(column.ravel() < m)  # place of each copy in (group, slot)
        self.input = column.ravel()[self.copy]
        self.order = np.argsort(self.input, kind="stable")
        self.used, self.first = np.unique(self.input[self.order], return_index=True)
        self.share = 1.0 / np.bincount(self.input, minlength=m)[self.input]
        self.home = self.order[self.first]
        self.others = np.setdiff1d(np.arange(self.input.size), self.home)

    def totals(self, copies: Array) -> Array:
        """Sums over the copies of each used input; ``copies`` is (copies, problems)."""
        return np.asarray(np.add.reduceat(copies[self.order], self.first, axis=0))


@dataclass(frozen=True, eq=False)
class Area:
    """A box, or a stack (D, 1, inputs) of boxes, with what the network does on it at most."""

    mid: Array
    rad: Array
    reach: Array
    low: Array  # of all hidden neurons by interval arithmetic, (..., neurons)
    high: Array
    cost: list[Array]
    output: Array  # most that an output reaches in size


class Bounder:
    def __init__(self, network: Network, groups: Groups | None = None) -> None:
        self.network, self.groups = network, groups
        self.starts = np.cumsum([0, *network.widths[1:-1]])
        self.g = 16.0 * gamma(2 * sum(network.widths))
        self.size = [np.abs(layer.middle) for layer in network.layers]
        self.error = [layer.radius + self.g * s for layer, s in zip(network.layers, self.size)]
        # The first layer by its rows' own inputs: those of a convolution are few.
        there, first = self.error[0] > 0, (network.layers[0].middle, self.size[0], self.error[0])
        self.reads = np.argsort(~there, axis=1, kind="stable")[:, : max(1, there.sum(1).max())]
        self.rows = [np.take_along_axis(t, self.reads, axis=1) for t in first]

    def area(self, lower: Array, upper: Array) -> Area:
        """Interval arithmetic through all layers, outward."""
        box = mid, rad, reach = _middle(lower, upper)
        require(reach.max() < 2.0**100, "a box that is too large")
        found = []
        for k in range(len(self.network.layers)):
            found.append(self._through(k, mid, rad, reach))
            mid, rad, reach = _middle(*(np.maximum(t, 0) for t in found[k][:2]))
            require(reach.max() < 2.0**200, "activations that are too large")
        none, output = np.zeros((*box[0].shape[:-1], 0)), np.maximum(*map(np.abs, found[-1][:2]))
        low, high = (np.concatenate([none, *(f[i] for f in found[:-1])], axis=-1) for i in (0, 1))
        return Area(*box, low, high, [cost for _, _, cost in found], output)

    def _through(self, k: int, mid: Array, rad: Array, reach: Array) -> tuple[Array, Array, Array]:
        """Ends of ``z_{k+1}`` for inputs within ``mid +- rad``, and the layer's cost."""
        layer = self.network.layers[k]
        if k == 0:
            points = (t[..., self.reads] for t in (mid, rad, reach))
            centre, most, cost = ((t * r).sum(-1) for t, r in zip(points, self.rows))
        else:
            centre, most = mid @ layer.middle.T, rad @ self.size[k].T
            cost = reach @ self.error[k].T
        cost = (cost + layer.bias_radius + self.g * np.abs(layer.bias)) * (1 + self.g)
        centre, spread = centre + layer.bias, (most + cost) * (1 + 2 * self.g) + TINY
        low, high = np.nextafter(centre - spread, -np.inf), np.nextafter(centre + spread, np.inf)
        return low, high, cost

    def lower(
        self,
        area: Area,
        layer: int,
        b: Array,
        low: Array,
        high: Array,
        *,
        alpha: Array | None = None,
        push: Array | None = None,
        delta: Array | None = None,
        direct: Array | None = None,
        extra: Array | float = 0.0,
    ) -> Array:
        """Below ``b . z_layer + direct . x - extra`` where ``low <= z <= high`` and ``push`` hold.

        Arrays are (..., neurons): ``alpha`` (missing: the nearer of 0 and 1) and ``push``, beta
        times sign, of all hidden layers; ``delta`` is (problems, other copies).
        """
        g, value, slack = self.g, np.zeros(1), np.zeros(1) + extra
        if direct is not None:
            slack = slack + g * (np.abs(direct) * area.reach).sum(-1)
        grouped = self.groups is not None and layer > 1
        for k in range(layer, 0, -1):
            a, rest, free, bias = b, np.zeros(1), np.zeros(1, bool), self.network.layers[k - 1].bias
            part = slice(self.starts[k - 1], self.starts[k]) if k < len(self.starts) else slice(0)
            if k < layer:
                loose, on = (low[..., part] < 0) & (high[..., part] > 0), low[..., part] >= 0
                least, most = (
                    np.where(loose, low[..., part], 0),
                    np.where(loose, high[..., part], on),
                )
                slope = most > -least if alpha is None else np.where(loose, alpha[..., part], on)
                chord = np.where(loose, most / np.where(loose, most - least, 1.0), on)
                b = a * np.where(a < 0, np.minimum(chord, 1), np.clip(slope, 0, 1))
                free = loose & (a < 0)
                rest = np.where(free, np.minimum(-b * least, (a - b) * most), 0.0)
            if push is not None and k < len(self.starts):
                b = b - push[..., part]
            kept, size = b, np.abs(b)
            if k == 1 and grouped:
                free = free & self.groups.has_hull  # type: ignore[union-attr]
                rest, kept = np.where(free, 0.0, rest), np.where(free, 0.0, b)
                size = np.maximum(size, np.where(free, -a, 0.0))
                found, more = self._grouped(area, np.where(free, a, 0.0), b, delta, direct)
                value, slack = value + found, slack + more
            value = value + kept @ bias + rest.sum(-1)
            slack = slack + (size * area.cost[k - 1]).sum(-1) - g * rest.sum(-1)
            if k > 1 or not grouped:
                b = b @ self.network.layers[k - 1].middle
        if not grouped:
            pixel = b if direct is None else b + direct
            value = value + (pixel * area.mid).sum(-1) - (np.abs(pixel) * area.rad).sum(-1)
        return np.nextafter(value - (slack * (1 + g) + TINY), -np.inf)

    def crown(self, area: Area) -> tuple[Array, Array]:
        """Bounds of the hidden neurons of a stack of boxes by layers, where a sign is open."""
        low, high = area.low.copy(), area.high.copy()
        for k in range(2, len(self.starts)):
            below, part = (np.arange(*self.starts[i : i + 2]) for i in (k - 2, k - 1))
            ends = _middle(*(np.maximum(t[..., below], 0) for t in (low, np.maximum(low, high))))
            least, most, _ = self._through(k - 1, *ends)
            low[..., part] = np.maximum(low[..., part], least)
            high[..., part] = np.minimum(high[..., part], most)
            loose = ((low < 0) & (high > 0))[..., part]
            at = np.flatnonzero(loose.any(axis=(0, 1)))
            if at.size:
                rows = np.eye(part.size)[at]
                bound = self.lower(area, k, np.concatenate([rows, -rows]), low, high)[:, None]
                bound = np.where(np.isfinite(bound) & np.tile(loose[..., at], 2), bound, -np.inf)
                low[..., part[at]] = np.maximum(low[..., part[at]], bound[..., : at.size])
                high[..., part[at]] = np.minimum(high[..., part[at]], -bound[..., at.size :])
        return low, high

    def _grouped(
        self, area: Area, free: Array, b: Array, delta: Array | None, direct: Array | None
    ) -> tuple[Array, Array]:
        """The least value over the box of what depends on the first layer's inputs, b being linear
        but for the neurons ``free``, and the error that delta adds."""
        groups, count = self.groups, len(b)
        assert groups is not None  # noqa: S101 - the caller has checked
        wide = np.zeros((2, b.shape[1] + 1, count))
        wide[0, :-1], wide[1, :-1] = b.T, free.T
        mine, kept = wide[:, groups.neuron]  # each (groups, neurons, problems)
        weight = groups.weight.transpose(0, 2, 1)
        own = (weight @ mine).reshape(-1, count)[groups.copy]
        chords = (weight @ np.where(kept < 0, mine, 0.0)).reshape(-1, count)[groups.copy]
        pixel = np.zeros((self.network.widths[0], count)) if direct is None else direct.T.copy()
        pixel[groups.used] += groups.totals(own)
        q, more = pixel[groups.input] * groups.share[:, None] - chords, np.zeros(count)
        if delta is not None:
            tied = np.zeros_like(q)
            tied[groups.others] = delta.T
            more = self.g * (area.reach[groups.input] @ np.abs(tied))
            tied[groups.home] = -groups.totals(tied)
            q = q + tied
        pixel[groups.used] = 0.0
        value = area.mid @ pixel - area.rad @ np.abs(pixel)
        mid, rad = (np.append(t, 0.0)[groups.column] for t in (area.mid, area.rad))
        spread = np.zeros((groups.column.size, count))
        spread[groups.copy] = q
        spread = spread.reshape(*groups.column.shape, count)
        least = (spread * mid[:, :, None] - np.abs(spread) * rad[:, :, None]).sum(1)
        bias = np.append(self.network.layers[0].bias, 0.0)[groups.neuron]
        members = (kept < 0).sum(1)
        for size in range(1, int(members.max(initial=0)) + 1):
            group, problem = np.nonzero(members == size)
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
        return np.asarray(value + least.sum(0)), more


def _middle(lower: Array, upper: Array) -> tuple[Array, Array, Array]:
    """A middle and a radius whose interval contains both ends, and the largest size in it."""
    mid = lower + (upper - lower) / 2
    rad = np.nextafter(np.maximum(upper - mid, mid - lower), np.inf)
    rad = np.where(lower == upper, 0.0, rad)
    return mid, rad, np.nextafter(np.abs(mid) + rad, np.inf)
