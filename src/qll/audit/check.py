"""Says yes or no to a certificate, with numpy and onnx's file reader and nothing of the prover.

What a confirmation means: in real arithmetic on the weights stored in the ONNX file (and the stated
normalisation) every point of the region satisfies the property, or the named witness lies in the
region and strictly violates it. Trusted besides this package: numpy and IEEE arithmetic, the onnx
reader, and `qll.formula`, which turns the property's text into linear atoms.

A proof is a tree, in preorder, that refutes "the property is violated" on the box. At each node
stand a domain (a box, splits, proved bounds) and what a violation needs there: atoms that are all
> 0, and disjunctions of which a part must hold. An inner node splits a neuron at 0, halves an
input, takes every part of a disjunction, or proves better bounds of neurons from those known
before. A leaf shows that the domain is empty, or that a non-negative combination of the needed
atoms is negative on all of it (`qll.audit.bounds`). Every path ends in a leaf, or it is no proof.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from qll.audit.bounds import Bounder, Groups
from qll.audit.claim import Claim, Tree, claim_of
from qll.audit.container import NotConfirmed, digest, require, unpack
from qll.audit.network import Array, Network, read_network
from qll.errors import QllError

BOUND, CROWN, EMPTY, CASE, SPLIT, TIGHTEN, HALVE, OPEN = range(8)
BATCH = 64


@dataclass(frozen=True)
class Answer:
    verdict: str
    confirmed: bool
    reason: str


@dataclass(frozen=True, eq=False)
class Domain:
    """A box, what the network does on it (None until it is asked for), bounds and signs of hidden
    neurons, and what a violation needs."""

    box: tuple[Array, Array]
    atoms: tuple[int, ...]
    waiting: tuple[Tree, ...]
    area: Any = None  # qll.audit.bounds.Area
    low: Any = ()
    high: Any = ()
    sign: dict[int, int] = field(default_factory=dict)

    def need(self, tree: Tree, without: int = -1) -> Domain | None:
        """The same domain where a violation needs ``tree`` too; None: there is no violation."""
        atoms, stack = set(self.atoms), [tree]
        waiting = [w for i, w in enumerate(self.waiting) if i != without]
        while stack:
            node = stack.pop()
            if node is False:
                return None
            if isinstance(node, tuple) and node[0] == "all":
                stack.extend(node[1])
            elif isinstance(node, tuple):
                waiting.append(node)
            elif node is not True:
                atoms.add(node)
        return replace(self, atoms=tuple(sorted(atoms)), waiting=tuple(waiting))


class Proof:
    """One certificate's arrays, read from front to back while the tree is walked."""

    def __init__(self, claim: Claim, network: Network, arrays: dict[str, Any]) -> None:
        self.claim, self.network, self.arrays = claim, network, arrays
        tables = (arrays[n].astype(np.int64).tobytes() for n in ("group_neurons", "group_inputs"))
        self.bounder = _bounder(network, int(arrays["group_count"][0]), *tables)
        self.plain = _bounder(network)
        self.starts = self.bounder.starts
        self.loose = np.flatnonzero(np.unpackbits(arrays["loose"], count=int(self.starts[-1])))
        self.used = dict.fromkeys(arrays, 0)
        self.leaves: list[Any] = []  # domain, weights, multipliers
        self.boxes: list[Any] = []

    def take(self, name: str, count: int) -> Any:
        at = self.used[name]
        require(at + count <= self.arrays[name].size, f"the certificate lacks {name}")
        self.used[name] = at + count
        return self.arrays[name][at : at + count].astype(np.float64)

    def run(self) -> None:
        claim, count = self.claim, len(self.claim.constant)
        required = tuple(range(count - claim.required, count))
        root = Domain((claim.lower, claim.upper), required, ()).need(claim.tree)
        stack = [] if root is None else [root]
        while stack:
            domain = stack.pop()
            kind, argument = int(self.take("kinds", 1)[0]), int(self.take("arguments", 1)[0])
            if domain.area is None and kind in (BOUND, SPLIT, TIGHTEN):
                area = self.bounder.area(*domain.box)
                domain = replace(domain, area=area, low=area.low, high=area.high)
            if kind == BOUND:
                self.leaf(self.leaves, domain, self.multipliers(domain, 1))
            elif kind == CROWN:
                self.leaf(self.boxes, domain, {})
            elif kind == EMPTY:
                require(np.any(domain.low > domain.high), "a domain that is not empty")
            elif kind == CASE:
                require(argument < len(domain.waiting), "a disjunction that is not there")
                parts = domain.waiting[argument][1]  # type: ignore[index]
                needs = [domain.need(part, argument) for part in reversed(parts)]
                stack.extend(need for need in needs if need is not None)
            elif kind == SPLIT:
                stack += [self.side(domain, argument, sign) for sign in (1, -1)]
            elif kind == TIGHTEN:
                stack.append(self.tighten(domain, argument))
            elif kind == OPEN:
                stack.append(self.opened(domain))
            else:
                require(kind == HALVE, f"a node of kind {kind}")
                stack += self.halves(domain, argument)
        self.flush(self.leaves, 0)
        self.flush(self.boxes, 0)
        for name in ("kinds", "arguments", "alpha", "delta", "beta", "weights", "targets"):
            require(self.used[name] == self.arrays[name].size, f"{name} are left over")

    def side(self, domain: Domain, neuron: int, sign: int) -> Domain:
        require(neuron < self.starts[-1], "a split of a neuron that does not exist")
        low, high, limit = domain.low.copy(), domain.high.copy(), max if sign > 0 else min
        side = low if sign > 0 else high
        side[neuron] = limit(side[neuron], 0.0)
        return replace(domain, low=low, high=high, sign={**domain.sign, neuron: sign})

    def halves(self, domain: Domain, at: int) -> list[Domain]:
        """Two boxes that cover the box. Bounds and splits were of the whole: they start anew."""
        lower, upper = domain.box
        require(at < lower.size, "an input that does not exist")
        left, right = upper.copy(), lower.copy()
        left[at] = right[at] = lower[at] + (upper[at] - lower[at]) / 2
        boxes = (right, upper), (lower, left)
        return [Domain(box, domain.atoms, domain.waiting) for box in boxes]

    def opened(self, domain: Domain) -> Domain:
        """The box with CROWN's bounds of its neurons."""
        area = self.bounder.area(*domain.box)
        low, high = self.plain.crown(self.plain.area(*(t[None, None] for t in domain.box)))
        return replace(domain, area=area, low=low[0, 0], high=high[0, 0], sign={})

    def tighten(self, domain: Domain, count: int) -> Domain:
        """Proves ``sign z_i >= value`` for neurons of one layer, all from the bounds before."""
        targets = self.take("targets", count).astype(np.int64)
        at, sign = targets // 2, 1.0 - 2.0 * (targets % 2)
        layers = np.searchsorted(self.starts, at, side="right")
        require(count > 0 and layers.min() == layers.max() < len(self.starts), "not one layer")
        layer = int(layers[0])
        b = np.zeros((count, self.network.widths[layer]))
        b[np.arange(count), at - self.starts[layer - 1]] = sign
        multipliers = self.multipliers(domain, count)
        bound = self.bounder.lower(domain.area, layer, b, domain.low, domain.high, **multipliers)
        bound = np.where(np.isfinite(bound), bound, -np.inf)
        low, high = domain.low.copy(), domain.high.copy()
        np.maximum.at(low, at[sign > 0], bound[sign > 0])
        np.minimum.at(high, at[sign < 0], -bound[sign < 0])
        return replace(domain, low=low, high=high)

    def multipliers(self, domain: Domain, count: int) -> dict[str, Any]:
        """Of the next ``count`` problems: alpha (0 where not given), beta times sign, delta."""
        alpha, push = np.zeros((2, count, int(self.starts[-1])))
        raw = self.take("alpha", count * self.loose.size).reshape(count, -1)
        alpha[:, self.loose] = raw / (255.0 if self.arrays["alpha"].dtype == np.uint8 else 1.0)
        beta = self.take("beta", count * len(domain.sign)).reshape(count, -1)
        push[:, list(domain.sign)] = np.maximum(beta, 0) * list(domain.sign.values())
        found = {"alpha": alpha, "push": push}
        if self.bounder.groups is not None:
            delta = self.take("delta", count * self.bounder.groups.others.size)
            found["delta"] = delta.reshape(count, -1) * self.take("delta_scale", count)[:, None]
        return found

    def leaf(self, leaves: list[Any], domain: Domain, multipliers: dict[str, Any]) -> None:
        weight = np.zeros(len(self.claim.constant))
        weight[list(domain.atoms)] = self.take("weights", len(domain.atoms))
        fine = np.isfinite(weight).all() and (weight >= 0).all() and weight.any()
        require(fine, "weights that are not a combination")
        if leaves and leaves[0][0].area is not domain.area:
            self.flush(leaves, 0)
        leaves.append((domain, weight, multipliers))
        self.flush(leaves, BATCH - 1)

    def flush(self, leaves: list[Any], most: int) -> None:
        """Check the collected leaves together if there are more than ``most``."""
        if len(leaves) <= most:
            return
        domains, weights, multipliers = zip(*leaves, strict=True)
        claim, bounder, area, weight = self.claim, self.bounder, domains[0].area, np.array(weights)
        b, direct = -(weight @ claim.outputs), -(weight @ claim.inputs)
        if leaves is self.leaves:
            low, high = np.stack([d.low for d in domains]), np.stack([d.high for d in domains])
            given = {n: np.concatenate([m[n] for m in multipliers]) for n in multipliers[0]}
        else:
            bounder, given = self.plain, {}
            lower, upper = (np.stack([d.box[i] for d in domains])[:, None] for i in (0, 1))
            area, b, direct = bounder.area(lower, upper), b[:, None], direct[:, None]
            low, high = bounder.crown(area)
        # What the floats b and direct, and the constant that comes last, may be off by.
        size = area.output @ np.abs(claim.outputs.T) + area.reach @ np.abs(claim.inputs.T)
        size = bounder.g * (size + np.abs(claim.constant)) + claim.radius
        extra = (weight.reshape(*b.shape[:-1], -1) * size).sum(-1)
        bound = bounder.lower(
            area, len(self.network.layers), b, low, high, **given,
            direct=direct if claim.inputs.any() else None, extra=extra,
        ).reshape(-1)  # fmt: skip
        bound = bound - weight @ claim.constant
        require((bound > 0).all(), f"a leaf is not proved: its bound is {bound.min():.3g}")
        leaves.clear()


