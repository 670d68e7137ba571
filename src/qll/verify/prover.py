"""Proofs by splits of neurons: bounds at the root, then branch and bound.

A proof refutes every obligation (see `qll.verify.condition`) on every domain. Domains are split on
a neuron, narrow layers first, the neuron chosen by filtered strong branching: the best few by what
their relaxation loses are tried with a handful of dual steps, and the split with the largest
product of improvements is kept. Children inherit their parent's multipliers. The bounds are those
of any `qll.bounds.bounder.Bounder`.

Branch and bound on ReLUs is that of Bunel et al. 2020 (*Branch and bound for piecewise linear
networks*), the filter that of De Palma et al. 2021 (*Improved branch and bound*); the
product of gains is the score of mixed-integer solvers (Achterberg et al. 2005).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qll import limits
from qll.bounds.bounder import Bounder, Start
from qll.bounds.rounding import Rounding, Sizes
from qll.verify import clock, depth_first
from qll.verify.condition import Array
from qll.verify.proof import Effort, NeuronBound, Outcome, Search, Subproblem, Tightened
from qll.verify.query import Query
from qll.verify.root import Root
from qll.verify.verdict import Reason
from qll.verify.violating import Violations

# A layer is split together with narrower ones if it is at most this many times wider.
NARROW = 4
# Linear programmes may take this share of the time, and this many seconds at once.
CLIMB_SHARE = 0.25
CLIMB_START = 0.15
# After a search that took longer, of a network too large for programmes, there are none.
CLIMB_MOST = 1.0
# All searches for a violation between splits may take these.
HUNT_SHARE = 0.2
HUNT_START = 0.5
# Seconds of the first turn of a search, where there are two.
TURN = 0.25
# How much longer the turns of depth first are while it looks as if it would be done in time, and
# while it does not.
PROMISING, SLOW = 4.0, 0.5
# Of large networks without joint hulls: more domains are worth more than better bounds of each.
LEAN = Effort(refine=20)
# Domains that are split together.
BATCH = 16
# The deepest domains come first from this share of the memory for open ones on (the second), and
# until there is room again (the first).
CROWDED = 0.25, 0.5
# A coordinate this near to an end of its range, as a share of it, is meant to be there.
SNAP = 1e-6


class NeuronProver:
    """Bounds and branch and bound for one network; one query at a time."""

    tells_freely = True  # a proof that can be written down costs no more than one that cannot

    def __init__(
        self, bounder: Bounder, effort: Effort | None = None, *, turn: float = TURN
    ) -> None:
        """``turn`` are the seconds of a search's first turn in a small network; 0: depth first
        alone."""
        self.bounder, self.turn = bounder, turn
        usual = LEAN if bounder.start is Start.CROWN else Effort()
        self.effort = usual if effort is None else effort
        self.keeps = True  # closed domains, for certificates
        self._rounding: Rounding | None = None

    def prepare(self) -> None:
        """Those of the search in depth come when it begins."""
        self.bounder.prepare()

    def sizes(self, query: Query) -> Sizes:
        """Of the query's network; queries of one prover share what does not depend on the box."""
        if self._rounding is None or self._rounding.network is not query.network:
            self._rounding = Rounding(query.network, self.bounder.form)
        # Of neurons where the leaves are violated: one objective more.
        leaves = query.search.leaves + 1
        return Sizes(self._rounding, query.lower, query.upper, leaves=leaves)

    def prove(
        self,
        query: Query,
        deadline: float,
        search: Search,
        *,
        most_nodes: float = np.inf,
        most_short: float = np.inf,
        known: tuple[Sequence[Array], Sequence[Array]] | None = None,
    ) -> Outcome:
        """Decide the query by ``deadline`` (of `qll.verify.clock`) if possible, with at most
        ``most_nodes``, and without splits if the root's bound is short of a proof by more than
        ``most_short``; ``known`` are bounds of the hidden layers to start from."""
        # Numbers beyond float32 become infinities, and those no bound.
        with np.errstate(over="ignore", invalid="ignore"):
            run = Run(
                self.bounder, query, self.sizes(query), effort=self.effort, deadline=deadline,
                search=search, keeps=self.keeps, known=known,
            )  # fmt: skip
            run.most_nodes, run.most_short, run.turn = most_nodes, most_short, self.turn
            run.joins = not depth_first.fits(self.bounder.form)
            try:
                return run.execute()
            except limits.OutOfTime:  # within a step; what is known stays known
                run.outcome.proved, run.outcome.reason = False, Reason.TIME
                return run.outcome

    def prove_at_once(
        self,
        query: Query,
        known: tuple[Sequence[Array], Sequence[Array]] | None = None,
    ) -> Outcome:
        """Whether the bounds that a proof begins with, or those that are ``known``, are a proof
        already; none is kept."""
        limits.check()
        with np.errstate(over="ignore", invalid="ignore"):
            run = Run(
                self.bounder, query, self.sizes(query), effort=self.effort, deadline=np.inf,
                search=lambda *_: None, keeps=False, known=known,
            )  # fmt: skip
            return run.look()


