"""Batched search for violations: sign steps on the condition's own value, many queries at once.

It answers with candidates only; `qll.verify.judge` says what a candidate is worth. Queries whose
conditions have the same tree share one batch, whatever their thresholds and labels.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qll import limits
from qll.networks.matrices import entries
from qll.networks.relu_form import ReluForm
from qll.verify import clock
from qll.verify.condition import Any_, Array, Tree, add_soft_weights, reduce_tree
from qll.verify.query import Query

Single: TypeAlias = NDArray[np.float32]

# Widths of the steps, in half-widths of the box: from crossing it to a fine end.
FIRST_STEP, LAST_STEP = 1.0, 0.02
# Hardness of the softened minimum, against the spread of its parts: soft first, hard at the end.
FIRST_HARDNESS, LAST_HARDNESS = 2.0, 40.0
# Above this float32 value a point is worth an exact judgement; below it, search on.
CLEAR = 1e-6
# Multiplications of a step between two looks at the clock, some hundredths of a second, and entries
# of all pre-activations at once.
PIECE_PRODUCTS, PIECE_ENTRIES = 100_000_000, 1 << 25


@dataclass(frozen=True, eq=False)
class SearchNetwork:
    """The network in float32 with its transposes, columns are points."""

    form: ReluForm

    @cached_property
    def _weights(self) -> list[list[tuple[int, Any, Any]]]:
        limits.need(16 * self.size, "the network of a search")
        found = []
        for layer in self.form.layers:
            limits.check()
            singles = [(j, w.astype(np.float32)) for j, w in layer.terms]
            found.append([(j, w, _transpose(w)) for j, w in singles])
        return found

    @cached_property
    def size(self) -> int:
        """Entries of all matrices."""
        return sum(entries(w).size for layer in self.form.layers for _, w in layer.terms)

    @cached_property
    def piece(self) -> int:
        """Points that one piece of a step may have."""
        each = 2 * sum(self.form.widths)
        return max(1, min(PIECE_PRODUCTS // max(self.size, 1), PIECE_ENTRIES // each))

    @cached_property
    def _biases(self) -> list[Single]:
        return [layer.bias.astype(np.float32)[:, None] for layer in self.form.layers]

    def forward(self, x: Single) -> list[Single]:
        """Pre-activations (n, B) of the points ``x`` (inputs, B)."""
        activations = [x]
        result = []
        for bias, terms in zip(self._biases, self._weights, strict=True):
            z = bias
            for source, weight, _ in terms:
                z = z + weight @ activations[source]
            if z.shape[1] != x.shape[1]:
                z = np.repeat(z, x.shape[1], axis=1)
            result.append(z)
            activations.append(self.form.layers[len(result) - 1].activation.value(z))
        return result

    def backward(self, z: Sequence[Single], gradient: Single) -> Single:
        """The gradient at the input (inputs, B) for the ``gradient`` (outputs, B)."""
        flowing: dict[int, Single] = {len(z): gradient}
        batch = gradient.shape[1]
        for k in range(len(z), 0, -1):
            if k not in flowing:
                continue
            g = flowing.pop(k)
            if k < len(z):
                g = g * self.form.layers[k - 1].activation.gradient(z[k - 1])
            for source, _, transposed in self._weights[k - 1]:
                part = transposed @ g
                flowing[source] = flowing[source] + part if source in flowing else part
        zero = np.zeros((self.form.input_size, batch), dtype=np.float32)
        return flowing.get(0, zero)


def _transpose(weight: Any) -> Any:
    return np.ascontiguousarray(weight.T) if isinstance(weight, np.ndarray) else weight.T.tocsr()


@dataclass(frozen=True)
class Plan:
    """How long to search. Half of the starts aim at one disjunct each, the rest at the largest."""

    starts: int = 4
    steps: int = 20
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Found:
    """The best point of one query (in the box, float64) and its float32 value."""

    point: Array
    value: float


def attack(
    network: SearchNetwork,
    queries: Sequence[Query],
    plan: Plan,
    *,
    first_points: Sequence[Array | None] | None = None,
    trees: Sequence[Tree] | None = None,
    deadline: float = np.inf,
) -> list[Found]:
    """The best point found for each query, by ``deadline``. ``first_points[i]`` (n, inputs) are
    starts to try first; ``trees`` aims at parts of the queries' conditions. All queries share
    ``network``."""
    groups: dict[Tree, list[int]] = defaultdict(list)
    for i, query in enumerate(queries):
        groups[query.search.tree if trees is None else trees[i]].append(i)
    result: list[Found | None] = [None] * len(queries)
    for tree, members in groups.items():
        batch = [queries[i] for i in members]
        points = None if first_points is None else [first_points[i] for i in members]
        # numbers beyond float32 become infinities, which no judge takes for a violation
        with np.errstate(over="ignore", invalid="ignore"):
            found = _attack(network, batch, tree, plan, points, deadline)
        for i, best in zip(members, found, strict=True):
            result[i] = best
    return [best for best in result if best is not None]


def _attack(
    network: SearchNetwork,
    queries: Sequence[Query],
    tree: Tree,
    plan: Plan,
    first_points: Sequence[Array | None] | None,
    deadline: float,
) -> list[Found]:
    rng = np.random.default_rng(plan.seed)
    lower = np.stack([q.lower for q in queries])
    upper = np.stack([q.upper for q in queries])
    best = [Found(q.lower, -np.inf) for q in queries]
    alive = np.arange(len(queries))
    parts = tree.parts if isinstance(tree, Any_) else (tree,)
    search = _Batch(network, queries, parts)
    whole = _whole(queries)
    start = _rounded(_starts(lower, upper, plan.starts, rng, first_points), whole)
    start = _drawn_in(start, queries)
    starts = start.shape[1]
    aims = np.full((len(queries), starts), -1)
    aims[:, 1::2] = rng.integers(len(parts), size=aims[:, 1::2].shape)
    x = start
    for step in range(plan.steps + 1):
        hardness = _between(FIRST_HARDNESS, LAST_HARDNESS, step, plan.steps)
        value, gradient = search.value_and_gradient(x, alive, aims[alive], hardness, deadline)
        top = value.argmax(axis=1)
        for row, i in enumerate(alive.tolist()):
            if value[row, top[row]] > best[i].value:
                point = x[row, top[row]].astype(np.float64)
                best[i] = Found(queries[i].clip(point), float(value[row, top[row]]))
        going = np.array([best[i].value <= CLEAR for i in alive], dtype=bool)
        if step == plan.steps or not going.any() or clock.now() > deadline:
            break
        alive, x, gradient = alive[going], x[going], gradient[going]
        width = _between(FIRST_STEP, LAST_STEP, step, plan.steps) * (upper - lower)[alive] / 2
        moved = x + width[:, None].astype(np.float32) * np.sign(gradient)
        x = np.clip(moved, lower[alive, None], upper[alive, None]).astype(np.float32)
        x = _rounded(x, None if whole is None else whole[alive])
        x = _drawn_in(x, [queries[i] for i in alive])
    return best


def _drawn_in(x: Single, queries: Sequence[Query]) -> Single:
    """Into the balls and onto the equations of the queries that have some."""
    if not any(query.rounds or query.equations for query in queries):
        return x
    pairs = zip(queries, x, strict=True)
    return np.stack([query.clip(rows.astype(np.float64)) for query, rows in pairs]).astype(
        np.float32
    )


def _whole(queries: Sequence[Query]) -> NDArray[np.bool_] | None:
    """(queries, inputs) inputs that are whole numbers."""
    if all(query.integers is None for query in queries):
        return None
    none = np.zeros(queries[0].lower.size, dtype=bool)
    return np.stack([none if q.integers is None else q.integers for q in queries])


def _rounded(x: Single, whole: NDArray[np.bool_] | None) -> Single:
    return x if whole is None else np.where(whole[:, None], np.rint(x), x)


def _between(first: float, last: float, step: int, steps: int) -> float:
    return float(first * (last / first) ** (step / max(steps - 1, 1)))


def _starts(
    lower: Array,
    upper: Array,
    count: int,
    rng: np.random.Generator,
    first_points: Sequence[Array | None] | None,
) -> Single:
    """(queries, starts, inputs): given points, then the centre, then corners and uniform points."""
    given = 0
    if first_points is not None:
        given = max((0 if p is None else len(p)) for p in first_points)
    shape = (lower.shape[0], given + count, lower.shape[1])
    share = rng.random(shape)
    share[:, given::4] = share[:, given::4] > 0.5
    if count:
        share[:, given] = 0.5
    points = lower[:, None] + share * (upper - lower)[:, None]
    if first_points is not None:
        for row, p in enumerate(first_points):
            if p is not None:
                points[row, : len(p)] = p
    return points.astype(np.float32)


class _Batch:
    """Queries with one tree: leaf matrices stacked, values and gradients of all their starts."""

    def __init__(
        self, network: SearchNetwork, queries: Sequence[Query], parts: tuple[Tree, ...]
    ) -> None:
        self.network = network
        self.parts = parts
        conditions = [q.hunted for q in queries]
        self.outputs = np.stack([c.outputs for c in conditions]).astype(np.float32)
        self.constant = np.stack([c.constant for c in conditions]).astype(np.float32)
        self.inputs: Single | None = None
        if any(c.inputs is not None for c in conditions):
            size = queries[0].lower.size
            self.inputs = np.stack(
                [np.zeros((c.leaves, size)) if c.inputs is None else c.inputs for c in conditions]
            ).astype(np.float32)

    def value_and_gradient(
        self,
        x: Single,
        alive: NDArray[np.int64],
        aims: NDArray[np.int64],
        hardness: float,
        deadline: float,
    ) -> tuple[Single, Single]:
        """(alive, starts) values and (alive, starts, inputs) gradients of what each start aims at;
        the value is always that of the whole condition. Of points that there is no time for nothing
        is known: they have the least value."""
        count, starts, _ = x.shape
        values = np.full((count, starts), -np.inf, dtype=np.float32)
        gradients = np.zeros_like(x)
        rows, columns = max(1, self.network.piece // starts), min(self.network.piece, starts)
        for row, column in itertools.product(range(0, count, rows), range(0, starts, columns)):
            if (row or column) and clock.now() > deadline:
                break
            some, part = slice(row, row + rows), slice(column, column + columns)
            values[some, part], gradients[some, part] = self._piece(
                x[some, part], alive[some], aims[some, part], hardness
            )
        return values, gradients

    def _piece(
        self, x: Single, alive: NDArray[np.int64], aims: NDArray[np.int64], hardness: float
    ) -> tuple[Single, Single]:
        count, starts, size = x.shape
        flat = x.reshape(-1, size)
        z = self.network.forward(np.ascontiguousarray(flat.T))
        y = z[-1].T.reshape(count, starts, -1)
        leaves = y @ self.outputs[alive].transpose(0, 2, 1) + self.constant[alive, None]
        if self.inputs is not None:
            leaves = leaves + x @ self.inputs[alive].transpose(0, 2, 1)
        rows = leaves.reshape(count * starts, -1)
        values = np.stack([reduce_tree(part, rows) for part in self.parts], axis=1)
        aim = aims.reshape(-1)
        target = np.where(aim >= 0, aim, values.argmax(axis=1))
        spread = np.maximum(np.ptp(rows, axis=1), 1e-3)[:, None]
        weights = np.zeros_like(rows)
        for index, part in enumerate(self.parts):
            mine = np.flatnonzero(target == index)
            if not mine.size:
                continue
            if isinstance(part, int):
                weights[mine, part] = 1.0
            else:
                shares = np.zeros((mine.size, rows.shape[1]))
                add_soft_weights(
                    part, rows[mine] / spread[mine], hardness, np.ones(mine.size), shares
                )
                weights[mine] = shares
        weighted = weights.reshape(count, starts, -1)
        gradient_y = (weighted @ self.outputs[alive]).reshape(count * starts, -1)
        gradient = self.network.backward(z, np.ascontiguousarray(gradient_y.T)).T
        result: Single = gradient.reshape(count, starts, size)
        if self.inputs is not None:
            result = (result + weighted @ self.inputs[alive]).astype(np.float32)
        return values.max(axis=1).reshape(count, starts), result
