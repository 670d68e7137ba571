"""Forged proofs of false claims, by kind of attack: what someone would try who knows the checker.

They are not damaged proofs of true claims: trees are complete, arrays have the lengths that the
checker expects, multipliers and weights are those that help most, and each family does one thing
that a careless checker would let pass. ``forgeries`` yields certificates without end.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from audit_cases import seal, sealed
from forgery_claims import False_, false_claim, true_claim
from forgery_drafts import HUGE, TINY, Draft, Proof, boxes, halves

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
    POINT,
    SLOPE,
    SPLIT,
    TIGHTEN,
)

MOST_OF_ONE = 4  # forgeries of one family and one claim


# --- families ---


def tricked_boxes(claim: False_, rng: Any) -> Iterator[Proof]:
    gadgets = ("nothing", "empty", "open and empty", "split and empty", "wrapped target", "always",
               "crown", "one side", "bound")  # fmt: skip
    for gadget in gadgets:
        draft = Draft(claim, rng)
        boxes(draft, draft.root(), int(rng.integers(0, 5)), gadget)
        yield draft.finish()


def wrapped_targets(claim: False_, rng: Any) -> Iterator[Proof]:
    """Bounds of what is no hidden neuron, stored as if it were one."""
    n = claim.neurons
    for targets in ([-1], [-2], [-1, -2], [-2 * n], [2 * n], [2 * n + 1], [2**31], [-(2**31)]):
        for end in (EMPTY, BOUND):
            draft = Draft(claim, rng)
            draft.tighten(targets)
            draft.cases(draft.root(), end) if end == BOUND else draft.node(EMPTY)
            yield draft.finish()


def split_signs(claim: False_, rng: Any) -> Iterator[Proof]:
    """Neurons split, once or again, with multipliers of every size and sign."""
    n = claim.neurons
    for beta in (None, 1.0, -1.0, -8.0, HUGE, -HUGE, np.inf, -np.inf, np.nan, TINY):
        for depth in (1, 2, 3):
            draft = Draft(claim, rng, beta=beta)
            order = [int(rng.integers(n)) for _ in range(depth)]
            full(draft, draft.root(), order, 0, {})
            yield draft.finish()


def full(draft: Draft, domain: Domain, order: list[int], at: int, signs: dict[int, int]) -> None:
    if at == len(order):
        draft.cases(domain, BOUND, splits=len(signs), weights=1.0)
        return
    draft.node(SPLIT, order[at])
    for sign in (-1, 1):
        full(draft, domain, order, at + 1, {**signs, order[at]: sign})


def stable_splits(claim: False_, rng: Any) -> Iterator[Proof]:
    """A neuron whose sign is known is split: one side is empty, and in the other the multiplier of
    the split is worth anything, had it the wrong sign."""
    bounder, box = Bounder(claim.claim.network), (claim.claim.lower, claim.claim.upper)
    with np.errstate(all="ignore"):
        area = bounder.area(*box)
    for neuron in np.flatnonzero((area.low > 0) | (area.high < 0)).tolist():
        for beta in (-1.0, 1.0, -1e3, 1e3, -HUGE, HUGE):
            draft = Draft(claim, rng, beta=beta)
            draft.node(SPLIT, neuron)
            for sign in (-1, 1):
                if (area.low[neuron] > 0) == (sign < 0):
                    draft.node(EMPTY)
                else:
                    draft.cases(draft.root(), BOUND, splits=1, weights=1.0)
            yield draft.finish()


def one_side(claim: False_, rng: Any) -> Iterator[Proof]:
    """Children of a split that are left out, doubled or put in each other's place."""
    n = claim.neurons
    for neuron in range(n):
        for beta in (0.0, 0.25, 1.0, 4.0, 16.0):
            for count in (1, 2):
                draft = Draft(claim, rng, beta=beta)
                draft.node(SPLIT, neuron)
                for _ in range(count):
                    draft.cases(draft.root(), BOUND, splits=1, weights=1.0)
                yield draft.finish()
        draft = Draft(claim, rng)
        draft.node(SPLIT, neuron)
        draft.node(EMPTY)
        draft.cases(draft.root(), BOUND, splits=1, weights=1.0)
        yield draft.finish()


