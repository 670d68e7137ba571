"""Certificates: what `qll.audit` needs to check a verdict without believing the prover.

A proof is written as the prover found it: the bounds proved at the root, the tree of splits with
the bounds proved on the way, and the multipliers of every leaf. Any multipliers give a valid bound,
so they are rounded as coarsely as the checker still confirms: 8 bits first, then half, then single
precision. Nothing here is trusted; a mistake makes a certificate that is not confirmed.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from qll.audit import Answer, audit
from qll.audit.check import Domain
from qll.audit.layout import (
    ALWAYS,
    BOUND,
    CASE,
    COLUMNS,
    CROWN,
    EMPTY,
    FORMAT,
    HALVE,
    MAGIC,
    OPEN,
    SLOPE,
    SPLIT,
    TIGHTEN,
    Header,
    digest,
    names,
)
from qll.bounds.chain import Node
from qll.bounds.groups import Groups
from qll.files import write_atomically, write_error
from qll.formula.question import question
from qll.formula.rewrite import Shape
from qll.networks.joint import Joint
from qll.verify.boxes import _conjunctions as conjunctions
from qll.verify.condition import Any_, Array, Both, Tree, obligations
from qll.verify.joining import ByCases
from qll.verify.proof import Boxes, ByConstruction, Outcome, Trail
from qll.verify.query import Query
from qll.verify.subject import Subject, explicit, short
from qll.verify.verdict import Evidence, Reason, Status, Verdict

LEAST_WEIGHT = 1e-4  # of an objective in a mixture: the prover's own floor
PRECISIONS = (8, 16, 32)  # bits of alpha and delta, from coarse to fine

SUFFIX = ".qllcert"

Path_: TypeAlias = list[Trail]


def certify(
    query: Query,
    verdict: Verdict,
    subject: Subject | None = None,
    *,
    stop: Callable[[], bool] | None = None,
) -> tuple[bytes, Answer]:
    """The certificate of a decided verdict, and what the checker says to it, until ``stop``.

    A ``verified`` verdict needs the proof that `Budget(proofs=True)` keeps. Without a ``subject``
    the claim is about the query's own box and ground formula.
    """
    network = _network(query).source
    subject = explicit(query) if subject is None else subject
    header = _header(query, verdict, subject)
    if verdict.status is Status.FALSIFIED:
        witness = verdict.witness
        if isinstance(query.network, Joint) and witness is not None:
            witness = query.network.expand(witness)
        data = pack(header, {"x0": subject.x0, "witness": witness})
        return data, audit(data, network, stop=stop)
    cases = query.cases
    proofs = verdict.proof.parts if isinstance(verdict.proof, ByCases) else (
        (cases[0] if len(cases) == 1 else query, verdict.proof),
    )  # fmt: skip
    writers = [_writer(case, proof) for case, proof in proofs]
    data, answer = b"", Answer("verified", False, "no precision is enough")
    for precision in PRECISIONS:
        arrays = {"x0": subject.x0}
        for number, writer in enumerate(writers):
            end = f".{number}" if number else ""
            arrays |= {name + end: v for name, v in writer.arrays(precision).items()}
        data = pack(replace(header, precision=precision), arrays)
        answer = audit(data, network, stop=stop)
        if answer.confirmed or answer.beyond:
            break
    return data, answer


def pack(header: Header, arrays: dict[str, Any]) -> bytes:
    """The file that `qll.audit.layout` reads, with the types that are declared there."""
    raw = {}
    count = sum(name.partition(".")[0] == "kinds" for name in arrays)
    for name in names(header.verdict, count):
        values = np.asarray(arrays[name]).ravel()
        raw[name] = values.astype(COLUMNS[name.partition(".")[0]].type(header.precision))
        if values.dtype.kind in "biu" and (raw[name] != values).any():
            raise ValueError(f"{name} does not fit its type")
    lengths = {name: values.size for name, values in raw.items()}
    head = json.dumps({**asdict(header), "arrays": lengths}, allow_nan=False).encode()
    parts = [len(head).to_bytes(4, "little"), head, *(a.tobytes() for a in raw.values())]
    body = zlib.compress(b"".join(parts), 9)
    return MAGIC + hashlib.sha256(body).digest() + body


def confirm(
    query: Query,
    verdict: Verdict,
    subject: Subject | None = None,
    *,
    strict: bool = True,
    stop: Callable[[], bool] | None = None,
) -> tuple[Verdict, bytes | None]:
    """The verdict as far as the checker confirms it: otherwise ``unknown``, with its reason. What
    could not be asked (there is no proof, no time, no room) is ``unknown`` only if ``strict``: it
    says nothing against the prover's word, which then stands as that."""
    if not verdict.decided:
        return verdict, None
    try:
        data, answer = certify(query, verdict, subject, stop=stop)
    except Unwritable as error:
        data, answer = b"", Answer(str(verdict.status), False, str(error), beyond=True)
    if answer.beyond and not strict:
        return replace(verdict, proof=None, uncertified=answer.reason), None
    if answer.confirmed:
        note = f"confirmed by the independent checker ({answer.reason})"
        # The checker rounds outward: the prover's margin no longer weakens the claim.
        return (
            replace(verdict, notes=(note,), proof=None, evidence=Evidence.CHECKED),
            data,
        )
    return (
        replace(
            verdict, status=Status.UNKNOWN, witness=None, proof=None,
            reason=Reason.UNCONFIRMED if answer.beyond else Reason.REFUSED, detail=answer.reason,
            evidence=None, uncertified=answer.reason,
            notes=(*verdict.notes, f"was {verdict.status}, not confirmed: {answer.reason}"),
        ),
        None,
    )  # fmt: skip


