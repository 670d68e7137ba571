"""Bounds of neurons where an obligation is violated: they hold at every violation, and no more is
proved with them than enumeration says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from verify_cases import random_network, sizes_of, worst_value

from qll.bounds.domain import Subdomain
from qll.bounds.rounding import Sizes
from qll.bounds.sparse_graph import SparseGraphBounder
from qll.bounds.violating import violating as neurons_where_violated
from qll.formula.hard import Min, affine
from qll.networks.relu_form import ReluForm
from qll.verify import depth_first, violating
from qll.verify.proof import Outcome, Subproblem
from qll.verify.prover import NeuronProver
from qll.verify.query import Query
from qll.verify.violating import Violations

pytest.importorskip("numba")


def never() -> bool:
    return False


def a_domain(seed: int) -> tuple[ReluForm, Sizes, SparseGraphBounder, Subdomain, np.ndarray]:
    """With two objectives and up to two splits, and many points of its box."""
    rng = np.random.default_rng(seed)
    form = random_network(rng, skips=True).relu_form
    lower = rng.standard_normal(form.input_size) - 1.0
    sizes = sizes_of(form, lower, lower + 2.0)
    bounder = SparseGraphBounder(form)
    low, high = bounder.interval(sizes, never)
    points = rng.uniform(lower, lower + 2.0, (4000, form.input_size))
    outputs = rng.standard_normal((2, 3))
    # most points violate neither
    constant = -np.quantile(form.forward(points) @ outputs.T, 0.4, axis=0)
    rows, offset = bounder.objectives(outputs, constant)
    domain = bounder.domain(low, high, rows, offset, sizes.objectives(outputs, constant))
    if seed % 2:
        bounder.join(low, high, [domain])
    hidden = np.hstack(form.pre_activations(points)[:-1])
    inside = ((form.forward(points) @ outputs.T + constant) <= 0).all(axis=1)
    for neuron in np.flatnonzero(bounder.splittable(domain))[: seed % 3]:
        above = bool(rng.random() < 0.5)
        domain = domain.side(bounder.split(domain, int(neuron)), above=above)
        inside &= hidden[:, neuron] >= 0 if above else hidden[:, neuron] <= 0
    return form, sizes, bounder, domain, hidden[inside]


def test_bounds_hold_at_every_violation() -> None:
    """With the multipliers of an ascent, and with any."""
    gained = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        _, sizes, bounder, domain, hidden = a_domain(seed)
        bounder.ascend([domain], sizes, 20, stop=never)
        bounds = neurons_where_violated(bounder, domain, 1.0)
        assert bounds is not None
        held = bounder.layout.sizes(sizes)
        for neuron in np.flatnonzero(bounder.splittable(domain)).tolist():
            for sign in (1, -1):
                target = bounds.target(neuron, sign, float(held[neuron]), None)
                wild = replace(
                    target,
                    alpha=rng.random(target.alpha.size).astype(np.float32),
                    beta=rng.random(target.beta.size).astype(np.float32),
                    weight=rng.random(target.weight.size).astype(np.float32),
                )
                bounds.ascend([target], sizes, 30, stop=never)
                found = bounds.evaluate([target, wild], sizes, stop=never)
                known = domain.low[neuron] if sign > 0 else -domain.high[neuron]
                gained += bool(found[0] > known + 1e-3)
                # what the ascent says of it is what the check does, up to single precision
                share = target.weight[0] / target.weight.sum() * target.objective[0, 2]
                single = known + target.bound / share
                assert single == pytest.approx(found[0], rel=1e-3, abs=1e-3 * (1 + abs(known)))
                if len(hidden):
                    assert found.max() <= (sign * hidden[:, neuron]).min() + 1e-9, seed
    assert gained > 20


@pytest.mark.parametrize("steps", [1, 10])
def test_a_round_keeps_every_violation(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(violating, "STEPS", steps)
    refuted = 0
    for seed in range(40):
        _, sizes, bounder, domain, hidden = a_domain(seed)
        bounder.ascend([domain], sizes, 20, stop=never)

        class Stub:
            """What a round asks of a search."""

            layout, neurons = bounder.layout, bounder.layout.sizes(sizes)
            outcome, deadline = Outcome(), np.inf

            @staticmethod
            def out_of_time() -> bool:
                return False

        run = Stub()
        run.bounder, run.sizes = bounder, sizes  # type: ignore[attr-defined]
        violations, node = Violations(run), Subproblem(0, domain)  # type: ignore[arg-type]
        held: dict[tuple[int, int], Subdomain] = {}
        for _ in range(3):
            if node.is_empty or not violations._round(node, held, np.inf):
                break
        refuted += node.is_empty
        low, high, sign = node.domain.low, node.domain.high, node.domain.sign
        assert ((low - 1e-9 <= hidden) & (hidden <= high + 1e-9)).all(), seed
        assert (hidden[:, sign > 0] >= -1e-9).all() and (hidden[:, sign < 0] <= 1e-9).all(), seed
        assert not (node.is_empty and len(hidden)), seed
    assert refuted


@pytest.mark.parametrize("hair", [1e-2, 1e-4, -1e-6])
def test_no_more_is_proved_than_holds(hair: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two-sided conditions with a threshold a hair from their largest value, by enumeration."""
    monkeypatch.setattr(depth_first, "fits", lambda form: False)
    rounds, proved = 0, 0

    class Counted(Violations):
        def _round(self, *given: object) -> bool:
            nonlocal rounds
            rounds += 1
            return super()._round(*given)  # type: ignore[arg-type]

    monkeypatch.setattr("qll.verify.prover.Violations", Counted)
    for seed in range(40):
        rng = np.random.default_rng(seed)
        network = random_network(rng, skips=True)
        form = network.relu_form
        lower = rng.standard_normal(form.input_size) - 1.0
        leaves = [
            affine([(("y", k), float(c)) for k, c in enumerate(rng.standard_normal(3))], 0.0)
            for _ in range(2)
        ]
        query = Query(network, lower, lower + 2.0, Min(tuple(leaves)))
        worst = worst_value(query)
        if not np.isfinite(worst):
            continue
        least = worst + hair * (1 + abs(worst))
        query = Query(
            network, lower, lower + 2.0,
            Min(tuple(affine(leaf.terms, leaf.constant - least) for leaf in leaves)),
        )  # fmt: skip
        prover = NeuronProver(SparseGraphBounder(form))
        prover.keeps = False
        outcome = prover.prove(query, np.inf, lambda *_: None, most_nodes=3000)
        assert not (outcome.proved and hair < 0), seed
        proved += outcome.proved
    assert rounds > 5
    assert proved >= {1e-2: 39, 1e-4: 20, -1e-6: 0}[hair]
