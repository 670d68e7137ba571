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

**The error.** What remains are sums of products in floats: one of n products, in any order, fused
or not, errs by at most ``gamma_n = n u / (1 - n u)`` times the sum of sizes, ``u = 2^-53`` (Higham
2002, section 3.1). Take g >= gamma_n for the longest; weights M are off by at most ``2 u |M|``. A
vector fl(B M) is within ``2 g |B| |M|`` of the exact ``B W``, which changes f by at most
``2 g |B| |M| U`` where U bounds the sizes of what it multiplies (activations on the whole box;
inputs: |mid| + rad). Rounding in ``B . bias`` and of the bias is at most ``2 g |B| |bias|``, in
``q . mid - |q| . rad`` at most ``g |q| U``, that is ``g |B| |M| U (1 + g)``. In groups, with w_c
the sum of |B_i W_ic| over the group of copy c: own coefficients err by 2 g w_c, totals and shares
by g each of w_c, |d| and |delta|, the subtracted chords by g w_c, subset sums by g of all these and
of |A_i W_ic| and |A_i bias_i|: at most 13 such terms. So the error is at most

    16 g (sum_k |B_k| . (|M_k| U + |bias_k|) + |d| . U + sum_c |delta_c| U_c + sum |min(...)|),

where a neuron kept in a hull counts with |A| >= |B|. That sum is computed in floats, all terms
positive, and inflated. Products that underflow lose at most 2^-1075 each, times U < 2^200, fewer
than 2^60 of them: TINY. Overflow gives infinities or NaN, which prove nothing.
"""

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from qll.audit.curves import Curve
from qll.audit.network import Array, Network, require
from qll.audit.pace import room
from qll.audit.round import Ball

TINY, UNIT = 2.0**-800, 2.0**-53
MOST_HULL = 5  # neurons of a group whose subsets are enumerated


class Groups:
    """A partition of the first layer's neurons with the inputs that each group reads, (groups, most
    neurons) and (groups, most inputs), padded with the number of neurons and of inputs. No group
    is without neurons and none has an input twice: sums over groups and over an input's copies
    have at most as many terms as there are neurons, which the constant g of the error counts."""

    def __init__(self, network: Network, neuron: Any, column: Any) -> None:
        ((source, whole, _),), _ = network.floats[0]
        require(source == 0 and network.curves[0] is None, "groups of such a layer")
        n, m = whole.shape
        room(neuron.size * column.shape[1] <= 1 << 24, "groups that are too large")
        once = np.bincount(neuron.ravel(), minlength=n + 1)[:n] == 1
        require(once.all(), "groups are not a partition of the neurons")
        require((neuron < n).any(axis=1).all(), "a group without neurons")
        ordered = np.sort(column, axis=1)
        again = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] < m)
        require(not again.any(), "a group that has an input twice")
        self.neuron, self.column = neuron, column
        place = neuron[:, :, None], column[:, None, :]
        self.weight, again = np.pad(whole, ((0, 1), (0, 1)))[place], np.zeros((n + 1, m + 1))
        np.add.at(again, place, self.weight)
        require((again[:n, :m] == whole).all(), "a group lacks an input of its neurons")
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
    low: Array  # of all hidden neurons, (..., neurons)
    high: Array
    cost: list[Array]  # error of each neuron, by layers
    last: tuple[Array, Array]  # ends of the last layer


class Bounder:
    def __init__(self, network: Network, groups: Any = None, ball: Ball | None = None) -> None:
        self.layers, self.curves, self.groups = network.floats, network.curves, groups
        self.ball = ball  # that cuts every box
        self.starts = np.cumsum([0, *network.widths[1:-1]])
        self.g = 16.16 * (2 * sum(network.widths) + 16) * UNIT  # above 16 gamma_n, with room

    def part(self, k: int) -> slice:
        """Of layer k among all hidden neurons."""
        return slice(int(self.starts[k - 1]), int(self.starts[k]))

    def area(self, lower: Array, upper: Array) -> Area:
        """Interval arithmetic through all layers, outward."""
        box = _middle(lower, upper)
        require(box[2].max() < 2.0**100, "a box that is too large")
        sides, found = [box], []
        for k, bent in enumerate((*self.curves, None)):
            found.append(self._in_ball(k, box, self._through(k, sides)))
            sides.append(_middle(*_image(bent, *found[k][:2])))
            require(sides[-1][2].max(initial=0.0) < 2.0**200, "activations that are too large")
        none = np.zeros((*box[0].shape[:-1], 0))
        low, high = (np.concatenate([none, *(f[i] for f in found[:-1])], axis=-1) for i in (0, 1))
        return Area(*box, low, high, [cost for _, _, cost in found], found[-1][:2])

    def _through(self, k: int, sides: list[Any]) -> tuple[Array, Array, Array]:
        """Ends of ``z_{k+1}`` for sources within ``mid +- rad``, and the layer's cost."""
        (blocks, bias), g = self.layers[k], self.g
        cost, centre, spread = g * np.abs(bias), bias, np.zeros(1)
        for source, weight, size in blocks:
            mid, rad, reach = sides[source]
            cost, centre = cost + g * (reach @ size.T), centre + mid @ weight.T
            spread = spread + rad @ size.T
        cost = cost * (1 + g) + np.zeros_like(sides[0][0][..., :1])
        spread = (spread + cost) * (1 + 2 * g) + TINY
        return np.nextafter(centre - spread, -np.inf), np.nextafter(centre + spread, np.inf), cost

    def _in_ball(self, k: int, box: Any, ends: Any) -> Any:
        """Ends of a layer that reads the input alone, where the box is cut by a ball."""
        blocks, bias = self.layers[k]
        if self.ball is None or any(source for source, _, _ in blocks):
            return ends
        low, high, cost = ends
        weight = np.add.reduce([w for _, w, _ in blocks])
        mid, rad = box[:2]
        below, above = (self.ball.least(s * weight, mid, rad, self.g) for s in (1.0, -1.0))
        if low.ndim > 1:  # a stack of boxes
            below, above = below[:, None], above[:, None]
        room = cost * (1 + 2 * self.g) + self.g * (np.abs(bias) + np.abs(below) + np.abs(above))
        low = np.fmax(low, np.nextafter(bias + below - room, -np.inf))
        return low, np.fmin(high, np.nextafter(bias - above + room, np.inf)), cost

    def lower(self, area: Area, layer: int, b: Array, direct: Any = (0, 0), **given: Any) -> Array:
        """Below ``b . z_layer + d . x`` in the area, ``direct`` being d and a bound of its size.
        Given are ``alpha`` (missing: the nearer of 0 and 1 for ReLU, else the chord's slope) and
        ``push``, beta times sign, of all hidden neurons, (..., neurons), and ``delta``, (problems,
        other copies)."""
        alpha, push, delta = map(given.get, ("alpha", "push", "delta"))
        g, groups, value = self.g, self.groups if layer > 1 else None, np.zeros(1)
        slack = g * (direct[1] * area.reach).sum(-1)
        flowing: dict[int, Any] = {}
        for k in range(layer, 0, -1):
            a, rest, loose = b, np.zeros(1), np.zeros(1, bool)
            if k < layer:
                part = self.part(k)
                last = k == 1 and groups is not None
                if k not in flowing and push is None and not last:
                    continue
                a = flowing.pop(k, np.zeros(1))
                slope = None if alpha is None else alpha[..., part]
                pushed = 0.0 if push is None else push[..., part]
                ends = area.low[..., part], area.high[..., part]
                bent = self.curves[k - 1]
                if bent is None:
                    b, rest, loose = _rectified(a, *ends, slope)
                    b = b - pushed
                else:
                    b, rest = _bent(bent, a, *ends, slope, pushed)
            elif push is not None and k < len(self.starts) and self.curves[k - 1] is None:
                b = b - push[..., self.part(k)]  # splits of the layer itself
            kept, size = b, np.abs(b)
            if k == 1 and groups is not None:
                free = loose & (a < 0) & (groups.neuron.shape[1] <= MOST_HULL)
                rest, kept = np.where(free, 0.0, rest), np.where(free, 0.0, b)
                size = np.maximum(size, np.where(free, -a, 0.0))
                pixel = direct[0] + flowing.pop(0, 0.0)
                found, more = self._grouped(area, np.where(free, a, 0.0), b, delta, pixel)
                value, slack = value + found, slack + more
            blocks, bias = self.layers[k - 1]
            value = value + kept @ bias + rest.sum(-1)
            slack = (
                slack + np.einsum("...i,...i", size, area.cost[k - 1]) + g * np.abs(rest).sum(-1)
            )
            if k > 1 or groups is None:
                for source, weight, _ in blocks:
                    flowing[source] = flowing.get(source, 0.0) + b @ weight
        if groups is None:
            q = flowing.get(0, 0.0) + direct[0]
            least = (q * area.mid).sum(-1) - (np.abs(q) * area.rad).sum(-1)
            if self.ball is not None:
                least = np.fmax(least, self.ball.least(q, area.mid, area.rad, g))
            value = value + least
        return np.asarray(np.nextafter(value - (slack * (1 + g) + TINY), -np.inf))

    def crown(self, area: Area) -> Area:
        """A stack of boxes with bounds of hidden neurons by layers, where a sign is open."""
        low, high = area.low.copy(), area.high.copy()
        sides: list[Any] = [(area.mid, area.rad, area.reach)]
        for k, bent in enumerate(self.curves, start=1):
            part = np.arange(*self.starts[k - 1 : k + 1])
            if any(source for source, _, _ in self.layers[k - 1][0]):
                least, most, _ = self._through(k - 1, sides)
                low[..., part] = np.maximum(low[..., part], least)
                high[..., part] = np.minimum(high[..., part], most)
                loose = low < high if bent is not None else (low < 0) & (high > 0)
                loose = loose[..., part]
                at = np.flatnonzero(loose.any(axis=(0, 1)))
                if at.size:
                    rows, now = np.eye(part.size)[at], replace(area, low=low, high=high)
                    bound = self.lower(now, k, np.concatenate([rows, -rows]))[:, None]
                    fine = np.isfinite(bound) & np.tile(loose[..., at], 2)
                    bound = np.where(fine, bound, -np.inf)
                    low[..., part[at]] = np.maximum(low[..., part[at]], bound[..., : at.size])
                    high[..., part[at]] = np.minimum(high[..., part[at]], -bound[..., at.size :])
            ends = low[..., part], np.maximum(low, high)[..., part]
            sides.append(_middle(*_image(bent, *ends)))
        return replace(area, low=low, high=high)

    def _grouped(self, area: Area, free: Array, b: Array, delta: Any, direct: Any) -> Any:
        """The least value over the box of what depends on the first layer's inputs, b being linear
        but for the neurons ``free``, and the error that delta adds."""
        groups, count = self.groups, len(b)
        wide = np.zeros((2, b.shape[1] + 1, count))
        wide[0, :-1], wide[1, :-1] = b.T, free.T
        mine, kept = wide[:, groups.neuron]  # each (groups, neurons, problems)
        weight = groups.weight.transpose(0, 2, 1)
        parts = mine, np.where(kept < 0, mine, 0.0)
        own, chords = ((weight @ part).reshape(-1, count)[groups.copy] for part in parts)
        pixel = np.zeros((area.mid.size, count)) + np.transpose(direct)
        pixel[groups.used] += groups.totals(own)
        tied = np.zeros_like(own)
        tied[groups.others] = delta.T
        # A sum of positive terms, one for each copy: their number bounds its own rounding.
        more = self.g * (1 + 2 * tied.size * UNIT) * (area.reach[groups.input] @ np.abs(tied))
        tied[groups.home] = -groups.totals(tied)
        q = pixel[groups.input] * groups.share[:, None] - chords + tied
        pixel[groups.used] = 0.0
        value = area.mid @ pixel - area.rad @ np.abs(pixel)
        mid, rad = (np.append(t, 0.0)[groups.column, None] for t in (area.mid, area.rad))
        spread = np.zeros((groups.column.size, count))
        spread[groups.copy] = q
        spread = spread.reshape(*groups.column.shape, count)
        least = (spread * mid - np.abs(spread) * rad).sum(1)
        bias = np.append(self.layers[0][1], 0.0)[groups.neuron, None]
        for subset in product((0.0, 1.0), repeat=kept.shape[1]) if kept.any() else ():
            chosen = kept * np.array(subset)[:, None]
            r = spread + weight @ chosen
            here = (r * mid - np.abs(r) * rad).sum(1) + (chosen * bias).sum(1)
            least = np.minimum(least, here)
        return np.asarray(value + least.sum(0)), more