def one_half(claim: False_, rng: Any) -> Iterator[Proof]:
    """One half of a box that is proved, once or for both."""
    for at in range(claim.network.widths[0]):
        for chosen in (0, 1):
            half = halves(Draft(claim, rng).root(), at)[chosen]
            for count in (1, 2):
                draft = Draft(claim, rng)
                draft.node(HALVE, at)
                for _ in range(count):
                    boxes(draft, half, 4, "nothing")
                yield draft.finish()


def skipped_cases(claim: False_, rng: Any) -> Iterator[Proof]:
    """Parts of a disjunction that are left out, doubled, or of no disjunction."""
    root = Draft(claim, rng).root()
    if not root.waiting:
        draft = Draft(claim, rng)
        draft.node(CASE, int(rng.choice([0, 1, 2**31, 2**32 - 1])))
        draft.leaf(CROWN, root, weights=1.0)
        yield draft.finish()
        return
    parts = [root.need(part, 0) for part in root.waiting[0][1]]  # type: ignore[index]
    inner = [part for part in parts if part is not None]
    for size in range(1, len(inner) + 1):
        for kept in itertools.islice(itertools.combinations(inner, size), 6):
            draft = Draft(claim, rng)
            draft.node(CASE, int(rng.choice([0, 0, 0, 1, 2**32 - 1])))
            for part in kept:
                boxes(draft, part, 2, "nothing")
            yield draft.finish()
            draft = Draft(claim, rng)
            draft.node(CASE)
            for _ in inner:
                boxes(draft, kept[0], 2, "nothing")
            yield draft.finish()


def weights(claim: False_, rng: Any) -> Iterator[Proof]:
    """Combinations that are none."""
    root = Draft(claim, rng).root()
    count = max(len(root.atoms), 1)
    for kind in (BOUND, CROWN, ALWAYS):
        draft = Draft(claim, rng)
        draft.cases(root, kind, weights=-1.0)
        yield draft.finish()
        for _ in range(4):
            values = [1.0, -1.0, -0.5, 0.0, HUGE, -HUGE, TINY, -TINY, np.inf, -np.inf, np.nan]
            chosen = rng.choice(values, count)
            draft = Draft(claim, rng)
            draft.cases(root, kind, weights=float(chosen[0]))
            yield draft.finish()
            if not root.waiting:
                draft = Draft(claim, rng)
                draft.leaf(kind, root, weights=chosen)
                yield draft.finish()
        if not root.waiting and count > 1:  # all but nothing of one, less than nothing of another
            opposite = np.full(count, TINY)
            opposite[int(rng.integers(count))] = -1.0
            draft = Draft(claim, rng)
            draft.leaf(kind, root, weights=opposite)
            yield draft.finish()


def multipliers(claim: False_, rng: Any) -> Iterator[Proof]:
    """Slopes outside [0, 1], and what is not a number."""
    for most in (1.5, 1.5, 2.0, 2.0, 4.0, 8.0, 8.0, 64.0):
        values = rng.uniform(0.0, most, claim.neurons)
        draft = Draft(claim, rng, alpha=values)
        draft.cases(draft.root(), BOUND, weights=1.0)
        yield draft.finish()
    for value in (-1.0, 2.0, -1e3, 1e3, HUGE, -HUGE, np.inf, -np.inf, np.nan, 1.0, 0.0):
        draft = Draft(claim, rng, alpha=np.full(claim.neurons, value))
        draft.cases(draft.root(), BOUND, weights=1.0)
        yield draft.finish()
        draft = Draft(claim, rng, alpha=np.full(claim.neurons, value))
        draft.tighten([int(v) for v in rng.integers(0, 2 * claim.neurons, 2)])
        draft.cases(draft.root(), BOUND, weights=1.0)
        yield draft.finish()


