"""A proof as the tree that `qll.audit` reads: in preorder, bounds and leaves in the same order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qll.audit.check import Domain as Checked
from qll.audit.layout import (
    ALWAYS,
    BOUND,
    CASE,
    CROWN,
    EMPTY,
    HALVE,
    OPEN,
    POINT,
    SLOPE,
    SPLIT,
    TIGHTEN,
)
from qll.bounds.bounder import Start
from qll.bounds.domain import Subdomain
from qll.bounds.groups import Groups
from qll.bounds.splits import NeuronSplit, PointSplit
from qll.verify.condition import Any_, Array, Both, Tree, conjunctions, obligations
from qll.verify.proof import (
    BoxProof,
    ByConstruction,
    Dropped,
    NeuronBound,
    NeuronProof,
    PathStep,
    Proof,
    Tightened,
)
from qll.verify.query import Query

LEAST_WEIGHT = 1e-4  # of an objective in a mixture: the prover's own floor


class Unwritable(Exception):
    """There is no certificate for this kind of proof."""


class Writer:
    """Collects the tree in preorder and the problems (bounds and leaves) in the same order.
    ``neurons`` is a proof by neurons, all of which number them alike, if there is one."""

    def __init__(self, query: Query, neurons: NeuronProof | None = None) -> None:
        self.kinds: list[tuple[int, int]] = []
        self.targets: list[int] = []
        self.alphas: list[Array] = []
        self.deltas: list[Array] = []
        self.betas: list[Array] = []
        self.points: list[float] = []
        self.weights: list[Array] = []
        self.query = query
        self.neurons = sum(layer.width for layer in query.form.layers[:-1])
        self.loose: Any = None
        self.groups = None if neurons is None else neurons.groups
        if neurons is not None:
            self.layout, self.numbers = neurons.layout, neurons.layout.numbers
            home = np.zeros(0) if self.groups is None else self.groups.copy_home
            self.others = np.flatnonzero(home != np.arange(home.size))

    @classmethod
    def of(cls, query: Query, proof: Proof | None) -> Writer:
        """What is known of the proof, told in its own way."""
        if isinstance(proof, NeuronProof):
            writer = cls(query, proof)
            writer.by_neurons(proof)
        elif isinstance(proof, BoxProof):
            writer = cls(query, next((told for *_, told in proof.finished.values()), None))
            writer.by_boxes(proof)
        elif isinstance(proof, ByConstruction):
            writer = cls(query)
            writer.by_construction()
        else:
            told = proof.reason if isinstance(proof, Dropped) else "no proof was kept"
            raise Unwritable(told)
        return writer

    def by_neurons(self, proof: NeuronProof) -> None:
        if proof.start is Start.CROWN:
            self.kinds.append((OPEN, 0))
            self.loose = np.ones(self.neurons, dtype=bool)
        else:
            self.loose = self._own(proof.loose).astype(bool)
        self._splits(proof)

    def _splits(self, proof: NeuronProof) -> None:
        by_layer: dict[int, list[NeuronBound]] = {}
        for _, bound in sorted(proof.bounds.items(), key=lambda item: item[0]):
            by_layer.setdefault(self.layout.layer_of(bound.neuron), []).append(bound)
        for bounds in by_layer.values():
            self._tighten(bounds, [])
        leaves: dict[int, list[tuple[list[PathStep], Subdomain | None]]] = {}
        for node in proof.refuted:
            leaves.setdefault(node.obligation, []).append((node.way, node.domain))
        for node in proof.empty:
            leaves.setdefault(node.obligation, []).append((node.way, None))
        stack = [0]
        if isinstance(proof.tree, Any_):
            self.kinds.append((CASE, 0))
            stack = list(range(len(proof.tree.parts)))[::-1]
        while stack:
            obligation = stack.pop()
            if obligation in proof.cases:
                position, parts = proof.cases[obligation]
                self.kinds.append((CASE, position))
                stack.extend(reversed(parts))
            else:
                self._domain(leaves.get(obligation, []))

    def by_construction(self) -> None:
        """Every conjunction is refuted by the mean of its leaves."""
        query = self.query
        root = Checked((query.lower, query.upper), (), ()).need(_plain(query.search.tree))
        for kind, argument, atoms in [] if root is None else _cases(root):
            self.kinds.append((ALWAYS if kind == CROWN else kind, argument))
            if kind == CROWN:
                self.weights.append(np.ones(len(atoms)))

    def by_boxes(self, boxes: BoxProof) -> None:
        """The tree of halved boxes; a closed one refutes every conjunction by CROWN alone."""
        query, tree = self.query, self.query.search.tree
        if boxes.finished:
            self.loose = np.ones(self.neurons, dtype=bool)
        order = [tuple(leaves) for leaves in conjunctions(obligations(tree))]
        root = Checked((query.lower, query.upper), (), ()).need(_plain(tree))
        cases = [] if root is None else _cases(root)
        stack = [0]
        while stack:
            place = stack.pop()
            if place in boxes.halves:
                halves = boxes.halves[place]
                self.kinds.append((HALVE, halves.split.input))
                stack += [halves.above, halves.below]
            elif place in boxes.points:
                self.kinds.append((POINT, 0))
            elif place in boxes.closed:
                for kind, argument, atoms in cases:
                    at = order.index(atoms) if kind == CROWN else -1
                    sloped = kind == CROWN and place in boxes.sloped and boxes.sloped[place][at]
                    self.kinds.append((SLOPE if sloped else kind, argument))
                    if kind == CROWN:
                        weight = boxes.closed[place][at]
                        self.weights.append(np.asarray(weight, dtype=np.float64))
            elif place in boxes.finished:
                self.kinds.append((OPEN, 0))
                self._splits(boxes.finished[place][2])
            else:
                raise Unwritable("a box is missing from the proof")

    def _domain(self, items: list[tuple[list[PathStep], Subdomain | None]]) -> None:
        work: list[tuple[list[tuple[list[PathStep], Subdomain | None]], int, list[NeuronSplit]]]
        work = [(items, 0, [])]
        while work:
            items, depth, splits = work.pop()
            ended = [leaf for way, leaf in items if len(way) == depth]
            if not items or ended:
                leaf = ended[0] if ended else None
                if leaf is None:
                    self.kinds.append((EMPTY, 0))
                else:
                    self.kinds.append((BOUND, 0))
                    self._problem(leaf, splits)
                    weight = np.maximum(leaf.weight.astype(np.float64), LEAST_WEIGHT)
                    # Delta and beta are on the scale of the mixture.
                    self.weights.append(weight / weight.sum())
                continue
            step = items[0][0][depth]
            if isinstance(step, Tightened):
                self._tighten(step.bounds, splits)
                work.append((items, depth + 1, splits))
                continue
            self.kinds.append((SPLIT, int(self.numbers[step.split.neuron])))
            if isinstance(step.split, PointSplit):
                self.points.append(step.split.at)
            for above in (True, False):
                side = [item for item in items if _above(item[0][depth]) is above]
                work.append((side, depth + 1, [*splits, step.split]))

    def _tighten(self, bounds: Sequence[NeuronBound], splits: list[NeuronSplit]) -> None:
        self.kinds.append((TIGHTEN, len(bounds)))
        for bound in bounds:
            self.targets.append(2 * int(self.numbers[bound.neuron]) + (not bound.lower))
            self._problem(bound.domain, splits)

    def _problem(self, domain: Subdomain, splits: list[NeuronSplit]) -> None:
        self.alphas.append(self._own(domain.alpha))
        self.deltas.append(domain.delta[self.others].astype(np.float64))
        neurons = dict.fromkeys(s.neuron for s in splits)  # a curved one may be split again
        self.betas.append(np.array([max(0.0, float(domain.beta[n])) for n in neurons]))

    def _own(self, values: Any) -> Array:
        """Flat values (or those of the lower layers) in the order of the network's neurons."""
        place = self.numbers[: len(values)]
        result = np.zeros(self.neurons)
        result[place[place >= 0]] = np.asarray(values)[place >= 0]
        return result

    def arrays(self, precision: int) -> dict[str, Any]:
        count, loose = len(self.alphas), self.loose
        if loose is None:
            loose = np.zeros(self.neurons, dtype=bool)
        alpha = np.clip(np.array(self.alphas).reshape(count, self.neurons)[:, loose], 0, 1)
        delta = np.array(self.deltas).reshape(count, self.deltas[0].size if count else 0)
        scale = np.abs(delta).max(axis=1, initial=0.0).astype(np.float32)
        scale = np.nextafter(scale, np.float32(np.inf))  # no less than what it divides
        delta = np.clip(delta / scale[:, None], -1, 1)
        if precision == 8:
            alpha, delta = np.rint(alpha * 255), np.rint(delta * 127) + 128
        none = np.zeros(0)
        return {
            "kinds": np.array([k for k, _ in self.kinds], dtype=np.int64),
            "arguments": np.array([a for _, a in self.kinds], dtype=np.int64),
            "targets": np.array(self.targets, dtype=np.int64),
            "loose": np.packbits(loose),
            **_groups(self.groups, self.query),
            "alpha": alpha,
            "delta": delta,
            "delta_scale": scale if delta.size else none,
            "points": np.array(self.points, dtype=np.float64),
            "beta": np.concatenate([none, *self.betas]),
            "weights": np.concatenate([none, *self.weights]),
        }


