"""Our own engine: attack, bounds at the root, branch and bound; stops at the first answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias

import numpy as np

from qll.kernels import available
from qll.verify import clock
from qll.verify.attack import Found, Plan, SearchNetwork, attack
from qll.verify.backend import BACKENDS, Backend, Budget
from qll.verify.boxes import BoxProver
from qll.verify.condition import Array, both, ways
from qll.verify.construction import by_construction
from qll.verify.graph import GraphProver
from qll.verify.judge import Judgement, Worth, judge
from qll.verify.pattern import climb
from qll.verify.proof import Outcome
from qll.verify.prover import ChainProver
from qll.verify.query import Query
from qll.verify.verdict import PROVER_NOTE, Reason, Status, Verdict

Prover: TypeAlias = ChainProver | BoxProver

# Attack before proving: a short one that finds most counterexamples, then a longer one.
FIRST = Plan(starts=2, steps=12)
SECOND = Plan(starts=8, steps=30, seed=1)
# From the minimiser of a relaxed node: it is near where a violation would be.
FROM_NODE = Plan(starts=0, steps=10, seed=2)
# Linear programmes in a row, each on a neighbouring activation pattern.
CLIMBS = 10
# Up to this many inputs the box is split, above it the neurons; if there are more ways to violate,
# the neurons too, because boxes need all of them at once.
FEW_INPUTS = 10
FEW_WAYS = 256
CLIMB_SECONDS = 0.3


@BACKENDS.register("bab")
@dataclass
class BranchAndBound(Backend):
    """Branch and bound with dual bounds."""

    name: ClassVar[str] = "bab"
    choose: Callable[[Query], Prover] | None = None  # which prover takes a query; for tests

    def run(self, queries: Sequence[Query], budget: Budget) -> list[Verdict]:
        verdicts: list[Verdict | None] = [_trivial(q) or by_construction(q) for q in queries]
        network = SearchNetwork(queries[0].form)
        near: dict[int, Judgement] = {}
        spent = [0.0] * len(queries)
        for plan in (FIRST, SECOND):
            left = [i for i, v in enumerate(verdicts) if v is None]
            if not left:
                break
            start = clock.now()
            deadline = start + sum(max(0.0, budget.seconds - spent[i]) for i in left)
            found = attack(network, [queries[i] for i in left], plan, deadline=deadline)
            for i, best in zip(left, found, strict=True):
                verdicts[i] = self._judge(queries[i], best, near, i)
            share = (clock.now() - start) / len(left)
            for i in left:
                spent[i] += share
        provers: dict[tuple[bool, bool], Prover] = {}
        for i, query in enumerate(queries):
            key = (query.search.inputs is None, splits_boxes(query))
            if verdicts[i] is None and key not in provers:
                # Once for the network, and loading (at first: compiling) its kernels: before the
                # clock of a query runs.
                provers[key] = (self.choose or choose_prover)(query)
                provers[key].keeps = budget.proofs
                provers[key].prepare(query)
            start = clock.now()
            verdict = verdicts[i]
            if verdict is None:
                prover = provers[key]
                verdict = self._prove(
                    prover, network, query, start + budget.seconds - spent[i], near.get(i)
                )
                if not budget.proofs:
                    verdict = replace(verdict, proof=None)
            verdicts[i] = replace(verdict, seconds=spent[i] + clock.now() - start)
        return [v for v in verdicts if v is not None]

    def _judge(
        self, query: Query, found: Found, near: dict[int, Judgement], index: int
    ) -> Verdict | None:
        if not query.search.is_violated(found.value):
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
    ) -> Verdict:
        ties = [] if near is None else [near]

        def worth(point: Array, value: float) -> bool:
            if not query.search.is_violated(value):
                return False
            judgement = judge(query, point)
            if judgement.worth is Worth.NEAR_TIE:
                ties.append(judgement)
            return judgement.worth is Worth.VIOLATION

        def search(points: Array, leaves: Sequence[int], programmes: bool) -> Array | None:
            starts = query.clip(points)
            # As they are: the attack sees them in float32.
            condition = query.search
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

        outcome = prover.prove(query, deadline, search)
        return replace(_as_verdict(outcome, ties), proof=(prover, outcome))


def splits_boxes(query: Query) -> bool:
    free = int((query.upper > query.lower).sum())  # those that cannot move cost nothing
    return free <= FEW_INPUTS and ways(query.search.tree) <= FEW_WAYS


def choose_prover(query: Query) -> Prover:
    """Boxes for few inputs; compiled lanes for chains; the torch reference for everything else."""
    form = query.form
    if splits_boxes(query):
        return BoxProver(form)
    compiled = available() and form.is_relu_chain and len(form.layers) > 1
    if compiled and query.search.inputs is None:
        return ChainProver(form)
    return GraphProver(form)


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
    tree = query.compiled.tree
    if tree is True:
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