def _middle(lower: Array, upper: Array) -> tuple[Array, Array, Array]:
    """A middle and a radius whose interval contains both ends, and the largest size in it."""
    mid = lower + (upper - lower) / 2
    rad = np.where(lower == upper, 0, np.nextafter(np.maximum(upper - mid, mid - lower), np.inf))
    return mid, rad, np.nextafter(np.abs(mid) + rad, np.inf)


def _image(bent: Curve | None, low: Array, high: Array) -> tuple[Array, Array]:
    """Ends of the activations."""
    if bent is None:
        return np.maximum(low, 0), np.maximum(high, 0)
    return bent.ends(low, high)


def _rectified(a: Array, low: Array, high: Array, slope: Any) -> tuple[Array, Array, Any]:
    """B and what is left of ``a relu(z) >= B z + rest``, and where the sign of z is open."""
    loose, on = (low < 0) & (high > 0), low >= 0
    least, most = np.where(loose, low, 0.0), np.where(loose, high, on)
    slope = most > -least if slope is None else np.where(loose, slope, on)
    chord = np.where(loose, most / np.where(loose, most - least, 1.0), on)
    # A is the sum of its parts below and above 0, one of which is 0: none of this rounds twice.
    below = np.minimum(a, 0.0)
    b = below * np.minimum(chord, 1)
    rest = np.minimum(b * -least, (below - b) * most)  # 0 but for A < 0 and an open sign
    return b + np.maximum(a, 0.0) * np.clip(slope, 0, 1), rest, loose


def _bent(
    bent: Curve, a: Array, low: Array, high: Array, slope: Any, push: Any
) -> tuple[Array, Array]:
    """B and the rest for another activation: any B will do, these are the prover's."""
    high = np.maximum(low, high)
    least, most = bent.slopes(low, high)
    chord = bent.chord(low, high)
    chosen = chord if slope is None else least + np.clip(slope, 0, 1) * (most - least)
    b = a * np.where((a < 0) & bent.convex, chord, chosen) - push
    return b, bent.floor(a, b, low, high)
