"""Dual bounds: below every sample, and the compiled readings held to the torch reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from verify_cases import chain as chain_network
from verify_cases import random_network, sizes_of

from qll.bounds.crown import Crown
from qll.bounds.dense import DenseGraph
from qll.bounds.domain import Subdomain
from qll.bounds.dual import Domains, DualBound, Multipliers, Rates
from qll.bounds.lanes import ChainBounder, DualLanes, evaluate
from qll.bounds.plain import PlainGraph
from qll.bounds.sparse_graph import SparseGraphBounder
from qll.networks.relu_form import FormLayer, ReluForm

sparse = pytest.importorskip("scipy.sparse")
pytest.importorskip("numba")


def convolutional(rng: np.random.Generator, size: int = 8, channels: int = 4) -> ReluForm:
    """A strided 3x3 convolution as a sparse matrix, then 5 and 3 dense neurons."""
    kernel = rng.standard_normal((channels, 3, 3))
    rows: list[int] = []
    columns: list[int] = []
    data: list[float] = []
    half = size // 2
    for c in range(channels):
        for i in range(half):
            for j in range(half):
                for a in range(3):
                    for b in range(3):
                        y, x = 2 * i + a - 1, 2 * j + b - 1
                        if 0 <= y < size and 0 <= x < size:
                            rows.append(c * half * half + i * half + j)
                            columns.append(y * size + x)
                            data.append(kernel[c, a, b])
    width = channels * half * half
    first = sparse.csr_matrix((data, (rows, columns)), shape=(width, size * size))
    bias = np.repeat(rng.standard_normal(channels) * 0.3, half * half)
    return ReluForm(
        (size * size,),
        (
            FormLayer(bias, ((0, first),)),
            FormLayer(rng.standard_normal(5) * 0.1, ((1, rng.standard_normal((5, width)) * 0.2),)),
            FormLayer(rng.standard_normal(3), ((2, rng.standard_normal((3, 5))),)),
        ),
    )


class Case:
    """One network, a box, splits and random multipliers, in both layouts."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = np.random.default_rng(seed)
        self.form = convolutional(rng)
        self.bounder = ChainBounder(self.form)
        self.chain, self.layout = self.bounder.chain, self.bounder.layout
        x = rng.random(64)
        self.lower, self.upper = x - 0.2, x + 0.2
        self.sizes = sizes_of(self.form, self.lower, self.upper)
        low, high = self.bounder.interval(self.sizes, lambda: False)
        self.outputs = rng.standard_normal((2, 3))
        size = self.sizes.objectives(self.outputs, np.zeros(2))
        rows, offset = self.bounder.objectives(self.outputs, np.zeros(2))
        self.domain = self.bounder.domain(low, high, rows, offset, size)
        self._split()

    def _split(self) -> None:
        domain, rng, groups = self.domain, self.rng, self.chain.groups
        domain.alpha = rng.random(self.layout.neurons).astype(np.float32)
        unstable = np.flatnonzero((domain.low < 0) & (domain.high > 0))
        on, off = unstable[::9], unstable[4::9]
        domain.sign[on], domain.sign[off] = 1, -1
        domain.low, domain.high = domain.low.copy(), domain.high.copy()
        domain.low[on], domain.high[off] = 0.0, 0.0
        domain.beta[[*on, *off]] = rng.random(on.size + off.size).astype(np.float32) * 0.1
        domain.weight = np.array([0.3, 0.9], dtype=np.float32)
        delta = rng.standard_normal(groups.copies) * 0.02
        home = groups.copy_home == np.arange(groups.copies)
        delta[home] = 0.0
        np.subtract.at(delta, groups.copy_home[~home], delta[~home])
        domain.delta = delta.astype(np.float32)

    def layers(self, flat: Any) -> list[torch.Tensor]:
        result = []
        for k in range(2):
            part = np.asarray(flat, dtype=np.float64)[self.layout.part(k)]
            width = self.form.layers[k].width
            out = np.zeros(width)
            out[self.chain.groups.order if k == 0 else slice(None)] = part[:width]
            result.append(torch.tensor(out)[None])
        return result

    def torch_side(self) -> tuple[Domains, Multipliers]:
        domain = self.domain
        domains = Domains(
            torch.tensor(self.lower)[None],
            torch.tensor(self.upper)[None],
            self.layers(domain.low),
            self.layers(domain.high),
            self.layers(domain.sign),
            torch.tensor(self.outputs)[None],
            torch.zeros(1, 2, dtype=torch.float64),
        )
        multipliers = Multipliers(
            self.layers(domain.alpha),
            self.layers(domain.beta),
            torch.tensor(domain.weight.astype(np.float64))[None],
            torch.tensor(domain.delta.astype(np.float64))[None],
        )
        return domains, multipliers

    def satisfying(self, count: int) -> np.ndarray[Any, Any]:
        """Points of the box that obey the splits."""
        points = self.rng.uniform(self.lower, self.upper, size=(count, 64))
        z = self.form.pre_activations(points)
        keep = np.ones(count, dtype=bool)
        for k, sign in enumerate(self.layers(self.domain.sign)):
            keep &= (z[k] * sign.numpy() >= 0).all(axis=1)
        return points[keep]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("steps", [0, 1, 7])
