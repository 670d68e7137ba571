"""Search over activation patterns by linear programming, for violations that sign steps miss.

Where every neuron keeps its sign, the network is linear, and the point of that polytope that
violates best is a linear programme (HiGHS). Its tight neurons say which neighbouring pattern to try
next. This finds the violations of two-sided conjunctions, which lie inside faces of the box where a
gradient's sign is of no use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qll import limits
from qll.errors import MissingExtra, NetworkError
from qll.networks.matrices import absolute, add, identity, multiply, scale_rows
from qll.verify import clock
from qll.verify.condition import Array
from qll.verify.query import Query

# Neurons that change sides between two programmes: those with the largest duals.
FLIPS = 4
# Seconds that the matrices of a programme may take beyond its deadline: one is always tried.
BUILDING = 1.0


def climb(
    query: Query, start: Array, leaves: Sequence[int], *, rounds: int, deadline: float
) -> tuple[Array, float]:
    """From ``start`` (inputs,), the best point for ``min over leaves`` that ``rounds`` programmes
    reach and its value; never worse than the start."""
    form = query.form
    chosen = list(leaves)
    best = query.clip(start)
    best_value = _value(query, best, chosen)
    if not form.is_relu:  # a pattern of signs does not make it linear
        return best, best_value
    flipped: dict[tuple[int, int], bool] = {}
    for _ in range(rounds):
        if clock.now() > deadline:
            break
        z = [layer[0] for layer in form.pre_activations(best[None])]
        active = [np.asarray(layer > 0) for layer in z[:-1]]
        for (layer, neuron), state in flipped.items():
            active[layer][neuron] = state
        try:
            with limits.limited(deadline=deadline + BUILDING, now=clock.now):
                solved = _solve(query, active, chosen, deadline)
        except (limits.OutOfTime, limits.OutOfMemory, NetworkError):
            break  # not worth its matrices
        if solved is None:
            break
        point, duals = solved
        value = _value(query, point, chosen)
        if value > best_value + 1e-9:
            best, best_value = point, value
            flipped = {}
            if value > 0:
                break
        # The neurons whose signs hold the programme back most change sides next.
        order = sorted(duals, key=lambda item: -item[0])[:FLIPS]
        moved = False
        for weight, layer, neuron in order:
            if weight > 0 and (layer, neuron) not in flipped:
                flipped[(layer, neuron)] = not bool(active[layer][neuron])
                moved = True
        if not moved:
            break
    return best, best_value


def _value(query: Query, x: Array, leaves: list[int]) -> float:
    y = query.form.forward(x[None])
    return float(query.hunted.leaf_values(y, x[None])[0, leaves].min())


def _solve(
    query: Query, active: list[Any], leaves: list[int], deadline: float
) -> tuple[Array, list[tuple[float, int, int]]] | None:
    """The best point of one pattern, and the dual weight of each neuron's sign constraint."""
    highspy = _highs()
    from scipy import sparse

    form, condition = query.form, query.hunted
    size = form.input_size
    # Every a_j as an affine function of x under the pattern.
    maps: list[tuple[Any, Array]] = [(identity(size), np.zeros(size))]
    rows, lows = [], []
    keys: list[tuple[int, int]] = []
    mid, rad = (query.lower + query.upper) / 2, (query.upper - query.lower) / 2
    for k, layer in enumerate(form.layers):
        matrix: Any = None
        bias = layer.bias.copy()
        for source, weight in layer.terms:
            part = multiply(weight, maps[source][0])
            matrix = part if matrix is None else add(matrix, part)
            bias = bias + weight @ maps[source][1]
        if matrix is None:  # it reads nothing: all of its weights are 0
            matrix = sparse.csr_matrix((layer.width, size))
        if k == len(form.layers) - 1:
            outputs, output_bias = matrix, bias
            break
        on = active[k]
        centre = matrix @ mid + bias
        spread = absolute(matrix) @ rad
        free = np.flatnonzero((centre - spread < 0) & (centre + spread > 0))
        side = np.where(on[free], 1.0, -1.0)
        rows.append(sparse.csr_matrix(scale_rows(side, matrix[free])))
        lows.append(-side * bias[free])
        keys += [(k, int(n)) for n in free]
        maps.append((scale_rows(on.astype(np.float64), matrix), np.where(on, bias, 0.0)))
    target = sparse.csr_matrix(np.asarray(condition.outputs[leaves] @ outputs))
    if condition.inputs is not None:
        target = target + sparse.csr_matrix(condition.inputs[leaves])
    # leaf(x) - t >= 0
    rows.append(target)
    lows.append(-(condition.outputs[leaves] @ output_bias + condition.constant[leaves]))
    body = sparse.vstack(rows).tocsr()
    count = body.shape[0]
    slack = np.zeros(count)
    slack[-len(leaves) :] = -1.0
    body = sparse.hstack([body, sparse.csr_matrix(slack[:, None])]).tocsr()
    solver = highspy.Highs()
    solver.silent()
    solver.setOptionValue("time_limit", max(deadline - clock.now(), 0.01))
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = size + 1, count
    lp.col_cost_ = np.append(np.zeros(size), -1.0)
    lp.col_lower_ = np.append(query.lower, -1e6)
    lp.col_upper_ = np.append(query.upper, 1e6)
    lp.row_lower_ = np.concatenate(lows)
    lp.row_upper_ = np.full(count, highspy.kHighsInf)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = body.indptr
    lp.a_matrix_.index_ = body.indices
    lp.a_matrix_.value_ = body.data
    solver.passModel(lp)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    solution = solver.getSolution()
    point = query.clip(np.array(solution.col_value[:size]))
    weights = np.abs(np.array(solution.row_dual[: len(keys)]))
    return point, [(float(w), k, n) for w, (k, n) in zip(weights, keys, strict=True) if w > 0]


def _highs() -> Any:
    try:
        import highspy
    except ImportError as error:
        raise MissingExtra.of("highspy", "verify", "the search over activation patterns") from error
    return highspy
