"""The linear relaxation of a domain by HiGHS's simplex, and its duals as multipliers of a bound.

Columns are the inputs, the activations of all hidden neurons and t, the largest objective, which is
minimised. A neuron with pre-activation z and root bounds ``l < 0 < u`` has ``a >= 0``, ``a >= z``
and ``a <= u (z - l) / (u - l)``. A split changes bounds alone: above, ``a = z``; below, ``a = 0``.
So the dual simplex goes on from where it ended on the domain before.

Every dual solution is a choice of the multipliers of `qll.bounds.dual`. Let ``B`` be the
coefficient with which the duals of a neuron's rows let z enter the Lagrangian, and ``A`` the
coefficient of its activation from the layers above. A neuron that is not split has ``B = alpha A``
for A > 0 and the chord's share for A < 0; one that is split above ``B = A - beta``, below
``B = beta``. Where the splits contradict each other there is no solution but a ray, along which the
dual bound grows without end: enough of it is added to multipliers that were there before. Whether
such multipliers prove anything is not decided here, but by their rigorous bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qll.bounds.domain import Single
from qll.bounds.layout import Layout
from qll.bounds.rows import Rows
from qll.late import late
from qll.verify import clock
from qll.verify.condition import Array

if TYPE_CHECKING:
    from scipy import sparse
else:
    sparse = late("scipy.sparse")

# How much of a ray is added, in units of what is there, until that is enough.
RAYS = (16.0, 512.0, 16384.0)
LEAST_WEIGHT = 1e-4  # of an objective in a mixture: the floor of every bound


@dataclass(frozen=True, eq=False)
class Solution:
    """``value`` is infinite where the domain is empty."""

    value: float
    point: Array | None  # (inputs,) where it is taken
    loose: Array | None  # (neurons,) how far the activation is from the ReLU there
    pull: Array  # (neurons,) the coefficients of the activations
    alpha: Single  # flat, as a domain has them
    beta: Single
    weight: Single


class Relaxation:
    """Of one network, box and obligation; one domain after another."""

    def __init__(
        self,
        rows: Rows,
        layout: Layout,
        box: tuple[Array, Array],
        ends: tuple[Array, Array],
        objectives: Array,
        constants: Array,
    ) -> None:
        """``ends`` are the root's bounds of the neurons in the network's own order."""
        self.rows, self.layout = rows, layout
        self.low, self.high = ends
        self.objectives, self.constants = objectives, constants
        self.place = np.empty(rows.neurons, dtype=np.int64)  # in flat arrays
        held = np.flatnonzero(layout.numbers >= 0)
        self.place[layout.numbers[held]] = held
        self.open = (self.low < 0) & (self.high > 0)
        self.width = np.maximum(self.high - self.low, 1e-300)
        self.chord = np.divide(
            self.high, self.high - self.low, out=(self.low >= 0).astype(float), where=self.open
        )
        self.sign = np.zeros(rows.neurons, dtype=np.int8)  # of the domain that is in the solver
        self.back: tuple[Array, Array] | None = None  # of the last solution, with its weights
        self.ray = np.zeros(rows.neurons)
        self.solver = self._load(box)

    def _load(self, box: tuple[Array, Array]) -> Any:
        import highspy

        rows, inf = self.rows, highspy.kHighsInf
        n, count = rows.neurons, len(self.constants)
        own = sparse.hstack([sparse.csr_matrix((n, rows.inputs)), sparse.identity(n)]).tocsr()
        above = (own - rows.matrix).tocsr()  # a - z >= bias, its equality where z >= 0
        chord = (own - sparse.diags(self.chord) @ rows.matrix).tocsr()[self.open]
        body = sparse.vstack([above, chord, sparse.csr_matrix(self.objectives)])
        minus = np.zeros((n + chord.shape[0] + count, 1))
        minus[-count:] = -1.0
        body = sparse.hstack([body, sparse.csr_matrix(minus)]).tocsr()
        self.chords = n + np.arange(chord.shape[0])
        lower = np.concatenate([rows.bias, np.full(chord.shape[0] + count, -inf)])
        rise = (self.chord * (rows.bias - self.low))[self.open]
        upper = np.concatenate([np.full(n, inf), rise, -self.constants])
        on, off = self.low >= 0, self.high <= 0
        upper[:n][on] = rows.bias[on]
        lower[:n][off] = -inf  # z is known to be below 0: the row says nothing
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = rows.columns + 1, body.shape[0]
        lp.col_cost_ = np.append(np.zeros(rows.columns), 1.0)
        lp.col_lower_ = np.concatenate([box[0], np.zeros(n), [-inf]])
        lp.col_upper_ = np.concatenate([box[1], np.where(off, 0.0, inf), [inf]])
        lp.row_lower_, lp.row_upper_ = lower, upper
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_, lp.a_matrix_.index_ = body.indptr, body.indices
        lp.a_matrix_.value_ = body.data
        solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
        solver.silent()
        for name, value in (("threads", 1), ("presolve", "off"), ("solver", "simplex")):
            solver.setOptionValue(name, value)
        solver.passModel(lp)
        return solver

    def move(self, sign: NDArray[np.int8]) -> None:
        """To the domain with these splits (in the network's own order)."""
        import highspy

        inf, inputs = highspy.kHighsInf, self.rows.inputs
        for i in np.flatnonzero(sign != self.sign).tolist():
            bias = float(self.rows.bias[i])
            self.solver.changeRowBounds(i, bias, bias if sign[i] > 0 else inf)
            self.solver.changeColBounds(inputs + i, 0.0, 0.0 if sign[i] < 0 else inf)
        self.sign = sign.copy()

    def solve(self, sign: NDArray[np.int8], deadline: float) -> Solution | None:
        """None where HiGHS has no answer."""
        import highspy

        self.move(sign)
        fresh = False
        while (found := self._run(deadline)) is None and clock.now() < deadline:
            if self.solver.getModelStatus() == highspy.HighsModelStatus.kTimeLimit:
                continue  # its limit is wall time, and the deadline may count the processor's
            if fresh:
                break
            # The basis of the domain before may lead nowhere here, and from all that follow.
            self.solver.clearSolver()
            fresh = True
        return found

    def _run(self, deadline: float) -> Solution | None:
        import highspy

        solver = self.solver
        left = max(deadline - clock.now(), 0.01)
        solver.setOptionValue("time_limit", solver.getRunTime() + left)
        solver.run()
        status = solver.getModelStatus()
        n, count = self.rows.neurons, len(self.constants)
        if status == highspy.HighsModelStatus.kOptimal:
            found = solver.getSolution()
            dual = np.array(found.row_dual)
            weight = np.maximum(-dual[-count:], 0.0)
            self.back = self._back(dual), weight
            point = np.array(found.col_value)
            z = self.rows.matrix @ point[:-1] + self.rows.bias
            loose = np.abs(point[self.rows.inputs : -1] - np.maximum(z, 0.0))
            value = float(point[-1])
            return Solution(value, point[: self.rows.inputs], loose, *self._multipliers(*self.back))
        if status == highspy.HighsModelStatus.kInfeasible:
            answer, has, ray = solver.getDualRay()
            if answer != highspy.HighsStatus.kOk or not has:
                return None
            self.ray = self._back(np.asarray(ray)[: n + len(self.chords) + count])
            return self.along(RAYS[0])
        if status == highspy.HighsModelStatus.kUnknown:
            return self._unfinished()
        return None

    def _unfinished(self) -> Solution | None:
        """Of a program that the simplex gave up: where next to nothing is left of a domain, its
        duals grow until rounding ends them, before a ray is found. They are multipliers as good as
        any, if their value is above 0; the primal solution means nothing."""
        import highspy

        info = self.solver.getInfo()
        value = float(info.objective_function_value)
        feasible = info.dual_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        if not (feasible and value > 0):
            return None
        dual = np.array(self.solver.getSolution().row_dual)
        self.solver.clearSolver()  # the next domain does not begin here
        weight = np.maximum(-dual[-len(self.constants) :], 0.0)
        return Solution(value, None, None, *self._multipliers(self._back(dual), weight))

    def values(self, neurons: Sequence[int], deadline: float) -> Array:
        """(neurons, 2) what the program's value becomes with one more split, off or on; infinite
        where nothing is left. The splits are those of the last solution."""
        import highspy

        solver, sign = self.solver, self.sign
        basis = solver.getBasis()
        found = np.full((len(neurons), 2), -np.inf)
        for row, neuron in enumerate(neurons):
            for side in (0, 1):
                if clock.now() > deadline:
                    return found
                child = sign.copy()
                child[neuron] = 1 if side else -1
                self.move(child)
                solver.setBasis(basis)
                solver.run()
                status = solver.getModelStatus()
                if status == highspy.HighsModelStatus.kOptimal:
                    found[row, side] = solver.getInfo().objective_function_value
                elif status == highspy.HighsModelStatus.kInfeasible:
                    found[row, side] = np.inf
        self.move(sign)
        solver.setBasis(basis)
        return found

    def along(self, scale: float) -> Solution:
        """The multipliers of before and ``scale`` times as much of the last ray."""
        n, count = self.rows.neurons, len(self.constants)
        before, weight = self.back or (np.zeros(n), np.full(count, 1.0 / count))
        size = max(float(np.abs(before).max(initial=0.0)), 1.0)
        scale *= size / max(float(np.abs(self.ray).max(initial=0.0)), 1e-300)
        return Solution(np.inf, None, None, *self._multipliers(before + scale * self.ray, weight))

    def _back(self, dual: Array) -> Array:
        """(neurons,) with which coefficient z enters the Lagrangian."""
        n = self.rows.neurons
        back = dual[:n].copy()
        back[self.open] += self.chord[self.open] * dual[self.chords]
        return back

    def _multipliers(self, back: Array, weight: Array) -> tuple[Array, Single, Single, Single]:
        """Slopes and split multipliers with which a backward bound takes these coefficients."""
        weight = np.maximum(weight, LEAST_WEIGHT)
        weight = weight / weight.sum()
        coefficient = weight @ self.objectives
        inputs, matrix = self.rows.inputs, self.rows.matrix
        alpha, beta = np.zeros(self.rows.neurons), np.zeros(self.rows.neurons)
        starts = np.cumsum([0, *self.layout.counts])
        # Layer by layer from the top: what arrives at one is what its readers have passed on.
        for first, end in zip(starts[-2::-1], starts[:0:-1], strict=True):
            part = slice(int(first), int(end))
            a, sign = coefficient[inputs + first : inputs + end], self.sign[part]
            above, below = sign > 0, sign < 0
            wanted = back[part]
            ratio = np.divide(wanted, a, out=np.zeros_like(a), where=a > 0)
            # A slope for where the split is not in force: the parent may be closed by it too.
            alpha[part] = np.where(above, 1.0, np.where(below, 0.0, np.clip(ratio, 0.0, 1.0)))
            beta[part] = np.where(above, a - wanted, np.where(below, wanted, 0.0)).clip(min=0.0)
            on = (self.low[part] >= 0) | above
            off = (self.high[part] <= 0) | below
            plain = np.where(a > 0, alpha[part] * a, self.chord[part] * a)
            passed = np.where(on, a, np.where(off, 0.0, plain)) - beta[part] * sign
            coefficient = coefficient + passed @ matrix[part]
        pull = np.asarray(coefficient[inputs:])
        return pull, self._flat(alpha), self._flat(beta), weight.astype(np.float32)

    def _flat(self, values: Array) -> Single:
        out = np.zeros(self.layout.neurons, dtype=np.float32)
        out[self.place] = values
        return out
