"""Violations that are a difference of two runs of one network, refuted as a difference.

A leaf ``p . (y2 - y) + q . (x2 - x) + k > 0`` is closed on a box where bounds of the difference
(`qll.bounds.differences`) say so; with ``k <= 0`` also where the difference is never positive in
any direction of the step, which shows it for steps of every length, down to none. In float32 it is
closed where the difference says so by more than the rounding of both runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from qll.bounds.differences import Differences, Runs, fits
from qll.bounds.rounding import Sizes
from qll.formula.hard import Affine, affine
from qll.late import late
from qll.networks.joint import Joint
from qll.verify.arithmetic import float32_of
from qll.verify.condition import Array, obligations
from qll.verify.query import Query

if TYPE_CHECKING:
    import torch
else:
    torch = late("torch")

# So far inside that the checker, which rounds in its own way, will agree.
ROOM = 1e-9
MOST_AXES = 16  # along which a step is taken apart


@dataclass(frozen=True)
class Leaf:
    """``rise . (y2 - y) + step . (x2 - x) + constant``."""

    rise: Array
    step: Array
    constant: float


def is_difference(query: Query) -> bool:
    """Whether every way to violate the condition needs a difference to be positive."""
    if not _is_pair(query):
        return False
    blind = _is_blind(query)  # otherwise a sum of leaves shows little but where x2 is x
    return all(_chosen(query, each.leaves, sums=blind) is not None
               for each in obligations(query.search.tree) if not each.waiting)  # fmt: skip


def _chosen(query: Query, conjunction: Sequence[int], *, sums: bool) -> tuple[Leaf, Array] | None:
    """A difference that must be positive where the conjunction is violated, and the weights of its
    leaves: one of them, or their sum (``y > 0`` and ``y2 < 0`` need ``y - y2 > 0``)."""
    own = [(at, k) for at, k in enumerate(conjunction) if k < query.reduced.leaves]
    tries = [[pair] for pair in own]
    if len(own) > 1 and sums:
        tries.append(own)
    for chosen in tries:
        form = query.reduced.exact[chosen[0][1]]
        for _, k in chosen[1:]:
            more = query.reduced.exact[k]
            form = affine((*form.terms, *more.terms), form.constant + more.constant)
        leaf = _leaf(query, form)
        if leaf is not None:
            weight = np.zeros(len(conjunction))
            weight[[at for at, _ in chosen]] = 1.0
            return leaf, weight
    return None


def _is_blind(query: Query) -> bool:
    """Whether no layer reads an input that differs between the two points."""
    network: Any = query.network
    single, home = network.networks[0], network.home
    moving = [k for k in range(single.input_size) if home[k] != home[single.input_size + k]]
    read = [m for layer in single.relu_form.layers for source, m in layer.terms if source == 0]
    return not any(abs(m[:, moving]).sum() for m in read)


def _is_pair(query: Query) -> bool:
    network = query.network
    return (
        type(network) is Joint  # not behind a map: entries are variables
        and network.points == 2
        and network.networks[0] is network.networks[1]
        and fits(network.networks[0])
    )


def _leaf(query: Query, form: Affine) -> Leaf | None:
    network: Any = query.network
    single, home = network.networks[0], network.home
    inputs, outputs = single.input_size, single.output_size
    p = {k: c for (source, k), c in form.terms if source == "y"}
    left = {k: c for (source, k), c in form.terms if source == "x"}
    if any(p.get(k, 0) != -p.get(outputs + k, 0) for k in range(outputs)):
        return None
    step = np.zeros(inputs)
    for k in range(inputs):
        if home[k] != home[inputs + k]:
            share = left.get(home[inputs + k], Fraction(0))
            step[k] = float(share)
            for at, sign in ((home[inputs + k], 1), (home[k], -1)):
                left[at] = left.get(at, Fraction(0)) - sign * share
    if any(left.values()):
        return None
    rise = np.array([float(p.get(outputs + k, 0)) for k in range(outputs)])
    return Leaf(rise, step, float(form.constant))


class Pair:
    """Closes boxes of a query for a prover; ``weights`` are those of each conjunction's leaves."""

    def __init__(
        self, query: Query, leaves: list[Leaf | None], weights: list[Array], ends: Any
    ) -> None:
        network: Any = query.network
        self.single, self.ends = network.networks[0], ends
        self.leaves, self.weights = leaves, weights
        self.bounds = Differences(self.single)
        inputs = self.single.input_size
        self.first = np.array(network.home[:inputs])
        self.second = np.array(network.home[inputs:])
        self.moving = self.first != self.second
        self.least, self.most = _said(query._folded.constraints, self.first, self.second)
        # In float32 two evaluations at one point may differ: a step of length 0 says nothing.
        self.strict = not query.tie_violates and not query.in_float32
        self.float32 = float32_of(network) if query.in_float32 else None

    @classmethod
    def of(
        cls, query: Query, conjunctions: Sequence[Sequence[int]], prover: Any, sizes: Sizes
    ) -> Pair | None:
        if not _is_pair(query):
            return None
        leaves: list[Leaf | None] = []
        weights = []
        for conjunction in conjunctions:
            found = _chosen(query, conjunction, sums=True)
            leaves.append(None if found is None else found[0])
            weights.append(np.zeros(len(conjunction)) if found is None else found[1])
        if all(leaf is None for leaf in leaves):
            return None
        return cls(query, leaves, weights, _ends_of(query, prover, sizes))

    def closed(self, lower: Array, upper: Array) -> tuple[Any, Array]:
        """(N, conjunctions) which are refuted on which box, and (N, variables) what is to blame
        where they are not."""
        inner, outer = self._tightened(lower, upper)
        first = np.where(self.moving, inner[:, self.second] - outer[:, self.first], 0.0)
        last = np.where(self.moving, outer[:, self.second] - inner[:, self.first], 0.0)
        wide = np.abs(first) + np.abs(last)
        first = np.maximum(first - 1e-15 * wide, self.least)
        last = np.minimum(last + 1e-15 * wide, self.most)
        # A constraint excludes the box: CROWN sees to that.
        outside = (first > last).any(axis=1) | (inner > outer).any(axis=1)
        first, outer = np.minimum(first, last), np.maximum(inner, outer)
        ends = self.ends(inner, outer)
        runs = self._runs(*ends)
        # Where x2 follows from x, splitting it alone changes nothing.
        own = (outer - inner) >= (upper - lower)
        done = np.zeros((len(lower), len(self.leaves)), dtype=bool)
        blame = np.zeros_like(lower)
        for number, leaf in enumerate(self.leaves):
            if leaf is None:
                continue
            rows, direct = -leaf.rise[None], -leaf.step[None]
            value, due = self.bounds.lower(runs, first, last, rows, direct)
            room = ROOM * (1.0 + abs(leaf.constant))
            error = self._error(leaf, inner, outer, ends)
            good = value[:, 0] > leaf.constant + room + error
            if self.strict and leaf.constant <= 0 and not good.all():
                good |= self._any_length(runs, first, last, rows, direct)
            done[:, number] = good & ~outside
            np.add.at(blame.T, self.first, due.T)
            second = self.second[self.moving]
            np.add.at(blame.T, second, (due[:, self.moving] * own[:, second]).T)
        return done, blame

    def _tightened(self, lower: Array, upper: Array) -> tuple[Array, Array]:
        """The boxes, where what is said of x2 - x cuts one of them by the other, outward."""
        lower, upper = lower.copy(), upper.copy()
        for k in np.flatnonzero(self.moving):
            a, b = self.first[k], self.second[k]
            far = np.maximum(np.abs(lower[:, [a, b]]), np.abs(upper[:, [a, b]])).max(axis=1)
            for one, other, least, most in (
                (b, a, self.least[k], self.most[k]),
                (a, b, -self.most[k], -self.least[k]),
            ):
                hair = 1e-15 * (far + 1.0)
                lower[:, one] = np.maximum(lower[:, one], lower[:, other] + least - hair)
                upper[:, one] = np.minimum(upper[:, one], upper[:, other] + most + hair)
        return lower, upper

    def _error(self, leaf: Leaf, lower: Array, upper: Array, ends: tuple[Array, Array]) -> Any:
        """(N,) how far float32 may move the leaf, each run in an order of its own."""
        if self.float32 is None:
            return 0.0
        places = np.cumsum([0, *(2 * layer.width for layer in self.single.relu_form.layers[:-1])])
        low, high = ([side[:, a:b] for a, b in pairwise(places.tolist())] for side in ends)
        rows = np.concatenate([-leaf.rise, leaf.rise])[None]
        return self.float32.radii(lower, upper, low, high, rows)[:, 0] * (1 + ROOM)

    def _any_length(self, runs: Runs, first: Array, last: Array, rows: Array, direct: Array) -> Any:
        """Whether the difference is never positive in any direction of the step: along every axis,
        since with the slopes of one pair it is linear in the step (`qll.audit.slope`)."""
        ways: list[tuple[Array, Array, Any]]
        axes = np.flatnonzero(self.moving).tolist()
        if len(axes) > MOST_AXES:
            ways = [(np.where(first < 0, -1.0, 0.0), np.where(last > 0, 1.0, 0.0), None)]
        else:
            ways = []
            for k in axes:
                one = np.zeros_like(first)
                one[:, k] = 1.0
                ways += [(one, one, last[:, k] > 0), (-one, -one, first[:, k] < 0)]
        good = np.ones(len(first), dtype=bool)
        for least, most, needed in ways:
            if needed is not None and not (needed & good).any():
                continue
            value = self.bounds.lower(runs, least, most, rows, direct)[0][:, 0]
            enough = value >= 0
            good &= enough if needed is None else enough | ~needed
        return good

    def _runs(self, low: Array, high: Array) -> Runs:
        """The two halves of each layer."""
        found: tuple[list[Array], ...] = ([], [], [], [])
        start = 0
        for layer in self.single.relu_form.layers[:-1]:
            middle, end = start + layer.width, start + 2 * layer.width
            parts = slice(start, middle), slice(middle, end)
            for k, (side, part) in enumerate((s, p) for p in parts for s in (low, high)):
                found[k].append(side[:, part])
            start = end
        return Runs(*found)


