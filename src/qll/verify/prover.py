"""Proofs over a chain of ReLU layers: bounds at the root, then branch and bound on neurons.

A proof refutes every obligation (see `qll.verify.condition`) on every domain. Domains are split on
the sign of a neuron, narrow layers first, the neuron chosen by filtered strong branching: the best
few by what their relaxation loses are tried with a handful of dual steps, and the split with the
largest product of improvements is kept. Children inherit their parent's multipliers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from qll.bounds.chain import Chain, DualLanes, Node, evaluate
from qll.bounds.dual import Rates
from qll.bounds.rounding import Rounding
from qll.errors import InputError
from qll.formula.hard import affine
from qll.limits import OutOfTime
from qll.networks.relu_form import Layer, ReluForm
from qll.verify import clock
from qll.verify.condition import Array
from qll.verify.proof import Effort, Outcome, Search, Trail
from qll.verify.query import Query
from qll.verify.root import SINGLE_MARGIN, Root
from qll.verify.verdict import Reason

# Smaller steps for multipliers that were inherited: Adam's first steps are of full size.
WARM = Rates(alpha=0.05, beta=0.1, weight=0.05, delta=0.1)
# A layer is split together with narrower ones if it is at most this many times wider.
NARROW = 4
# Linear programmes may take this share of the time, and this many seconds at once.
CLIMB_SHARE = 0.25
CLIMB_START = 0.15


# Entries of the matrices that the kernels read densely, zeros and all: with more of them a handful
# of steps takes seconds, and the matrices gigabytes.
MOST_DENSE = 1 << 24


def fits_kernels(form: ReluForm) -> bool:
    return form.is_relu_chain and len(form.layers) > 1 and Chain.dense_entries(form) <= MOST_DENSE


class ChainProver:
    """Bounds and branch and bound for one network; one query at a time."""

    _rounding: Rounding | None = None
    tells_freely = True  # a proof that can be written down costs no more than one that cannot

    def __init__(self, form: ReluForm, effort: Effort | None = None) -> None:
        from qll.kernels.simd import LANES, TILE

        self.form = form
        self.effort = Effort() if effort is None else effort
        self.lanes = LANES
        self.hidden = len(form.layers) - 1
        self.chains = Chain.prefixes(form, TILE)
        self.buffers: dict[tuple[int, int], DualLanes] = {}
        self.run_type: type[_Run] = _Run
        self.rates = Rates()
        self.warm = WARM
        self.keeps = True  # closed domains, for certificates

    @property
    def chain(self) -> Chain:
        return self.chains[-1]

    def _buffer(self, chain: Chain, objectives: int) -> DualLanes:
        key = (chain.layers, objectives)
        if key not in self.buffers:
            self.buffers[key] = DualLanes(chain, objectives)
        return self.buffers[key]

    def ascend(
        self,
        run: Root,
        nodes: Sequence[Node],
        steps: int,
        *,
        chain: Chain | None = None,
        target: float = np.inf,
    ) -> None:
        """Raise the nodes' bounds, as far as time allows. A node with inherited multipliers that
        ends below where it began (Adam is not monotone) keeps the inherited ones."""
        chain = self.chain if chain is None else chain
        objectives = max(len(node.offset) for node in nodes)
        buffer = self._buffer(chain, objectives)
        before = [(n.bound, n.alpha, n.beta, n.weight, n.delta) for n in nodes]
        for start in range(0, len(nodes), self.lanes):
            if run.out_of_time():
                break
            buffer.run(
                nodes[start : start + self.lanes],
                run.box,
                steps,
                rates=self.rates if nodes[start].scales == (0.0, 0.0) else self.warm,
                hull=True,
                target=target,
                stop=run.out_of_time,
            )
        for node, old in zip(nodes, before, strict=True):
            if node.bound < old[0]:
                node.bound, node.alpha, node.beta, node.weight, node.delta = old

    @property
    def copies(self) -> int:
        """Multipliers that tie the copies of the inputs."""
        return self.chain.groups.copies

    def rounding(self, query: Query) -> Rounding:
        """Of the query's network; queries of one prover share it."""
        if self._rounding is None or self._rounding.network is not query.network:
            self._rounding = Rounding(query.network, self.form)
        return self._rounding

    def evaluate(self, run: Root, nodes: Sequence[Node], *, chain: Chain | None = None) -> Array:
        """The rigorous bounds of the nodes' multipliers."""
        chain = self.chain if chain is None else chain
        return evaluate(chain, nodes, run.sizes, run.neurons, stop=run.out_of_time)

    def prepare(self) -> None:
        """Load the kernels, or compile them: seconds, once on a machine, and no query's time."""
        _load_kernels()

    def objectives(self, query: Query) -> tuple[Array, Array]:
        """Every leaf of the condition as an objective ``g = -leaf`` (a violation needs g < 0): rows
        over the activations of the last hidden layer, and constants."""
        last, condition = self.form.layers[-1], query.search
        if condition.inputs is not None:
            raise InputError(
                "the compiled bounds were given a condition on the input",
                expected="a condition on the outputs alone",
                found="a condition that speaks of x",
                fix="use GraphProver",
            )
        rows = -(condition.outputs @ last.terms[0][1])
        offsets = -(condition.outputs @ last.bias + condition.constant)
        return self.chain.spread(self.chain.layers - 1, rows), offsets

    def neurons_of(self, outcome: Outcome) -> Any:
        """The neurons in the order in which the proof speaks of them."""
        return self.chain

    def tell(self, writer: Any, query: Query, outcome: Outcome) -> None:
        """The proof, to one who writes it down."""
        writer.follow(query, outcome)

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
            run = self.run_type(self, query, deadline, search)
            run.most_nodes, run.most_short = most_nodes, most_short
            if known is not None:
                run.learn(*known)
            try:
                return run.execute()
            except OutOfTime:  # within a step; what is known stays known
                run.outcome.proved, run.outcome.reason = False, Reason.TIME
                return run.outcome


