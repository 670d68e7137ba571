"""Compiled bounds of any ReLU graph against the torch reference, which has joint hulls too."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from verify_cases import FormNetwork, random_network, sizes_of, worst_value

from qll.bounds.graph import GraphBounder
from qll.bounds.lanes import ChainBounder
from qll.bounds.sparse_graph import SparseGraphBounder
from qll.exchange.files import read
from qll.formula.hard import affine
from qll.networks import load
from qll.networks.relu_form import FormLayer, ReluForm
from qll.verify.backend import Budget
from qll.verify.backends import bab
from qll.verify.backends.bab import BranchAndBound
from qll.verify.certificate import confirm
from qll.verify.documents import queries
from qll.verify.proof import NeuronProof
from qll.verify.prover import NeuronProver
from qll.verify.query import Query
from qll.verify.restricted import restrict_by_crown
from qll.verify.verdict import Evidence, Status, Verdict

pytest.importorskip("numba")


def never() -> bool:
    return False


@pytest.mark.parametrize("inputs", [False, True])
def test_it_is_the_reference_without_hulls(inputs: bool) -> None:
    for seed in range(25):
        rng = np.random.default_rng(seed)
        form = random_network(rng, skips=True).relu_form
        lower = rng.standard_normal(form.input_size) - 1.0
        sizes = sizes_of(form, lower, lower + 2.0)
        reference, bounder = GraphBounder(form), SparseGraphBounder(form)
        low, high = reference.interval(sizes, never)
        columns = rng.standard_normal((2, form.input_size)) if inputs else None
        outputs, constant = rng.standard_normal((2, 3)), rng.standard_normal(2)
        rows, offset = bounder.objectives(outputs, constant, columns)
        size = sizes.objectives(outputs, constant, columns)
        domain = bounder.domain(low, high, rows, offset, size)
        for neuron in np.flatnonzero(bounder.splittable(domain))[:2]:
            split = bounder.split(domain, int(neuron))
            domain = domain.side(split, above=bool(rng.random() < 0.5))
        domains = [replace(domain), replace(domain), domain]
        domains[1].alpha = rng.random(len(low)).astype(np.float32)
        bounder.ascend(domains[:1], sizes, 40, stop=never)
        bounder.ascend(domains[1:], sizes, 0, stop=never)
        found = bounder.evaluate(domains, sizes, stop=never)
        batch, multipliers = reference._batch(domains, sizes)
        multipliers = reference.crown.project(
            replace(multipliers, delta=batch.lower.new_zeros(3, reference.crown.copies)), batch
        )
        expected = reference.crown(batch, multipliers, hull=False).value.numpy()
        scale = 1.0 + np.abs(expected)
        assert (found <= expected + 1e-12 * scale).all(), seed
        assert (np.abs(found - expected) <= 1e-9 * scale).all(), seed
        singles = np.array([d.bound for d in domains])
        assert (np.abs(singles - expected) <= 1e-4 * scale).all(), seed
        assert found[0] >= found[2] - 1e-5 * scale[2], seed


def test_joint_hulls_are_the_references() -> None:
    """All neurons of the first layer are unstable, so that both have the same groups."""
    better = 0
    for seed in range(25):
        rng = np.random.default_rng(seed)
        widths = [6, int(rng.integers(3, 11)), 4, 3]
        layers = []
        for k in range(1, 4):
            weight = rng.standard_normal((widths[k], widths[k - 1]))
            if k == 1:
                weight[: widths[1] // 2, :3] = 0.0  # other groups, of other inputs
            direct = [(0, rng.standard_normal((widths[k], 6)))] if k == 2 else []
            bias = np.zeros(widths[k]) if k == 1 else rng.standard_normal(widths[k])
            layers.append(FormLayer(bias, (*direct, (k - 1, weight))))
        form = ReluForm((6,), tuple(layers))
        sizes = sizes_of(form, -np.ones(6), np.ones(6))
        reference, bounder = GraphBounder(form), SparseGraphBounder(form)
        low, high = reference.interval(sizes, never)
        outputs, constant = rng.standard_normal((2, 3)), rng.standard_normal(2)
        rows, offset = bounder.objectives(outputs, constant)
        domain = bounder.domain(low, high, rows, offset, sizes.objectives(outputs, constant))
        for neuron in rng.choice(np.flatnonzero(bounder.splittable(domain)), 2, replace=False):
            split = bounder.split(domain, int(neuron))
            domain = domain.side(split, above=bool(rng.random() < 0.5))
        domains = [replace(domain), replace(domain), replace(domain), domain]
        bounder.ascend(domains[3:], sizes, 0, stop=never)
        plain = bounder.evaluate(domains[3:], sizes, stop=never)[0]
        assert bounder.join(low, high, domains) == reference.copies
        domains[2].delta = rng.standard_normal(reference.copies).astype(np.float32)
        home = reference.groups.copy_home
        is_home = home == np.arange(len(home))
        domains[2].delta[is_home] = 0.0
        np.subtract.at(domains[2].delta, home[~is_home], domains[2].delta[~is_home])
        bounder.ascend(domains[:1], sizes, 60, stop=never)
        bounder.ascend(domains[1:], sizes, 0, stop=never)
        found = bounder.evaluate(domains, sizes, stop=never)
        batch, multipliers = reference._batch(domains, sizes)
        expected = reference.crown(batch, reference.crown.project(multipliers, batch)).value.numpy()
        scale = 1.0 + np.abs(expected)
        assert (found <= expected + 1e-12 * scale).all(), seed
        assert (np.abs(found - expected) <= 1e-6 * scale).all(), seed
        singles = np.array([d.bound for d in domains])
        assert (np.abs(singles - expected) <= 1e-4 * scale).all(), seed
        assert found[3] >= plain - 1e-9 * scale[3], seed
        better += found[0] > found[1] + 1e-6 and found[3] > plain + 1e-6
    assert better > 10


def test_bounds_with_joint_hulls_hold() -> None:
    """By enumeration, with any multipliers, on the parts of a split together."""
    tight = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        form = random_network(rng, skips=True).relu_form
        lower = rng.standard_normal(form.input_size) - 1.0
        sizes = sizes_of(form, lower, lower + 2.0)
        bounder = SparseGraphBounder(form)
        low, high = bounder.interval(sizes, never)
        outputs = rng.standard_normal((1, 3))
        rows, offset = bounder.objectives(outputs, np.zeros(1))
        domain = bounder.domain(low, high, rows, offset, sizes.objectives(outputs, np.zeros(1)))
        bounder.join(low, high, [domain])
        parts = [domain]
        for neuron in np.flatnonzero(bounder.splittable(domain))[:2].tolist():
            split = bounder.split(domain, neuron)
            parts = [part.side(split, above=above) for part in parts for above in (True, False)]
        terms = [(("y", k), -float(c)) for k, c in enumerate(outputs[0])]
        query = Query(FormNetwork(form), lower, lower + 2.0, affine(terms, 0.0))
        least = -worst_value(query)
        bounder.ascend(parts, sizes, 60, stop=never)
        found = bounder.evaluate(parts, sizes, stop=never).min()
        for part in parts:
            part.delta = (part.delta + rng.standard_normal(part.delta.size)).astype(np.float32)
            part.alpha = rng.random(len(low)).astype(np.float32)
        anything = bounder.evaluate(parts, sizes, stop=never).min()
        scale = 1e-9 * (1.0 + abs(least))
        assert max(found, anything) <= least + scale, seed
        tight += found >= least - 1e-3 * (1.0 + abs(least))
    assert tight > 20


@pytest.mark.parametrize("bounds", [ChainBounder, SparseGraphBounder])
def test_a_split_on_a_lower_line_begins_with_a_bound_no_worse(
    bounds: type[ChainBounder] | type[SparseGraphBounder],
) -> None:
    lines = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        form = random_network(rng).relu_form
        lower = rng.standard_normal(form.input_size) - 1.0
        sizes = sizes_of(form, lower, lower + 2.0)
        bounder = bounds(form)
        low, high = bounder.interval(sizes, never)
        outputs, constant = rng.standard_normal((2, 3)), rng.standard_normal(2)
        size = sizes.objectives(outputs, constant)
        domain = bounder.domain(low, high, *bounder.objectives(outputs, constant), size)
        bounder.ascend([domain], sizes, 60, stop=never)
        (whole,) = bounder.evaluate([domain], sizes, stop=never)
        for neuron in np.flatnonzero(bounder.splittable(domain)):
            split = bounder.split(domain, int(neuron))
            parts = [domain.side(split, above=above) for above in (True, False)]
            found = bounder.evaluate(parts, sizes, stop=never)
            if domain.pull[neuron] >= 0.0:  # its lower line counts, else its chord
                assert (found >= whole - 1e-5 * (1.0 + abs(whole))).all(), (seed, neuron)
                lines += domain.pull[neuron] > 0.0
    assert lines > 10


def test_bounds_of_hidden_neurons_hold() -> None:
    better = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        form = random_network(rng, skips=True).relu_form
        lower = rng.standard_normal(form.input_size) - 1.0
        sizes = sizes_of(form, lower, lower + 2.0)
        bounder = SparseGraphBounder(form)
        low, high = bounder.interval(sizes, never)
        z = np.concatenate(
            form.pre_activations(rng.uniform(lower, lower + 2.0, (300, form.input_size)))[:-1], 1
        )
        for layer in range(1, bounder.layout.layers):
            part, below = bounder.layout.part(layer), bounder.below(layer)
            held = bounder.layout.sizes(sizes)
            count = below.layout.neurons
            for i in range(part.stop - part.start):
                row, offset = below.output(i, -1)
                size = held[part.start + i][None]
                domain = below.domain(low[:count], high[:count], row, offset, size)
                below.ascend([domain], sizes, 20, stop=never)
                (bound,) = below.evaluate([domain], sizes, stop=never)
                assert -bound >= z[:, part.start + i].max() - 1e-9, (seed, layer, i)
                better += -bound < high[part.start + i] - 1e-6
    assert better > 5


def test_crown_of_hidden_neurons_is_the_references() -> None:
    """No wider, at most by rounding tighter where interval arithmetic is no better; and it holds at
    every point, by enumeration."""
    open_ = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        form = random_network(rng, skips=True).relu_form
        lower = rng.standard_normal(form.input_size) - 1.0
        sizes = sizes_of(form, lower, lower + 2.0)
        low, high = SparseGraphBounder(form).interval(sizes, never)
        expected = GraphBounder(form).interval(sizes_of(form, lower, lower + 2.0), never)
        scale = 1e-9 * (1.0 + np.abs(expected[0]) + np.abs(expected[1]))
        assert (low >= expected[0] - scale).all() and (high <= expected[1] + scale).all(), seed
        first = np.cumsum([0, *(layer.width for layer in form.layers[:-1])])
        for k, layer in enumerate(form.layers[:-1]):
            below = FormNetwork(ReluForm(form.input_shape, form.layers[: k + 1]))
            for i in range(layer.width):
                at = first[k] + i
                open_ += k > 0 and low[at] < 0 < high[at]
                sides = (([(("y", i), 1.0)], -high[at]), ([(("y", i), -1.0)], low[at]))
                for terms, constant in sides:
                    query = Query(below, lower, lower + 2.0, affine(terms, float(constant)))
                    assert worst_value(query) <= 1e-9 * (1.0 + abs(constant)), (seed, k, i)
    assert open_ > 5


def test_many_queries_of_one_network_are_proved_at_once_if_they_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By CROWN alone, each against enumeration."""
    monkeypatch.setattr("qll.verify.backends.bab.FEW_INPUTS", 0)
    proved: list[Verdict] = []
    tell = bab._as_verdict
    monkeypatch.setattr(
        bab, "_as_verdict", lambda *given: proved.append(tell(*given)) or proved[-1]
    )
    monkeypatch.setattr(BranchAndBound, "_prove", lambda *_, **__: Verdict(Status.UNKNOWN, "none"))
    monkeypatch.setattr(BranchAndBound, "_lightly", lambda *_: None)
    violated = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        network = random_network(rng, skips=True)
        size = network.relu_form.input_size
        queries = []
        for _ in range(6):
            lower, width = rng.standard_normal(size), 0.5 * rng.random(size)
            row = [(("y", k), float(c)) for k, c in enumerate(rng.standard_normal(3))]
            query = Query(network, lower, lower + width, affine(row, 0.0))
            level = worst_value(query) * rng.choice([0.9, 1.3]) + rng.choice([-0.01, 0.01])
            queries.append(replace(query, condition=affine(row, -float(level))))
        for query, verdict in zip(
            queries, BranchAndBound().decide(queries, Budget(5.0)), strict=True
        ):
            worst = worst_value(query)
            violated += worst > 0
            assert verdict.status is not (Status.VERIFIED if worst > 0 else Status.FALSIFIED), seed
    assert len(proved) > 8 and violated > 8