def _said(constraints: Sequence[Affine], first: Any, second: Any) -> tuple[Array, Array]:
    """Ends of x2 - x that constraints say, outward by a hair."""
    least, most = np.full(len(first), -np.inf), np.full(len(first), np.inf)
    for constraint in constraints:
        said = {k: c for (_, k), c in constraint.terms}
        for k in np.flatnonzero(first != second).tolist():
            a, b = int(first[k]), int(second[k])
            if set(said) == {a, b} and said[a] == -said[b]:
                end = float(-Fraction(constraint.constant) / said[b])
                if said[b] > 0:
                    most[k] = min(most[k], np.nextafter(end, np.inf) if end else 0.0)
                else:
                    least[k] = max(least[k], np.nextafter(end, -np.inf) if end else 0.0)
    return least, most


def _ends_of(query: Query, prover: Any, sizes: Sizes) -> Any:
    """Ends of all hidden neurons over boxes, compiled where that is possible."""
    rows = np.zeros((1, query.form.output_size))

    def ends(lower: Array, upper: Array) -> tuple[Array, Array]:
        if prover.dense is not None:
            found = prover.dense.bound(lower, upper, rows, np.zeros(1), sizes=sizes)
            return found.low, found.high
        crown = prover.crown
        with torch.no_grad():
            boxes = crown.pre_activations(
                crown.tensor(lower), crown.tensor(upper), crown.allowance(sizes)
            )
        sides = [torch.cat(t, 1).cpu().numpy() for t in (boxes.low, boxes.high)]
        return sides[0], sides[1]

    return ends
