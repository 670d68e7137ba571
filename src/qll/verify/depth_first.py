"""Branch and bound for small networks with hard combinatorics: depth first, by linear programs.

Where every bound alone says little and a few dozen signs decide together, dual ascents end before
they are tight enough, and best first opens everything at once. Here a domain is bounded by its
linear relaxation (`qll.verify.simplex`), and what to split is chosen by looking ahead: what a
violation implies (`qll.verify.implications`) on either side of a split. A contradictory side
is split off at once; otherwise the split that brings both sides nearest to a contradiction is
taken (as satisfiability solvers do: Li and Anbulagan 1997, *Heuristics based on unit propagation*).

The multipliers of a closed domain are tried on the domain that it is a part of: where they do
without the last split its other side is never looked at, and so on upwards (backjumping; Stallman
and Sussman 1977). What a proof consists of stays the same: a tree of splits, and at its leaves
multipliers whose bound is rigorous. Programs and propagation are not believed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np

from qll.bounds.bounder import Bounder
from qll.bounds.domain import Subdomain
from qll.bounds.rounding import Sizes
from qll.bounds.rows import Rows
from qll.bounds.splits import SignSplit
from qll.kernels import available
from qll.networks.relu_form import ReluForm, nonzeros
from qll.verify import clock
from qll.verify.condition import Array
from qll.verify.implications import Implications, State
from qll.verify.proof import Subproblem
from qll.verify.root import MARGIN
from qll.verify.simplex import RAYS, Relaxation, Solution

# Larger programs take tenths of a second: dual ascents are the better way.
MOST_COLUMNS = 2500
MOST_ENTRIES = 40_000
# Candidates that are looked at ahead.
CANDIDATES = 64
# An activation this much off its ReLU, as a share of its range, is worth a split.
LOOSE = 1e-6
# Splits that are tried with a program each; a rise of its value by less than GAIN of the outputs'
# range is none. Where no trial raises it, up to STRONG_WAIT domains go by before the next ones.
TRIALS = 8
GAIN = 1e-6
STRONG_WAIT = 63
# How much the product of what both sides gain counts for beside their sum.
PRODUCT = 1024.0


def fits(form: ReluForm) -> bool:
    """Whether a domain's linear program, begun where the one before ended, takes milliseconds."""
    if not form.is_relu or len(form.layers) < 2 or not available():
        return False
    if sum(form.widths[:-1]) > MOST_COLUMNS or nonzeros(form) > MOST_ENTRIES:
        return False
    return find_spec("highspy") is not None


@dataclass(eq=False)
class _Frame:
    """A domain that was split: what is left of it, and where its part of the proof begins."""

    node: Subproblem
    other: Subproblem | None
    refuted: int
    empty: int


@dataclass(frozen=True, eq=False)
class Problem:
    """An obligation that is open at the root: a violation needs all its rows to be at most 0."""

    start: Subproblem
    bounder: Bounder
    sizes: Sizes
    margin: float
    outputs: Array  # (rows, outputs)
    constant: Array  # (rows,)
    inputs: Array | None  # (rows, inputs)
    # Makes a violation of a point, if it can; the flag says that the relaxation is exact there.
    judge: Callable[[Array, bool], Array | None]


class Programs:
    """Several problems, one after the other; a search that can be stopped and go on."""

    def __init__(self, problems: Sequence[Problem], keeps: bool) -> None:
        self.waiting = list(problems)[::-1]
        self.current: DepthFirst | None = None
        self.finished = 0
        self.keeps = keeps
        self.refuted: list[Subproblem] = []
        self.empty: list[Subproblem] = []
        self.least = np.inf  # bound of what was closed
        self._nodes = 0

    @property
    def closed(self) -> bool:
        return self.current is None and not self.waiting

    @property
    def found(self) -> Array | None:
        return None if self.current is None else self.current.found

    @property
    def stuck(self) -> bool:
        """Nothing is left to split in a domain that is not closed."""
        return self.current is not None and self.current.stuck

    @property
    def bound(self) -> float:
        """Of where the search is."""
        here = None if self.current is None else self.current.node
        return -np.inf if here is None else here.bound

    @property
    def share(self) -> float:
        """About how much of the work is done, if every split halves it."""
        count = self.finished + len(self.waiting) + (self.current is not None)
        mine = 0.0 if self.current is None else self.current.share
        return (self.finished + mine) / max(count, 1)

    def take_nodes(self) -> int:
        """Since they were last asked for."""
        count, self._nodes = self._nodes, 0
        return count

    def run(self, until: float, most: float) -> None:
        """Go on until then, or until there is nothing left to do; proofs of more than ``most``
        closed domains are not kept."""
        while not (self.closed or self.stuck or self.found is not None) and clock.now() < until:
            if self.current is None:
                self.current = DepthFirst(self.waiting.pop())
            search = self.current
            done = search.nodes
            closed = search.run(until, most if self.keeps else 0)
            self._nodes += search.nodes - done
            self.keeps = self.keeps and search.keeps
            if closed:
                self.least = min(self.least, search.least)
                self.refuted += search.refuted
                self.empty += search.empty
                self.current = None
                self.finished += 1