def test_kernel_follows_the_reference_step_by_step(seed: int, steps: int) -> None:
    case = Case(seed)
    domains, multipliers = case.torch_side()
    rates = Rates()
    reference = DualBound(case.form)
    # The kernel's own units count padded neurons; with the reference's they take the same steps.
    beta, delta = reference.units(domains, multipliers)
    case.domain.scales = (beta.item(), delta.item())
    expected, after = reference.ascend(domains, multipliers, steps, rates=rates)
    mid, rad = (case.lower + case.upper) / 2, (case.upper - case.lower) / 2
    lanes = DualLanes(case.chain, 2)
    box = (mid.astype(np.float32), rad.astype(np.float32))
    lanes.run([case.domain], box, steps, rates=rates, hull=True, target=np.inf)
    assert case.domain.bound == pytest.approx(expected.value.item(), abs=2e-4)
    checked = evaluate(case.chain, [case.domain], case.sizes)[0]
    assert checked == pytest.approx(case.domain.bound, abs=2e-4)
    if steps == 0:
        exact = reference(domains, multipliers).value.item()
        assert checked == pytest.approx(exact, rel=1e-9, abs=1e-9)
    else:
        weights = torch.tensor(case.domain.weight.astype(np.float64))
        assert torch.allclose(after.weight[0], weights, atol=1e-3)


@pytest.mark.parametrize("seed", range(6))
def test_any_multipliers_bound_from_below(seed: int) -> None:
    """Also ones that are not allowed: the float64 check projects them."""
    case = Case(seed)
    domain, rng = case.domain, case.rng
    domain.alpha = rng.normal(0.5, 2.0, domain.alpha.size).astype(np.float32)
    domain.beta = rng.normal(0, 1.0, domain.beta.size).astype(np.float32)
    domain.delta = rng.normal(0, 0.1, domain.delta.size).astype(np.float32)
    domain.weight = np.array([-3.0, 0.2], dtype=np.float32)
    domain.sign[:], free = 0, case.bounder.interval(case.sizes, lambda: False)
    domain.low, domain.high = free
    bound = evaluate(case.chain, [domain], case.sizes)[0]
    points = case.satisfying(2000)
    assert len(points) == 2000
    g = (case.form.forward(points) @ case.outputs.T).max(axis=1)
    assert bound <= g.min() + 1e-9