def tightened(claim: False_, rng: Any) -> Iterator[Proof]:
    """Bounds of neurons, from bounds of others, in rounds; then a leaf or 'empty'."""
    starts = np.cumsum([0, *claim.network.widths[1:-1]])
    for _ in range(6):
        draft, splits = Draft(claim, rng), 0
        for _ in range(int(rng.integers(1, 4))):
            k = int(rng.integers(len(starts) - 1))
            count = int(rng.integers(1, 4))
            draft.tighten([int(v) for v in rng.integers(2 * starts[k], 2 * starts[k + 1], count)])
        if rng.random() < 0.3:
            draft.node(OPEN)
        draft.cases(draft.root(), BOUND, splits) if rng.random() < 0.7 else draft.node(EMPTY)
        yield draft.finish()


def groups(claim: False_, rng: Any) -> Iterator[Proof]:
    """Groups that are no partition, without neurons, with an input twice or without one, and
    multipliers that make sums over copies lose what is small."""
    n, m = claim.network.widths[1], claim.network.widths[0]
    whole = np.tile(np.arange(m), (n, 1))
    honest = np.arange(n)[:, None], whole
    missing = np.where(whole == int(rng.integers(m)), m, whole)
    blind = honest[0], np.full_like(whole, m)
    twice = honest[0], np.concatenate([whole, whole], axis=1)
    doubled = np.concatenate([honest[0], honest[0]]), np.concatenate([whole, whole])
    lacking = honest[0][: n - 1], whole[: n - 1]
    nobody = np.full((1, 1), n), whole[:1]
    for tables in (honest, (honest[0], missing), blind, twice, doubled, lacking, nobody):
        if not len(tables[0]):
            continue
        for scale in (0.0, 1.0, HUGE, np.inf, np.nan):
            draft = Draft(claim, rng, groups=tables, scale=scale)
            draft.delta = rng.choice([-1.0, 0.0, 1.0, 0.5], draft.ties())
            draft.cases(draft.root(), BOUND, weights=1.0)
            yield draft.finish()


def lost_copies(claim: False_, rng: Any) -> Iterator[Proof]:
    """Groups without neurons, one after another, that each copy an input: a sum of as many terms
    as one likes, of which the small ones are lost beside a large one and taken off in the end."""
    n, m = claim.network.widths[1], claim.network.widths[0]
    many = int(rng.choice([200, 20_000, 60_000]))
    neurons = np.full((n + many, 1), n)
    neurons[:n, 0] = np.arange(n)
    inputs = np.full((n + many, m), m)
    inputs[:n] = np.arange(m)
    at = int(rng.integers(m))
    inputs[n:, 0] = at
    for sign in (1.0, -1.0):
        draft = Draft(claim, rng, groups=(neurons, inputs), scale=2.0**56, beta=0.0)
        first = n * m - m  # other copies of the honest groups come before
        delta = np.zeros(draft.ties())
        delta[first:] = -sign * 2.0**-56
        delta[first], delta[-1] = sign, -sign
        draft.delta = delta
        draft.node(SPLIT, int(rng.integers(claim.neurons)))  # two problems: sums go row by row
        draft.cases(draft.root(), BOUND, splits=1, weights=1.0)
        draft.cases(draft.root(), BOUND, splits=1, weights=1.0)
        yield draft.finish()


def several_boxes(claim: False_, rng: Any) -> Iterator[Proof]:
    """Leaves of different boxes that are checked together."""
    for at in range(claim.network.widths[0]):
        for alpha in (0.0, 1.0):
            draft = Draft(claim, rng, alpha=np.full(claim.neurons, alpha))
            draft.node(HALVE, at)
            for half in halves(draft.root(), at):
                draft.cases(half, BOUND, weights=1.0)
            yield draft.finish()


def gaps(claim: False_, rng: Any) -> Iterator[Proof]:
    """Boxes that are cut at whole numbers, whether or not inputs are, and numbers left out."""
    for gap in (1, 2):
        draft = Draft(claim, rng)
        boxes(draft, draft.root(), 5, "nothing", gap)
        yield draft.finish()


