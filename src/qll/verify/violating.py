"""Better bounds of the neurons of an open domain: they need to hold where a violation is, only.

Each domain of a search is to be refuted, and what lies in it beside violations does not matter
(`qll.bounds.violating`). So the neurons whose relaxations lose most are bounded once more, under
the condition that the obligation is violated; in rounds, because every gain makes the next one
larger. In residual networks that closes at the root what took thousands of splits.

A neuron whose sign follows is as good as split: its multiplier enters the bound. A certificate
cannot say all this yet, so that a proof that is kept does without.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qll.bounds.domain import Subdomain
from qll.bounds.violating import Target, violating
from qll.verify import clock
from qll.verify.condition import Array
from qll.verify.proof import Subproblem
from qll.verify.root import Root

# Neurons of a round, those first whose relaxations lose most, and the steps for each: at the root,
# and deeper in the tree, where there are many nodes.
NEURONS, NEURONS_BELOW = 96, 24
STEPS, STEPS_BELOW = 10, 5
# A gain of this share of what was known between the two ends of a neuron is worth its check.
LEAST_GAIN = 5e-3
# Another round is worth it as long as the bound rises by this share of it.
GAIN = 0.04
# Domains are narrowed whose bound is at least this share of the worst at the root: of others a few
# splits are less.
WORTH = 0.05
# Splits between two nodes that are narrowed.
SPACING = 2
# Rounds deeper in the tree pay if they close this share of their nodes. Where they do not, nodes
# have to come this much nearer to 0 by splits before the next ones; where they do, some that are
# further away are tried, too. Rounds that did not pay may take so much of the time.
PAYS = 0.125
NEARER = 0.8
SHARE = 0.3
# The size of the objectives, in bounds at the root.
UNIT = 1.0


class Violations:
    """Of one search."""

    def __init__(self, run: Root) -> None:
        self.run = run
        self.units: dict[int, float] = {}  # by obligation
        self.spent = 0.0  # on rounds that did not pay
        self.rounds = 0
        self.least = -np.inf  # bounds below it are raised by splits first

    def narrow(self, nodes: list[Subproblem]) -> list[Subproblem]:
        """What is left open of ``nodes``: those of the root are narrowed, and those deeper in the
        tree that are far enough below the last one, where that has paid so far."""
        due = [node for node in nodes if self._is_due(node)]
        if not due:
            return nodes
        began, below = clock.now(), due[0].depth > 0
        typical = float(np.mean([node.bound for node in due]))
        for node in due:
            node.narrowed = node.depth
        left = self._rounds(due, self.run.deadline)
        closed = {id(node) for node in due} - {id(node) for node in left}
        if below and len(closed) >= PAYS * len(due):
            self.least = min(self.least, typical / NEARER)
        elif below:
            self.least = max(self.least, typical * NEARER)
            self.spent += clock.now() - began
        return [node for node in nodes if id(node) not in closed]

    def _is_due(self, node: Subproblem) -> bool:
        if -node.bound < WORTH * -self.run.outcome.root:
            return False
        if node.depth == 0:
            return node.narrowed < 0
        due = node.bound >= self.least and node.depth >= node.narrowed + SPACING
        return due and self.spent < SHARE * (clock.now() - self.run.began)

    def _rounds(self, nodes: list[Subproblem], until: float) -> list[Subproblem]:
        """What stays open of ``nodes``; each has rounds for as long as it gains by them."""
        run, idle = self.run, list[Subproblem]()
        held: dict[tuple[int, int, int], Target] = {}
        while nodes and clock.now() < until:
            before = {id(node): node.bound for node in nodes}
            gained = self._round(nodes, held, until)
            idle += [node for node in nodes if id(node) not in gained]
            nodes = run.refute([n for n in nodes if id(n) in gained], run.effort.violating)
            rising = [n for n in nodes if n.bound - before[id(n)] > GAIN * abs(before[id(n)])]
            idle += [node for node in nodes if node not in rising]
            nodes = rising
        return idle + nodes

    def _round(
        self, nodes: list[Subproblem], held: dict[tuple[int, int, int], Target], until: float
    ) -> set[int]:
        """Layer after layer, all nodes together; those (by `id`) that have gained anything."""
        run, bounds = self.run, violating(self.run.bounder)
        if bounds is None:
            return set()
        gained = set[int]()
        chosen = {id(node): self._chosen(node) for node in nodes}
        steps = STEPS if any(node.depth == 0 for node in nodes) else STEPS_BELOW

        def late() -> bool:
            return clock.now() > until or run.out_of_time()

        for k in range(run.layout.layers):
            part = run.layout.part(k)
            targets: list[tuple[Subproblem, tuple[int, int, int], Target]] = []
            for node in nodes:
                own = chosen[id(node)]
                for neuron in own[(own >= part.start) & (own < part.stop)].tolist():
                    for sign in (1, -1) if not node.is_empty else ():
                        key = id(node), neuron, sign
                        size = float(run.neurons[neuron])
                        unit = self._unit(node)
                        target = bounds.target(node.domain, unit, neuron, sign, size, held.get(key))
                        targets.append((node, key, target))
            if not targets or late():
                continue
            held.update({key: target for _, key, target in targets})
            bounds.ascend([target for *_, target in targets], run.sizes, steps, stop=late)
            hopeful = [each for each in targets if each[2].bound > LEAST_GAIN]
            found = bounds.bounds_of([target for *_, target in hopeful], run.sizes, stop=late)
            better: dict[int, tuple[Array, Array]] = {}
            for (node, (which, neuron, sign), _), bound in zip(hopeful, found, strict=True):
                whole = node.domain
                low, high = better.setdefault(which, (whole.low.copy(), whole.high.copy()))
                if sign > 0:
                    low[neuron] = max(low[neuron], bound)
                else:
                    high[neuron] = min(high[neuron], -bound)
            for node in nodes:
                if id(node) in better:
                    low, high = better[id(node)]
                    whole = node.domain
                    if (low > whole.low).any() or (high < whole.high).any():
                        gained.add(id(node))
                        self._take(whole, low, high)
        self.rounds += 1
        # Where it is violated a bound is above 0: no more is known of the margin.
        run.outcome.least = min(run.outcome.least, 0.0)
        return gained

    def _unit(self, node: Subproblem) -> float:
        return self.units.setdefault(node.obligation, UNIT * max(-node.bound, 1e-12))

    def _chosen(self, node: Subproblem) -> NDArray[np.int64]:
        """The unstable neurons whose relaxations lose most."""
        whole = node.domain
        unstable = np.flatnonzero(self.run.bounder.splittable(whole))
        if whole.scores is None:
            return unstable[:0]
        order = np.argsort(-whole.scores[unstable], kind="stable")
        return np.sort(unstable[order[: NEURONS_BELOW if node.depth else NEURONS]])

    @staticmethod
    def _take(whole: Subdomain, low: Array, high: Array) -> None:
        """New bounds; where a sign follows that was not known before, it is one of a split."""
        open_ = (whole.low < 0) & (whole.high > 0)
        sign = whole.sign.copy()
        sign[open_ & (low >= 0)] = 1
        sign[open_ & (high <= 0)] = -1
        whole.low, whole.high, whole.sign = low, high, sign