class DepthFirst:
    """The search of one problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem, start = problem, problem.start
        self.refuted: list[Subproblem] = []
        self.empty: list[Subproblem] = []
        self.keeps = True
        self.least = np.inf  # bound of what was closed
        self.nodes = 0
        self.strong_wait = self.strong_again = 0
        self.path: list[_Frame] = []
        # Its own copy: others may go on with theirs.
        self.node: Subproblem | None = replace(start, domain=replace(start.domain))
        self.found: Array | None = None
        self.stuck = False
        self.until = np.inf
        layout, sizes = problem.bounder.layout, problem.sizes
        form = problem.bounder.form
        rows = Rows.of(form)
        objectives, constants = rows.objectives(
            form, problem.outputs, problem.constant, problem.inputs
        )
        ends = [
            np.concatenate([layout.gather(k, side) for k in range(layout.layers)])
            for side in (start.domain.low, start.domain.high)
        ]
        box = sizes.lower, sizes.upper
        self.relaxation = Relaxation(rows, layout, box, (ends[0], ends[1]), objectives, constants)
        self.place = self.relaxation.place
        self.implications = Implications(rows, box, (ends[0], ends[1]), objectives, constants)

    def run(self, until: float, most: float) -> bool:
        """Go on until then; whether everything is closed. If not, a point was ``found``, the
        search is ``stuck``, or it can go on."""
        self.until = until
        while self.node is not None and clock.now() < until:
            self.nodes += 1
            if self.node.is_empty:
                self.empty.append(self.node)
                self.node = self._next()
                continue
            closed, split = self._look(self.node)
            if self.found is not None:
                break
            if closed:
                self._climb(self.node)
                self.node = self._next()
                if len(self.refuted) + len(self.empty) > most:
                    self.keeps = False
                    self.refuted.clear()
                    self.empty.clear()
                continue
            if split is None:
                self.stuck = clock.now() < until  # or there was no time to look
                break
            neuron, above = split
            first, other = (
                self.node.side(SignSplit(neuron), above=side) for side in (above, not above)
            )
            self.path.append(_Frame(self.node, other, len(self.refuted), len(self.empty)))
            self.node = first
        return self.node is None

    @property
    def share(self) -> float:
        """As that of `Programs`."""
        if self.node is None:
            return 1.0
        first = self.problem.start.depth
        left = 2.0 ** (first - self.node.depth)
        left += sum(2.0 ** (first - f.other.depth) for f in self.path if f.other is not None)
        return 1.0 - left

    def _next(self) -> Subproblem | None:
        """The other side of the last split that has one."""
        while self.path:
            other = self.path[-1].other
            if other is not None:
                self.path[-1].other = None
                return other
            self.path.pop()
        return None

    def _climb(self, node: Subproblem) -> None:
        """Close with the multipliers of ``node`` the largest domain around it that they close."""
        domain = node.domain
        mine = {name: getattr(domain, name) for name in ("alpha", "beta", "weight", "delta")}
        best, bound = node, node.bound
        while self.path:
            outer = self.path[-1].node
            wider = replace(outer.domain, **mine)
            wider.bound = self._bound(wider)
            if not wider.bound > self.problem.margin:
                break
            frame = self.path.pop()
            del self.refuted[frame.refuted :]
            del self.empty[frame.empty :]
            bound = wider.bound
            outer.domain = wider
            best = outer
        self.least = min(self.least, bound)
        self.refuted.append(best)

    def _look(self, node: Subproblem) -> tuple[bool, tuple[int, bool] | None]:
        """Whether the domain is closed, or else which neuron (flat) to split, and which side of it
        comes first."""
        sign = node.domain.sign[self.place]
        state, possible = self.implications.under(sign)
        solved = self.relaxation.solve(sign, self.until)
        if solved is None and clock.now() >= self.until:
            return False, None
        if solved is not None:
            if solved.value > 0 and self._closes(node, solved):
                return True, None
            if solved.point is not None and solved.loose is not None:
                exact = bool((solved.loose <= LOOSE * self.relaxation.width).all())
                self.found = self.problem.judge(solved.point, exact)
                if self.found is not None:
                    return False, None
        return False, self._choose(sign, state, solved, possible)

    def _closes(self, node: Subproblem, solved: Solution) -> bool:
        """Whether the bound by the program's multipliers, which the domain takes, is enough."""
        domain = node.domain
        for scale in RAYS:
            if scale != RAYS[0]:
                solved = self.relaxation.along(scale)
            domain.alpha, domain.beta = solved.alpha, solved.beta
            domain.weight, domain.delta = solved.weight, np.zeros_like(domain.delta)
            domain.bound = self._bound(domain)
            if domain.bound > self.problem.margin:
                return True
            if np.isfinite(solved.value):
                return False
        return False

    def _bound(self, domain: Subdomain) -> float:
        problem = self.problem
        return float(problem.bounder.evaluate([domain], problem.sizes, stop=lambda: False)[0])

    def _choose(
        self,
        sign: Any,
        state: State,
        solved: Solution | None,
        possible: bool,
    ) -> tuple[int, bool] | None:
        relaxed = self.relaxation
        free = (sign == 0) & relaxed.open
        open_ = free & (state.row_low < 0) & (state.row_high > 0)
        share, cost = np.ones(len(sign)), np.zeros(len(sign))
        if solved is not None and solved.loose is not None:
            share = solved.loose / relaxed.width
            cost = solved.loose * np.abs(solved.pull)
            if (some := open_ & (share > LOOSE)).any():
                open_ = some
        if not possible or not open_.any():
            # What is implied needs a split of its own, for the program to know it as well.
            rest = np.flatnonzero(free)
            if not rest.size:
                return None
            neuron = int(rest[share[rest].argmax()])
            return int(self.place[neuron]), bool(state.row_high[neuron] <= 0)
        at = np.flatnonzero(open_)
        if solved is not None and solved.loose is not None and self.nodes >= self.strong_again:
            chosen = self._strong(at[np.argsort(-cost[at], kind="stable")[:TRIALS]], solved.value)
            if chosen is not None:
                self.strong_wait = 0
                return chosen
            self.strong_wait = min(2 * self.strong_wait + 1, STRONG_WAIT)
            self.strong_again = self.nodes + self.strong_wait
        if at.size > CANDIDATES:
            gap = np.minimum(-state.row_low[at], state.row_high[at]) * share[at]
            at = at[np.argsort(-gap, kind="stable")[:CANDIDATES]]
        return self._ahead(at, state)

    def _strong(self, at: Any, value: float) -> tuple[int, bool] | None:
        """The split that raises the program's value most, on both sides; None if none does."""
        values = self.relaxation.values(at.tolist(), self.until)
        gains = np.minimum(values, max(0.0, value)) - value
        least = GAIN * self.problem.margin / MARGIN
        if not (gains.min(axis=1) > least).any():
            return None
        shut = (values > 0).sum(axis=1)
        score = np.maximum(gains, least).prod(axis=1) * (1 + shut)
        best = int(score.argmax())
        return int(self.place[at[best]]), bool(values[best, 1] > values[best, 0])

    def _ahead(self, at: Any, state: State) -> tuple[int, bool]:
        """The split that implies most, on both sides."""
        gains = self.implications.look_ahead(at, state)
        failed = (gains < 0).any(axis=1)
        if failed.any():
            best = int(np.argmax(failed * (1.0 + gains.max(axis=1))))
            return int(self.place[at[best]]), bool(gains[best, 1] < 0)
        score = PRODUCT * gains[:, 0] * gains[:, 1] + gains.sum(axis=1)
        best = int(score.argmax())
        return int(self.place[at[best]]), bool(gains[best, 1] >= gains[best, 0])
