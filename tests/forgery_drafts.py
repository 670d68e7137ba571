"""Proofs in the making, for forgers: nodes in preorder with what they take from the arrays."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from forgery_claims import False_

from qll.audit.bounds import Bounder
from qll.audit.check import Domain
from qll.audit.layout import (
    ALWAYS,
    BOUND,
    CASE,
    CROWN,
    EMPTY,
    HALVE,
    OPEN,
    SPLIT,
    TIGHTEN,
)

HUGE, TINY = float(np.finfo(np.float32).max), float(np.float32(2.0**-149))
Proof = tuple[dict[str, Any], dict[str, Any]]


@dataclass
class Draft:
    """A proof in the making, in preorder."""

    claim: False_
    rng: Any
    nodes: list[tuple[int, int]] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    alphas: list[Any] = field(default_factory=list)
    betas: list[float] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    points: list[float] = field(default_factory=list)  # where curved neurons are split
    groups: tuple[Any, Any] | None = None
    delta: Any = None  # (ties,) of every problem, in [-1, 1], and its scale
    scale: float = 0.0
    alpha: Any = None  # given, or drawn
    beta: float | None = None

    def root(self) -> Domain:
        claim = self.claim.claim
        count = len(claim.atoms)
        required = tuple(range(count - claim.required, count))
        found = Domain((claim.lower, claim.upper), required, ()).need(claim.tree)
        assert found is not None
        return found

    def node(self, kind: int, argument: int = 0) -> None:
        self.nodes.append((kind, argument))
        if kind == SPLIT and 0 <= argument < self.claim.neurons and self.claim.curved[argument]:
            at = [0.0, -1.0, 1.0, 0.25, 1e6, -1e6, 1e300, -1e300]
            self.points.append(float(self.rng.choice(at)))

    def problem(self, splits: int) -> None:
        options = [np.zeros, np.ones, self.rng.random, lambda n: self.rng.integers(0, 2, n)]
        alpha = self.alpha
        if alpha is None:
            alpha = options[int(self.rng.integers(4))](self.claim.neurons)
        self.alphas.append(np.asarray(alpha, dtype=np.float64))
        draw = [0.0, 0.25, 1.0, 8.0, HUGE, TINY]
        for _ in range(splits):
            self.betas.append(float(self.rng.choice(draw)) if self.beta is None else self.beta)

    def leaf(self, kind: int, domain: Domain, splits: int = 0, weights: Any = None) -> None:
        self.node(kind)
        if kind == BOUND:
            self.problem(splits)
        if kind != EMPTY:
            count = len(domain.atoms)
            if weights is None:
                weights = self.rng.choice([0.0, 1.0, 0.5, HUGE, TINY], count)
                weights = np.ones(count) if self.rng.random() < 0.5 else weights
            self.weights.extend(np.broadcast_to(weights, count).tolist())

    def cases(self, domain: Domain, kind: int, splits: int = 0, weights: Any = None) -> None:
        """Every conjunction closed by leaves of one kind."""
        if not domain.waiting:
            self.leaf(kind, domain, splits, weights)
            return
        self.node(CASE)
        for part in domain.waiting[0][1]:  # type: ignore[index]
            inner = domain.need(part, 0)
            if inner is not None:
                self.cases(inner, kind, splits, weights)

    def tighten(self, targets: list[int], splits: int = 0) -> None:
        self.node(TIGHTEN, len(targets))
        self.targets += targets
        for _ in targets:
            self.problem(splits)

    def ties(self) -> int:
        if self.groups is None:
            return 0
        real = self.groups[1][self.groups[1] < self.claim.network.widths[0]]
        return int(real.size - np.unique(real).size)

    def finish(self, **changes: Any) -> Proof:
        neurons, count, ties = self.claim.neurons, len(self.alphas), self.ties()
        bits = np.packbits(np.ones(neurons, dtype=bool))
        delta = np.zeros(ties) if self.delta is None else np.asarray(self.delta)
        tables, shape = (np.zeros(0), np.zeros(0)), [0, 0, 0]
        if self.groups is not None:
            tables = self.groups
            shape = [len(tables[0]), tables[0].shape[1], tables[1].shape[1]]
        kinds = {
            "x0": np.asarray(self.claim.x0, "<f8"),
            "kinds": np.array([k for k, _ in self.nodes], "u1"),
            "arguments": np.array([a for _, a in self.nodes], "<i8").astype("<u4"),
            "targets": np.array(self.targets, "<i8").astype("<u4"),
            "loose": bits,
            "groups": np.array(shape, "<u4"),
            "group_neurons": tables[0].ravel().astype("<u4"),
            "group_inputs": tables[1].ravel().astype("<u4"),
            "alpha": np.array(self.alphas).ravel().astype("<f4"),
            "delta": np.tile(delta, count).astype("<f4"),
            "delta_scale": np.full(count if ties else 0, self.scale).astype("<f4"),
            "points": np.array(self.points, "<f8"),
            "beta": np.array(self.betas).astype("<f4"),
            "weights": np.array(self.weights).astype("<f4"),
        }
        return self.claim.header, {**kinds, **changes}


# --- what is provable, so that only one step of a proof has to be false ---


def crown_bound(claim: False_, domain: Domain, weights: Any) -> float:
    bounder = Bounder(claim.claim.network)
    row = np.zeros(len(claim.claim.atoms))
    row[list(domain.atoms)] = weights
    with np.errstate(all="ignore"):
        area = bounder.crown(bounder.area(*(t[None, None] for t in domain.box)))
        inputs = claim.claim.inputs
        direct = -row[None, None] @ inputs, row[None, None] @ np.abs(inputs)
        found = bounder.lower(area, len(bounder.layers), -row[None, None], direct)
    return float(np.min(found))


def closed(claim: False_, domain: Domain) -> bool:
    """Whether CROWN with equal weights refutes every conjunction there."""
    if not domain.waiting:
        return bool(domain.atoms) and crown_bound(claim, domain, 1.0) > 0
    parts = [domain.need(part, 0) for part in domain.waiting[0][1]]  # type: ignore[index]
    return all(part is None or closed(claim, part) for part in parts)


def halves(domain: Domain, at: int, gap: int = 0) -> tuple[Domain, Domain]:
    """With a ``gap`` the left one ends at a whole number, the right one begins that much later."""
    lower, upper = domain.box
    left, right = upper.copy(), lower.copy()
    left[at] = right[at] = (lower + (upper - lower) / 2)[at]
    if gap:
        left[at] = np.floor(left[at])
        right[at] = left[at] + gap
    return (
        Domain((lower, left), domain.atoms, domain.waiting),
        Domain((right, upper), domain.atoms, domain.waiting),
    )


def boxes(draft: Draft, domain: Domain, depth: int, gadget: str, gap: int = 0) -> None:
    """An honest tree of halved boxes; what is not provable in the end is closed by a trick."""
    if closed(draft.claim, domain):
        draft.cases(domain, CROWN, weights=1.0)
        return
    wide = domain.box[1] - domain.box[0]
    if depth == 0 or not (wide > 0).any():
        trick(draft, domain, gadget)
        return
    at = int(wide.argmax())
    draft.node(HALVE, at)
    for half in halves(domain, at, gap or int(draft.claim.claim.integers[at])):
        boxes(draft, half, depth - 1, gadget, gap)


def trick(draft: Draft, domain: Domain, gadget: str) -> None:
    claim, rng = draft.claim, draft.rng
    neuron = int(rng.integers(claim.neurons))
    match gadget:
        case "nothing":
            return
        case "empty":
            draft.leaf(EMPTY, domain)
        case "open and empty":
            draft.node(OPEN)
            draft.leaf(EMPTY, domain)
        case "split and empty":
            draft.node(SPLIT, neuron)
            draft.leaf(EMPTY, domain)
            draft.leaf(EMPTY, domain)
        case "wrapped target":
            draft.tighten([int(v) for v in rng.choice([-1, -2, -3, -4], rng.integers(1, 3))])
            draft.leaf(EMPTY, domain)
        case "always":
            draft.cases(domain, ALWAYS, weights=float(rng.choice([1.0, TINY])))
        case "crown":
            weights = float(rng.choice([1.0, -1.0, HUGE, np.inf, -np.inf, np.nan, 0.0]))
            draft.cases(domain, CROWN, weights=weights)
        case "one side":
            draft.node(SPLIT, neuron)
            draft.cases(domain, BOUND, splits=1, weights=1.0)
        case _:
            draft.cases(domain, BOUND, weights=1.0)
