"""Our own engine: attack, bounds at the root, branch and bound; stops at the first answer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qll import limits
from qll.bounds import lanes, sparse_graph
from qll.bounds.chain import Chain
from qll.bounds.graph import GraphBounder
from qll.bounds.lanes import ChainBounder, smallest_sizes
from qll.bounds.rounding import Rounding
from qll.bounds.sparse_graph import SparseGraphBounder
from qll.kernels import available
from qll.networks.relu_form import nonzeros
from qll.verify import clock, implications
from qll.verify.attack import Found, Plan, SearchNetwork, attack
from qll.verify.backend import BACKENDS, Backend, Budget
from qll.verify.boxes import LEAST_WIDTH, BoxProver
from qll.verify.condition import Array, both, ways
from qll.verify.construction import by_construction
from qll.verify.judge import Judgement, Worth, judge
from qll.verify.lattice import walk
from qll.verify.pairs import is_difference
from qll.verify.pattern import climb
from qll.verify.proof import NO_TIME, Outcome
from qll.verify.prover import NeuronProver
from qll.verify.query import Query
from qll.verify.restricted import Restricted, is_plain, restrict, restrict_by_crown
from qll.verify.rounded import RoundProver
from qll.verify.verdict import PROVER_NOTE, Reason, Status, Verdict

Prover: TypeAlias = NeuronProver | BoxProver

# Attack before proving: a short one that finds most counterexamples, then a longer one.
FIRST = Plan(starts=2, steps=12)
SECOND = Plan(starts=8, steps=30, seed=1)
# Where some order of float32 sums may violate the condition at a point no bound excludes that, but
# another point may be violated in all orders: so much of the time is left to look for one.
NEAR_SHARE = 0.2
# Each may take this share of the time that is left, a half together: on a large network a search
# alone proves nothing.
ATTACK_SHARES = {FIRST: 1 / 4, SECOND: 1 / 3}
# A proof is done once more, to be written down, if this many times what it took is left.
AGAIN = 2.0
# From the minimiser of a relaxed node: it is near where a violation would be.
FROM_NODE = Plan(starts=0, steps=10, seed=2)
# Boxes are worked on one region after another: once many are needed, some tenths of a second go
# into points all over the region, for violations in small spots that no climb leads to (ACAS Xu,
# property 8). By then the prover has asked for a search this often, at most four times a round.
SCATTER = Plan(starts=16384, steps=1, seed=3)
SCATTER_PRODUCTS = 250_000_000
SCATTER_AFTER = 4
# While neurons are split, an attack from many points now and then, each from others: all of them
# may take this share of the time. Seconds of the first are guessed from its products.
WIDE = Plan(starts=32, steps=60, seed=4)
WIDE_SHARE = 0.1
PRODUCTS_A_SECOND = 1e10
# What is tried in numpy before the kernels are loaded, which takes some tenths of a second.
LIGHT_PRODUCTS = 400_000_000
# Linear programmes in a row, each on a neighbouring activation pattern.
CLIMBS = 10
# Up to this many inputs the box is split, above it the neurons; if there are more ways to violate,
# the neurons too, because boxes need all of them at once.
FEW_INPUTS = 10
FEW_WAYS = 256
CLIMB_SECONDS = 0.3
WALK_SECONDS = 0.5
# Queries of one network that are worth the kernels of sparse graphs.
MANY_QUERIES = 4
# Joint hulls that a certificate can name are worth steps over dense matrices of this many times the
# network's non-zeros: on oval21 with 6 times as many (three layers) they win, with 17 times (five
# layers) they lose. Where none is asked for, hulls by non-zeros are better from this many times on.
DENSE, DENSE_UNKEPT = 10, 3
# Of many whole inputs boxes alone close few: neurons are split early.
MANY_ALONE = 0.02


@BACKENDS.register("bab")
@dataclass
class BranchAndBound(Backend):
    """Branch and bound with dual bounds."""

    name: ClassVar[str] = "bab"
    keeps_proofs: ClassVar[bool] = True
    choose: Callable[[Query], Prover] | None = None  # which prover takes a query; for tests

    def prepare(self, query: Query | None = None) -> None:
        if not available():
            return
        if query is not None:
            first = query.cases[:1]
            if first and self.refuses(first[0]) is None:
                choose_prover(first[0]).prepare()
                if splits_neurons(first[0]):
                    sparse_graph.load_kernels()
            return
        BoxProver(smallest_sizes().form).prepare()
        for load in (lanes.load_kernels, sparse_graph.load_kernels, implications.load_kernels):
            load()

    def run(self, queries: Sequence[Query], budget: Budget) -> list[Verdict]:
        found = _Decisions(queries, budget)
        network = SearchNetwork(queries[0].form)
        near: dict[int, Judgement] = {}
        graphs: list[SparseGraphBounder] = []  # of the network, once it is needed
        quick = not budget.proofs and self.choose is None  # whatever decides, and nothing kept
        with found.paid_by(found.open, "attack"):
            built: dict[object, Verdict | None] = {}
            for i, query in enumerate(queries):
                found.verdicts[i] = _trivial(query) or by_construction(query, built)
        for plan in (FIRST, SECOND):
            if plan is SECOND and quick:
                self._at_once(queries, found, graphs)
            if not (left := found.open):
                break
            with found.paid_by(left, "attack") as work:
                late = work.start + ATTACK_SHARES[plan] * (work.deadline - work.start)
                some = attack(network, [queries[i] for i in left], plan, deadline=late)
                for i, best in zip(left, some, strict=True):
                    found.verdicts[i] = self._judge(queries[i], best, near, i)
                    if found.verdicts[i] is None and plan is SECOND:
                        found.verdicts[i] = self._walk(queries[i], best, work.deadline, near, i)
        provers: dict[tuple[bool, bool], Prover] = {}
        rounding = Rounding(queries[0].network, queries[0].form)
        keys = [(query.search.inputs is None, splits_boxes(query)) for query in queries]
        for i, query in enumerate(queries):
            small = None
            if found.verdicts[i] is None and quick:
                with found.paid_by([i], "root"):
                    small = restrict(query, rounding)
            if found.verdicts[i] is None and quick:
                with found.paid_by([i], "root") as work:
                    found.verdicts[i] = self._lightly(network, query, work.deadline, small)
            if found.verdicts[i] is None and quick:
                if splits_neurons(query):
                    sparse_graph.load_kernels()
                with found.paid_by([i], "root") as work:
                    small = self._closer(query, small, rounding, graphs, work.deadline)
                    if small is not None and small.known is not None:
                        # Before other kernels are loaded than those of these bounds.
                        sparse = NeuronProver(SparseGraphBounder(small.query.form))
                        first = sparse.prove_at_once(small.query, small.known)
                        found.verdicts[i] = _as_verdict(first, []) if first.proved else None
            whole = small is None or small.query is query
            if whole and found.verdicts[i] is None and keys[i] not in provers:
                with found.paid_by([k for k in found.open if keys[k] == keys[i]], "root"):
                    provers[keys[i]] = prover = (self.choose or choose_prover)(query)
                    # Boxes that a checker can follow are more: first the verdict, then the proof.
                    prover.keeps = budget.proofs and (prover.tells_freely or not budget.welcome)
            if found.verdicts[i] is None:
                # A checker reads the whole network: it could not follow a proof of a part.
                asked = query if small is None else small.query
                prover = provers[keys[i]] if whole else choose_prover(asked, kept=False)
                prover.keeps = prover.keeps and budget.proofs
                prover.prepare()
                with found.paid_by([i], "root") as work:
                    until = work.deadline
                    if query.in_float32 and i in near:
                        until = clock.now() + NEAR_SHARE * (until - clock.now())
                    verdict = self._prove(
                        prover, network, query, until, near.get(i), small, proofs=budget.proofs
                    )
                    found.verdicts[i] = verdict if budget.proofs else replace(verdict, proof=None)
        return found.finished()

    def _lightly(
        self, network: SearchNetwork, query: Query, deadline: float, small: Restricted | None
    ) -> Verdict | None:
        """A verdict that costs less than loading the kernels would."""
        asked = query if small is None else small.query
        if "qll.kernels.dual_boxes" in sys.modules or is_difference(asked):
            return None
        prover = BoxProver.light(asked.form, LIGHT_PRODUCTS)
        if prover is None or ways(asked.search.tree) > FEW_WAYS:
            return None
        if not splits_boxes(asked):
            prover.most = 1
        verdict = self._prove(prover, network, query, deadline, None, small, proofs=False)
        return replace(verdict, proof=None) if verdict.decided else None

    def _at_once(
        self, queries: Sequence[Query], found: _Decisions, graphs: list[SparseGraphBounder]
    ) -> None:
        """Those of many queries that CROWN alone proves, in a millisecond or two each: less than a
        longer attack takes, or anything else."""
        left = [i for i in found.open if not splits_boxes(queries[i]) and is_simple(queries[i])]
        if len(left) < MANY_QUERIES or not SparseGraphBounder.fits(queries[0].form):
            return
        sparse_graph.load_kernels()
        graphs.append(SparseGraphBounder(queries[0].form))
        prover = NeuronProver(graphs[0])
        for i in left:
            with found.paid_by([i], "root"):
                outcome = prover.prove_at_once(queries[i])
                if outcome.proved:
                    found.verdicts[i] = _as_verdict(outcome, [])

    def _closer(
        self,
        query: Query,
        small: Restricted | None,
        rounding: Rounding,
        graphs: list[SparseGraphBounder],
        deadline: float,
    ) -> Restricted | None:
        """What is left of the network by CROWN's bounds, where neurons are to be split."""

        def stop() -> bool:
            return clock.now() > deadline

        if splits_boxes(query if small is None else small.query):
            return small
        if small is not None:
            return small.closer(stop)
        if not graphs:
            graphs.append(SparseGraphBounder(query.form))
        return restrict_by_crown(query, stop, graphs[0], rounding)

    def _walk(
        self, query: Query, found: Found, deadline: float, near: dict[int, Judgement], index: int
    ) -> Verdict | None:
        """Among whole numbers, from where the attack ended."""
        if query.integers is None:
            return None
        most = min(deadline, clock.now() + WALK_SECONDS)
        point, value = walk(query, found.point, seed=index, deadline=most)
        return self._judge(query, Found(point, value), near, index)

    def _judge(
        self, query: Query, found: Found, near: dict[int, Judgement], index: int
    ) -> Verdict | None:
        if not query.is_near(found.value):
            return None
        judgement = judge(query, found.point)
        if judgement.worth is Worth.VIOLATION:
            return Verdict(Status.FALSIFIED, "attack", witness=found.point, value=judgement.value)
        if judgement.worth is Worth.NEAR_TIE:
            near[index] = judgement
        return None

    def _prove(
        self,
        prover: Prover,
        network: SearchNetwork,
        query: Query,
        deadline: float,
        near: Judgement | None,
        small: Restricted | None = None,
        *,
        proofs: bool,
    ) -> Verdict:
        ties = [] if near is None else [near]
        searches = 0
        wide = _Wide(network, query)

        def worth(point: Array, value: float) -> bool:
            if not query.is_near(value):
                return False
            judgement = judge(query, point)
            if judgement.worth is Worth.NEAR_TIE:
                ties.append(judgement)
            return judgement.worth is Worth.VIOLATION

        def search(points: Array, leaves: Sequence[int], programmes: bool) -> Array | None:
            nonlocal searches
            searches += 1
            if searches == SCATTER_AFTER + 1 and splits_boxes(query) and query.integers is None:
                most = min(SCATTER.starts, SCATTER_PRODUCTS // max(network.size, 1))
                scattered = replace(SCATTER, starts=most)
                best_of_all = attack(network, [query], scattered, deadline=deadline)[0]
                if worth(best_of_all.point, best_of_all.value):
                    return best_of_all.point
            if wide.is_due():
                best_of_all = wide.attack(deadline)
                if worth(best_of_all.point, best_of_all.value):
                    return best_of_all.point
            starts = query.clip(points)
            # As they are: the attack sees them in float32.
            condition = query.hunted
            values = condition.value(condition.leaf_values(query.form.forward(starts), starts))
            best = int(values.argmax())
            if worth(starts[best], float(values[best])):
                return np.asarray(starts[best])
            found = attack(
                network, [query], FROM_NODE, first_points=[starts], trees=[both(tuple(leaves))],
                deadline=deadline,
            )[0]  # fmt: skip
            point, value = found.point, found.value
            if programmes and not condition.is_violated(value):
                point, value = climb(
                    query,
                    point,
                    leaves,
                    rounds=CLIMBS,
                    deadline=min(deadline, clock.now() + CLIMB_SECONDS),
                )
            return point if worth(point, value) else None

        start = clock.now()
        if small is None:
            outcome = prover.prove(query, deadline, search)
        else:
            seek = small.seeking(search)
            if isinstance(prover, NeuronProver):
                found = prover.prove(small.query, deadline, seek, known=small.known)
            else:
                found = prover.prove(small.query, deadline, seek)
            outcome = small.told(found)
        if outcome.proved and proofs and not prover.keeps:
            outcome = _again(prover, query, outcome, start, deadline)
        return replace(_as_verdict(outcome, ties), proof=outcome.proof)


class _Wide:
    """Attacks from many points beside the proof of one query."""

    def __init__(self, network: SearchNetwork, query: Query) -> None:
        self.network, self.query = network, query
        self.began, self.spent, self.count = clock.now(), 0.0, 0
        products = 4.0 * WIDE.starts * WIDE.steps * network.size  # there and back
        self.next = products / PRODUCTS_A_SECOND

    def is_due(self) -> bool:
        passed = clock.now() - self.began
        return not splits_boxes(self.query) and self.spent + self.next <= WIDE_SHARE * passed

    def attack(self, deadline: float) -> Found:
        start, plan = clock.now(), replace(WIDE, seed=WIDE.seed + self.count)
        found = attack(self.network, [self.query], plan, deadline=deadline)[0]
        self.count += 1
        self.next = clock.now() - start
        self.spent += self.next
        return found


@dataclass
class _Work:
    start: float
    deadline: float


class _Decisions:
    """Verdicts of queries that are decided together, and the seconds that each has left: what is
    done for several of them is paid by all of them."""

    def __init__(self, queries: Sequence[Query], budget: Budget) -> None:
        self.verdicts: list[Verdict | None] = [None] * len(queries)
        self.spent = [0.0] * len(queries)
        self.seconds = budget.seconds

    @property
    def open(self) -> list[int]:
        return [i for i, verdict in enumerate(self.verdicts) if verdict is None]

    @contextmanager
    def paid_by(self, who: Sequence[int], stage: str) -> Iterator[_Work]:
        """Work on the open queries ``who``, until their seconds are spent."""
        start = clock.now()
        deadline = start + sum(max(0.0, self.seconds - self.spent[i]) for i in who)
        try:
            with limits.limited(deadline=deadline, now=clock.now):
                yield _Work(start, deadline)
        except limits.OutOfTime:
            self._give_up(who, Verdict(Status.UNKNOWN, stage, reason=Reason.TIME))
        except limits.OutOfMemory as error:
            late = Verdict(Status.UNKNOWN, stage, reason=Reason.MEMORY, detail=str(error))
            self._give_up(who, late)
        for i in who:
            self.spent[i] += (clock.now() - start) / len(who)

    def _give_up(self, who: Sequence[int], verdict: Verdict) -> None:
        for i in who:
            self.verdicts[i] = self.verdicts[i] or verdict

    def finished(self) -> list[Verdict]:
        return [
            replace(verdict, seconds=spent)
            for verdict, spent in zip(self.verdicts, self.spent, strict=True)
            if verdict is not None
        ]


def is_simple(query: Query) -> bool:
    """Of a box alone, in real arithmetic."""
    plain = query.integers is None and not query.constraints and not query.rounds
    return plain and not query.in_float32 and query.choices == ((),) and query.ball is None


def moves(query: Query) -> NDArray[np.bool_]:
    """(inputs,) which are more than a number, or the two floats around a decimal: the others need
    no split, and cost nothing."""
    size = np.maximum(np.abs(query.lower), np.abs(query.upper))
    return np.asarray(query.upper - query.lower > LEAST_WIDTH * size)


def splits_boxes(query: Query) -> bool:
    free = moves(query)
    if ways(query.search.tree) > FEW_WAYS:
        return False
    whole = query.integers is not None and bool((free & query.integers).any())
    return whole or int(free.sum()) <= FEW_INPUTS or is_difference(query)


def splits_neurons(query: Query) -> bool:
    """Whether it is restricted by CROWN's bounds first."""
    return not splits_boxes(query) and is_plain(query) and SparseGraphBounder.fits(query.form)


def choose_prover(query: Query, *, kept: bool = True) -> Prover:
    """Boxes for few inputs; compiled lanes, with joint hulls for chains whose matrices they can
    hold and are not nearly empty, by the non-zeros of any other ReLU graph; the torch reference for
    everything else. ``kept`` is a proof that may be written down."""
    form = query.form
    if splits_boxes(query):
        many = int(moves(query).sum()) > FEW_INPUTS
        return BoxProver(form, alone=MANY_ALONE) if many else BoxProver(form)
    if query.ball is not None:
        return RoundProver(form)
    if available() and ChainBounder.fits(form) and query.search.inputs is None:
        most = DENSE if kept else DENSE_UNKEPT
        dense = Chain.dense_entries(form) <= most * nonzeros(form)
        if dense or not SparseGraphBounder.fits(form):
            return NeuronProver(ChainBounder(form))
    if SparseGraphBounder.fits(form):
        return NeuronProver(SparseGraphBounder(form))
    return NeuronProver(GraphBounder(form))


def _again(
    prover: Prover, query: Query, outcome: Outcome, start: float, deadline: float
) -> Outcome:
    """The same, proved such that it can be written down, where there is time for that."""
    now = clock.now()
    outcome.proof = NO_TIME
    if deadline - now < AGAIN * (now - start):
        return outcome
    prover.keeps = True
    try:
        told = prover.prove(query, deadline, lambda *_: None)
    except (limits.OutOfTime, limits.OutOfMemory):
        return outcome
    finally:
        prover.keeps = False
    return told if told.proved else outcome


def _as_verdict(outcome: Outcome, ties: list[Judgement]) -> Verdict:
    if outcome.candidate is not None:
        return Verdict(
            Status.FALSIFIED, outcome.stage, witness=outcome.candidate, nodes=outcome.nodes
        )
    if outcome.proved:
        return Verdict(
            Status.VERIFIED,
            outcome.stage,
            bound=float(outcome.least),
            nodes=outcome.nodes,
            notes=(PROVER_NOTE,),
        )
    if ties:
        return Verdict(
            Status.UNKNOWN,
            outcome.stage,
            reason=Reason.NEAR_TIE,
            value=ties[-1].value,
            nodes=outcome.nodes,
            notes=(ties[-1].note,),
        )
    return Verdict(
        Status.UNKNOWN,
        outcome.stage,
        reason=outcome.reason or Reason.BACKEND,
        bound=outcome.bound,
        nodes=outcome.nodes,
    )


def _trivial(query: Query) -> Verdict | None:
    """Conditions that every point violates; those that none does are the template's."""
    if query.compiled.tree is True or query.search.tree is True:
        point = (query.lower + query.upper) / 2
        point = query.clip(point)
        if query.contains(point):
            return Verdict(Status.FALSIFIED, "trivial", witness=point)
        return Verdict(
            Status.UNKNOWN,
            "trivial",
            reason=Reason.BACKEND,
            notes=("violated everywhere, but no point of the constrained region was found",),
        )
    return None
