"""Compiled bounds of any ReLU graph against the torch reference, which has joint hulls too."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from verify_cases import random_network, sizes_of

from qll.bounds.graph import GraphBounder
from qll.bounds.sparse_graph import SparseGraphBounder

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
