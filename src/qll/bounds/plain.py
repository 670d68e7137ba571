"""CROWN over boxes of a small ReLU graph in numpy: the reading of `qll.bounds.dense` that needs no
kernel.

Loading numba and the kernels takes as long as hundreds of boxes do here, and most queries to small
networks need fewer. It blames nobody: splits go by the linear bounds alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from qll.bounds.crown import BoxBounds
from qll.bounds.groups import Array
from qll.bounds.rounding import Sizes, proved
from qll.networks.relu_form import ReluForm

# Entries of the largest temporary array; batches of boxes are cut to stay below it.
MOST_ENTRIES = 1 << 21
# Steps of the ascent over the weights of a conjunction's rows, their size and its decay.
STEPS, RATE, DECAY = 12, 2.0, 0.8


class PlainGraph:
    def __init__(self, form: ReluForm) -> None:
        self.form = form
        self.terms = [
            [(j, w if isinstance(w, np.ndarray) else w.toarray()) for j, w in layer.terms]
            for layer in form.layers
        ]
        self.starts = np.cumsum([0, *form.widths[1:-1]])

    @property
    def neurons(self) -> int:
        """Hidden ones."""
        return int(self.starts[-1])

    @property
    def work(self) -> int:
        """Multiplications for one box, about: every layer carried back through those below."""
        layers = [sum(w.size for _, w in terms) for terms in self.terms]
        below = itertools.accumulate(layers)
        return 2 * sum(w * before for w, before in zip(self.form.widths[1:], below, strict=True))

    def by_layer(self, flat: Array) -> list[Array]:
        """Values of the hidden neurons (neurons,), layer by layer."""
        return [flat[a:b] for a, b in itertools.pairwise(self.starts)]

    def bound(
        self,
        lower: Array,
        upper: Array,
        rows: Array,
        constant: Array,
        conjunctions: Sequence[Sequence[int]] = (),
        *,
        sizes: Sizes,
        inputs: Array | None = None,
        known: tuple[Array, Array] | None = None,
        margin: float = 0.0,
    ) -> BoxBounds:
        """As `qll.bounds.dense.DenseGraph.bound`."""
        shape = (len(lower), self.neurons)
        low, high = known or (np.full(shape, -np.inf), np.full(shape, np.inf))
        direct = np.zeros((len(rows), lower.shape[1])) if inputs is None else inputs
        large = sizes.objectives(rows, constant, inputs)
        step = max(1, MOST_ENTRIES // (2 * max(self.form.widths) ** 2))
        parts = []
        for at in range(0, len(lower), step):
            some = slice(at, at + step)
            run = _Run(self, sizes, lower[some], upper[some], low[some], high[some])
            parts.append(run.all(rows, constant, direct, large, conjunctions))
        if len(parts) == 1:
            return parts[0]

        def joined(name: str) -> Array:
            return np.concatenate([getattr(part, name) for part in parts])

        return BoxBounds(
            value=joined("value"),
            linear=joined("linear"),
            mixed=joined("mixed"),
            weights=[np.concatenate(w) for w in zip(*(p.weights for p in parts), strict=True)],
            mixed_linear=joined("mixed_linear"),
            blame=joined("blame"),
            low=joined("low"),
            high=joined("high"),
        )


class _Run:
    """Some boxes; bounds and relaxations of the layers so far."""

    def __init__(
        self, graph: PlainGraph, sizes: Sizes, lower: Array, upper: Array, low: Array, high: Array
    ) -> None:
        self.graph, self.lower, self.upper = graph, lower, upper
        self.unit, self.sizes, self.reach = sizes.unit, sizes.hidden(), sizes.inputs
        self.low: list[Array] = []
        self.high: list[Array] = []
        self.lines: list[tuple[Array, ...]] = []
        sides = [((lower + upper) / 2, (upper - lower) / 2)]
        ends = itertools.pairwise(graph.starts)
        layers = zip(graph.form.layers[:-1], graph.terms[:-1], ends, strict=True)
        for k, (layer, terms, (a, b)) in enumerate(layers):
            size = np.abs(layer.bias) + self.sizes[k]
            middle, radius = layer.bias, np.zeros_like(layer.bias)
            for source, weight in terms:
                mid, rad = sides[source]
                middle = middle + mid @ weight.T
                radius = radius + rad @ np.abs(weight).T
                size = size + (np.abs(mid) + rad) @ np.abs(weight).T
            radius = radius + self.unit * size
            # a comparison with what is not a number is false
            least, most = low[:, a:b], high[:, a:b]
            least = np.where(middle - radius > least, middle - radius, least)
            most = np.where(middle + radius < most, middle + radius, most)
            if any(source for source, _ in terms):
                open_: NDArray[np.int64] = np.flatnonzero(((least < 0) & (most > 0)).any(axis=0))
                if open_.size:
                    self._tighten(k, open_, least, most)
            self.low.append(least)
            self.high.append(most)
            self.lines.append(_lines(least, most))
            top, bottom = np.maximum(most, 0.0), np.maximum(least, 0.0)
            sides.append(((top + bottom) / 2, (top - bottom) / 2))

    def _tighten(self, k: int, open_: NDArray[np.int64], least: Array, most: Array) -> None:
        bias = self.graph.form.layers[k].bias[open_]
        both = np.concatenate([np.eye(open_.size), -np.eye(open_.size)])
        terms = [(source, weight[open_]) for source, weight in self.graph.terms[k]]
        direct = np.zeros((2 * open_.size, self.lower.shape[1]))
        size = np.tile(self.sizes[k][open_], 2)
        value, _ = self.back(both, both @ bias, direct, size, terms)
        count = open_.size
        least[:, open_] = np.fmax(least[:, open_], value[:, :count])
        most[:, open_] = np.fmin(most[:, open_], -value[:, count:])

    def back(
        self,
        rows: Array,
        constant: Array,
        direct: Array,
        size: Array,
        terms: Sequence[tuple[int, Array]],
    ) -> tuple[Array, Array]:
        """Lower bounds (N, r) of ``rows . (sum of the terms) + direct . x + constant``, rows (r, n)
        or (N, r, n), and the linear functions of the input that were minimised."""
        flow: dict[int, Array] = {0: direct if direct.ndim == 3 else direct[None]}
        for source, weight in terms:
            part = rows @ weight
            part = part if part.ndim == 3 else part[None]
            flow[source] = flow[source] + part if source in flow else part
        value = constant + np.zeros((len(self.lower), 1))
        measured = size + np.zeros((len(self.lower), 1))
        for k in range(len(self.low) - 1, -1, -1):
            if k + 1 not in flow:
                continue
            coefficient = flow.pop(k + 1)
            chord, rise, line, loose = (side[:, None] for side in self.lines[k])
            negative = np.minimum(coefficient, 0.0)
            relaxed = np.where(coefficient > 0, coefficient * line, coefficient * chord)
            value = value + (negative * rise).sum(axis=2)
            value = value + relaxed @ self.graph.form.layers[k].bias
            measured = measured + np.abs(relaxed) @ self.sizes[k] - (negative * loose).sum(axis=2)
            for source, weight in self.graph.terms[k]:
                part = relaxed @ weight
                flow[source] = flow[source] + part if source in flow else part
        pixel = np.broadcast_to(flow[0], (len(self.lower), *flow[0].shape[1:]))
        least = np.where(pixel > 0, pixel * self.lower[:, None], pixel * self.upper[:, None])
        measured = measured + np.abs(pixel) @ self.reach
        return value + least.sum(axis=2) - self.unit * measured, np.array(pixel)

    def all(
        self,
        rows: Array,
        constant: Array,
        direct: Array,
        large: Array,
        conjunctions: Sequence[Sequence[int]],
    ) -> BoxBounds:
        last, terms = self.graph.form.layers[-1], self.graph.terms[-1]
        offset = constant + rows @ last.bias
        value, linear = self.back(rows, offset, direct, large, terms)
        most = value
        if any(len(leaves) > 1 for leaves in conjunctions):
            most = -self.back(-rows, -offset, -direct, large, terms)[0]
        half = (self.upper - self.lower) / 2
        mixed, mixed_linear, weights = [], [], []
        for leaves in conjunctions:
            mine = list(leaves)
            weight = _mixture(value[:, mine], linear[:, mine], most[:, mine], half)
            mixture = np.zeros((len(weight), 1, len(rows)))
            mixture[:, 0, mine] = weight
            found, pixel = self.back(
                mixture @ rows, mixture @ offset, mixture @ direct, mixture @ large, terms
            )
            mixed.append(found[:, 0])
            mixed_linear.append(pixel[:, 0])
            weights.append(weight)
        empty = np.zeros((len(value), 0))
        stacked = (
            np.stack(mixed_linear, axis=1) if mixed else np.zeros((len(value), 0, half.shape[1]))
        )
        return BoxBounds(
            proved(value),
            linear,
            proved(np.stack(mixed, axis=1) if mixed else empty),
            weights,
            stacked,
            np.zeros_like(stacked),
            *(np.concatenate([empty, *side], axis=1) for side in (self.low, self.high)),
        )


def _lines(low: Array, high: Array) -> tuple[Array, ...]:
    """Slope and intercept of the chord, slope of the lower line, and what the chord's rounding is
    measured in."""
    open_, on = (low < 0) & (high > 0), high > 0
    run = np.where(open_, high - low, 1.0)
    chord = np.where(open_, high / run, on)
    rise = np.where(open_, -chord * np.where(open_, low, 0.0), 0.0)
    line = np.where(open_, high > -low, on)
    return chord, rise, line.astype(np.float64), np.where(open_, high, 0.0)


def _mixture(value: Array, linear: Array, most: Array, half: Array) -> Array:
    """Weights (N, leaves) of a good mixture of the leaves' linear bounds over each box, those that
    are positive nowhere left out: see `qll.bounds.crown`."""
    count = value.shape[1]
    if count == 1:
        return np.ones_like(value)
    centre = value + (np.abs(linear) * half[:, None]).sum(axis=2)
    hopeful = most > 0
    chosen = np.eye(count)[np.where(hopeful, value, -np.inf).argmax(axis=1)]
    best = (chosen * value).sum(axis=1)
    trial = (chosen + hopeful / np.maximum(hopeful.sum(axis=1, keepdims=True), 1)) / 2
    for step in range(STEPS):
        side = -np.sign((trial[:, None] @ linear)[:, 0]) * half
        each = centre + (linear * side[:, None]).sum(axis=2)
        total = (trial * each).sum(axis=1)
        better = (total > best) & hopeful.any(axis=1)
        best = np.where(better, total, best)
        chosen = np.where(better[:, None], trial, chosen)
        slope = np.where(trial > 0, each - total[:, None], 0.0)
        widest = np.abs(slope).max(axis=1, keepdims=True) + 1e-30
        trial = trial * np.exp(slope / widest * (RATE * DECAY**step))
        trial = trial / trial.sum(axis=1, keepdims=True)
    return np.asarray(chosen)
