"""Proofs by splitting the box, for networks of few inputs: CROWN on batches of boxes.

A box is open while some obligation is not refuted on it. Halving an input shrinks every relaxation
at once, which beats splitting neurons when there are only a handful of inputs. The input that is
halved is the one to which most of what the relaxation costs is due.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from qll.bounds.crown import BoxBounds, Crown
from qll.bounds.dense import DenseGraph
from qll.bounds.lanes import ChainBounder, smallest_sizes
from qll.bounds.plain import PlainGraph
from qll.bounds.round import RoundCrown
from qll.bounds.rounding import MOST, Rounding, Sizes
from qll.bounds.splits import InputSplit, IntegerSplit, RealSplit
from qll.kernels import available
from qll.networks.relu_form import ReluForm
from qll.verify import clock
from qll.verify.arithmetic import float32_of
from qll.verify.condition import Array, conjunctions, obligations
from qll.verify.pairs import Pair
from qll.verify.pool import Pool, Stack, join
from qll.verify.proof import OUTGROWN, BoxProof, Halves, NeuronProof, Outcome, Search
from qll.verify.prover import NeuronProver
from qll.verify.query import Query
from qll.verify.root import MARGIN
from qll.verify.verdict import Reason

# Most boxes in one batch; fewer where one takes longer than BATCH_SECONDS: budgets must hold.
BATCH = 256
BATCH_SECONDS = 0.1
# Open boxes and what is known of them may take this much memory (depth first they take megabytes),
# and for a certificate the tree this much: a larger one is dropped.
MOST_BYTES = 1 << 30
MOST_TREE_BYTES = 1 << 28
TREE_BYTES = 500  # a box
LEAF_BYTES = 40  # of a proof by neurons, for each of them
# Once this share of the time is gone, a box that CROWN leaves open is tried with optimised duals
# and, for at most PATIENCE nodes, splits of neurons; after a failure its parts are halved WAIT
# times before the next try. A try costs as much as hundreds of boxes, and most proofs are done
# before: ACAS Xu needs none.
ALONE = 0.5
PATIENCE = 400
WAIT = 4
REACH_MORE, REACH_LESS = 1.25, 0.8
# A box that loses more than half of the range that is to be halved is bounded again instead.
SHRUNK = 0.5
# A few roundings: of a quotient, a difference and a sum.
ROUNDED = 2.0**-50
# An input narrower than this share of its size is not split again.
LEAST_WIDTH = 1e-13


class BoxProver:
    """Splits of inputs, for one network; one query at a time."""

    tells_freely = False

    def __init__(
        self, form: ReluForm, *, device: str = "cpu", compiled: bool = True, alone: float = ALONE
    ) -> None:
        self.form = form
        self.alone = alone
        self.keeps = False  # what certificates need
        self.most = np.inf  # boxes
        self.crown = Crown(form, device=device)
        compiled = compiled and available()
        fits = compiled and ChainBounder.fits(form)
        self.finisher = NeuronProver(ChainBounder(form)) if fits else None
        self.dense: DenseGraph | PlainGraph | None = None
        if compiled and DenseGraph.fits(form):
            self.dense = DenseGraph(form)
        self._rounding: Rounding | None = None

    @classmethod
    def light(cls, form: ReluForm, work: int) -> BoxProver | None:
        """One that needs no kernel and stops after about ``work`` multiplications."""
        if not DenseGraph.fits(form):
            return None
        found = cls(form, compiled=False)
        found.dense = plain = PlainGraph(form)
        found.most = work // plain.work
        return found if found.most else None

    def prepare(self) -> None:
        """Load the kernels, or compile them; those of the finisher come when it is asked."""
        if isinstance(self.dense, DenseGraph):
            _load_kernels()

    def sizes(self, query: Query) -> Sizes:
        """Of the numbers that are summed over the whole box, by interval arithmetic."""
        if self._rounding is None or self._rounding.network is not query.network:
            self._rounding = Rounding(query.network, self.form)
        return Sizes(self._rounding, query.lower, query.upper, leaves=query.search.leaves)

    def prove(self, query: Query, deadline: float, search: Search) -> Outcome:
        if self.finisher is not None:
            self.finisher.keeps = self.keeps
        with np.errstate(over="ignore", invalid="ignore"):
            return _BoxRun(self, query, deadline, search).execute()


class _BoxRun:
    def __init__(self, prover: BoxProver, query: Query, deadline: float, search: Search) -> None:
        ball = query.ball
        self.crown = prover.crown if ball is None else RoundCrown.of(prover.crown, ball)
        self.dense, self.most = prover.dense if ball is None else None, prover.most
        # It reads the outputs alone.
        alone = query.search.inputs is None and ball is None
        self.finisher = prover.finisher if alone else None
        self.query = query
        self.whole = query.integers
        self.deadline = deadline
        self.search = search
        # When to call the duals.
        now = clock.now()
        self.alone_until = now + prover.alone * (deadline - now)
        self.outcome = Outcome(stage="boxes")
        # Boxes whose bound is short of a proof by more are halved at once: CROWN's bound for a try
        # with optimised duals, and that of the duals for splits of neurons.
        self.reach = self.branch_reach = np.inf
        self.boxes = BoxProof() if prover.keeps else None
        self.outcome.proof = self.boxes
        self.count = 1  # boxes so far
        self.tree_bytes = 0  # of the proofs by neurons
        condition = query.exact_search
        self.rows, self.constant = -condition.outputs, -condition.constant
        self.inputs = None if condition.inputs is None else -condition.inputs
        self.conjunctions = conjunctions(obligations(condition.tree))
        self.sizes = prover.sizes(query)
        self.pair = Pair.of(query, self.conjunctions, prover, self.sizes)
        low, high = self.sizes.interval()[-1]
        if self.dense is not None:
            self.tighten(self.dense)
        last = np.minimum(np.maximum(np.abs(low), np.abs(high)), MOST)
        reach = float((np.abs(self.rows) @ last + np.abs(self.constant)).max())
        self.margin = MARGIN * max(1.0, reach)

    def tighten(self, dense: DenseGraph | PlainGraph) -> None:
        """Sizes by CROWN over the whole box: interval arithmetic overstates those of deep ones."""
        rows = np.zeros((1, self.form.output_size))
        box = self.query.lower[None], self.query.upper[None]
        found = dense.bound(*box, rows, np.zeros(1), sizes=self.sizes)
        ends = zip(dense.by_layer(found.low[0]), dense.by_layer(found.high[0]), strict=True)
        for k, (low, high) in enumerate(ends, start=1):
            self.sizes.bound(k, low, high)

    @property
    def form(self) -> ReluForm:
        return self.crown.form

    def drop(self) -> None:
        """A proof that nobody will write down need not be one that a checker can follow."""
        if self.boxes is not None:
            self.boxes, self.outcome.proof = None, OUTGROWN

    def execute(self) -> Outcome:
        out = self.outcome
        neurons = 0 if self.dense is None else self.dense.neurons
        stack = Stack(Pool.whole(self.query, len(self.conjunctions), neurons))
        rounds, size = 0, 1
        while stack:
            began = clock.now()
            if began > self.deadline:
                out.reason, out.bound = Reason.TIME, stack.bound
                return out
            if out.nodes >= self.most:
                out.reason, out.bound = Reason.NODES, stack.bound
                return out
            if TREE_BYTES * self.count + self.tree_bytes > MOST_TREE_BYTES:
                self.drop()
            if stack.bytes > MOST_BYTES:
                out.reason, out.bound = Reason.MEMORY, stack.bound
                return out
            batch = stack.pop(size)
            out.nodes += len(batch)
            left, found = self.refute(batch)
            if found is None and len(left) and rounds % 8 == 0:
                found = self.hunt(left)
            if found is not None:
                out.candidate = found
                return out
            rounds += 1
            late = clock.now() >= self.alone_until
            if late and self.finisher is not None and self.dense is not None:
                left = self.finish(self.finisher, self.dense, left)
                if out.candidate is not None:
                    return out
            left = self.settle(left)
            children = self.halve(left.take(~left.shrunk))
            if children is None:
                out.bound = float(left.bound.min())
                out.reason = Reason.MARGIN if out.bound > -self.margin else Reason.SPLITS
                return out
            stack.push(left.take(left.shrunk))
            stack.push(children)
            slow = clock.now() - began > BATCH_SECONDS
            size = max(1, size // 2) if slow else min(BATCH, 2 * size)
        out.proved = True
        return out

    def bound(self, pool: Pool, *, alone: bool = False) -> BoxBounds:
        """CROWN for every conjunction on every box; ``alone``: as if nothing were known."""
        box = (pool.lower, pool.upper, self.rows, self.constant, self.conjunctions)
        if self.dense is None:
            found = self.crown.bound(*box, inputs=self.inputs, sizes=self.sizes)
            return replace(self.computed(pool, found), low=pool.low, high=pool.high)
        known = None if alone else (pool.low, pool.high)
        found = self.dense.bound(
            *box, inputs=self.inputs, sizes=self.sizes, known=known, margin=self.margin
        )
        return self.computed(pool, found)

    def computed(self, pool: Pool, found: BoxBounds) -> BoxBounds:
        """Bounds of what the query's arithmetic computes: in float32 less the error there."""
        if not self.query.in_float32:
            return found
        error = self.errors(pool.lower, pool.upper, found.low, found.high)
        each = [
            (weight * error[:, leaves]).sum(axis=1)
            for weight, leaves in zip(found.weights, self.conjunctions, strict=True)
        ]
        mixed = found.mixed - np.stack(each, axis=1) * (1 + ROUNDED)
        return replace(found, value=found.value - error, mixed=mixed)

    def errors(self, lower: Array, upper: Array, low: Array, high: Array) -> Array:
        """(N, leaves) radii of the leaves on boxes with these bounds of all hidden neurons."""
        ends = np.cumsum([0, *self.form.widths[1:-1]])
        parts = [slice(*pair) for pair in pairwise(ends.tolist())]
        least, most = ([side[:, part] for part in parts] for side in (low, high))
        return float32_of(self.query.network).radii(lower, upper, least, most, self.rows)

    def refute(self, pool: Pool) -> tuple[Pool, Array | None]:
        """Boxes that stay open, and a violation met on the way."""
        found = self.bound(pool)
        still = pool.open & ~(found.mixed > self.margin)  # what is not a number is open
        blame: Array | None = None
        if self.pair is not None and still.any():
            sloped, blame = self.pair.closed(pool.lower, pool.upper)
            still &= ~sloped
            if sloped.any():
                self.outcome.least = min(self.outcome.least, 0.0)
        shut = pool.open & ~still & (found.mixed > self.margin)
        self.outcome.least = min(self.outcome.least, float(found.mixed[shut].min(initial=np.inf)))
        left = still.any(axis=1)
        worst = np.where(still, found.mixed, np.inf).min(axis=1)
        if self.boxes is not None:
            left |= ~self.confirmed(pool, ~left, self.boxes)
            worst = np.minimum(worst, 0.0)
        kept = replace(
            pool.take(left), open=still[left], bound=worst[left],
            low=found.low[left], high=found.high[left],
        )  # fmt: skip
        if not len(kept):
            return kept, None
        candidate = self.sample(kept, found.linear[left])
        rad = (kept.upper - kept.lower) / 2
        each = np.abs(found.mixed_linear[left]) * rad[:, None] + found.blame[left]
        kept = replace(kept, scores=(each * kept.open[:, :, None]).sum(axis=1))
        if blame is not None and blame[left].any():
            kept = replace(kept, scores=blame[left] * rad)
        # A checker follows halves only; and what a ball gives is not least at a corner.
        if self.boxes is None and self.query.ball is None:
            kept = self.clip(kept, found, left)
        return kept, candidate

    def clip(self, kept: Pool, found: BoxBounds, left: Any) -> Pool:
        """The boxes without what cannot hold a violation: where a linear bound is positive."""
        lower, upper = np.full_like(kept.lower, np.inf), np.full_like(kept.upper, -np.inf)
        for index, leaves in enumerate(self.conjunctions):
            linear = np.concatenate(
                [found.linear[left][:, leaves], found.mixed_linear[left][:, index, None]], axis=1
            )
            value = np.concatenate(
                [found.value[left][:, leaves], found.mixed[left][:, index, None]], axis=1
            )
            # How far an input may go from where the bound is least, the others staying there.
            with np.errstate(divide="ignore", invalid="ignore"):
                way = (self.margin - value[..., None]) / linear
            low, high = kept.lower[:, None], kept.upper[:, None]
            lost = ROUNDED * (np.abs(way) + np.maximum(np.abs(low), np.abs(high)))
            told = np.isfinite(way)  # no bound over an infinite slope says nothing
            mine_low = np.where(told & (linear < 0), high + way - lost, -np.inf).max(axis=1)
            mine_high = np.where(told & (linear > 0), low + way + lost, np.inf).min(axis=1)
            mine_low = np.maximum(mine_low, kept.lower)
            mine_high = np.minimum(mine_high, kept.upper)
            alive = kept.open[:, index] & (mine_low <= mine_high).all(axis=1)
            lower = np.where(alive[:, None], np.minimum(lower, mine_low), lower)
            upper = np.where(alive[:, None], np.maximum(upper, mine_high), upper)
        if self.whole is not None:  # rounded outward they are, so that no whole number is lost
            lower = np.where(self.whole, np.ceil(lower), lower)
            upper = np.where(self.whole, np.floor(upper), upper)
        some = (lower <= upper).all(axis=1)
        # Of the input that would be halved: another one may go on shrinking for ever.
        less = upper - lower < SHRUNK * (kept.upper - kept.lower)
        shrunk = less[np.arange(len(kept)), kept.scores.argmax(axis=1)]
        return replace(kept, lower=lower, upper=upper, shrunk=shrunk).take(some)

    def confirmed(self, pool: Pool, closed: Any, boxes: BoxProof) -> Any:
        """Which of the ``closed`` boxes CROWN closes without what is known of their parents: that
        is what a checker will see."""
        done = np.zeros_like(closed)
        at = np.flatnonzero(closed)
        if not at.size:
            return done
        found = self.bound(pool.take(at), alone=True)
        crowned = found.mixed > self.margin
        sloped = np.zeros_like(crowned)
        if self.pair is not None and not crowned.all():
            sloped = self.pair.closed(pool.lower[at], pool.upper[at])[0] & ~crowned
        good = (crowned | sloped).all(axis=1)
        for row in np.flatnonzero(good):
            place = int(pool.place[at[row]])
            boxes.closed[place] = [w[row].copy() for w in found.weights]
            if sloped[row].any() and self.pair is not None:
                boxes.sloped[place] = sloped[row]
                for k in np.flatnonzero(sloped[row]):
                    boxes.closed[place][k] = self.pair.weights[k]
        done[at[good]] = True
        return done

    def finish(self, finisher: NeuronProver, dense: DenseGraph | PlainGraph, pool: Pool) -> Pool:
        """Optimised duals and splits of neurons on each box: what they close is not halved."""
        keep = np.ones(len(pool), dtype=bool)
        for row in range(len(pool)):
            short = -float(pool.bound[row])  # of a proof by CROWN
            if pool.wait[row] > 0 or short > self.reach:
                continue
            lower, upper = pool.lower[row], pool.upper[row]
            sides = pool.low[row], pool.high[row]
            if self.boxes is not None:  # a checker knows nothing of the parents
                rows = np.zeros((1, self.form.output_size))
                found = dense.bound(lower[None], upper[None], rows, np.zeros(1), sizes=self.sizes)
                sides = found.low[0], found.high[0]
            outcome = finisher.prove(
                replace(
                    self.query, lower=lower, upper=upper, error=self.error_of(lower, upper, sides)
                ),
                self.deadline,
                _no_search,
                most_nodes=PATIENCE,
                most_short=self.branch_reach,
                known=(dense.by_layer(sides[0]), dense.by_layer(sides[1])),
            )
            pool.wait[row] = WAIT
            self.outcome.nodes += outcome.nodes
            if outcome.candidate is not None:
                self.outcome.candidate = outcome.candidate
                break
            keep[row] = not outcome.proved
            self.outcome.least = min(self.outcome.least, outcome.least)
            # What is worth a try is learned: a failure costs as much as hundreds of boxes.
            self.reach = _learn(self.reach, short, outcome.proved)
            if outcome.stage == "branch":
                self.branch_reach = _learn(self.branch_reach, -outcome.root, outcome.proved)
            if outcome.proved and self.boxes is not None:
                proof = outcome.proof
                if isinstance(proof, NeuronProof):
                    place = int(pool.place[row])
                    self.boxes.finished[place] = (lower.copy(), upper.copy(), proof)
                    leaves = len(proof.refuted) + len(proof.bounds)
                    self.tree_bytes += leaves * LEAF_BYTES * finisher.bounder.layout.neurons
                else:
                    self.drop()
            if clock.now() > self.deadline:
                break
        return pool.take(keep)

    def settle(self, pool: Pool) -> Pool:
        """Without boxes that are one point, which does not violate the condition: exactly, since no
        bound is strict where a point is on the boundary. Whole numbers end there."""
        alone = (pool.lower == pool.upper).all(axis=1)
        exact = self.form.is_piecewise_linear and not self.query.in_float32
        exact = exact and not self.query.rounds  # whose checker looks at linear constraints alone
        # What is left of a restricted network is no stored one: there is nothing to be exact about.
        exact = exact and hasattr(self.query.network, "evaluate_exact")
        if not exact or not alone.any():
            return pool
        for row in np.flatnonzero(alone):
            point = pool.lower[row]
            if self.query.contains(point):
                value = self.query.compiled.exact_value(
                    self.query.network.evaluate_exact(point), point
                )
                if value > 0 or (value == 0 and self.query.tie_violates):
                    alone[row] = False  # a violation, though perhaps not at run time
                    continue
            self.outcome.least = min(self.outcome.least, 0.0)
            if self.boxes is not None:
                self.boxes.points.add(int(pool.place[row]))
        return pool.take(~alone)

    def error_of(self, lower: Array, upper: Array, sides: tuple[Array, Array]) -> Array | None:
        if not self.query.in_float32:
            return None
        low, high = (side[None] for side in sides)
        return np.asarray(self.errors(lower[None], upper[None], low, high)[0])

    def sample(self, kept: Pool, linear: Array) -> Array | None:
        """Centres and the corners where the linear bounds are least: cheap, and often enough."""
        corner = np.where(linear > 0, kept.lower[:, None], kept.upper[:, None])
        if isinstance(self.crown, RoundCrown):
            corner = self.crown.minimisers(linear, kept.lower, kept.upper)
        centre = ((kept.lower + kept.upper) / 2)[:, None]
        points = np.concatenate([centre, corner], axis=1).reshape(-1, kept.lower.shape[1])
        points = self.query.clip(points)
        condition = self.query.hunted if self.query.equations else self.query.exact_search
        values = condition.value(condition.leaf_values(self.form.forward(points), points))
        best = int(values.argmax())
        near = float(values[best])
        if not condition.is_violated(near) and not self.query.is_near(near):
            return None
        leaves = range(condition.leaves)
        return self.search(points[best][None], list(leaves), False)

    def hunt(self, pool: Pool) -> Array | None:
        order = pool.bound.argsort()[:8]
        points = ((pool.lower + pool.upper) / 2)[order]
        for leaves in self.conjunctions[:4]:
            found = self.search(points, leaves, False)
            if found is not None:
                return found
        return None

    def halve(self, pool: Pool) -> Pool | None:
        if not len(pool):
            return pool
        width = pool.upper - pool.lower
        size = np.maximum(np.maximum(np.abs(pool.lower), np.abs(pool.upper)), 1e-300)
        allowed = width > LEAST_WIDTH * size
        if self.whole is not None:
            allowed &= ~self.whole | (width >= 1)
        if not allowed.any(axis=1).all():
            return None
        # Where no input influences the bound, the widest one is as good as any.
        at = np.where(allowed, pool.scores + 1e-12 * width, -1.0).argmax(axis=1)
        rows = np.arange(len(pool))
        middle = pool.lower[rows, at] + (pool.upper[rows, at] - pool.lower[rows, at]) / 2
        lower, upper = pool.lower.copy(), pool.upper.copy()
        lower[rows, at] = upper[rows, at] = middle
        if self.whole is not None:  # below or from the next whole number on
            cut = self.whole[at]
            upper[rows[cut], at[cut]] = np.floor(middle[cut])
            lower[rows[cut], at[cut]] = np.floor(middle[cut]) + 1
        here = self.count + rows
        there = here + len(pool)
        self.count += 2 * len(pool)
        if self.boxes is not None:
            for row, place in enumerate(pool.place.tolist()):
                split = self.split(int(at[row]), float(middle[row]))
                self.boxes.halves[place] = Halves(split, int(here[row]), int(there[row]))
        wait = np.maximum(pool.wait - 1, 0)
        first = replace(pool, upper=upper, place=here, wait=wait)
        second = replace(pool, lower=lower, place=there, wait=wait)
        return join([first, second])

    def split(self, at: int, middle: float) -> InputSplit:
        if self.whole is not None and self.whole[at]:
            return IntegerSplit(at, math.floor(middle))
        return RealSplit(at, middle)


@cache
def _load_kernels() -> None:
    sizes = smallest_sizes()
    box = sizes.lower[None], sizes.upper[None]
    DenseGraph(sizes.form).bound(*box, np.zeros((1, 1)), np.zeros(1), sizes=sizes)


def _learn(reach: float, short: float, proved: bool) -> float:
    """The largest shortfall that is worth a try, after a try at ``short``."""
    return max(reach, REACH_MORE * short) if proved else min(reach, REACH_LESS * short)


def _no_search(points: Array, leaves: Sequence[int], programmes: bool) -> Array | None:
    """Within one small box the outer loop's own samples are search enough."""
    return None
