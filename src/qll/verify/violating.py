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

from qll.bounds.domain import Subdomain
from qll.bounds.violating import violating
from qll.verify import clock
from qll.verify.condition import Array
from qll.verify.proof import Subproblem
from qll.verify.root import Root

# Neurons of a round, those first whose relaxations lose most, and the steps for each.
NEURONS = 96
STEPS = 10
# A gain of this share of what was known between the two ends of a neuron is worth its check.
LEAST_GAIN = 5e-3
# Another round is worth it as long as the bound rises by this share of it.
GAIN = 0.04
# Domains are narrowed whose bound is at least this share of the worst at the root.
WORTH = 0.2
# Splits between two nodes that are narrowed, and the share of the time that may take.
SPACING = 3
SHARE = 0.3
# The size of the objectives, in bounds at the root.
UNIT = 1.0


class Violations:
    """Of one search."""

    def __init__(self, run: Root) -> None:
        self.run = run
        self.units: dict[int, float] = {}  # by obligation
        self.spent = 0.0
        self.rounds = 0

    def narrow(self, nodes: list[Subproblem]) -> list[Subproblem]:
        """What is left open of ``nodes``: those of the root, and those deeper in the tree that are
        far enough below the last one, as long as that takes its share of the time alone."""
        open_ = []
        for node in nodes:
            if not self._is_due(node):
                open_.append(node)
                continue
            began, node.narrowed = clock.now(), node.depth
            if self._rounds(node, self.run.deadline):
                open_.append(node)
            if node.depth:
                self.spent += clock.now() - began
        return open_

    def _is_due(self, node: Subproblem) -> bool:
        if -node.bound < WORTH * -self.run.outcome.root:
            return False  # a few splits are less
        if node.depth == 0:
            return node.narrowed < 0
        due = node.narrowed < 0 or node.depth >= node.narrowed + SPACING
        return due and self.spent < SHARE * (clock.now() - self.run.began)

    def _rounds(self, node: Subproblem, until: float) -> bool:
        held: dict[tuple[int, int], Subdomain] = {}
        while clock.now() < until and np.isfinite(node.bound):
            before = node.bound
            if not self._round(node, held, until):
                break
            if not self.run.refute([node], self.run.effort.violating):
                return False
            if not node.bound - before > GAIN * abs(before):
                break
        return True

    def _round(
        self, node: Subproblem, held: dict[tuple[int, int], Subdomain], until: float
    ) -> bool:
        """Layer after layer, whether anything was gained."""
        run, whole = self.run, node.domain
        unit = self.units.setdefault(node.obligation, UNIT * max(-node.bound, 1e-12))
        unstable = run.bounder.splittable(whole)
        if whole.scores is None or not unstable.any():
            return False
        worth = np.where(unstable, whole.scores, -np.inf)
        chosen = np.sort(np.argsort(-worth, kind="stable")[: min(NEURONS, int(unstable.sum()))])
        gained = False

        def late() -> bool:
            return clock.now() > until or run.out_of_time()

        for k in range(run.layout.layers):
            part = run.layout.part(k)
            some = chosen[(chosen >= part.start) & (chosen < part.stop)]
            bounds = violating(run.bounder, whole, unit)
            if bounds is None:
                return False
            if not len(some) or late():
                continue
            keys = [(int(neuron), sign) for neuron in some for sign in (1, -1)]
            targets = [
                bounds.target(n, sign, float(run.neurons[n]), held.get((n, sign)))
                for n, sign in keys
            ]
            held.update(zip(keys, targets, strict=True))
            bounds.ascend(targets, run.sizes, STEPS, stop=late)
            hopeful = [
                (key, target)
                for key, target in zip(keys, targets, strict=True)
                if target.bound > LEAST_GAIN
            ]
            if not hopeful:
                continue
            found = bounds.evaluate([target for _, target in hopeful], run.sizes, stop=late)
            low, high = whole.low.copy(), whole.high.copy()
            for ((neuron, sign), _), bound in zip(hopeful, found, strict=True):
                if sign > 0:
                    low[neuron] = max(low[neuron], bound)
                else:
                    high[neuron] = min(high[neuron], -bound)
            gained = gained or bool((low > whole.low).any() or (high < whole.high).any())
            self._take(whole, low, high)
            if whole.is_empty:
                break
        self.rounds += 1
        # Where it is violated a bound is above 0: no more is known of the margin.
        run.outcome.least = min(run.outcome.least, 0.0)
        return gained

    @staticmethod
    def _take(whole: Subdomain, low: Array, high: Array) -> None:
        """New bounds; where a sign follows that was not known before, it is one of a split."""
        open_ = (whole.low < 0) & (whole.high > 0)
        sign = whole.sign.copy()
        sign[open_ & (low >= 0)] = 1
        sign[open_ & (high <= 0)] = -1
        whole.low, whole.high, whole.sign = low, high, sign