def write(folder: Path, name: str, data: bytes, network: bytes) -> Path:
    """Store a certificate and, once, its network; complete or not at all."""
    stored, path = folder / f"{digest(network)}.onnx", folder / f"{name}{SUFFIX}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(folder, error) from error
    if not stored.exists():
        write_atomically(stored, network)
    write_atomically(path, data)
    return path


class Unwritable(Exception):
    """There is no certificate for this kind of proof."""


def _header(query: Query, verdict: Verdict, subject: Subject) -> Header:
    network = _network(query)
    mean, std = (None, None) if network.normalisation is None else network.normalisation
    shape = Shape(network.output_size, tuple(network.input_shape))
    asked = question(subject.text, subject.labels, shape)
    return Header(
        format=FORMAT,
        verdict=str(verdict.status),
        network=network.sha256,
        mean=short(mean, network.input_shape),
        std=short(std, network.input_shape),
        text=subject.text,
        labels=subject.labels,
        tie_violates=query.tie_violates,
        arithmetic=query.arithmetic or "real",
        ground=digest(repr((asked.form, asked.constraints)).encode()),
        region=digest(*(side.tobytes() for q in query.cases for side in (q.lower, q.upper))),
        precision=PRECISIONS[0],
        member=_member(query),
    )


def _member(query: Query) -> tuple[str, ...] | None:
    """A point of the region, where its constraints leave that open: a rule about no point at all
    says nothing."""
    if not any(case.constraints for case in query.cases):
        return None
    for case in query.cases:
        point = case.member.point
        if point is not None:
            return tuple(f"{v.numerator}/{v.denominator}" for v in point)
    return None


def _network(query: Query) -> Any:
    """The user's own, of which the checker makes the product itself."""
    network: Any = query.network
    if not isinstance(network, Joint):
        return network
    if any(other.sha256 != network.networks[0].sha256 for other in network.networks):
        raise Unwritable("certificates are about one network")
    return network.networks[0]


def _writer(query: Query, proof: Any) -> _Writer:
    if isinstance(proof, ByConstruction):
        writer = _Writer(query, None)
        writer.follow_construction(query)
        return writer
    if proof is None:
        raise Unwritable("no proof was kept")
    prover, outcome = proof
    if outcome.dropped:
        raise Unwritable(outcome.dropped)
    writer = _Writer(query, prover.neurons_of(outcome))
    prover.tell(writer, query, outcome)
    return writer