def test_splits_bound_the_points_that_obey_them() -> None:
    rng = np.random.default_rng(5)
    network = chain_network((rng.standard_normal((6, 3)), rng.standard_normal(6) * 0.2),
                            (rng.standard_normal((2, 6)), [0.0, 0.0]))  # fmt: skip
    form = network.relu_form
    bounds = Crown(form)
    lower, upper = -np.ones(3), np.ones(3)
    boxes = bounds.pre_activations(bounds.tensor(lower)[None], bounds.tensor(upper)[None])
    points = rng.uniform(lower, upper, size=(4000, 3))
    z = form.pre_activations(points)
    for neuron in range(0, 6, 2):
        for side in (-1.0, 1.0):
            low, high, sign = boxes.low[0].clone(), boxes.high[0].clone(), torch.zeros(1, 6)
            sign[0, neuron] = side
            if side > 0:
                low[0, neuron] = max(0.0, low[0, neuron].item())
            else:
                high[0, neuron] = min(0.0, high[0, neuron].item())
            domains = Domains(
                boxes.lower, boxes.upper, [low], [high], [sign.double()],
                torch.tensor([[[1.0, 0.0]]]).double(), torch.zeros(1, 1).double(),
            )  # fmt: skip
            bound, _ = bounds.ascend(domains, bounds.start(domains), 8)
            inside = z[0][:, neuron] * side >= 0
            if inside.any():
                assert bound.value.item() <= z[1][inside, 0].min() + 1e-9


def test_hull_is_at_least_as_tight_as_chords() -> None:
    for seed in range(5):
        case = Case(seed)
        case.domain.delta[:] = 0
        with_hull, without = (
            evaluate(case.chain, [case.domain], case.sizes, hull=hull)[0] for hull in (True, False)
        )
        assert with_hull >= without - 1e-9


@pytest.mark.parametrize("kind", [ChainBounder, SparseGraphBounder])
def test_a_hull_with_a_subset_that_overflows_is_no_bound(kind: type[SparseGraphBounder]) -> None:
    """With the neuron among the subset's the coefficient of the second input is infinite, and that
    input 0: where only the empty subset counted, the bound was above the least value."""
    network = chain_network(([[0.5, 1e20]], [-0.5 + 1e-10]), ([[1.0]], [0.0]))
    sizes = sizes_of(network.relu_form, np.array([-1.0, 0.0]), np.array([1.0, 0.0]))
    bounder = kind(network.relu_form)
    low, high = bounder.interval(sizes, lambda: False)
    outputs, constant = np.array([[-1e295]]), np.array([1e284])
    rows, offset = bounder.objectives(outputs, constant)
    domain = bounder.domain(low, high, rows, offset, sizes.objectives(outputs, constant))
    bounder.join(low, high, [domain])
    least = -1e295 * network.relu_form.forward(np.array([[1.0, 0.0]]))[0, 0] + 1e284
    assert bounder.evaluate([domain], sizes, stop=lambda: False)[0] <= least < 0


@pytest.mark.parametrize("seed", range(12))
def test_crown_contains_samples_on_any_graph(seed: int) -> None:
    rng = np.random.default_rng(seed)
    form = random_network(rng, skips=seed % 2 == 0).relu_form
    crown = Crown(form)
    lower = rng.standard_normal(form.input_size)
    upper = lower + rng.random(form.input_size)
    boxes = crown.pre_activations(crown.tensor(lower)[None], crown.tensor(upper)[None])
    points = rng.uniform(lower, upper, size=(500, form.input_size))
    z = form.pre_activations(points)
    for k, (low, high) in enumerate(zip(boxes.low, boxes.high, strict=True)):
        assert (z[k] >= low[0].numpy() - 1e-9).all()
        assert (z[k] <= high[0].numpy() + 1e-9).all()
    rows = crown.rows(boxes, len(form.layers), torch.eye(3, dtype=torch.float64)[None])
    assert (z[-1].min(axis=0) >= rows.value[0].numpy() - 1e-9).all()
    sizes = sizes_of(form, lower, upper)
    found = DenseGraph(form).bound(lower[None], upper[None], np.eye(3), np.zeros(3), sizes=sizes)
    assert np.allclose(found.value[0], rows.value[0].numpy(), atol=1e-9)
    assert np.allclose(found.linear[0], rows.inputs[0].numpy(), atol=1e-9)