def replay(claim: Claim, network: Network, witness: Array) -> None:
    """The point is in the region and violates the property, in rational arithmetic."""
    require(witness.shape == claim.lower.shape, "a witness of another size")
    inside = np.all((witness >= claim.lower) & (witness <= claim.upper))
    require(inside, "the witness lies outside the region")
    x = [Fraction(v) for v in witness.tolist()]
    point = {"x": x, "y": network.exact(x)}
    values = [
        sum((Fraction(c) * point[s][k] for (s, k), c in atom.terms), constant)
        for atom, constant in claim.exact
    ]
    allowed = all(v >= 0 for v in values[len(values) - claim.required :])
    require(allowed, "the witness breaks a constraint of the region")

    def violated(tree: Tree) -> bool:
        if isinstance(tree, tuple):
            return (any if tree[0] == "any" else all)(violated(part) for part in tree[1])
        if isinstance(tree, bool):
            return tree
        return values[tree] >= 0 if claim.tie_violates else values[tree] > 0

    require(violated(claim.tree), "the witness satisfies the property")


@lru_cache(maxsize=4)  # certificates of one folder mostly share network and grouping
def _bounder(network: Network, count: int = 0, neurons: bytes = b"", reads: bytes = b"") -> Bounder:
    tables = (np.frombuffer(t, np.int64).reshape(max(count, 1), -1) for t in (neurons, reads))
    return Bounder(network, Groups(network, *tables) if count else None)


def audit(data: bytes, network: bytes) -> Answer:
    """Does this certificate prove its claim about the network in these ONNX bytes?"""
    verdict = "unknown"
    try:
        header, arrays = unpack(data)
        verdict = str(header["verdict"])
        require(header["format"] == 1, "a certificate of another version")
        require(digest(network) == header["network"], "another network")
        scales = (
            None if v is None else tuple(map(float, v)) for v in (header["mean"], header["std"])
        )
        chain = read_network(network, *scales)
        claim = claim_of(header, arrays["x0"], chain)
        if verdict == "falsified":
            replay(claim, chain, arrays["witness"])
        else:
            require(verdict == "verified", f"a verdict '{verdict}'")
            with np.errstate(all="ignore"):
                Proof(claim, chain, arrays).run()
    except (NotConfirmed, QllError) as error:
        return Answer(verdict, False, getattr(error, "what", str(error)))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        return Answer(verdict, False, f"damaged: {type(error).__name__}: {error}")
    return Answer(verdict, True, "proved" if verdict == "verified" else "replayed")
