"""Says yes or no to a certificate, with numpy and onnx's file reader and nothing of the prover.

Confirmed means: in the stated arithmetic (real, or float32 in any order of summation), on the
weights stored in the ONNX file (and the stated normalisation), every point of the region satisfies
the property, or the named witness lies in the region and strictly violates it. Trusted besides this
package: numpy and IEEE arithmetic, the onnx reader, and `qll.formula`, which turns the property's
text into linear atoms.

A proof is a tree, in preorder, that refutes "the property is violated" on the box. At each node
stand a domain (a box, splits, proved bounds) and what a violation needs there: atoms that are all
> 0, and disjunctions of which a part must hold. An inner node splits a neuron at 0 (at a point, if
its activation is not a ReLU), halves an input, takes every part of a disjunction, or proves better
bounds of neurons from those before. A leaf shows that the domain is empty, or that a non-negative
combination of the needed atoms is negative on all of it (`qll.audit.bounds`), or not positive as a
difference of two runs (`qll.audit.slope`), or by the last layer alone; or its box is one point,
which does not violate the property, exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from qll.audit.bounds import Bounder, Groups
from qll.audit.claim import Claim, Goal, Tree
from qll.audit.exact import ONE, affine
from qll.audit.expected import Expected
from qll.audit.float32 import Errors
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
    Header,
    digest,
    fit,
    part,
    unpack,
)
from qll.audit.network import Array, Network, NotConfirmed, read_network, require
from qll.audit.pace import Beyond, breathe, paced, room
from qll.audit.statement import Statement
from qll.errors import QllError

BATCH, MOST_NUMBERS = 64, 1 << 26
CACHED = 1 << 15  # numbers of a layer's bounds that are worked on together: they stay in the cache


class Answer(NamedTuple):
    """``claim`` is what was checked, None if it could not be read; ``beyond``: not confirmed for
    want of time or room, or since the network is not read: it says nothing against the proof."""

    verdict: str
    confirmed: bool
    reason: str
    claim: Statement | None = None
    beyond: bool = False


@dataclass(frozen=True, eq=False)
class Domain:
    """A box, what a violation needs, what the network does there, the signs of split neurons."""

    box: tuple[Array, Array]
    atoms: tuple[int, ...]
    waiting: tuple[Tree, ...]
    area: Any = None  # qll.audit.bounds.Area
    sign: dict[int, int] = field(default_factory=dict)

    def need(self, tree: Tree, without: int = -1) -> Domain | None:
        """The same domain where a violation needs ``tree`` too; None: there is no violation."""
        parts = tree[1] if isinstance(tree, tuple) and tree[0] == "all" else (tree,)
        if any(part is False for part in parts):
            return None
        atoms = {*self.atoms, *(part for part in parts if type(part) is int)}
        waiting = [part for i, part in enumerate(self.waiting) if i != without]
        waiting += [part for part in reversed(parts) if isinstance(part, tuple)]
        return replace(self, atoms=tuple(sorted(atoms)), waiting=tuple(waiting))


class Proof:
    """One certificate's arrays, read from front to back while the tree is walked."""

    def __init__(self, claim: Goal, network: Network, arrays: dict[str, Any]) -> None:
        self.claim, self.arrays, self.used = claim, arrays, dict.fromkeys(arrays, 0)
        tables = (arrays[name].tobytes() for name in ("group_neurons", "group_inputs"))
        self.groups = _groups(network, int(arrays["groups"][0]), *tables)
        self.bounder = Bounder(claim.network, self.groups, claim.ball)
        self.plain = Bounder(claim.network, ball=claim.ball)
        self.starts = self.bounder.starts
        self.errors = Errors(claim.given) if claim.in_float32 else None
        self.last_error: tuple[Any, Array] | None = None  # of a box
        bent = [c is not None for c in claim.network.curves]
        self.curved = np.repeat(bent, claim.network.widths[1:-1])  # of all hidden neurons
        self.loose = np.flatnonzero(np.unpackbits(arrays["loose"], count=int(self.starts[-1])))
        self.leaves: dict[int, list[Any]] = {BOUND: [], CROWN: []}  # domain, weights, multipliers
        square = max(claim.network.widths[1:]) ** 2
        self.most = {BOUND: BATCH, CROWN: min(BATCH, max(1, CACHED // square))}

    def take(self, name: str, count: int) -> Any:
        at, self.used[name] = self.used[name], self.used[name] + count
        require(self.used[name] <= self.arrays[name].size, f"the certificate lacks {name}")
        return self.arrays[name][at : at + count]

    def fraction(self, name: str, count: int) -> Array:
        """Of alpha or delta, whatever their precision."""
        raw = self.take(name, count).astype(np.float64)
        if self.arrays[name].dtype == np.uint8:
            raw = raw / 255.0 if name == "alpha" else (raw - 128.0) / 127.0
        return np.asarray(raw)

    def run(self) -> None:
        claim, count = self.claim, len(self.claim.atoms)
        required = tuple(range(count - claim.required, count))
        stack = [Domain((claim.lower, claim.upper), required, ()).need(claim.tree)]
        nodes = zip(*(self.arrays[name].tolist() for name in ("kinds", "arguments")), strict=True)
        while stack:
            breathe()
            room(len(stack) * max(1000, self.starts[-1]) <= MOST_NUMBERS, "too deep a tree")
            if (domain := stack.pop()) is None:
                continue
            kind, argument = next(nodes, (-1, 0))
            if domain.area is None and kind in (BOUND, SPLIT, TIGHTEN, OPEN):
                domain = replace(domain, area=self.bounder.area(*domain.box))
            area = domain.area
            if kind in (BOUND, CROWN, ALWAYS, SLOPE):
                self.leaf(kind, domain)
            elif kind == EMPTY:
                require(area is not None and (area.low > area.high).any(), "a domain not empty")
            elif kind == POINT:
                one = (domain.box[0] == domain.box[1]).all()
                require(bool(one) and self.errors is None, "a box that is not one point")
                claim.refute(domain.box[0])
            elif kind == CASE:
                require(argument < len(domain.waiting), "a disjunction that is not there")
                parts = domain.waiting[argument][1]
                stack += [domain.need(part, argument) for part in reversed(parts)]
            elif kind == SPLIT:
                on, off = area.low.copy(), area.high.copy()
                at = float(self.take("points", 1)[0]) if self.curved[argument] else 0.0
                on[argument], off[argument] = max(on[argument], at), min(off[argument], at)
                for sign, side in ((1, {"low": on}), (-1, {"high": off})):
                    signs = {**domain.sign, argument: sign}
                    stack.append(replace(domain, area=replace(area, **side), sign=signs))
            elif kind == TIGHTEN:
                stack.append(self.tighten(domain, argument))
            elif kind == OPEN:  # with CROWN's bounds
                found = self.plain.crown(self.plain.area(*(t[None, None] for t in domain.box)))
                area = replace(area, low=found.low[0, 0], high=found.high[0, 0])
                stack.append(replace(domain, area=area, sign={}))
            else:
                require(kind == HALVE, "the proof is cut")
                (lower, upper), (right, left) = domain.box, (t.copy() for t in domain.box)
                left[argument] = right[argument] = (lower + (upper - lower) / 2)[argument]
                if self.claim.integers[argument]:  # below or from the next whole number on
                    left[argument] = np.floor(left[argument])
                    right[argument] = left[argument] + 1
                    require(left[argument] < upper[argument], "an integer that is halved")
                for box in ((right, upper), (lower, left)):  # bounds were of the whole: start anew
                    stack.append(Domain(box, domain.atoms, domain.waiting))
        for kind in [kind for kind, leaves in self.leaves.items() if leaves]:
            self.flush(kind)
        require(next(nodes, None) is None, "nodes are left over")
        for name in ("points", "beta", "weights"):
            require(self.used[name] == self.arrays[name].size, f"{name} are left over")

    def tighten(self, domain: Domain, count: int) -> Domain:
        """Proves ``sign z_i >= value`` for neurons of one layer, all from the bounds before."""
        room(count * self.starts[-1] <= MOST_NUMBERS, "too many bounds at once")
        targets = self.take("targets", count)
        at, sign = targets // 2, 1.0 - 2.0 * (targets % 2)
        layers = np.searchsorted(self.starts, at, side="right")  # at least 1: no target is negative
        require(layers.min() == layers.max(), "not bounds of one layer")
        layer, low, high = int(layers[0]), domain.area.low.copy(), domain.area.high.copy()
        b = np.zeros((count, self.claim.network.widths[layer]))
        b[np.arange(count), at - self.starts[layer - 1]] = sign
        bound = self.bounder.lower(domain.area, layer, b, **self.multipliers(domain, count))
        bound = np.where(np.isfinite(bound), bound, -np.inf)
        np.maximum.at(low, at[sign > 0], bound[sign > 0])
        np.minimum.at(high, at[sign < 0], -bound[sign < 0])
        return replace(domain, area=replace(domain.area, low=low, high=high))

    def multipliers(self, domain: Domain, count: int) -> dict[str, Any]:
        """Of the next ``count`` problems: alpha (0 where not given), beta times sign, delta."""
        alpha, push = np.zeros((2, count, int(self.starts[-1])))
        alpha[:, self.loose] = self.fraction("alpha", count * self.loose.size).reshape(count, -1)
        beta = self.take("beta", count * len(domain.sign)).astype(np.float64).reshape(count, -1)
        push[:, list(domain.sign)] = beta * list(domain.sign.values())
        found = {"alpha": alpha, "push": push}
        if self.groups is not None:
            delta = self.fraction("delta", count * self.groups.others.size).reshape(count, -1)
            if delta.size:
                delta = delta * self.take("delta_scale", count).astype(np.float64)[:, None]
            found["delta"] = delta
        return found

    def always(self, weight: Array) -> None:
        """Exactly: a combination of atoms without positive coefficients is never positive."""
        require(self.errors is None, "a proof by the last layer alone, in float32")
        claim, places = self.claim, [(0, i) for i in range(weight.size)]
        (total,) = affine(places, weight.tolist(), [0.0]).after(claim.network.maps[-1]).rows
        constant, network = total.pop(ONE, 0), claim.network
        strict = claim.tie_violates or claim.required
        direct = any(own for own, w in zip(claim.direct, weight, strict=True) if w)
        # Activations of ReLUs are not negative; of anything else nothing is known here.
        ends = [*network.starts[1:], sum(network.widths[:-1])]
        signed = {
            k for i, c in enumerate(network.curves) if c is None for k in range(*ends[i : i + 2])
        }
        fine = all(n == 0 or (n < 0 and k in signed) for k, n in total.items())
        fine = fine and len(network.maps) > 1 and not direct
        require(fine and constant <= -bool(strict), "a combination that can be positive")

    def leaf(self, kind: int, domain: Domain) -> None:
        multipliers = self.multipliers(domain, 1) if kind == BOUND else {}
        weight, leaves = np.zeros(len(self.claim.atoms)), self.leaves.get(kind, [])
        weight[list(domain.atoms)] = self.take("weights", len(domain.atoms))
        require(weight.max(initial=0.0) > 0, "weights that are not a combination")
        other = kind == BOUND and leaves and leaves[0][0].box is not domain.box
        if other or len(leaves) == self.most.get(kind):
            self.flush(kind)
        leaves.append((domain, weight, multipliers))
        if kind == ALWAYS:
            self.always(weight)
        elif kind == SLOPE:
            require(self.claim.pair is not None, "slopes of one run")
            self.claim.pair.refute(self.claim, domain.box, weight, self.plain, self.errors)  # type: ignore[union-attr]

    def flush(self, kind: int) -> None:
        """Check the collected leaves together."""
        domains, weights, multipliers = zip(*self.leaves[kind], strict=True)
        self.leaves[kind].clear()
        weight, inputs, bounder, given = np.array(weights), self.claim.inputs, self.plain, {}
        if kind == BOUND:
            ends = {n: np.stack([getattr(d.area, n) for d in domains]) for n in ("low", "high")}
            bounder, area = self.bounder, replace(domains[0].area, **ends)
            given = {n: np.concatenate([m[n] for m in multipliers]) for n in multipliers[0]}
        else:
            lower, upper = (np.stack([d.box[i] for d in domains])[:, None] for i in (0, 1))
            weight, area = weight[:, None], bounder.crown(bounder.area(lower, upper))
        direct = -weight @ inputs, weight @ np.abs(inputs)
        bound = bounder.lower(area, len(bounder.layers), -weight, direct, **given)
        if self.errors is not None:
            bound = bound - self.computed(kind, domains, area, weight) * (1 + 2.0**-40)
        proved = np.isfinite(bound).all() and (bound > 0).all()
        require(proved, f"a leaf is not proved: its bound is {bound.min():.3g}")

    def computed(self, kind: int, domains: Any, area: Any, weight: Array) -> Array:
        """How far float32 may move what the leaves bound, on the box of each."""
        if kind == BOUND:  # all of one box
            box = domains[0].box
            if self.last_error is None or self.last_error[0] is not box:
                found = self.plain.crown(self.plain.area(*(t[None, None] for t in box)))
                self.last_error = box, self.error(box, found.low[0, 0], found.high[0, 0])
            return np.asarray(weight @ self.last_error[1])
        box = tuple(np.stack([d.box[i] for d in domains]) for i in (0, 1))
        each = weight[:, 0] * self.error(box, area.low[:, 0], area.high[:, 0])
        return np.asarray(each.sum(-1)[:, None])

    def error(self, box: Any, low: Array, high: Array) -> Array:
        require(self.errors is not None, "no float32")
        return self.errors.radii(box, (low, high), self.claim.outputs)  # type: ignore[union-attr]


@lru_cache(maxsize=4)  # certificates of one folder mostly share network and grouping
def _groups(network: Network, count: int, neurons: bytes, inputs: bytes) -> Groups | None:
    tables = (np.frombuffer(t, np.int64).reshape(max(count, 1), -1) for t in (neurons, inputs))
    return Groups(network, *tables) if count else None


def audit(
    data: bytes,
    network: bytes,
    claim: Expected | None = None,
    *,
    against: bytes | None = None,
    stop: Callable[[], bool] | None = None,
) -> Answer:
    """Does this certificate prove its claim about the network in these ONNX bytes (and of that of
    x2, ``against``, where it is another one), and is that the ``claim`` of yours (see
    `qll.audit.read_claim`), if you give one? Not confirmed is what is not done when ``stop``, asked
    now and then, says so."""
    with paced(stop):
        return _audit(data, network, against, claim)


def _audit(data: bytes, network: bytes, against: bytes | None, claim: Expected | None) -> Answer:
    verdict, said, reading = "unknown", None, False
    try:
        header, arrays = unpack(data)
        verdict, said = header.verdict, Statement(header, arrays["x0"].astype(np.float64))
        require(digest(network) == header.network, "another network")
        second = None if against is None else digest(against)
        require(second == header.against, "another network of x2")
        single = header.arithmetic == "float32"
        reading = True
        chain = read_network(network, header.mean, header.std, single)
        other = None
        if against is not None:
            other = read_network(against, header.mean, header.std, single)
            sizes = [(n.widths[0], n.widths[-1]) for n in (chain, other)]
            require(sizes[0] == sizes[1], "two networks that do not fit together")
        reading = False
        x0 = arrays["x0"].astype(np.float64)
        require(x0.size == chain.widths[0] and np.isfinite(x0).all(), "x0 of another length")
        with np.errstate(all="ignore"):
            said, asked = _state(header, x0, chain, other)
            found = _fit(arrays, header, asked, x0.size)
            if claim is not None:
                claim.compare(said)
            if verdict == "falsified":
                asked.replay(found[0]["witness"])
            else:
                require(len(found) == len(asked.goals), "another number of cases")
                for goal, given in zip(asked.goals, found, strict=True):
                    Proof(goal, asked.network, given).run()
    except (NotConfirmed, QllError) as error:
        beyond = reading or isinstance(error, Beyond)
        return Answer(verdict, False, getattr(error, "what", str(error)), said, beyond)
    except Exception as error:  # whatever it stumbles over, the certificate is not understood
        return Answer(verdict, False, f"damaged: {type(error).__name__}: {error}", said)
    return Answer(verdict, True, "proved" if verdict == "verified" else "replayed", said)


def _fit(arrays: dict[str, Any], header: Header, claim: Claim, data: int) -> list[dict[str, Any]]:
    """The arrays of each case."""
    entries = len(claim.asked.ties.home)
    count = sum(name.partition(".")[0] == "kinds" for name in arrays)
    sizes = claim.network.widths, header.precision, data, entries
    return [fit(part(arrays, k), *sizes) for k in range(max(count, 1))]


def _state(
    header: Header, x0: Array, network: Network, against: Network | None
) -> tuple[Statement, Claim]:
    found, shape = Claim(header, x0, network, against), network.input_shape
    whole = Statement(header, x0, shape, network.widths[-1], found.region, found.inhabited)
    return whole, found