class _Run(Root):
    """Branch and bound on the signs of neurons."""

    def branch(self, nodes: list[Node]) -> None:
        out = self.outcome
        queue = sorted(nodes, key=lambda n: n.bound)
        rounds = 0
        while queue:
            out.bound = queue[0].bound
            if self.out_of_time():
                out.reason = Reason.TIME
                return
            if out.nodes > self.most_nodes:
                out.reason = Reason.NODES
                return
            if len(out.leaves) + len(out.trace.empty) > self.most_proof:
                out.drop()
            if len(queue) > self.most_kept:
                out.reason = Reason.MEMORY
                return
            if (rounds < 8 or rounds % 4 == 0) and self.hunt(queue, rounds):
                return
            rounds += 1
            chosen, queue = queue[:16], queue[16:]
            children: list[Node] = []
            exact: list[Node] = []
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
                    out.close(node, keep=self.keeps)
                else:
                    rest.append(node)
            for node in rest:
                if node.depth <= self.effort.retighten_depth and not self.out_of_time():
                    self.retighten(node)
            rest = self.refute(rest, self.effort.refine)
            queue = sorted(queue + rest, key=lambda n: n.bound)
        out.proved = True

    def hunt(self, queue: list[Node], rounds: int) -> bool:
        """Look for a violation from the relaxed minimisers of the worst open nodes."""
        programmes = rounds & (rounds - 1) == 0  # rounds 0, 1, 2, 4, 8, ...
        by_label: dict[int, list[Node]] = {}
        for node in queue:
            if node.minimiser is not None and len(by_label.setdefault(node.label, [])) < 4:
                by_label[node.label].append(node)
        most = len(by_label) if rounds == 0 else 2
        for label, nodes in list(by_label.items())[:most]:
            leaves = self.known[label].leaves
            points = np.stack([n.minimiser for n in nodes if n.minimiser is not None])
            now = clock.now()
            climb = (
                programmes
                and (len(leaves) > 1 or rounds > 0)
                and self.climbing < CLIMB_SHARE * (now - self.began) + CLIMB_START
            )
            found = self.search(points.astype(np.float64), leaves, climb)
            if climb:
                self.climbing += clock.now() - now
            if found is not None:
                self.outcome.candidate = found
                return True
        return False

    def candidates(self, node: Node, count: int) -> list[int]:
        """Unstable neurons by what their relaxation loses, narrow layers first."""
        gap = node.gap
        if gap is None:
            return []
        unstable = self.chain.splittable(node)
        widths = self.chain.widths
        open_layers = [k for k in range(self.chain.layers) if unstable[self.chain.part(k)].any()]
        if not open_layers:
            return []
        # Layers about as narrow as the narrowest that is left compete; wide ones wait.
        limit = NARROW * min(int(widths[k]) for k in open_layers)
        parts = [self.chain.part(k) for k in open_layers if widths[k] <= limit]
        here = np.concatenate([np.flatnonzero(unstable[p]) + p.start for p in parts])
        order = np.argsort(-gap[here], kind="stable")
        return [int(n) for n in here[order][:count]]

    def child(self, node: Node, neuron: int, sign: int) -> Node:
        low, high, signs, point = node.low, node.high, node.sign.copy(), node.point
        signs[neuron] = sign
        at = self.chain.split_point(node, neuron)
        if point is not None:
            point = point.copy()
            point[neuron] = at
        if sign > 0:
            low = low.copy()
            low[neuron] = max(low[neuron], at)
        else:
            high = high.copy()
            high[neuron] = min(high[neuron], at)
        trail = Trail(node.trail, neuron, sign, self.chain.told_point(node, neuron))
        return replace(
            node, low=low, high=high, sign=signs, point=point, depth=node.depth + 1, trail=trail
        )

    def pick(self, nodes: list[Node]) -> list[tuple[Node, Node] | None]:
        """For each node the two children of its best split; None where nothing is left to split."""
        per_node = max(3, min(16, self.prover.lanes // (2 * len(nodes))))
        trials: list[tuple[int, Node, Node]] = []
        for index, node in enumerate(nodes):
            for neuron in self.candidates(node, per_node):
                trials.append((index, self.child(node, neuron, -1), self.child(node, neuron, 1)))
        result: list[tuple[Node, Node] | None] = [None] * len(nodes)
        if not trials:
            return result
        flat = [n for _, off, on in trials for n in (off, on) if not n.is_empty]
        self.outcome.nodes += len(flat)
        self.prover.ascend(self, flat, self.effort.strong, target=SINGLE_MARGIN * self.scale)
        hopeful = [n for n in flat if n.bound > 0]
        if hopeful:
            bounds = self.prover.evaluate(self, hopeful)
            for n, bound in zip(hopeful, bounds, strict=True):
                n.bound = float(bound)
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

    def retighten(self, node: Node) -> None:
        """Better bounds of the last hidden layer under the node's splits.

        A neuron taken as active has ``relu(z) = z``, so the bound of z itself is the bound of the
        objective ``e_i`` on the activations, with every other split still in force.
        """
        chain = self.chain
        k = chain.layers - 1
        part = chain.part(k)
        width = int(chain.widths[k])
        problems = []
        for i in range(width):
            at = part.start + i
            if not (node.low[at] < 0 < node.high[at]) or node.sign[at]:
                continue
            for sign in (1, -1):
                low, high = node.low.copy(), node.high.copy()
                low[at], high[at] = 0.0, 1.0
                objective = np.zeros((1, width))
                objective[0, i] = sign
                problems.append(
                    Node(
                        low=low, high=high, sign=node.sign, objective=objective,
                        offset=np.zeros(1), alpha=node.alpha, beta=np.zeros_like(node.beta),
                        weight=np.ones(1, dtype=np.float32), delta=np.zeros_like(node.delta),
                        size=self.neurons[at][None], depth=sign, label=at,
                    )
                )  # fmt: skip
        if not problems:
            return
        self.prover.ascend(self, problems, self.effort.retighten)
        bounds = self.prover.evaluate(self, problems)
        low, high = node.low.copy(), node.high.copy()
        for problem, bound in zip(problems, bounds, strict=True):
            if problem.depth > 0:
                low[problem.label] = max(low[problem.label], bound)
            else:
                high[problem.label] = min(high[problem.label], -bound)
        node.low, node.high = low, high
        node.trail = Trail(node.trail, tightened=tuple(problems))

    def settle(self, nodes: list[Node]) -> list[Node]:
        """Domains in which every neuron is fixed: what is left is a linear programme."""
        still = self.refute(nodes, 4 * self.effort.root, every=True)
        for node in still:
            points = None if node.minimiser is None else node.minimiser.astype(np.float64)[None]
            found = (
                None if points is None else self.search(points, self.known[node.label].leaves, True)
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


@cache
def _load_kernels() -> None:
    """By a bound of a small network: what is compiled depends on types alone."""
    query = smallest_query()
    prover = ChainProver(query.form)
    run = _Run(prover, query, np.inf, _no_search)
    node = prover.chain.node(run.low, run.high, run.rows, run.offsets, run.objective_sizes)
    prover.ascend(run, [node], 0)
    prover.evaluate(run, [node])


def smallest_query() -> Query:
    """Of one input, one neuron and one output."""
    one = np.ones((1, 1))
    form = ReluForm((1,), (Layer(np.ones(1), ((0, one),)), Layer(np.ones(1), ((1, one),))))
    network: Any = SimpleNamespace(relu_form=form)
    return Query(network, np.zeros(1), np.ones(1), affine([(("y", 0), 1.0)], -9.0))


def _no_search(points: Array, leaves: Sequence[int], programmes: bool) -> Array | None:
    return None
