"""Bounds of the difference of two runs of one network, as a difference: what is equal cancels.

Let ``d`` stand for differences, second run less first: ``dz_k = sum_j W_kj da_j`` (biases cancel),
``da_0 = dx``. Between two points a ReLU has a slope s in [0, 1], ``da = s dz``; it is 1 where both
runs are active and 0 where neither is. With dz in [l, u] and any float B

    c da >= B dz + min over s of {least, most slope} and over e of {l, u} of (c s - B) e,

because ``(c s - B) dz`` is linear in s and in dz. Another activation has a slope between the least
and the largest derivative on all that both runs reach; one without turns that rises somewhere has
none below 0. So a row of differences is taken back through the
layers to ``q . dx + rest``, least at an end of each dx.

**Steps.** All of this is homogeneous: for ``dx = t v`` with t > 0 everything is t times what it is
for ``dx = v``. A difference that is >= 0 for every direction v of the region, or for every axis
along which it has steps, is >= 0 for every step, however short, and at none it is 0: that is how
``y2 >= y`` is shown where x2 may be x.

**The error** is that of `qll.audit.bounds`: a coefficient that a product ``c W`` gives is off by at
most ``2 g |c| |W|``, weights and sums together, which moves the result by U times that, U being the
size of what it multiplies; the rests and the last sum err by g times their sizes. All of it is
counted, and g is 16 times too large. Slopes of ReLUs multiply exactly; of a product with another
slope s, ``g |c s| U`` counts once more. Where a coefficient is beyond its error of one sign, and
the difference it multiplies of the same, nothing is relaxed but to 0, and no error counts: so what
is flat is shown not to fall, exactly. What may underflow counts 2^-500.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from qll.audit.network import Array, Network, require

TINY, LEAST = 2.0**-500, 2.0**-400
MOST_AXES = 16


class Slopes:
    """``network`` is that of one run; ``g`` as in `qll.audit.bounds`."""

    def __init__(self, network: Network, g: float) -> None:
        fine = all(bent is None or bent.has_slopes for bent in network.curves)
        require(fine, "slopes of another activation")
        self.layers, self.widths, self.g = network.floats, network.widths, g
        self.curves = network.curves

    def lower(self, ends: Any, first: Array, last: Array, row: Array, direct: Array) -> float:
        """Below ``row . dy + direct . dx`` for dx from ``first`` to ``last``; ``ends`` are low and
        high ends of the hidden neurons of each run, by layers."""
        size = np.maximum(np.abs(first), np.abs(last))
        reach = [np.where(size == 0, 0.0, np.maximum(size, LEAST))]
        require(reach[0].max(initial=0.0) < 2.0**100, "a step that is too large")
        known: list[Any] = [(first, last, np.ones_like(first), np.ones_like(first))]
        for k, sides in enumerate(ends, start=1):
            least, most = _slopes(self.curves[k - 1], *sides)
            eye = np.eye(self.widths[k])
            none = np.zeros((2 * len(eye), self.widths[0]))
            found = self._back(k, np.concatenate([eye, -eye]), none, known, reach)
            below, above = found[: len(eye)], -found[len(eye) :]
            require(bool(np.isfinite(found).all()), "differences that are too large")
            known.append((below, above, least, most))
            size = np.maximum(np.abs(below), np.abs(above))
            none = (least == 0) & (most == 0)
            reach.append(np.where(none | (size == 0), 0.0, np.maximum(size, LEAST)))
        found = self._back(len(self.layers), row[None], direct[None], known, reach)
        return float(found[0])

    def _back(self, layer: int, c: Array, direct: Array, known: Any, reach: Any) -> Array:
        """Below ``c . dz_layer + direct . dx``, for each row."""
        g, value, slack = self.g, np.zeros(len(c)), np.zeros(len(c))
        flowing: dict[int, Any] = {0: (direct, g * np.abs(direct))}  # coefficients, their errors
        for k in range(layer, 0, -1):
            carried = np.zeros_like(c)
            if k < layer:
                if k not in flowing:
                    continue
                a, error = flowing.pop(k)
                low, high, least, most = known[k]
                c, rest = _relaxed(a, *known[k])
                # Of one sign with the difference beyond doubt: their product is not negative.
                zero = ((low >= 0) & (a > error)) | ((high <= 0) & (a < -error))
                # Passed on as it is, whatever it is exactly: so is its error.
                same = ((low >= 0) & (a < -error)) | ((high <= 0) & (a > error)) | (least == most)
                zero = zero & (c == 0) & (least >= 0) & (least != most)
                same = same & (c == a)
                charged, carried = np.where(zero | same, 0.0, error), np.where(same, error, 0.0)
                if self.curves[k - 1] is not None:  # products with slopes are rounded
                    steep = np.maximum(np.abs(least), np.abs(most))
                    charged = charged * np.maximum(steep, 1.0) + g * np.abs(a) * steep
                value = value + rest.sum(1)
                slack = slack + g * np.abs(rest).sum(1) + (charged * reach[k]).sum(1)
            for source, weight, size in self.layers[k - 1][0]:
                before = flowing.get(source, (0.0, 0.0))
                touched = (c != 0).astype(np.float64) @ (weight != 0)
                error = g * (np.abs(c) @ size) + TINY * touched  # nothing underflows unseen
                error = error + carried @ size * (1 + g)
                flowing[source] = before[0] + c @ weight, before[1] + error
        (q, error), (first, last, _, _) = flowing[0], known[0]
        value = value + np.where(q > 0, q * first, q * last).sum(1)
        slack = slack + error @ reach[0] + g * np.abs(q) @ reach[0]
        found = np.nextafter(value - slack * (1 + g), -np.inf)
        return np.asarray(np.where(slack == 0, value, found))


def _slopes(bent: Any, first: Any, second: Any) -> tuple[Array, Array]:
    """Ends of the slopes between a value of one run and one of the other."""
    (low, high), (low2, high2) = first, second
    if bent is not None:
        ends: tuple[Array, Array] = bent.between(np.minimum(low, low2), np.maximum(high, high2))
        return ends
    least = np.where((low >= 0) & (low2 >= 0), 1.0, 0.0)
    return least, np.where((high <= 0) & (high2 <= 0), 0.0, 1.0)


def _relaxed(c: Array, low: Array, high: Array, least: Array, most: Array) -> tuple[Array, Array]:
    """B and the rest of ``c da >= B dz + rest``."""
    low, high = np.minimum(low, high), np.maximum(low, high)
    mixed = (low < 0) & (high > 0)
    wide = np.where(mixed, high - low, 1.0)
    # Slopes of the lines below and above all ``s dz``, between the ends.
    below = np.where(mixed, (least * high - most * low) / wide, np.where(low >= 0, least, most))
    above = np.where(mixed, (most * high - least * low) / wide, np.where(low >= 0, most, least))
    fixed = least == most
    b = c * np.where(fixed, most, np.where(c > 0, below, above))
    corners = [(c * s - b) * e for s in (least, most) for e in (low, high)]
    return b, np.where(fixed, 0.0, np.minimum.reduce(corners))


@dataclass(frozen=True, eq=False)
class Pair:
    """One network at two points: entries ``home`` of the variables, x first, then x2."""

    network: Network
    home: tuple[int, ...]

    def refute(
        self, goal: Any, box: tuple[Array, Array], weight: Array, bounder: Any, errors: Any = None
    ) -> None:
        """No point of the box gives the combination a value > 0, nor 0 if that would violate; with
        ``errors`` (`qll.audit.float32`) in no float32 evaluation of either run."""
        inputs, outputs = self.network.widths[0], self.network.widths[-1]
        p, d, constant = _combined(goal, weight)
        rise = [p.get(outputs + k, Fraction(0)) for k in range(outputs)]
        fine = all(p.get(k, 0) == -rise[k] for k in range(outputs))
        moving = [k for k in range(inputs) if self.home[k] != self.home[inputs + k]]
        step, left = np.zeros(inputs), dict(d)
        for k in moving:
            share = d.get(self.home[inputs + k], Fraction(0))
            step[k] = float(share)
            for at, sign in ((self.home[inputs + k], 1), (self.home[k], -1)):
                left[at] = left.get(at, Fraction(0)) - sign * share
        require(fine and not any(left.values()), "a combination that is no difference")
        strict = bool(weight[: len(weight) - goal.required].max(initial=0.0) > 0)
        strict = strict and not goal.tie_violates and errors is None
        first, last, box = self._steps(goal, box, moving)
        filled = (first <= last).all() and (box[0] <= box[1]).all()
        require(bool(filled), "differences without a value")
        area = bounder.crown(bounder.area(*(t[None, None] for t in box)))
        runs = self._runs(area.low[0, 0], area.high[0, 0])
        slopes, row = Slopes(self.network, bounder.g), -np.array([float(v) for v in rise])
        value = slopes.lower(runs, first, last, row, -step)
        away = 0.0
        if errors is not None:
            radii = errors.radii(box, (area.low[0, 0], area.high[0, 0]), goal.outputs)
            away = float(weight @ radii) * (1 + 2.0**-40)
        proved = np.isfinite(value - away) and Fraction(value) - Fraction(away) > constant
        if not proved and strict and constant <= 0:
            ways = _directions(first, last, moving)
            proved = all(slopes.lower(runs, a, b, row, -step) >= 0 for a, b in ways)
        require(bool(proved), f"a difference is not proved: its bound is {value:.3g}")

    def _steps(self, goal: Any, box: Any, moving: list[int]) -> tuple[Array, Array, Any]:
        """Ends of x2 - x, from the box and from constraints on it; and the box, which these cut."""
        inputs = self.network.widths[0]
        (first, last), (lower, upper) = np.zeros((2, inputs)), (t.copy() for t in box)
        said = [
            ({slot[1]: c for slot, c in terms}, total)
            for terms, total, _ in list(goal.atoms)[len(goal.atoms) - goal.required :]
        ]
        for k in moving:
            a, b = self.home[k], self.home[inputs + k]
            ends = [[Fraction(float(t[at])) for t in box] for at in (a, b)]
            least, most = ends[1][0] - ends[0][1], ends[1][1] - ends[0][0]
            for terms, total in said:
                if set(terms) == {a, b} and terms[a] == -terms[b]:
                    end = -total / terms[b]  # terms[b] (x2 - x) + total >= 0
                    least = max(least, end) if terms[b] > 0 else least
                    most = min(most, end) if terms[b] < 0 else most
            first[k], last[k] = _outward(least, -1), _outward(most, 1)
            for at, other, low, high in ((b, ends[0], least, most), (a, ends[1], -most, -least)):
                lower[at] = max(lower[at], _outward(other[0] + low, -1))
                upper[at] = min(upper[at], _outward(other[1] + high, 1))
        return first, last, (lower, upper)

    def _runs(self, low: Array, high: Array) -> list[Any]:
        """Ends of the hidden neurons of each run, layer by layer."""
        found, start = [], 0
        for width in self.network.widths[1:-1]:
            parts = slice(start, start + width), slice(start + width, start + 2 * width)
            found.append([(low[part], high[part]) for part in parts])
            start += 2 * width
        return found


def _combined(
    goal: Any, weight: Array
) -> tuple[dict[int, Fraction], dict[int, Fraction], Fraction]:
    """The combination of atoms, exactly: of outputs, of inputs, and its constant."""
    found: dict[str, dict[int, Fraction]] = {"y": {}, "x": {}}
    constant = Fraction(0)
    for (terms, total, _), w in zip(goal.atoms, weight.tolist(), strict=True):
        constant += Fraction(w) * total
        for (source, k), c in terms if w else ():
            found[source][k] = found[source].get(k, Fraction(0)) + Fraction(w) * c
    return found["y"], found["x"], constant


def _directions(first: Array, last: Array, moving: list[int]) -> list[tuple[Array, Array]]:
    """Boxes of directions: every step of the region is a sum of multiples, none negative, of some.

    For one pair of points every ReLU has some slope, and with these slopes the difference is linear
    in the step. Bounds are for all slopes at once, so they may be summed over the axes; of a box of
    directions, which holds 0, rounding leaves less than 0 where nothing falls. Of many axes there
    is the box alone, or the sum would take too long.
    """
    if len(moving) > MOST_AXES:
        return [(np.where(first < 0, -1.0, 0.0), np.where(last > 0, 1.0, 0.0))]
    found = []
    for k in moving:
        for sign, some in ((1.0, last[k] > 0), (-1.0, first[k] < 0)):
            if some:
                axis = np.zeros_like(first)
                axis[k] = sign
                found.append((axis, axis))
    return found


def _outward(value: Fraction, sign: int) -> float:
    near = float(value)
    beyond = sign * (Fraction(near) - value) >= 0
    return near if beyond else float(np.nextafter(near, sign * np.inf))