def slopes(claim: False_, rng: Any) -> Iterator[Proof]:
    """Differences of two runs: of the whole, of halves, and of combinations that are none."""
    for weights in (1.0, 0.25):
        draft = Draft(claim, rng)
        draft.cases(draft.root(), SLOPE, weights=weights)
        yield draft.finish()
    for at in range(claim.network.widths[0]):
        draft = Draft(claim, rng)
        draft.node(HALVE, at)
        for half in halves(draft.root(), at):
            kind = SLOPE if rng.random() < 0.7 else CROWN
            draft.cases(half, kind, weights=1.0)
        yield draft.finish()


def points(claim: False_, rng: Any) -> Iterator[Proof]:
    """One point that satisfies the property stands for a box: the whole, its halves, the last of
    many halvings."""
    for depth in (0, 1, 2, 6):
        draft = Draft(claim, rng)
        work = [(draft.root(), depth)]
        while work:
            domain, left = work.pop()
            wide = np.flatnonzero(domain.box[0] < domain.box[1])
            if not left or not wide.size:
                draft.node(POINT)
                continue
            at = int(rng.choice(wide))
            draft.node(HALVE, at)
            work += [(half, left - 1) for half in halves(domain, at)[::-1]]
        yield draft.finish()


def opened(claim: False_, rng: Any) -> Iterator[Proof]:
    """CROWN's bounds after splits, whose signs are then no longer known."""
    for splits in (0, 1, 2):
        for beta in (0.0, 1.0, HUGE):
            draft = Draft(claim, rng, beta=beta)
            for _ in range(splits):
                draft.node(SPLIT, int(rng.integers(claim.neurons)))
            for _ in range(1 << splits):
                draft.node(OPEN)
                draft.cases(
                    draft.root(), BOUND, splits=int(rng.integers(0, splits + 1)), weights=1.0
                )
            yield draft.finish()


def random_trees(claim: False_, rng: Any) -> Iterator[Proof]:
    for _ in range(10):
        draft = Draft(claim, rng)
        if rng.random() < 0.3:
            n, m = claim.network.widths[1], claim.network.widths[0]
            draft.groups = np.arange(n)[:, None], np.tile(np.arange(m), (n, 1))
            draft.scale = float(rng.choice([0.0, 1.0, 1e6, HUGE]))
            draft.delta = rng.uniform(-1, 1, draft.ties())
        grow(draft, draft.root(), {}, 4)
        yield draft.finish()


def grow(draft: Draft, domain: Domain | None, signs: dict[int, int], depth: int) -> None:
    if domain is None:
        return
    rng, claim = draft.rng, draft.claim
    kinds = [BOUND, BOUND, CROWN, ALWAYS, EMPTY]
    if depth:
        kinds += [SPLIT, SPLIT, TIGHTEN, HALVE, OPEN] + [CASE] * 3 * bool(domain.waiting)
    kind = int(rng.choice(kinds))
    if kind == SPLIT:
        neuron = int(rng.integers(claim.neurons))
        draft.node(SPLIT, neuron)
        for sign in (-1, 1):
            grow(draft, domain, {**signs, neuron: sign}, depth - 1)
    elif kind == TIGHTEN:
        starts = np.cumsum([0, *claim.network.widths[1:-1]])
        k = int(rng.integers(len(starts) - 1))
        targets = rng.integers(2 * starts[k], 2 * starts[k + 1], rng.integers(1, 4))
        draft.tighten([int(v) for v in targets], len(signs))
        grow(draft, domain, signs, depth - 1)
    elif kind == HALVE:
        at = int(rng.integers(claim.network.widths[0]))
        draft.node(HALVE, at)
        for half in halves(domain, at):
            grow(draft, half, {}, depth - 1)
    elif kind == OPEN:
        draft.node(OPEN)
        grow(draft, domain, {}, depth - 1)
    elif kind == CASE:
        at = int(rng.integers(len(domain.waiting)))
        draft.node(CASE, at)
        for part in domain.waiting[at][1]:  # type: ignore[index]
            grow(draft, domain.need(part, at), signs, depth - 1)
    else:
        draft.leaf(kind, domain, len(signs))


