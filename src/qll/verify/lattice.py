"""Search among whole numbers: moves of one input, or of two at once, while the condition's value
grows.

A violation of a two-sided condition (one run positive, the other negative) is a thin slab that sign
steps jump across; between whole numbers there is no step to shorten, but a small weight moves the
value by little, and two moves that nearly cancel by less.
"""

from __future__ import annotations

import numpy as np

from qll.verify import clock
from qll.verify.condition import Array
from qll.verify.query import Query

# Lengths of moves besides 1, as shares of an input's range.
SHARES = (0.5, 0.25, 0.1, 0.03, 0.01)
STARTS = 16
ROUNDS = 60
# Pairs of moves that are tried together once single ones do not help any more.
PAIRS = 2000


def walk(query: Query, start: Array, *, seed: int, deadline: float) -> tuple[Array, float]:
    """The best point that is reached from ``start`` (inputs,) and from random ones."""
    rng = np.random.default_rng(seed)
    lower, upper = query.clip(query.lower), query.clip(query.upper)
    points = rng.uniform(lower, upper, (STARTS, lower.size))
    points[0] = start
    points = query.clip(points)
    values = _values(query, points)
    best = points[values.argmax()], float(values.max())
    moves = _moves(query)
    if not len(moves):
        return best
    for row in np.argsort(-values):
        point, value = points[row], float(values[row])
        for _ in range(ROUNDS):
            if clock.now() > deadline or query.search.is_violated(best[1]):
                return best
            near = query.clip(point + moves)
            found = _values(query, near)
            if found.max() <= value:
                pairs = moves[rng.integers(len(moves), size=(PAIRS, 2))].sum(axis=1)
                near = query.clip(point + pairs)
                found = _values(query, near)
                if found.max() <= value:
                    break
            point, value = near[found.argmax()], float(found.max())
            if value > best[1]:
                best = point, value
    return best


def _values(query: Query, points: Array) -> Array:
    condition = query.search
    return condition.value(condition.leaf_values(query.form.forward(points), points))


def _moves(query: Query) -> Array:
    """(moves, inputs): one input by 1 or by a share of its range, up and down."""
    width = query.upper - query.lower
    whole = np.zeros(width.size, bool) if query.integers is None else query.integers
    found = []
    for k in np.flatnonzero(width > 0):
        lengths = {share * width[k] for share in SHARES}
        if whole[k]:
            lengths = {1.0, *(np.ceil(length) for length in lengths)}
        for length in sorted(lengths):
            for sign in (1.0, -1.0):
                move = np.zeros(width.size)
                move[k] = sign * length
                found.append(move)
    return np.array(found).reshape(-1, width.size)