@pytest.mark.parametrize(
    ("name", "index"), [("oval21", 0), pytest.param("sri_resnet_a", 30, marks=pytest.mark.slow)]
)
def test_bounds_hold_on_a_network_of_the_competition(name: str, index: int, shared: Path) -> None:
    """Of the neurons of the restricted network, by CROWN and by an ascent, at random points and at
    corners of the box."""
    folder = shared / "vnncomp" / name
    with (folder / "instances.csv").open() as stream:
        row = list(csv.DictReader(stream))[index]
    paths = (folder / row[key] for key in ("network", "property"))
    network, file = (p if p.exists() else p.with_name(f"{p.name}.gz") for p in paths)
    (query,) = queries(read(file), load(network))
    small = restrict_by_crown(query, never)
    assert small is not None and small.known is not None and small.query is not query
    form, rng = small.query.form, np.random.default_rng(0)
    share = rng.random((60, form.input_size))
    share[::2] = share[::2] > 0.5
    points = small.query.lower + share * (small.query.upper - small.query.lower)
    values = form.pre_activations(points)
    whole = query.form.forward(small.expand(points))
    assert np.abs(values[-1] - whole).max() < 1e-9
    for z, low, high in zip(values, *small.known, strict=False):
        assert ((low <= z) & (z <= high)).all()
    bounder, layer = SparseGraphBounder(form), len(form.layers) - 2
    sizes = sizes_of(form, small.query.lower, small.query.upper)
    low, high = bounder.interval(sizes, never)
    below, part = bounder.below(layer), bounder.layout.part(layer)
    count, held = below.layout.neurons, bounder.layout.sizes(sizes)
    open_ = np.flatnonzero((low[part] < 0) & (high[part] > 0))[:20].tolist()
    domains = [
        below.domain(low[:count], high[:count], *below.output(i, sign), held[part.start + i][None])
        for i in open_
        for sign in (1, -1)
    ]
    below.ascend(domains, sizes, 10, stop=never)
    found = below.evaluate(domains, sizes, stop=never).reshape(-1, 2)
    z = values[layer][:, open_]
    assert (found[:, 0] <= z.min(axis=0)).all() and (-found[:, 1] >= z.max(axis=0)).all()
    before = np.stack([low[part][open_], -high[part][open_]], axis=1)
    assert (found >= before - 1e-9).all() and (found > before + 1e-3).any()


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(12, 14), nn.Linear(14, 14)
        self.third, self.last = nn.Linear(14, 10), nn.Linear(10, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = torch.relu(self.first(x))
        return self.last(torch.relu(self.third(torch.relu(self.second(a)) + a)))


def test_proofs_of_a_residual_network_are_confirmed() -> None:
    """With splits, and with bounds of hidden neurons that were proved at the root."""
    torch.manual_seed(3)
    network = load(Residual().eval(), input_shape=(12,))
    points = np.random.default_rng(0).uniform(-1.0, 1.0, (20_000, 12))
    values = network.relu_form.forward(points)[:, 0]
    level = float(values.max() + 0.7 * np.ptp(values))
    query = Query(network, -np.ones(12), np.ones(12), affine([(("y", 0), 1.0)], -level))
    backend = BranchAndBound(choose=lambda q: NeuronProver(SparseGraphBounder(q.form)))
    (verdict,) = backend.decide([query], Budget(seconds=30, clock="cpu", proofs=True))
    assert verdict.status is Status.VERIFIED and verdict.stage == "branch"
    assert isinstance(verdict.proof, NeuronProof) and verdict.proof.bounds
    assert confirm(query, verdict)[0].evidence is Evidence.CHECKED
