"""Walks a certificate's proof tree and says yes or no.

The tree, in preorder, refutes "the property is violated" on the box. At each node stand a domain
(the box, splits, proved bounds) and what a violation needs there: atoms that are all > 0 and
disjunctions of which a part must hold. An inner node splits a neuron at 0, halves an input, takes
every part of a disjunction, or proves better bounds of neurons, in order, each from what was known
before. A leaf shows that the domain is empty, or that a non-negative combination of the needed atoms
is negative on all of it (by `qll.audit.bounds`). Every path ends in such a leaf, or nothing is proved.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from qll.audit.bounds import Area, Bounder, Groups
from qll.audit.claim import Claim, Tree, claim_of, digest
from qll.audit.container import NotConfirmed, require, unpack
from qll.audit.network import Array, Network, read_network
from qll.errors import QllError

BOUND, EMPTY, CASE, SPLIT, TIGHTEN, HALVE = range(6)
SUFFIX = ".qllcert"
BATCH = 64
MOST_NEEDS = 100_000


@dataclass(frozen=True)
class Answer:
    """``confirmed`` or not, and why; ``claim`` is what was confirmed."""

    name: str
    verdict: str
    confirmed: bool
    reason: str
    claim: str = ""


@dataclass(frozen=True, eq=False)
class Needs:
    """Atoms that are all positive, and disjunctions, at a violation; None: there can be none."""

    atoms: tuple[int, ...]
    waiting: tuple[Tree, ...]

    def plus(self, tree: Tree, without: int = -1) -> Needs | None:
        atoms = list(self.atoms)
        waiting = [w for i, w in enumerate(self.waiting) if i != without]
        stack = [tree]
        while stack:
            node = stack.pop()
            if node is False:
                return None
            if isinstance(node, tuple) and node[0] == "all":
                stack.extend(node[1])
            elif isinstance(node, tuple):
                waiting.append(node)
            elif node is not True and node not in atoms:
                atoms.append(node)
        return Needs(tuple(sorted(atoms)), tuple(waiting))


@dataclass(frozen=True, eq=False)
class Domain:
    low: list[Array]
    high: list[Array]
    sign: dict[int, int]  # flat neuron -> +1 (>= 0) or -1 (<= 0)
    area: Area

    def empty(self) -> bool:
        return any((l > h).any() for l, h in zip(self.low, self.high, strict=True))


class Proof:
    """One certificate's arrays, read from front to back while the tree is walked."""

    def __init__(self, claim: Claim, network: Network, arrays: dict[str, Any]) -> None:
        self.claim, self.network, self.arrays = claim, network, arrays
        groups = None
        if arrays["group_neurons"].size:
            pieces = [
                np.split(arrays[n].astype(np.int64), np.cumsum(arrays[s].astype(np.int64))[:-1])
                for n, s in (("group_neurons", "group_sizes"), ("group_inputs", "group_reads"))
            ]
            groups = Groups(network, *pieces)
        self.bounder = Bounder(network, groups)
        widths = network.widths[1:-1]
        self.starts = np.concatenate([[0], np.cumsum(widths)]).astype(int)
        self.used = {name: 0 for name in arrays}
        self.columns = np.flatnonzero(np.unpackbits(arrays["loose"], count=int(self.starts[-1])))
        self.problem = 0
        self.leaves: list[tuple[Domain, Needs, dict[str, Any]]] = []

    def take(self, name: str, count: int) -> Any:
        at = self.used[name]
        require(at + count <= self.arrays[name].size, f"the certificate lacks {name}")
        self.used[name] = at + count
        return self.arrays[name][at : at + count]

    def multipliers(self, domain: Domain, count: int) -> dict[str, Any]:
        """Of the next ``count`` problems: alpha (0 where not given), signed beta, delta."""
        raw = self.take("alpha", count * self.columns.size).reshape(count, -1).astype(np.float64)
        alpha = np.zeros((count, int(self.starts[-1])))
        alpha[:, self.columns] = raw / 255.0 if self.arrays["alpha"].dtype == np.uint8 else raw
        push = np.zeros_like(alpha)
        if domain.sign:
            beta = self.take("beta", count * len(domain.sign)).reshape(count, -1)
            push[:, list(domain.sign)] = np.maximum(beta, 0) * np.array(list(domain.sign.values()))
        result = {"alpha": self._layers(alpha), "push": self._layers(push), "delta": None}
        if self.bounder.groups is not None:
            others = self.bounder.groups.others.size
            scale = self.take("delta_scale", count).astype(np.float64)[:, None]
            delta = self.take("delta", count * others).reshape(count, -1).astype(np.float64)
            result["delta"] = np.asarray(delta * scale)
        return result

    def _layers(self, flat: Array) -> list[Array]:
        return [flat[:, i:j] for i, j in zip(self.starts, self.starts[1:])]

    def run(self) -> None:
        claim = self.claim
        area = self.bounder.area(claim.lower, claim.upper)
        root = Domain(area.low[:-1], area.high[:-1], {}, area)
        needs = Needs((), ()).plus(claim.tree)
        stack: list[tuple[Domain, Needs]] = []
        if needs is not None:
            count = len(claim.constant)
            atoms = {*needs.atoms, *range(count - claim.required, count)}
            stack.append((root, replace(needs, atoms=tuple(sorted(atoms)))))
        while stack:
            domain, needs = stack.pop()
            kind, argument = int(self.take("kinds", 1)[0]), int(self.take("arguments", 1)[0])
            if kind == BOUND:
                self.leaves.append((domain, needs, self.leaf(domain, needs)))
                self.flush(BATCH)
            elif kind == EMPTY:
                require(domain.empty(), "a domain that is said to be empty is not")
            elif kind == CASE:
                require(argument < len(needs.waiting), "a disjunction that is not there")
                for part in reversed(needs.waiting[argument][1]):  # type: ignore[index]
                    more = needs.plus(part, argument)
                    if more is not None:
                        stack.append((domain, more))
            elif kind == SPLIT:
                require(argument < self.starts[-1], "a split of a neuron that does not exist")
                stack.append((self.side(domain, argument, 1), needs))
                stack.append((self.side(domain, argument, -1), needs))
            elif kind == TIGHTEN:
                stack.append((self.tighten(domain, argument), needs))
            else:
                require(False, f"a node of unknown kind {kind}")
        self.flush(0)
        for name in ("kinds", "arguments", "alpha", "delta", "beta", "weights", "targets"):
            require(self.used[name] == self.arrays[name].size, f"{name} are left over")

    def side(self, domain: Domain, neuron: int, sign: int) -> Domain:
        layer = int(np.searchsorted(self.starts, neuron, side="right")) - 1
        at = neuron - int(self.starts[layer])
        low, high = list(domain.low), list(domain.high)
        changed, limit = (low, np.maximum) if sign > 0 else (high, np.minimum)
        changed[layer] = changed[layer].copy()
        changed[layer][at] = limit(changed[layer][at], 0.0)
        return Domain(low, high, {**domain.sign, neuron: sign}, domain.area)

    def tighten(self, domain: Domain, count: int) -> Domain:
        """Bounds ``sign z_i >= value`` of one layer's neurons, all from the bounds before."""
        targets = self.take("targets", count).astype(np.int64)
        require(count > 0 and (targets // 2 < self.starts[-1]).all(), "a bound of no neuron")
        layers = np.searchsorted(self.starts, targets // 2, side="right")
        require((layers == layers[0]).all(), "bounds of several layers at once")
        layer = int(layers[0])
        at = targets // 2 - self.starts[layer - 1]
        sign = 1.0 - 2.0 * (targets % 2)
        b = np.zeros((count, self.network.widths[layer]))
        b[np.arange(count), at] = sign
        low, high = list(domain.low), list(domain.high)
        bound = self.bounder.lower(
            domain.area, layer, b, [t[None] for t in low], [t[None] for t in high],
            **self.multipliers(domain, count),
        )  # fmt: skip
        low[layer - 1], high[layer - 1] = low[layer - 1].copy(), high[layer - 1].copy()
        for i, s, value in zip(at, sign, bound, strict=True):
            if s > 0 and value > low[layer - 1][i]:  # false for NaN
                low[layer - 1][i] = value
            elif s < 0 and -value < high[layer - 1][i]:
                high[layer - 1][i] = -value
        return replace(domain, low=low, high=high)

    def leaf(self, domain: Domain, needs: Needs) -> dict[str, Any]:
        require(needs.atoms, "a leaf without an atom")
        multipliers = self.multipliers(domain, 1)
        weight = self.take("weights", len(needs.atoms)).astype(np.float64)
        require((weight >= 0).all() and np.isfinite(weight).all(), "a weight that is negative")
        require(weight.max() > 0, "weights that are all 0")
        return {**multipliers, "weight": weight}

    def flush(self, least: int) -> None:
        """Check the collected leaves together, once there are enough of them."""
        if len(self.leaves) <= least:
            return
        claim, area, g = self.claim, self.leaves[0][0].area, self.bounder.g
        weight = np.zeros((len(self.leaves), len(claim.constant)))
        for row, (_, needs, m) in enumerate(self.leaves):
            weight[row, list(needs.atoms)] = m["weight"]
        b = -(weight @ claim.outputs)
        direct = -(weight @ claim.inputs) if claim.inputs.any() else None
        # What the floats above, and the constants added last, may be off by.
        extra = weight @ (
            g * (np.abs(claim.outputs) @ area.output_reach + np.abs(claim.inputs) @ area.reach)
            + claim.radius + g * np.abs(claim.constant)
        )  # fmt: skip
        layers = range(len(self.starts) - 1)
        bound = self.bounder.lower(
            area, len(self.network.layers), b,
            [np.stack([d.low[k] for d, _, _ in self.leaves]) for k in layers],
            [np.stack([d.high[k] for d, _, _ in self.leaves]) for k in layers],
            alpha=[np.concatenate([m["alpha"][k] for *_, m in self.leaves]) for k in layers],
            push=[np.concatenate([m["push"][k] for *_, m in self.leaves]) for k in layers],
            delta=None if self.bounder.groups is None
            else np.concatenate([m["delta"] for *_, m in self.leaves]),
            direct=direct, extra=extra,
        )  # fmt: skip
        proved = bound - weight @ claim.constant > 0
        require(proved.all(), f"a leaf is not proved: its bound is {np.nanmin(bound):.3g}")
        self.leaves.clear()


def replay(claim: Claim, network: Network, witness: Array) -> None:
    """The point is in the region and violates the property, in rational arithmetic."""
    require(witness.shape == claim.lower.shape, "a witness of another size")
    inside = (witness >= claim.lower).all() and (witness <= claim.upper).all()
    require(inside, "the witness lies outside the region")
    x = [Fraction(v) for v in witness.tolist()]
    point = {"x": x, "y": network.exact(x)}
    values = [
        sum((Fraction(c) * point[s][k] for (s, k), c in atom.terms), constant)
        for atom, constant in claim.exact
    ]
    first = len(values) - claim.required
    require(all(v >= 0 for v in values[first:]), "the witness breaks a constraint of the region")

    def violated(tree: Tree) -> bool:
        if isinstance(tree, tuple):
            return (any if tree[0] == "any" else all)(violated(part) for part in tree[1])
        if isinstance(tree, bool):
            return tree
        return values[tree] >= 0 if claim.tie_violates else values[tree] > 0

    require(violated(claim.tree), "the witness satisfies the property")


_NETWORKS: dict[tuple[str, str], Network] = {}


def audit(data: bytes, network: bytes, *, name: str = "certificate") -> Answer:
    """Does this certificate prove its claim about the network in these ONNX bytes?"""
    verdict = "unknown"
    try:
        header, arrays = unpack(data)
        require(header["format"] == 1, "a certificate of another version")
        verdict = str(header["verdict"])
        require(digest(network) == header["network"], "another network")
        normalisation = header["mean"], header["std"]
        key = (header["network"], repr(normalisation))
        if key not in _NETWORKS:
            _NETWORKS.clear()
            _NETWORKS[key] = read_network(network, *normalisation)
        claim = claim_of(header, arrays, _NETWORKS[key])
        if verdict == "falsified":
            replay(claim, _NETWORKS[key], arrays["witness"])
        else:
            require(verdict == "verified", f"a verdict '{verdict}'")
            with np.errstate(all="ignore"):
                Proof(claim, _NETWORKS[key], arrays).run()
    except NotConfirmed as error:
        return Answer(name, verdict, False, str(error))
    except QllError as error:
        return Answer(name, verdict, False, f"the property cannot be read: {error.what}")
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, AttributeError) as error:
        return Answer(name, verdict, False, f"damaged: {type(error).__name__}: {error}")
    return Answer(name, verdict, True, "proved" if verdict == "verified" else "replayed")


def audit_folder(folder: Path, network: bytes | None = None) -> list[Answer]:
    """Every certificate of a folder; networks lie there by their SHA-256 unless one is given."""
    answers = []
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        data, onnx = path.read_bytes(), network
        if onnx is None:
            try:
                onnx = (folder / f"{str(unpack(data)[0]['network'])[:64]}.onnx").read_bytes()
            except (NotConfirmed, OSError, KeyError) as error:
                answers.append(Answer(path.name, "unknown", False, f"no network: {error}"))
                continue
        answers.append(audit(data, onnx, name=path.name))
    return answers