def odd_nodes(claim: False_, rng: Any) -> Iterator[Proof]:
    """Arguments and kinds that do not exist, proofs that end early or late."""
    n, m = claim.neurons, claim.network.widths[0]
    for kind, argument in (
        (SPLIT, n), (SPLIT, -1), (HALVE, m), (HALVE, -1), (TIGHTEN, 0), (TIGHTEN, -1), (CASE, -1),
        (EMPTY, 1), (BOUND, 1), (11, 0), (255, 0), (OPEN, 1), (POINT, 1),
    ):  # fmt: skip
        draft = Draft(claim, rng)
        draft.node(kind, argument)
        for _ in range(int(rng.integers(0, 3))):
            draft.cases(draft.root(), int(rng.choice([BOUND, CROWN])), weights=1.0)
        draft.node(EMPTY)
        yield draft.finish()
    yield Draft(claim, rng).finish()


FAMILIES = {
    "tricked boxes": tricked_boxes, "wrapped targets": wrapped_targets, "split signs": split_signs,
    "stable splits": stable_splits, "one side": one_side, "one half": one_half,
    "skipped cases": skipped_cases, "weights": weights, "multipliers": multipliers,
    "tightened": tightened, "groups": groups, "lost copies": lost_copies, "opened": opened,
    "several boxes": several_boxes, "gaps": gaps, "points": points, "slopes": slopes,
    "random trees": random_trees, "odd nodes": odd_nodes,
}  # fmt: skip


def lying_lengths(proof: Proof, rng: Any) -> bytes:
    """The same bytes under lengths that are not theirs."""
    header, arrays = proof
    lengths: dict[str, Any] = {name: a.size for name, a in arrays.items()}
    name = str(rng.choice(list(lengths)))
    lengths[name] = [-1, lengths[name] + 1, 2**31, 1.0, True, None, "1"][int(rng.integers(7))]
    head = json.dumps({**header, "arrays": lengths}).encode()
    return sealed(head, b"".join(a.tobytes() for a in arrays.values()))


def forged_witnesses(seed: int) -> Iterator[tuple[str, False_, bytes]]:
    """'falsified', of properties that hold: points outside, on the boundary, not numbers."""
    rng = np.random.default_rng(seed)
    while True:
        claim = true_claim(rng)
        lower, upper = claim.lower, claim.upper
        best = np.array([float(v) for v in claim.witness])
        beyond = upper + (upper - lower + 1) * float(rng.choice([1e-16, 1e-3, 1.0, 1e3]))
        for witness in (
            best, lower, upper, beyond, -beyond, np.nextafter(upper, np.inf), best[:0],
            np.nextafter(best, np.inf), np.full_like(best, np.nan), np.full_like(best, np.inf),
            np.append(best, 0.0), rng.uniform(lower, upper),
        ):  # fmt: skip
            arrays = {"x0": np.asarray(claim.x0, "<f8"), "witness": np.asarray(witness, "<f8")}
            yield "witnesses", claim, seal({**claim.header, "verdict": "falsified"}, arrays)


def forgeries(
    seed: int, families: Any = None, make: Any = false_claim
) -> Iterator[tuple[str, False_, bytes]]:
    """Certificates of false claims, by family, without end."""
    rng = np.random.default_rng(seed)
    while True:
        claim = make(rng)
        if claim is None:
            continue
        for name in families or FAMILIES:
            proofs = list(FAMILIES[name](claim, rng))
            for at in rng.permutation(len(proofs))[:MOST_OF_ONE].tolist():
                yield name, claim, seal(*proofs[at])
            if proofs and rng.random() < 0.1:
                yield "lengths that lie", claim, lying_lengths(proofs[-1], rng)