class _Writer:
    """Collects the tree in preorder and the problems (bounds and leaves) in the same order; a
    prover tells it how its proof went. ``chain`` are the neurons in the prover's own order."""

    def __init__(self, query: Query, chain: Any) -> None:
        self.chain = chain
        self.kinds: list[tuple[int, int]] = []
        self.targets: list[int] = []
        self.alphas: list[Array] = []
        self.deltas: list[Array] = []
        self.betas: list[Array] = []
        self.points: list[float] = []
        self.weights: list[Array] = []
        widths = [layer.width for layer in query.form.layers[:-1]]
        self.neurons = sum(widths)
        self.loose: Any = None
        if chain is not None:
            # Position of every padded neuron of the chain among the real ones; -1 for padding.
            self.real = np.full(chain.neurons, -1)
            start = 0
            for k, width in enumerate(widths):
                self.real[chain.part(k)][:width] = chain.order(k) + start
                start += width
            self.sizes = (widths[0], chain.form.input_size)
            home = np.zeros(0) if chain.groups is None else chain.groups.copy_home
            self.others = np.flatnonzero(home != np.arange(home.size))

    def open(self) -> None:
        """The bounds that CROWN finds, for all neurons: where the proof begins."""
        self.kinds.append((OPEN, 0))
        self.loose = np.ones(self.neurons, dtype=bool)

    def follow(self, query: Query, outcome: Outcome) -> None:
        chain, trace = self.chain, outcome.trace
        if chain is None:
            raise Unwritable("a proof by neurons names no neurons")
        if self.loose is None:
            self.loose = self._real(trace.loose).astype(bool)
        by_layer: dict[int, list[tuple[int, int, Node]]] = {}
        for (layer, neuron, sign), node in sorted(
            trace.tightened.items(), key=lambda item: item[0]
        ):
            at = int(self.real[int(chain.starts[layer]) + neuron])
            by_layer.setdefault(layer, []).append((at, sign, node))
        for _, bounds in sorted(by_layer.items()):
            self._tighten(bounds, [])
        nodes: dict[int, list[tuple[Path_, Node | None]]] = {}
        for node in outcome.leaves:
            nodes.setdefault(node.label, []).append((_path(node.trail), node))
        for node in trace.empty:
            nodes.setdefault(node.label, []).append((_path(node.trail), None))
        tree = query.search.tree
        if isinstance(tree, Any_):
            self.kinds.append((CASE, 0))
            labels = list(range(len(tree.parts)))
        else:
            labels = [0]
        stack = labels[::-1]
        while stack:
            label = stack.pop()
            if label in trace.cases:
                position, parts = trace.cases[label]
                self.kinds.append((CASE, position))
                stack.extend(reversed(parts))
            else:
                self._domain(nodes.get(label, []))

    def follow_construction(self, query: Query) -> None:
        """Every conjunction is refuted by the mean of its leaves."""
        root = Domain((query.lower, query.upper), (), ()).need(_plain(query.search.tree))
        for kind, argument, atoms in [] if root is None else _cases(root):
            self.kinds.append((ALWAYS if kind == CROWN else kind, argument))
            if kind == CROWN:
                self.weights.append(np.ones(len(atoms)))

    def follow_boxes(self, query: Query, boxes: Boxes) -> None:
        """The tree of halved boxes; a closed one refutes every conjunction by CROWN alone."""
        if self.chain is not None:
            self.loose = np.ones(self.neurons, dtype=bool)
        tree = query.search.tree
        order = [tuple(leaves) for leaves in conjunctions(obligations(tree))]
        root = Domain((query.lower, query.upper), (), ()).need(_plain(tree))
        cases = [] if root is None else _cases(root)
        stack = [0]
        while stack:
            place = stack.pop()
            if place in boxes.halves:
                at, low, high = boxes.halves[place]
                self.kinds.append((HALVE, at))
                stack += [high, low]
            elif place in boxes.closed:
                for kind, argument, atoms in cases:
                    at = order.index(atoms) if kind == CROWN else -1
                    sloped = kind == CROWN and place in boxes.sloped and boxes.sloped[place][at]
                    self.kinds.append((SLOPE if sloped else kind, argument))
                    if kind == CROWN:
                        weight = boxes.closed[place][at]
                        self.weights.append(np.asarray(weight, dtype=np.float64))
            elif place in boxes.finished:
                lower, upper, outcome = boxes.finished[place]
                self.kinds.append((OPEN, 0))
                self.follow(replace(query, lower=lower, upper=upper), outcome)
            else:
                raise Unwritable("a box is missing from the proof")

    def _domain(self, items: list[tuple[Path_, Node | None]]) -> None:
        work: list[tuple[list[tuple[Path_, Node | None]], int, list[Trail]]] = [(items, 0, [])]
        while work:
            items, depth, splits = work.pop()
            ended = [node for path, node in items if len(path) == depth]
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
            if step.tightened:
                bounds = [(int(self.real[n.label]), n.depth, n) for n in step.tightened]
                self._tighten(bounds, splits)
                work.append((items, depth + 1, splits))
                continue
            self.kinds.append((SPLIT, int(self.real[step.neuron])))
            if step.point is not None:
                self.points.append(step.point)
            for sign in (1, -1):
                side = [item for item in items if item[0][depth].sign == sign]
                own = replace(step, sign=sign)
                work.append((side, depth + 1, [*splits, own]))

    def _tighten(self, bounds: Sequence[tuple[int, int, Node]], splits: list[Trail]) -> None:
        self.kinds.append((TIGHTEN, len(bounds)))
        for neuron, sign, node in bounds:
            self.targets.append(2 * neuron + (sign < 0))
            self._problem(node, splits)

    def _problem(self, node: Node, splits: list[Trail]) -> None:
        self.alphas.append(self._real(node.alpha))
        self.deltas.append(node.delta[self.others].astype(np.float64))
        neurons = dict.fromkeys(s.neuron for s in splits)  # a curved one may be split again
        self.betas.append(np.array([max(0.0, float(node.beta[n])) for n in neurons]))

    @property
    def has_groups(self) -> bool:
        return self.chain is not None and self.chain.groups is not None

    def _real(self, values: Any) -> Array:
        """Values of a chain (or of its lower layers) in the order of the network's neurons."""
        place = self.real[: len(values)]
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
            **(_groups(self.chain.groups, self.sizes) if self.has_groups else _no_groups()),
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


def _cases(domain: Domain) -> list[tuple[int, int, tuple[int, ...]]]:
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


def _no_groups() -> dict[str, Any]:
    none = np.zeros(0, dtype=np.int64)
    return {"groups": np.zeros(3, np.int64), "group_neurons": none, "group_inputs": none}


def _groups(groups: Groups, sizes: tuple[int, int]) -> dict[str, Any]:
    """Neurons and inputs by group, padded with the number of neurons and of inputs."""
    tables = []
    for values, starts, pad in (
        (groups.order, groups.neuron_starts, sizes[0]),
        (groups.copy_input, groups.copy_starts, sizes[1]),
    ):
        table = np.full((groups.count, int(np.diff(starts).max())), pad)
        for g in range(groups.count):
            piece = values[starts[g] : starts[g + 1]]
            table[g, : piece.size] = piece
        tables.append(table)
    shape = [groups.count, *(table.shape[1] for table in tables)]
    return {"groups": np.array(shape), "group_neurons": tables[0], "group_inputs": tables[1]}


def _path(trail: Trail | None) -> Path_:
    steps: Path_ = []
    while trail is not None:
        steps.append(trail)
        trail = trail.parent
    return steps[::-1]
