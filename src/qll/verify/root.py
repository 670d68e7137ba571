"""The root of a proof: pre-activation bounds, and the obligations that they refute at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from qll import limits
from qll.bounds.chain import Node
from qll.bounds.rounding import Sizes
from qll.verify import clock
from qll.verify.condition import Array, Obligation, obligations
from qll.verify.proof import Outcome, Search
from qll.verify.query import Query
from qll.verify.verdict import Reason

if TYPE_CHECKING:
    from qll.verify.prover import ChainProver

# Bounds are rigorous (`qll.bounds.rounding`). A domain is closed above this share of the outputs'
# range all the same, to leave the checker, which rounds in its own way, room to confirm it.
MARGIN = 1e-9
# The float32 ascent stops above this share: its rounding, so that float64 will mostly agree.
SINGLE_MARGIN = 2e-5
# Open domains may take this much memory, but no more than this share of what is left to the query.
MOST_BYTES = 1 << 30
MOST_SHARE = 0.5
# Closed domains, where a certificate is wanted, may take this much: a larger proof is dropped.
MOST_PROOF_BYTES = 1 << 29


class Root:
    """The state of one proof, and its part before any split."""

    def __init__(self, prover: ChainProver, query: Query, deadline: float, search: Search) -> None:
        self.prover = prover
        self.effort = prover.effort
        self.query = query
        self.deadline = deadline
        self.search = search
        self.began = clock.now()
        self.climbing = 0.0  # seconds in linear programmes
        self.most_nodes = np.inf
        self.most_short = np.inf
        self.chain = prover.chain
        mid, rad = (query.lower + query.upper) / 2, (query.upper - query.lower) / 2
        self.box = (mid.astype(np.float32), rad.astype(np.float32))
        self.sizes = Sizes(
            prover.rounding(query), query.lower, query.upper, leaves=query.search.leaves
        )
        self.low, self.high = self.first_bounds()
        self.outcome = Outcome()
        self.outcome.trace.loose = (self.low < 0) & (self.high > 0)
        # Per hidden layer, the problem of each neuron's bound: (neuron, +1 lower or -1 upper).
        self.tightened: dict[int, dict[tuple[int, int], Node]] = {}
        self.rows, self.offsets = prover.objectives(query)
        self.measure()
        magnitude = abs(self.rows).sum(axis=1)
        reach = np.maximum(np.abs(self.low), np.abs(self.high))[
            self.chain.part(self.chain.layers - 1)
        ].max(initial=1.0)
        self.scale = float(np.max(magnitude * reach + np.abs(self.offsets), initial=1.0))
        self.margin = MARGIN * self.scale
        # low, high, sign, alpha, beta and gap; the minimiser; delta
        copies = prover.copies
        each = 29 * len(self.low) + 4 * query.lower.size + 4 * copies
        self.each = each
        self.most_proof = MOST_PROOF_BYTES // each
        self.most_kept = max(64, min(MOST_BYTES, MOST_SHARE * limits.memory_limit()) // each)

    def first_bounds(self) -> tuple[Array, Array]:
        return self.chain.interval(self.sizes)

    def measure(self) -> None:
        """Sizes of the neurons and of the objectives, from the bounds that are known."""
        condition = self.query.search
        self.neurons = self.chain.sizes(self.sizes)
        self.objective_sizes = self.sizes.objectives(
            condition.outputs, condition.constant, condition.inputs
        )

    def learn(self, low: Sequence[Array], high: Sequence[Array]) -> None:
        """Bounds of the hidden layers that somebody else has proved."""
        for k in range(self.prover.hidden):
            part = self.chain.part(k)
            self.low[part] = np.maximum(self.low[part], self.chain.spread(k, low[k], -1.0))
            self.high[part] = np.minimum(self.high[part], self.chain.spread(k, high[k], -1.0))

    @property
    def keeps(self) -> bool:
        """Whether the proof is still wanted."""
        return self.prover.keeps and not self.outcome.dropped

    def out_of_time(self) -> bool:
        return clock.now() > self.deadline

    def execute(self) -> Outcome:
        out = self.outcome
        self.tighten_root(self.effort.quick_tighten)
        waiting = [(i, o) for i, o in enumerate(obligations(self.query.search.tree))]
        self.known: list[Obligation] = [o for _, o in waiting]
        out.trace.known = self.known
        nodes = self.refute([self.node_of(i) for i in range(len(self.known))], self.effort.quick)
        if nodes:
            self.tighten_root(self.effort.tighten)
            for node in nodes:
                node.low, node.high = self.low, self.high
                node.size = self.objective_sizes[list(self.known[node.label].leaves)]
            nodes = self.refute(nodes, self.effort.root)
        nodes = self.expand(nodes)
        if not nodes:
            out.proved = True
            return out
        out.bound = out.root = min(node.bound for node in nodes)
        if -out.root > self.most_short:
            out.reason = Reason.NODES
            return out
        out.stage = "branch"
        self.branch(nodes)
        return out

    def branch(self, nodes: list[Node]) -> None:
        """Split ``nodes``, the obligations left open, until the outcome is known."""
        raise NotImplementedError

    def node_of(self, label: int) -> Node:
        leaves = list(self.known[label].leaves)
        return self.chain.node(
            self.low,
            self.high,
            self.rows[leaves],
            self.offsets[leaves],
            self.objective_sizes[leaves],
            label=label,
        )

    def expand(self, nodes: list[Node]) -> list[Node]:
        """Nodes whose obligation waits on a disjunction become one node per part."""
        done: list[Node] = []
        stack = list(nodes)
        while stack:
            node = stack.pop()
            obligation = self.known[node.label]
            if obligation.is_conjunction:
                done.append(node)
                continue
            fresh = []
            for part in obligation.expand():
                self.known.append(part)
                fresh.append(self.node_of(len(self.known) - 1))
            first = min(obligation.waiting, key=lambda part: len(part.parts))
            labels = list(range(len(self.known) - len(fresh), len(self.known)))
            self.outcome.trace.cases[node.label] = (obligation.waiting.index(first), labels)
            stack.extend(self.refute(fresh, self.effort.root))
            if self.out_of_time():
                return done + stack
        return done

    def tighten_root(self, steps: int) -> None:
        """Pre-activation bounds of layers 2.. from the dual of the layers below."""
        full = self.chain
        for k in range(1, self.prover.hidden):
            below = self.prover.chains[k - 1]
            count = int(below.starts[-1])
            part = full.part(k)
            known = self.tightened.setdefault(k, {})
            rows, bias = full.upper[k - 1], full.bias[part]
            # A neuron whose sign is known needs no better bound to be relaxed exactly.
            unstable = np.flatnonzero((self.low[part] < 0) & (self.high[part] > 0))
            open_ = []
            limits.need(2 * len(unstable) * self.each, "bounds of the neurons of a layer")
            for i in unstable.tolist():
                if self.out_of_time():
                    return
                for sign in (1, -1):
                    node = known.get((i, sign))
                    if node is None:
                        objective, offset = sign * rows[i][None], np.array([sign * bias[i]])
                        node = below.node(
                            self.low[:count], self.high[:count], objective, offset,
                            np.zeros(1), label=i,
                        )  # fmt: skip
                        node.depth = sign
                        known[(i, sign)] = node
                    node.size = self.neurons[part.start + i][None]
                    node.low, node.high = self.low[:count], self.high[:count]
                    open_.append(node)
            if not open_:
                continue
            low, high = self.low.copy(), self.high.copy()
            for start in range(0, len(open_), self.prover.lanes):
                if self.out_of_time():
                    return
                some = open_[start : start + self.prover.lanes]
                self.prover.ascend(self, some, steps, chain=below)
                bounds = self.prover.evaluate(self, some, chain=below)
                for node, bound in zip(some, bounds, strict=True):
                    self.note_tightened(k, node, float(bound))
                    at = part.start + node.label
                    if node.depth > 0:
                        low[at] = max(low[at], bound)
                    else:
                        high[at] = min(high[at], -bound)
            self.low, self.high = low, high
            self.sizes.bound(k + 1, full.gather(k, low), full.gather(k, high))
            self.measure()

    def note_tightened(self, layer: int, node: Node, bound: float) -> None:
        node.bound = bound
        key = (layer, node.label, node.depth)
        best = self.outcome.trace.tightened.get(key)
        if best is None or best.bound < bound:
            self.outcome.trace.tightened[key] = replace(node)

    def refute(self, nodes: list[Node], steps: int, *, every: bool = False) -> list[Node]:
        """Ascend and return what stays open; a bound counts only in float64, where those are
        looked at that are positive in float32, or ``every`` one."""
        open_ = []
        live = [node for node in nodes if not node.is_empty]
        self.outcome.nodes += len(nodes)
        self.note_empty(nodes)
        if not live:
            return []
        target = SINGLE_MARGIN * self.scale
        self.prover.ascend(self, live, steps, target=target)
        hopeful = [n for n in live if every or n.bound > 0]
        if hopeful:
            bounds = self.prover.evaluate(self, hopeful)
            for node, bound in zip(hopeful, bounds, strict=True):
                node.bound = float(bound)
        for node in live:
            if node.bound > self.margin:
                self.outcome.close(node, keep=self.keeps)
            else:
                open_.append(node)
        return open_

    def note_empty(self, nodes: list[Node]) -> None:
        if self.keeps:
            self.outcome.trace.empty.extend(n for n in nodes if n.is_empty)
