"""Proofs by splitting the box, for networks of few inputs: CROWN on batches of boxes.

A box is open while some obligation is not refuted on it. Halving an input shrinks every relaxation
at once, which beats splitting neurons when there are only a handful of inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from qll.bounds.crown import Crown, DenseChain, Rows
from qll.kernels import available
from qll.networks.relu_form import ReluForm
from qll.verify import clock
from qll.verify.condition import Array, Obligation, obligations
from qll.verify.proof import Boxes, Outcome, Search
from qll.verify.prover import MARGIN, ChainProver
from qll.verify.query import Query
from qll.verify.verdict import Reason

# Boxes in one batch, and most open boxes in memory.
BATCH = 256
MOST_OPEN = 2_000_000
# A box that CROWN leaves open is tried with optimised duals and, for at most PATIENCE nodes, splits
# of neurons; after a failure its parts are halved WAIT times before the next try, because most are
# closed by CROWN on the way.
PATIENCE = 400
WAIT = 4
REACH_MORE, REACH_LESS = 1.25, 0.8
# Steps of the ascent over the weights of a conjunction's leaves, on the linear bounds.
WEIGHT_STEPS = 12
# An input narrower than this share of its size is not split again.
LEAST_WIDTH = 1e-13


@dataclass(frozen=True, eq=False)
class Pool:
    """Open boxes and which obligations are open on each."""

    lower: Tensor  # (N, inputs)
    upper: Tensor
    open: Tensor  # (N, obligations) bool
    bound: Tensor  # (N,) of the worst open obligation on the parent
    place: Tensor  # (N,) its number, for certificates
    wait: Tensor  # (N,) halvings until neurons are split on it

    def take(self, rows: Tensor | slice) -> Pool:
        return Pool(*(getattr(self, f.name)[rows] for f in fields(self)))

    def __len__(self) -> int:
        return len(self.lower)


def join(pools: list[Pool]) -> Pool:
    return Pool(*(torch.cat([getattr(p, f.name) for p in pools]) for f in fields(Pool)))


class BoxProver:
    def __init__(self, form: ReluForm, *, device: str = "cpu", compiled: bool = True) -> None:
        self.form = form
        self.keeps = False  # what certificates need
        self.crown = Crown(form, device=device)
        self.finisher = ChainProver(form) if compiled and available() and form.is_chain else None
        self.dense = (
            DenseChain(form) if compiled and available() and DenseChain.fits(form) else None
        )

    def prove(self, query: Query, deadline: float, search: Search) -> Outcome:
        with torch.no_grad():
            return _BoxRun(self, query, deadline, search).execute()


class _BoxRun:
    def __init__(self, prover: BoxProver, query: Query, deadline: float, search: Search) -> None:
        crown = self.crown = prover.crown
        # The compiled paths read the outputs alone.
        outputs_only = query.search.inputs is None
        self.dense = prover.dense if outputs_only else None
        self.finisher = prover.finisher if outputs_only else None
        self.query = query
        self.deadline = deadline
        self.search = search
        self.outcome = Outcome(stage="boxes")
        # Boxes whose bound is short of a proof by more are halved at once: CROWN's bound for a try
        # with optimised duals, and that of the duals for splits of neurons.
        self.reach = self.branch_reach = np.inf
        self.boxes = Boxes() if prover.keeps else None
        self.outcome.trace.boxes = self.boxes
        self.count = 1  # boxes so far
        condition = query.search
        self.rows = -crown.tensor(condition.outputs)[None]
        self.constant = -crown.tensor(condition.constant)[None]
        self.inputs = None if condition.inputs is None else -crown.tensor(condition.inputs)[None]
        self.conjunctions = _conjunctions(obligations(condition.tree))
        last = [high.abs().maximum(low.abs()) for low, high in crown.interval(
            crown.tensor(query.lower)[None], crown.tensor(query.upper)[None])][-1]  # fmt: skip
        reach = float((self.rows[0].abs() @ last[0]).max() + self.constant.abs().max())
        self.margin = MARGIN * max(1.0, reach)

    def execute(self) -> Outcome:
        out, query = self.outcome, self.query
        pool = Pool(
            self.crown.tensor(query.lower)[None],
            self.crown.tensor(query.upper)[None],
            torch.ones(1, len(self.conjunctions), dtype=torch.bool),
            torch.full((1,), -np.inf, dtype=torch.float64),
            torch.zeros(1, dtype=torch.int64),
            torch.zeros(1, dtype=torch.int64),
        )
        rounds = 0
        while len(pool):
            if clock.now() > self.deadline:
                out.reason, out.bound = Reason.TIME, float(pool.bound.min())
                return out
            if len(pool) > MOST_OPEN:
                out.reason, out.bound = Reason.MEMORY, float(pool.bound.min())
                return out
            # Depth first keeps the pool small; the batch comes from its end.
            batch, rest = (
                pool.take(slice(-BATCH, None)),
                pool.take(slice(0, max(len(pool) - BATCH, 0))),
            )
            out.nodes += len(batch)
            left, found, scores = self.refute(batch)
            if found is None and len(left) and rounds % 8 == 0:
                found = self.hunt(left)
            if found is not None:
                out.candidate = found
                return out
            rounds += 1
            if self.finisher is not None and self.dense is not None:
                left, scores = self.finish(self.finisher, self.dense, left, scores)
                if out.candidate is not None:
                    return out
            children = self.halve(left, scores)
            if children is None:
                out.reason, out.bound = Reason.MARGIN, float(left.bound.min())
                return out
            pool = join([rest, children])
        out.proved = True
        return out

    def refute(self, pool: Pool) -> tuple[Pool, Array | None, Tensor]:
        """Boxes that stay open, a violation met on the way, and how much each input matters."""
        rows = self.bounder(pool.lower, pool.upper)
        still = pool.open.clone()
        worst = torch.full_like(pool.bound, np.inf)
        influence = torch.zeros_like(pool.lower)
        rad = (pool.upper - pool.lower) / 2
        mixtures = []
        for index, leaves in enumerate(self.conjunctions):
            value, coefficient, weight = self.mix(pool, rows, leaves)
            mixtures.append(weight)
            still[:, index] &= value <= self.margin
            here = still[:, index]
            worst = torch.where(here, torch.minimum(worst, value), worst)
            influence = influence + torch.where(here[:, None], coefficient.abs() * rad, 0.0)
        left = still.any(dim=1)
        kept = replace(pool.take(left), open=still[left], bound=worst[left])
        if self.boxes is not None:
            for row in (~left).nonzero()[:, 0].tolist():
                self.boxes.closed[int(pool.place[row])] = [m[row].numpy().copy() for m in mixtures]
        found = self.sample(kept, rows, left) if left.any() else None
        return kept, found, influence[left]

    def finish(
        self, finisher: ChainProver, dense: DenseChain, pool: Pool, influence: Tensor
    ) -> tuple[Pool, Tensor]:
        """Optimised duals and splits of neurons on each box: what they close is not halved."""
        keep = torch.ones(len(pool), dtype=torch.bool)
        for row in range(len(pool)):
            short = -float(pool.bound[row])  # of a proof by CROWN
            if pool.wait[row] > 0 or short > self.reach:
                continue
            lower, upper = pool.lower[row].numpy(), pool.upper[row].numpy()
            outcome = finisher.prove(
                replace(self.query, lower=lower, upper=upper),
                self.deadline,
                _no_search,
                most_nodes=PATIENCE,
                most_short=self.branch_reach,
                known=dense.hidden_bounds(lower, upper),
            )
            pool.wait[row] = WAIT
            self.outcome.nodes += outcome.nodes
            if outcome.candidate is not None:
                self.outcome.candidate = outcome.candidate
                break
            keep[row] = not outcome.proved
            # What is worth a try is learned: a failure costs as much as hundreds of boxes.
            self.reach = _learn(self.reach, short, outcome.proved)
            if outcome.stage == "branch":
                self.branch_reach = _learn(self.branch_reach, -outcome.root, outcome.proved)
            if outcome.proved and self.boxes is not None:
                self.boxes.finished[int(pool.place[row])] = (lower.copy(), upper.copy(), outcome)
            if clock.now() > self.deadline:
                break
        return pool.take(keep), influence[keep]

    def bounder(self, lower: Tensor, upper: Tensor) -> Rows:
        if self.dense is not None:
            value, coefficient = self.dense.rows(
                lower.numpy(), upper.numpy(), self.rows[0].numpy(), self.constant[0].numpy()
            )
            return Rows(torch.from_numpy(value), torch.from_numpy(coefficient), [])
        boxes = self.crown.pre_activations(lower, upper)
        return self.crown.rows(boxes, len(self.form.layers), self.rows, self.constant, self.inputs)

    @property
    def form(self) -> ReluForm:
        return self.crown.form

    def mix(self, boxes: Pool, rows: Rows, leaves: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        """The best bound of a mixture of the leaves' linear lower bounds over each box, its
        coefficients and the mixture.

        Each leaf's bound is linear in x on the box, so the bound of a mixture is again closed form
        and concave in the weights: a few projected steps find good ones.
        """
        value, coefficient = rows.value[:, leaves], rows.inputs[:, leaves]
        if len(leaves) == 1:
            return value[:, 0], coefficient[:, 0], torch.ones_like(value)
        mid, rad = (boxes.lower + boxes.upper) / 2, (boxes.upper - boxes.lower) / 2
        constant = (
            value
            - (coefficient @ mid[:, :, None])[..., 0]
            + (coefficient.abs() @ rad[:, :, None])[..., 0]
        )
        best, at = value.max(dim=1)
        weight = torch.nn.functional.one_hot(at, len(leaves)).to(value.dtype)
        best_weight = weight
        weight = (weight + 1.0 / len(leaves)) / 2
        for step in range(WEIGHT_STEPS):
            mixed = (weight[:, None] @ coefficient)[:, 0]
            x = mid - mixed.sign() * rad
            each = constant + (coefficient @ x[:, :, None])[..., 0]
            total = (weight * each).sum(dim=1)
            better = total > best
            best = torch.where(better, total, best)
            best_weight = torch.where(better[:, None], weight, best_weight)
            slope = each - total[:, None]
            size = slope.abs().amax(dim=1, keepdim=True) + 1e-30
            weight = weight * torch.exp(slope / size * (2.0 * 0.8**step))
            weight = weight / weight.sum(dim=1, keepdim=True)
        return best, (best_weight[:, None] @ coefficient)[:, 0], best_weight

    def sample(self, kept: Pool, rows: Rows, left: Tensor) -> Array | None:
        """Centres and the corners where the linear bounds are least: cheap, and often enough."""
        coefficient = rows.inputs[left]
        corner = torch.where(coefficient > 0, kept.lower[:, None], kept.upper[:, None])
        centre = ((kept.lower + kept.upper) / 2)[:, None]
        points = torch.cat([centre, corner], dim=1).reshape(-1, kept.lower.shape[1]).numpy()
        condition = self.query.search
        values = condition.value(condition.leaf_values(self.form.forward(points), points))
        best = int(values.argmax())
        if not condition.is_violated(float(values[best])):
            return None
        leaves = range(condition.leaves)
        return self.search(points[best][None], list(leaves), False)

    def hunt(self, pool: Pool) -> Array | None:
        order = pool.bound.argsort()[:8]
        points = ((pool.lower + pool.upper) / 2)[order].numpy()
        for leaves in self.conjunctions[:4]:
            found = self.search(points, leaves, False)
            if found is not None:
                return found
        return None

    def halve(self, pool: Pool, influence: Tensor) -> Pool | None:
        if not len(pool):
            return pool
        width = pool.upper - pool.lower
        size = torch.maximum(pool.lower.abs(), pool.upper.abs()).clamp(min=1e-300)
        allowed = width > LEAST_WIDTH * size
        if not bool(allowed.any(dim=1).all()):
            return None
        # Where no input influences the bound, the widest one is as good as any.
        score = torch.where(allowed, influence + 1e-12 * width, -1.0)
        at = score.argmax(dim=1, keepdim=True)
        middle = (pool.lower.gather(1, at) + pool.upper.gather(1, at)) / 2
        here = self.count + torch.arange(len(pool))
        there = here + len(pool)
        self.count += 2 * len(pool)
        if self.boxes is not None:
            for place, k, i, j in zip(pool.place, at[:, 0], here, there, strict=True):
                self.boxes.halves[int(place)] = (int(k), int(i), int(j))
        wait = pool.wait - 1
        first = replace(pool, upper=pool.upper.scatter(1, at, middle), place=here, wait=wait)
        second = replace(pool, lower=pool.lower.scatter(1, at, middle), place=there, wait=wait)
        return join([first, second])


def _learn(reach: float, short: float, proved: bool) -> float:
    """The largest shortfall that is worth a try, after a try at ``short``."""
    return max(reach, REACH_MORE * short) if proved else min(reach, REACH_LESS * short)


def _no_search(points: Array, leaves: Sequence[int], programmes: bool) -> Array | None:
    """Within one small box the outer loop's own samples are search enough."""
    return None


def _conjunctions(waiting: list[Obligation]) -> list[list[int]]:
    """All obligations fully expanded; on many boxes at once there is no lazy way."""
    done: list[list[int]] = []
    stack = list(waiting)
    while stack:
        obligation = stack.pop()
        if obligation.is_conjunction:
            done.append(list(obligation.leaves))
        else:
            stack.extend(obligation.expand())
    return done