@pytest.mark.parametrize("seed", range(8))
def test_compiled_bounds_of_graphs_are_those_of_the_reference(seed: int) -> None:
    """Skips, rows that read the input themselves, mixtures of rows."""
    rng = np.random.default_rng(seed)
    form = random_network(rng, skips=True).relu_form
    lower = rng.standard_normal((4, form.input_size))
    upper = lower + rng.random((4, form.input_size))
    rows, constant = rng.standard_normal((4, 3)), rng.standard_normal(4)
    inputs, parts = rng.standard_normal((4, form.input_size)), ([0], [1, 2, 3])
    sizes = sizes_of(form, lower, upper)
    found = DenseGraph(form).bound(
        lower, upper, rows, constant, parts, sizes=sizes, inputs=inputs, margin=np.inf
    )
    for n in range(4):  # one by one: the reference bounds what is open on any of its boxes
        box = lower[n : n + 1], upper[n : n + 1]
        expected = Crown(form).bound(*box, rows, constant, parts, inputs=inputs, sizes=sizes)
        for name in ("low", "high", "value", "linear", "mixed", "mixed_linear"):
            ours, theirs = getattr(found, name)[n], getattr(expected, name)[0]
            assert np.allclose(ours, theirs, atol=1e-9), name


@pytest.mark.parametrize("seed", range(8))
def test_bounds_without_kernels_are_the_same(seed: int) -> None:
    rng = np.random.default_rng(seed)
    form = random_network(rng, skips=seed % 2 == 0).relu_form
    lower = rng.standard_normal((5, form.input_size))
    upper = lower + rng.random((5, form.input_size))
    rows, constant = rng.standard_normal((4, 3)), rng.standard_normal(4)
    inputs, parts = rng.standard_normal((4, form.input_size)), ([0], [1, 2, 3])
    sizes = sizes_of(form, lower, upper)
    for n in range(5):  # one by one: what is open on any of its boxes is bounded on all
        given = (lower[n : n + 1], upper[n : n + 1], rows, constant, parts)
        plain = PlainGraph(form).bound(*given, sizes=sizes, inputs=inputs)
        dense = DenseGraph(form).bound(*given, sizes=sizes, inputs=inputs, margin=np.inf)
        for name in ("low", "high", "value", "linear", "mixed", "mixed_linear"):
            assert np.allclose(getattr(plain, name), getattr(dense, name), atol=1e-9), name
    whole = PlainGraph(form).bound(lower, upper, rows, constant, parts, sizes=sizes, inputs=inputs)
    points = rng.uniform(lower, upper, (200, *lower.shape))
    for n in range(5):
        at = points[:, n]
        leaves = form.forward(at) @ rows.T + at @ inputs.T + constant
        assert (leaves.min(axis=0) >= whole.value[n] - 1e-9).all()
        assert (leaves[:, 1:].max(axis=1).min() >= whole.mixed[n, 1] - 1e-9).all()


def test_linear_network_is_exact() -> None:
    weight = np.array([[1.0, -2.0, 3.0]])
    form = ReluForm((3,), (FormLayer(np.array([0.5]), ((0, weight),)),))
    crown = Crown(form)
    boxes = crown.pre_activations(-torch.ones(1, 3).double(), torch.ones(1, 3).double())
    rows = crown.rows(boxes, 1, torch.ones(1, 1, 1).double())
    assert rows.value.item() == pytest.approx(0.5 - 6.0)


def test_a_domain_with_contradicting_bounds_is_empty() -> None:
    domain = Subdomain(
        low=np.array([1.0]), high=np.array([-1.0]), sign=np.zeros(1, np.int8),
        objective=np.zeros((1, 1)), offset=np.zeros(1), alpha=np.zeros(1, np.float32),
        beta=np.zeros(1, np.float32), weight=np.ones(1, np.float32), delta=np.zeros(0, np.float32),
        size=np.zeros(1),
    )  # fmt: skip
    assert domain.is_empty