def copied(node: Subproblem) -> Subproblem:
    return replace(node, domain=replace(node.domain))


class Run(Root):
    """Branch and bound on the signs of neurons."""

    turn = TURN
    violations: Violations | None = None
    crowded = False  # the deepest domains come first

    def branch(self, nodes: list[Subproblem]) -> None:
        self.rounds, self.hunting = 0, 0.0
        if self.joins and not self.keeps:
            self.violations = Violations(self)
            self.queue = sorted(map(copied, nodes), key=self.order)
            self.best_first(self.deadline)
            ended = self.outcome.reason in (Reason.SPLITS, Reason.MARGIN)
            if not ended or not self.violations.rounds:
                return
            # Signs that follow are not as easily used as those of splits: once more without them.
            self.violations = None
        self.outcome.reason = None
        self.queue = sorted(nodes, key=self.order)
        if np.isfinite(self.most_nodes) or not depth_first.fits(self.bounder.form):
            self.best_first(self.deadline)
        else:
            self.in_turns(nodes)

    def in_turns(self, nodes: list[Subproblem]) -> None:
        """Best first, and depth first by linear programs, in turns that grow: on networks of the
        same size now one of them is a hundred times faster, now the other."""
        out, proof = self.outcome, self.proof
        before = len(proof.refuted), len(proof.empty)
        turn, used = self.turn, 0.0
        deep: depth_first.Programs | None = None
        while True:
            if turn:
                self.best_first(min(clock.now() + turn, self.deadline))
            if out.proved or out.candidate is not None or self.out_of_time():
                return
            if deep is None:
                deep = depth_first.Programs([self.problem(node) for node in nodes], self.keeps)
            alone = not turn or out.reason is not None  # which depth first may do without
            now = clock.now()
            more = PROMISING if used < (self.deadline - now + used) * deep.share else SLOW
            until = self.deadline if alone else min(now + more * turn, self.deadline)
            deep.run(until, self.most_proof)
            used += clock.now() - now
            if deep.closed:
                out.proved, out.reason = True, None
                out.least = min(out.least, deep.least)
                if self.keeps and not deep.keeps:
                    self.drop()
                proof.refuted[before[0] :], proof.empty[before[1] :] = deep.refuted, deep.empty
            elif deep.found is not None:
                out.candidate, out.reason = deep.found, None
            out.nodes += deep.take_nodes()
            if deep.closed or deep.found is not None:
                return
            if alone:
                out.bound = deep.bound if out.reason is None else out.bound
                late = Reason.TIME if self.out_of_time() else Reason.SPLITS
                out.reason = out.reason or late
                return
            turn = np.inf if deep.stuck else 2 * turn

    def problem(self, node: Subproblem) -> depth_first.Problem:
        """An open obligation at the root, for linear programs."""
        condition, leaves = self.query.search, list(self.known[node.obligation].leaves)
        lower, upper = self.query.lower, self.query.upper

        def judge(point: Array, exact: bool) -> Array | None:
            # A program ends at a corner up to its tolerance; conditions may hold at corners alone.
            near = SNAP * (upper - lower)
            corner = np.where(
                point < lower + near, lower, np.where(point > upper - near, upper, point)
            )
            here = self.query.clip(np.stack([point, corner]))
            values = condition.leaf_values(self.query.form.forward(here), here)[:, leaves]
            if exact or self.query.is_near(float(values.min(axis=1).max())):
                return self.search(here, leaves, exact)
            return None

        return depth_first.Problem(
            node, self.bounder, self.sizes, self.margin,
            outputs=-condition.outputs[leaves],
            constant=-condition.constant[leaves],
            inputs=None if condition.inputs is None else -condition.inputs[leaves],
            judge=judge,
        )  # fmt: skip

    def best_first(self, until: float) -> None:
        """Split the worst open domains until then, or until the outcome is known."""
        out = self.outcome
        while self.queue:
            out.bound = min(node.bound for node in self.queue)
            if self.out_of_time():
                out.reason = Reason.TIME
                return
            if clock.now() > until:
                return
            if out.nodes > self.most_nodes:
                out.reason = Reason.NODES
                return
            if len(self.proof.refuted) + len(self.proof.empty) > self.most_proof:
                self.drop()
            if len(self.queue) > self.most_kept:
                out.reason = Reason.MEMORY
                return
            self.watch_memory()
            now = clock.now()
            due = self.rounds < 8 or self.rounds % 4 == 0
            if due and self.hunting < HUNT_SHARE * (now - self.began) + HUNT_START:
                found = self.hunt(self.queue, self.rounds)
                self.hunting += clock.now() - now
                if found:
                    return
            self.rounds += 1
            many = self.at_once()
            chosen, self.queue = self.queue[:many], self.queue[many:]
            if self.violations is not None:
                chosen = self.violations.narrow(chosen)
                if not chosen:
                    continue
            children: list[Subproblem] = []
            exact: list[Subproblem] = []
            for node, pair in zip(chosen, self.pick(chosen), strict=True):
                if pair is None:
                    exact.append(node)
                else:
                    children.extend(pair)
            if exact:
                children.extend(self.settle(exact))
                if out.candidate is not None or out.reason is not None:
                    return
            self.note_empty(children)
            rest = []
            for node in children:
                if node.is_empty:
                    continue
                if node.bound > self.margin:
                    self.close(node)
                else:
                    rest.append(node)
            for node in rest:
                if node.depth <= self.effort.retighten_depth and not self.out_of_time():
                    self.retighten(node)
            rest = self.refute(rest, self.effort.refine)
            self.queue = sorted(self.queue + rest, key=self.order)
        out.proved = True

    def watch_memory(self) -> None:
        """A proof closes every domain, whatever the order: once the worst first have filled their
        share of memory, the deepest come first, of which few are open at a time, until there is
        room again."""
        least, most = (share * self.most_kept for share in CROWDED)
        crowded = len(self.queue) > (least if self.crowded else most)
        if crowded != self.crowded:
            self.crowded = crowded
            self.queue.sort(key=self.order)

    def at_once(self) -> int:
        """How many domains are split together: fewer as memory fills."""
        room = int(self.most_kept) - len(self.queue)
        return max(1, min(BATCH, room // BATCH)) if self.crowded else BATCH

    def order(self, node: Subproblem) -> tuple[float, float]:
        """Of the queue."""
        return (-node.depth, -node.bound) if self.crowded else (node.bound, 0.0)

    def hunt(self, queue: list[Subproblem], rounds: int) -> bool:
        """Look for a violation from the relaxed minimisers of the worst open nodes."""
        programmes = rounds & (rounds - 1) == 0  # rounds 0, 1, 2, 4, 8, ...
        minimisers: dict[int, list[Array]] = {}  # by obligation
        for node in queue:
            point, known = node.domain.minimiser, minimisers.setdefault(node.obligation, [])
            if point is not None and len(known) < 4:
                known.append(point.astype(np.float64))
        most = len(minimisers) if rounds == 0 else 2
        for obligation, some in [item for item in minimisers.items() if item[1]][:most]:
            leaves, points = self.known[obligation].leaves, np.stack(some)
            now = clock.now()
            climb = (
                programmes
                and (len(leaves) > 1 or rounds > 0)
                and self.climbing < CLIMB_SHARE * (now - self.began) + CLIMB_START
                and self.longest_climb < CLIMB_MOST
            )
            found = self.search(points, leaves, climb)
            if climb:
                self.climbing += clock.now() - now
                self.longest_climb = max(self.longest_climb, clock.now() - now)
            if found is not None:
                self.outcome.candidate = found
                return True
        return False

    def candidates(self, node: Subproblem, count: int) -> list[int]:
        """Unstable neurons by what their relaxation loses, narrow layers first."""
        scores, layout = node.domain.scores, self.layout
        if scores is None:
            return []
        unstable = self.bounder.splittable(node.domain)
        widths = layout.widths
        open_layers = [k for k in range(layout.layers) if unstable[layout.part(k)].any()]
        if not open_layers:
            return []
        # Layers about as narrow as the narrowest that is left compete; wide ones wait.
        limit = NARROW * min(int(widths[k]) for k in open_layers)
        parts = [layout.part(k) for k in open_layers if widths[k] <= limit]
        here = np.concatenate([np.flatnonzero(unstable[p]) + p.start for p in parts])
        order = np.argsort(-scores[here], kind="stable")
        chosen = [int(n) for n in here[order][:count]]
        if layout.layers > 2 and len(parts) < len(open_layers):
            # In a deep network a wide layer may be the one that matters: the trials tell.
            rest = np.flatnonzero(unstable & ~np.isin(np.arange(len(unstable)), here))
            best = rest[np.argsort(-scores[rest], kind="stable")[: count - count // 2]]
            chosen = chosen[: max(count - len(best), 0)] + [int(n) for n in best]
        return chosen

    def children(self, node: Subproblem, neuron: int) -> tuple[Subproblem, Subproblem]:
        split = self.bounder.split(node.domain, neuron)
        return node.side(split, above=False), node.side(split, above=True)

    def pick(self, nodes: list[Subproblem]) -> list[tuple[Subproblem, Subproblem] | None]:
        """For each node the two children of its best split; None where nothing is left to split."""
        per_node = max(3, min(16, self.bounder.batch // (2 * len(nodes))))
        trials: list[tuple[int, Subproblem, Subproblem]] = []
        for index, node in enumerate(nodes):
            for neuron in self.candidates(node, per_node):
                trials.append((index, *self.children(node, neuron)))
        result: list[tuple[Subproblem, Subproblem] | None] = [None] * len(nodes)
        if not trials:
            return result
        flat = [n for _, off, on in trials for n in (off, on) if not n.is_empty]
        self.outcome.nodes += len(flat)
        if flat:
            self.raise_bounds(flat, self.effort.strong)
        best = [-np.inf] * len(nodes)
        for index, off, on in trials:
            gains = [
                max(min(0.0 if c.is_empty else c.bound, 0.0) - nodes[index].bound, 1e-9)
                for c in (off, on)
            ]
            closed = sum(c.is_empty or c.bound > self.margin for c in (off, on))
            score = gains[0] * gains[1] * (1 + closed) + 1e-12 * min(gains)
            if score > best[index]:
                best[index] = score
                result[index] = (off, on)
        return result

    def retighten(self, node: Subproblem) -> None:
        """Better bounds of the last hidden layer under the node's splits."""
        whole = node.domain
        part = self.layout.part(self.layout.layers - 1)
        open_ = (whole.low < 0) & (whole.high > 0) & (whole.sign == 0)
        bounds: list[NeuronBound] = []
        for neuron in (np.flatnonzero(open_[part]) + part.start).tolist():
            for lower in (True, False):
                size = self.neurons[neuron][None]
                domain = self.bounder.within(whole, neuron, 1 if lower else -1, size)
                if domain is None:
                    return
                bounds.append(NeuronBound(neuron, lower, domain))
        if not bounds:
            return
        domains = [each.domain for each in bounds]
        self.bounder.ascend(domains, self.sizes, self.effort.retighten, stop=self.out_of_time)
        values = self.bounder.evaluate(domains, self.sizes, stop=self.out_of_time)
        low, high = whole.low.copy(), whole.high.copy()
        for each, value in zip(bounds, values, strict=True):
            if each.lower:
                low[each.neuron] = max(low[each.neuron], value)
            else:
                high[each.neuron] = min(high[each.neuron], -value)
        whole.low, whole.high = low, high
        node.last = Tightened(node.last, tuple(bounds))

    def settle(self, nodes: list[Subproblem]) -> list[Subproblem]:
        """Domains in which every neuron is fixed: what is left is a linear programme."""
        still = self.refute(nodes, 4 * self.effort.root, every=True)
        for node in still:
            point, leaves = node.domain.minimiser, self.known[node.obligation].leaves
            found = (
                None if point is None else self.search(point.astype(np.float64)[None], leaves, True)
            )
            if found is not None:
                self.outcome.candidate = found
                return []
        if still:
            # Out of time says so; a bound that is far from 0 is not a matter of rounding.
            worst = self.outcome.bound = min(node.bound for node in still)
            near = Reason.MARGIN if worst > -self.margin else Reason.SPLITS
            self.outcome.reason = Reason.TIME if self.out_of_time() else near
        return []
