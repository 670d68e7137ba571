"""HiGHS (Huangfu and Hall 2018) as a backend for small networks: one mixed-integer program for each
way to violate the condition.

A ReLU ``a = max(z, 0)`` whose sign is open between our own bounds ``l < 0 < u`` is a binary d with

    a >= z,   a >= 0,   a <= z - l (1 - d),   a <= u d

(Tjeng et al. 2019). Where a few dozen signs are open, and each bound alone says little, its cuts
decide in seconds what branch and bound on dual bounds does not.

What its answer means. A point that it names is only a candidate: the template replays it exactly.
That a program has no solution rests on floating-point simplex with tolerances of 1e-7, and HiGHS
writes down nothing that could be checked: the verdict says so in its notes, it is never confirmed,
and CSat does not count it. So that the tolerances do not decide, every number is given in units of
its own range, and more is refuted than need be: that the leaves come within ``ROOM`` of 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from qll.bounds.dense import DenseGraph
from qll.bounds.rounding import Rounding, Sizes
from qll.errors import MissingExtra
from qll.kernels import available
from qll.networks.matrices import entries
from qll.verify import clock
from qll.verify.attack import Plan, SearchNetwork, attack
from qll.verify.backend import BACKENDS, Backend, Budget
from qll.verify.condition import Array, Obligation, both, obligations
from qll.verify.judge import Worth, judge
from qll.verify.query import Query
from qll.verify.verdict import Reason, Status, Verdict

# What is refuted beyond the violation itself, in units of each leaf's range.
ROOM = 1e-4
NOTE = "by HiGHS in floating point, as a mixed-integer program: there is no proof to be checked"
TIE_NOTE = "HiGHS neither refutes it by more than its tolerances nor names a violation"
# More weights than this are no small network: its linear programs alone take minutes.
MOST_WEIGHTS = 1 << 17
# A number may be this many times its own range: HiGHS's tolerances are absolute.
MOST_SIZE = 1e5
# A range of no more than this many times what rounding may add is that of a constant.
CONSTANT = 4.0
# From a point on the boundary to one beyond it.
NEAR = Plan(starts=0, steps=10)


@BACKENDS.register("highs")
@dataclass
class Highs(Backend):
    """A mixed-integer program for small networks."""

    name: ClassVar[str] = "highs"

    def refuses(self, query: Query) -> str | None:
        if query.in_float32:
            return "HiGHS proves nothing about float32: ask our own backend"
        if not query.form.is_relu:
            return "HiGHS is given ReLU networks"
        weights = sum(entries(w).size for layer in query.form.layers for _, w in layer.terms)
        if weights > MOST_WEIGHTS:
            return f"HiGHS is given at most {MOST_WEIGHTS:,} weights, the network has {weights:,}"
        return None

    def prepare(self, query: Query | None = None) -> None:
        _highs()

    def run(self, queries: Sequence[Query], budget: Budget) -> list[Verdict]:
        _highs()
        return [self._decide(query, budget) for query in queries]

    def _decide(self, query: Query, budget: Budget) -> Verdict:
        start = clock.now()
        deadline = start + budget.seconds
        tree = query.search.tree
        if isinstance(tree, bool):  # True: what is False is the template's
            centre = query.clip((query.lower + query.upper) / 2)
            return Verdict(Status.FALSIFIED, "trivial", witness=centre, backend=self.name)
        model = _Model(query)
        nodes = 0

        def found(status: Status, **rest: Any) -> Verdict:
            spent = clock.now() - start
            return Verdict(status, "highs", nodes=nodes, seconds=spent, backend=self.name, **rest)

        if model.unfit:
            return found(Status.UNKNOWN, reason=Reason.UNSUPPORTED, notes=(model.unfit,))
        waiting = obligations(tree)
        while waiting:
            obligation = waiting.pop()
            if not obligation.is_conjunction:
                waiting.extend(obligation.expand())
                continue
            answer, point, more = model.solve(obligation, deadline, best=False)
            nodes += more
            if answer == "infeasible":
                continue
            witness = None if point is None else self._beyond(query, obligation, point, deadline)
            if point is not None and witness is None:
                # On the boundary: the largest value is the one that tells.
                _, point, more = model.solve(obligation, deadline, best=True)
                nodes += more
                if point is not None:
                    witness = self._beyond(query, obligation, point, deadline)
            if witness is not None:
                return found(Status.FALSIFIED, witness=witness)
            if clock.now() >= deadline:
                return found(Status.UNKNOWN, reason=Reason.TIME)
            named = point is not None
            return found(
                Status.UNKNOWN,
                reason=Reason.MARGIN if named else Reason.BACKEND,
                notes=(TIE_NOTE if named else f"HiGHS says: {answer}",),
            )
        return found(Status.VERIFIED, notes=(NOTE,))

    @staticmethod
    def _beyond(
        query: Query, obligation: Obligation, point: Array, deadline: float
    ) -> Array | None:
        """A violation at the point or near it."""
        if judge(query, point).worth is Worth.VIOLATION:
            return point
        near = attack(
            SearchNetwork(query.form), [query], NEAR, first_points=[point[None]],
            trees=[both(tuple(obligation.leaves))], deadline=deadline,
        )[0]  # fmt: skip
        return near.point if judge(query, near.point).worth is Worth.VIOLATION else None


class _Model:
    """The network as rows and columns, in units of each number's range."""

    def __init__(self, query: Query) -> None:
        self.query = query
        form = query.form
        self.low, self.high, lost = _bounds(query)
        middle = (query.lower + query.upper) / 2
        radius = (query.upper - query.lower) / 2
        # a = origin + unit * v, v in [least, 1]
        self.origin = [middle]
        self.unit = [radius]
        self.least = [np.full(middle.size, -1.0)]
        self.fixed = []
        for low, high, rounding in zip(self.low, self.high, lost, strict=True):
            above, below = np.maximum(high, 0.0), np.maximum(low, 0.0)
            fixed = high - low <= CONSTANT * rounding  # by rounding alone it has a range
            self.fixed.append(fixed)
            self.origin.append(np.where(fixed, (above + below) / 2, 0.0))
            self.unit.append(np.where(fixed, 0.0, above))
            share = below / np.where(above > 0, above, 1.0)
            self.least.append(np.where(fixed, 0.0, np.clip(share, 0.0, 1.0)))
        self.first = np.cumsum([0, *(len(u) for u in self.unit)])
        self.open = [
            np.flatnonzero((low < 0) & (high > 0) & ~fixed)
            for low, high, fixed in zip(self.low, self.high, self.fixed, strict=True)
        ]
        self.columns = int(self.first[-1]) + sum(map(len, self.open))
        self.unfit = ""
        for low, high, fixed in zip(self.low, self.high, self.fixed, strict=True):
            reach = np.maximum(np.abs(low), np.abs(high))
            if (reach > MOST_SIZE * (high - low))[~fixed].any():
                self.unfit = (
                    f"a number's range is less than {1 / MOST_SIZE:g} of it: "
                    "HiGHS's tolerances are absolute"
                )
        self.rows: list[tuple[Array, float, float]] = []
        binary = int(self.first[-1])
        for k, layer in enumerate(form.layers[:-1], start=1):
            maps, shifts = self._affine(layer.terms, layer.bias)
            low, high = self.low[k - 1], self.high[k - 1]
            open_ = set(self.open[k - 1].tolist())
            for i in range(layer.width):
                if high[i] <= 0 or self.fixed[k - 1][i]:
                    continue
                width = max(float(high[i] - low[i]), float(abs(high[i])), 1e-300)
                row = -maps[i]
                row[self.first[k] + i] += self.unit[k][i]
                if i not in open_:
                    self.rows.append((row / width, shifts[i] / width, shifts[i] / width))
                    continue
                self.rows.append((row / width, shifts[i] / width, np.inf))  # a >= z
                cut = row.copy()  # a - z - l d <= -l
                cut[binary] -= low[i]
                self.rows.append((cut / width, -np.inf, (shifts[i] - low[i]) / width))
                off = np.zeros(self.columns)  # a <= u d
                off[self.first[k] + i], off[binary] = 1.0, -1.0
                self.rows.append((off, -np.inf, 0.0))
                binary += 1

    def _affine(self, terms: Any, bias: Array) -> tuple[Array, Array]:
        """(n, columns) and (n,): ``bias + sum W a`` in the columns."""
        maps, shift = np.zeros((len(bias), self.columns)), np.array(bias, dtype=np.float64)
        for source, weight in terms:
            dense = weight if isinstance(weight, np.ndarray) else weight.toarray()
            at = slice(int(self.first[source]), int(self.first[source + 1]))
            maps[:, at] += dense * self.unit[source]
            shift = shift + dense @ self.origin[source]
        return maps, shift

    def solve(
        self, obligation: Obligation, deadline: float, *, best: bool
    ) -> tuple[str, Array | None, int]:
        """HiGHS's answer where all leaves are at least -ROOM, or (``best``) the largest that the
        least of them can be; the inputs of its point; its nodes."""
        from scipy import sparse

        highspy = _highs()
        query, condition = self.query, self.query.search
        last = query.form.layers[-1]
        maps, shift = self._affine(last.terms, last.bias)
        reach = np.abs(last.bias)
        for source, weight in last.terms:
            reach = reach + abs(weight) @ np.abs(self.origin[source])
        rows = list(self.rows)
        extra = 1 if best else 0
        for leaf in obligation.leaves:
            row = condition.outputs[leaf] @ maps
            constant = float(condition.outputs[leaf] @ shift + condition.constant[leaf])
            if condition.inputs is not None:
                row[: self.first[1]] += condition.inputs[leaf] * self.unit[0]
                constant += float(condition.inputs[leaf] @ self.origin[0])
            # What is left of numbers that cancel is rounding, not a range of its own.
            parts = float(np.abs(condition.outputs[leaf]) @ reach + abs(condition.constant[leaf]))
            if condition.inputs is not None:
                parts += float(np.abs(condition.inputs[leaf]) @ np.abs(self.origin[0]))
            width = max(float(np.abs(row).sum()), abs(constant), parts / MOST_SIZE, 1e-300)
            rows.append((row / width, -constant / width - ROOM, np.inf))
        body = sparse.csr_matrix(np.array([row for row, _, _ in rows]))
        if best:
            slack = np.zeros((len(rows), 1))
            slack[-len(obligation.leaves) :] = -1.0
            body = sparse.hstack([body, sparse.csr_matrix(slack)]).tocsr()
        lp = highspy.HighsLp()
        count = self.columns + extra
        lp.num_col_, lp.num_row_ = count, len(rows)
        lp.col_cost_ = np.append(np.zeros(self.columns), -np.ones(extra))
        least, most = np.zeros(count), np.ones(count)
        least[: self.first[-1]] = np.concatenate(self.least)
        for k, high in enumerate(self.high, start=1):  # what is off is 0
            most[self.first[k] : self.first[k + 1]] = (high > 0).astype(np.float64)
        lp.col_lower_, lp.col_upper_ = least, most
        lp.row_lower_ = np.array([low for _, low, _ in rows])
        lp.row_upper_ = np.array([high for _, _, high in rows])
        kinds = [highspy.HighsVarType.kContinuous] * count
        for column in range(int(self.first[-1]), self.columns):
            kinds[column] = highspy.HighsVarType.kInteger
        lp.integrality_ = kinds
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = body.indptr
        lp.a_matrix_.index_ = body.indices
        lp.a_matrix_.value_ = body.data
        solver = highspy.Highs()
        solver.silent()
        solver.setOptionValue("threads", 1)
        solver.setOptionValue("time_limit", max(deadline - clock.now(), 0.01))
        solver.passModel(lp)
        solver.run()
        status = solver.getModelStatus()
        info = solver.getInfo()
        nodes = max(int(getattr(info, "mip_node_count", 0)), 1)
        if status == highspy.HighsModelStatus.kInfeasible:
            return "infeasible", None, nodes
        values = np.array(solver.getSolution().col_value[: self.first[1]])
        if values.size and info.primal_solution_status == highspy.kSolutionStatusFeasible:
            point = self.origin[0] + self.unit[0] * values
            return "feasible", query.clip(point), nodes
        return solver.modelStatusToString(status), None, nodes


def _bounds(query: Query) -> tuple[list[Array], list[Array], list[Array]]:
    """Of every hidden pre-activation, by intervals and by CROWN where its kernel can; and what of
    them is rounding."""
    form = query.form
    rounding = Rounding(query.network, form)
    sizes = Sizes(rounding, query.lower, query.upper, leaves=query.search.leaves)
    pairs = sizes.interval()[:-1]
    low, high = [a for a, _ in pairs], [b for _, b in pairs]
    if available() and DenseGraph.fits(form):
        dense = DenseGraph(form)
        rows = np.zeros((1, form.output_size))
        box = query.lower[None], query.upper[None]
        found = dense.bound(*box, rows, np.zeros(1), sizes=sizes)
        least, most = dense.by_layer(found.low[0]), dense.by_layer(found.high[0])
        low = [np.maximum(a, b) for a, b in zip(low, least, strict=True)]
        high = [np.minimum(a, b) for a, b in zip(high, most, strict=True)]
    return low, high, [sizes.unit * size for size in sizes.hidden()]


def _highs() -> Any:
    try:
        import highspy
    except ImportError as error:
        raise MissingExtra.of("highspy", "verify", "the HiGHS backend") from error
    return highspy
