"""The root of a proof: pre-activation bounds, and the obligations that they refute at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qll import limits
from qll.bounds.bounder import Bounder, Start
from qll.bounds.rounding import Sizes
from qll.verify import clock
from qll.verify.condition import Array, Obligation, obligations
from qll.verify.proof import (
    OUTGROWN,
    Effort,
    NeuronBound,
    NeuronProof,
    Outcome,
    Search,
    Subproblem,
)
from qll.verify.query import Query
from qll.verify.verdict import Reason

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
# Of the time that is left, for the bounds of the neurons at the root: on a large network they would
# take all of it.
TIGHTEN_SHARE = {Start.INTERVAL: 0.5, Start.CROWN: 0.25}
# Every layer's bounds are worth another round as long as it raises the worst bound of an open
# obligation by this share of it.
GAIN = 0.04
# The same where neurons are bounded once more for each obligation (`qll.verify.violating`).
GAIN_BEFORE = 0.3


class Root(ABC):
    """The state of one proof, and its part before any split."""

    joins = True  # joint hulls that no certificate can name

    def __init__(
        self,
        bounder: Bounder,
        query: Query,
        sizes: Sizes,
        *,
        effort: Effort,
        deadline: float,
        search: Search,
        keeps: bool,
        known: tuple[Sequence[Array], Sequence[Array]] | None = None,
    ) -> None:
        """``known`` are bounds of the hidden layers that somebody else has proved; a proof that is
        written down begins with its own ones."""
        self.bounder = bounder
        self.layout = bounder.layout
        self.query = query
        self.sizes = sizes
        self.effort = effort
        self.deadline = deadline
        self.search = search
        self.began = clock.now()
        self.climbing = self.longest_climb = 0.0  # seconds in linear programmes
        self.most_nodes = np.inf
        self.most_short = np.inf
        if known is None or keeps:
            self.low, self.high = bounder.interval(sizes, self.out_of_time)
        else:
            self.low = np.full(self.layout.neurons, -np.inf)
            self.high = np.full(self.layout.neurons, np.inf)
        loose = (self.low < 0) & (self.high > 0)
        self.proof = NeuronProof(
            query.search.tree, bounder.layout, bounder.groups, bounder.start, loose
        )
        if known is not None:
            self.learn(*known)
        self.keeps = keeps  # closed domains, for a certificate
        self.outcome = Outcome(proof=self.proof if keeps else None)
        self.known: list[Obligation] = []
        # The bounds of neurons so far, by neuron and whether they are lower ones.
        self.tightened: dict[tuple[int, bool], NeuronBound] = {}
        condition = query.search
        inputs = None if condition.inputs is None else -condition.inputs
        self.rows, self.offsets = bounder.objectives(
            -condition.outputs, -condition.constant, inputs
        )
        self.measure()
        magnitude = abs(self.rows).sum(axis=1)
        reach = np.maximum(np.abs(self.low), np.abs(self.high))[
            self.layout.part(self.layout.layers - 1)
        ].max(initial=1.0)
        self.scale = float(np.max(magnitude * reach + np.abs(self.offsets), initial=1.0))
        self.margin = MARGIN * self.scale
        # low, high, sign, alpha, beta, scores and pull; the minimiser; delta
        copies = 0 if bounder.groups is None else bounder.groups.copies
        each = 33 * len(self.low) + 4 * query.lower.size + 4 * copies
        self.each = each
        self.allow(each)

    def allow(self, each: int) -> None:
        """How many domains of so many bytes may be kept."""
        self.most_proof = MOST_PROOF_BYTES // each
        self.most_kept = max(64, min(MOST_BYTES, MOST_SHARE * limits.memory_limit()) // each)

    def measure(self) -> None:
        """Sizes of the neurons and of the objectives, from the bounds that are known."""
        condition = self.query.search
        self.neurons = self.layout.sizes(self.sizes)
        self.objective_sizes = self.sizes.objectives(
            condition.outputs, condition.constant, condition.inputs
        )

    def learn(self, low: Sequence[Array], high: Sequence[Array]) -> None:
        """Bounds of the hidden layers, in the network's own order."""
        for k in range(self.layout.layers):
            part, spread = self.layout.part(k), self.layout.spread
            self.low[part] = np.maximum(self.low[part], spread(k, low[k], -1.0))
            self.high[part] = np.minimum(self.high[part], spread(k, high[k], -1.0))
            ends = (self.layout.gather(k, side) for side in (self.low, self.high))
            self.sizes.bound(k + 1, *ends)

    def drop(self) -> None:
        """Forget a proof that has grown too large; the bounds stay proved."""
        if self.keeps:
            self.keeps, self.outcome.proof = False, OUTGROWN
            self.proof.refuted.clear()
            self.proof.empty.clear()
            self.proof.bounds.clear()

    def out_of_time(self) -> bool:
        return clock.now() > self.deadline

    def execute(self) -> Outcome:
        out = self.outcome
        if self.bounder.start is Start.INTERVAL:
            self.tighten_root(self.effort.quick_tighten)
        self.known.extend(obligations(self.query.search.tree))
        nodes = self.refute([self.node_of(i) for i in range(len(self.known))], self.effort.quick)
        nodes = self.flattened(nodes)
        if nodes and self.bounder.start is Start.CROWN:
            nodes = self.joined(self.tighten_in_rounds(nodes))
            nodes = self.refute(nodes, self.effort.root)
        elif nodes:
            self.tighten_root(self.effort.tighten)
            nodes = self.refute(self.informed(nodes), self.effort.root)
        nodes = self.expand(self.flattened(nodes))
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

    def look(self) -> Outcome:
        """What the first slopes say of every obligation."""
        self.known.extend(obligations(self.query.search.tree))
        nodes = [self.node_of(i) for i in range(len(self.known))]
        found = self.bounder.evaluate([n.domain for n in nodes], self.sizes, stop=self.out_of_time)
        self.outcome.nodes = len(nodes)
        self.outcome.least = float(found.min(initial=np.inf))
        self.outcome.proved = self.outcome.least > self.margin
        return self.outcome

    @abstractmethod
    def branch(self, nodes: list[Subproblem]) -> None:
        """Split ``nodes``, the obligations left open, until the outcome is known."""

    def node_of(self, obligation: int) -> Subproblem:
        leaves = list(self.known[obligation].leaves)
        domain = self.bounder.domain(
            self.low,
            self.high,
            self.rows[leaves],
            self.offsets[leaves],
            self.objective_sizes[leaves],
        )
        return Subproblem(obligation, domain)

    def expand(self, nodes: list[Subproblem]) -> list[Subproblem]:
        """Nodes whose obligation waits on a disjunction become one node per part."""
        done: list[Subproblem] = []
        stack = list(nodes)
        while stack:
            node = stack.pop()
            obligation = self.known[node.obligation]
            if obligation.is_conjunction:
                done.append(node)
                continue
            fresh = []
            for part in obligation.expand():
                self.known.append(part)
                fresh.append(self.node_of(len(self.known) - 1))
            first = min(obligation.waiting, key=lambda part: len(part.parts))
            parts = [each.obligation for each in fresh]
            self.proof.cases[node.obligation] = (obligation.waiting.index(first), parts)
            stack.extend(self.refute(self.joined(fresh), self.effort.root))
            if self.out_of_time():
                return done + stack
        return done

    def informed(self, nodes: list[Subproblem]) -> list[Subproblem]:
        """Obligations at the root, with the bounds of neurons that are known by now."""
        for node in nodes:
            node.domain.low, node.domain.high = self.low, self.high
            node.domain.size = self.objective_sizes[list(self.known[node.obligation].leaves)]
        return nodes

    def flattened(self, nodes: list[Subproblem]) -> list[Subproblem]:
        """Obligations at the root that lower lines of slope 0 refute are closed; the others are
        returned as they are. Such lines lie within the neurons' intervals, as chords do, so that
        the bound is no worse than that of intervals: on a network that was trained on these CROWN's
        own slopes may be far off, and an ascent from them ends below."""
        tried = [node for node in nodes if node.domain.point is None]  # ReLUs alone
        flat = [self.node_of(node.obligation).domain for node in tried]
        if not flat:
            return nodes
        for domain in flat:
            domain.alpha = np.zeros_like(domain.alpha)
        bounds = self.bounder.evaluate(flat, self.sizes, stop=self.out_of_time)
        closed = set()
        for node, domain, bound in zip(tried, flat, bounds, strict=True):
            if bound > self.margin:
                domain.bound = float(bound)
                closed.add(node.obligation)
                self.close(replace(node, domain=domain))
        return [node for node in nodes if node.obligation not in closed]

    def joined(self, nodes: list[Subproblem]) -> list[Subproblem]:
        """Obligations at the root, with joint hulls where a proof may have them."""
        if nodes and self.joins and not self.keeps:
            more = self.bounder.join(self.low, self.high, [node.domain for node in nodes])
            self.allow(self.each + 4 * more)
        return nodes

    def tighten_in_rounds(self, nodes: list[Subproblem]) -> list[Subproblem]:
        """A few steps for every neuron, again and again: each layer gains most by what the others
        below it have gained. What is left open of ``nodes``."""
        share = TIGHTEN_SHARE[self.bounder.start]
        until = clock.now() + share * (self.deadline - clock.now())
        least = GAIN if self.keeps or not self.joins else GAIN_BEFORE
        while nodes and clock.now() < until:
            before = min(node.bound for node in nodes)
            self.tighten_root(self.effort.round, until)
            nodes = self.refute(self.informed(nodes), self.effort.quick)
            if nodes and not min(node.bound for node in nodes) - before > least * abs(before):
                break
        return nodes

    def tighten_root(self, steps: int, until: float | None = None) -> None:
        """Pre-activation bounds of layers 2.. from the dual of the layers below."""
        if until is None:
            share = TIGHTEN_SHARE[self.bounder.start]
            until = clock.now() + share * (self.deadline - clock.now())
        for k in range(1, self.layout.layers):
            below = self.bounder.below(k)
            if below is None or clock.now() > until:
                continue
            open_ = self._neuron_bounds(k, below)
            if not open_:
                continue
            low, high = self.low.copy(), self.high.copy()
            for start in range(0, len(open_), below.batch):
                if clock.now() > until:
                    break
                some = open_[start : start + below.batch]
                domains = [each.domain for each in some]
                below.ascend(domains, self.sizes, steps, stop=self.out_of_time)
                bounds = below.evaluate(domains, self.sizes, stop=self.out_of_time)
                for each, bound in zip(some, bounds, strict=True):
                    self._note(each, float(bound))
                    if each.lower:
                        low[each.neuron] = max(low[each.neuron], bound)
                    else:
                        high[each.neuron] = min(high[each.neuron], -bound)
            self.low, self.high = low, high
            self.sizes.bound(k + 1, self.layout.gather(k, low), self.layout.gather(k, high))
            self.measure()

    def _neuron_bounds(self, layer: int, below: Bounder) -> list[NeuronBound]:
        """Both bounds of every neuron of a layer whose sign is not known: the others need no better
        one to be relaxed exactly."""
        part, count = self.layout.part(layer), below.layout.neurons
        unstable = np.flatnonzero((self.low[part] < 0) & (self.high[part] > 0))
        target = self.each * count // max(self.layout.neurons, 1)
        limits.need(2 * len(unstable) * target, "bounds of the neurons of a layer")
        found = []
        low, high = self.low[:count], self.high[:count]  # which all of them share
        for i in unstable.tolist():
            if self.out_of_time():
                return []
            neuron = part.start + i
            for lower in (True, False):
                each = self.tightened.get((neuron, lower))
                if each is None:
                    row, offset = below.output(i, 1 if lower else -1)
                    domain = below.domain(low, high, row, offset, np.zeros(1))
                    each = self.tightened[(neuron, lower)] = NeuronBound(neuron, lower, domain)
                each.domain.size = self.neurons[neuron][None]
                each.domain.low, each.domain.high = low, high
                found.append(each)
        return found

    def _note(self, each: NeuronBound, bound: float) -> None:
        each.domain.bound = bound
        best = self.proof.bounds.get((each.neuron, each.lower))
        if best is None or best.domain.bound < bound:
            kept = replace(each, domain=replace(each.domain))
            self.proof.bounds[(each.neuron, each.lower)] = kept

    def refute(
        self, nodes: list[Subproblem], steps: int, *, every: bool = False
    ) -> list[Subproblem]:
        """Ascend and return what stays open; a bound counts only in float64, where those are
        looked at that are positive in float32, or ``every`` one."""
        open_ = []
        live = [node for node in nodes if not node.is_empty]
        self.outcome.nodes += len(nodes)
        self.note_empty(nodes)
        if not live:
            return []
        self.raise_bounds(live, steps, every=every)
        for node in live:
            if node.bound > self.margin:
                self.close(node)
            else:
                open_.append(node)
        return open_

    def raise_bounds(self, nodes: list[Subproblem], steps: int, *, every: bool = False) -> None:
        """Ascend; rigorous bounds of those that look positive, or of ``every`` one."""
        domains = [node.domain for node in nodes]
        target = SINGLE_MARGIN * self.scale
        self.bounder.ascend(domains, self.sizes, steps, target=target, stop=self.out_of_time)
        hopeful = [d for d in domains if every or d.bound > 0]
        if hopeful:
            bounds = self.bounder.evaluate(hopeful, self.sizes, stop=self.out_of_time)
            for domain, bound in zip(hopeful, bounds, strict=True):
                domain.bound = float(bound)

    def close(self, node: Subproblem) -> None:
        """It is refuted."""
        self.outcome.least = min(self.outcome.least, node.bound)
        if self.keeps:
            self.proof.refuted.append(node)

    def note_empty(self, nodes: list[Subproblem]) -> None:
        if self.keeps:
            self.proof.empty.extend(n for n in nodes if n.is_empty)