def _plain(tree: Tree) -> Any:
    """The tree in the checker's own terms."""
    if isinstance(tree, Both | Any_):
        name = "all" if isinstance(tree, Both) else "any"
        return (name, tuple(_plain(part) for part in tree.parts))
    return tree


def _cases(domain: Checked) -> list[tuple[int, int, tuple[int, ...]]]:
    """Nodes that take a violation apart into conjunctions of atoms."""
    found = []
    stack = [domain]
    while stack:
        here = stack.pop()
        if not here.waiting:
            found.append((CROWN, 0, here.atoms))
            continue
        found.append((CASE, 0, ()))
        parts = [here.need(part, 0) for part in here.waiting[0][1]]  # type: ignore[index]
        stack.extend(part for part in reversed(parts) if part is not None)
    return found


def _groups(groups: Groups | None, query: Query) -> dict[str, Any]:
    """Neurons and inputs by group, padded with the number of neurons and of inputs."""
    if groups is None:
        none = np.zeros(0, dtype=np.int64)
        return {"groups": np.zeros(3, np.int64), "group_neurons": none, "group_inputs": none}
    tables = []
    for values, starts, pad in (
        (groups.order, groups.neuron_starts, query.form.layers[0].width),
        (groups.copy_input, groups.copy_starts, query.form.input_size),
    ):
        table = np.full((groups.count, int(np.diff(starts).max())), pad)
        for g in range(groups.count):
            piece = values[starts[g] : starts[g + 1]]
            table[g, : piece.size] = piece
        tables.append(table)
    shape = [groups.count, *(table.shape[1] for table in tables)]
    return {"groups": np.array(shape), "group_neurons": tables[0], "group_inputs": tables[1]}


def _above(step: PathStep) -> bool | None:
    return None if isinstance(step, Tightened) else step.above
