"""The rigorous replay: intervals that contain the exact value, however hard the rounding."""

from __future__ import annotations

import itertools
import pickle
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from qll.networks import FormLayer, Network, ReluForm, load
from qll.networks.exact import enclose, evaluate_exact
from qll.networks.matrices import compact


def plain(weights: list[np.ndarray], biases: list[np.ndarray]) -> nn.Sequential:
    parts: list[nn.Module] = []
    for weight, bias in zip(weights, biases, strict=True):
        layer = nn.Linear(weight.shape[1], weight.shape[0]).to(torch.float64)
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(weight))
            layer.bias.copy_(torch.from_numpy(bias))
        parts += [layer, nn.ReLU()]
    return nn.Sequential(*parts[:-1])


def by_fractions(
    weights: list[np.ndarray], biases: list[np.ndarray], x: np.ndarray
) -> list[Fraction]:
    """Straight from the definition."""
    value = [Fraction(v) for v in x.tolist()]
    for depth, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        if depth:
            value = [max(v, Fraction(0)) for v in value]
        value = [
            Fraction(b)
            + sum((Fraction(w) * v for w, v in zip(row, value, strict=True)), Fraction(0))
            for row, b in zip(weight.tolist(), bias.tolist(), strict=True)
        ]
    return value


def assert_encloses(network: Network, x: np.ndarray, exact: tuple[Fraction, ...]) -> None:
    lower, upper = network.enclose(x)
    for value, low, high in zip(exact, lower, upper, strict=True):
        assert low == -np.inf or Fraction(float(low)) <= value
        assert high == np.inf or value <= Fraction(float(high))


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1.0, 1e6, 1e-6, 1e30, 1e-160]), st.booleans())
@example(0, 1e120, True)
def test_enclosure_contains_the_exact_value(seed: int, scale: float, cancel: bool) -> None:
    rng = np.random.default_rng(seed)
    sizes = [int(rng.integers(1, 7)) for _ in range(4)]
    weights = [rng.normal(size=(b, a)) * scale for a, b in itertools.pairwise(sizes)]
    biases = [rng.normal(size=b) for b in sizes[1:]]
    x = rng.normal(size=sizes[0])
    if cancel:  # rows that nearly cancel, and dead and duplicate neurons
        weights[0][:] = weights[0][:1]
        weights[1][:, ::2] *= -1
        biases[0][0] = -float(weights[0][0] @ x)
    network = load(plain(weights, biases), input_shape=(sizes[0],))
    exact = network.evaluate_exact(x)
    assert list(exact) == by_fractions(weights, biases, x)
    assert_encloses(network, x, exact)


def test_cancellation_that_float64_loses() -> None:
    """1e16 + 1 - 1e16 is 1, and 0 in float64: an enclosure without its error term fails here."""
    weights, biases = [np.array([[1e16, 1.0, -1e16]])], [np.zeros(1)]
    network = load(plain(weights, biases), input_shape=(3,))
    x = np.array([1.0, 0.75, 1.0])
    exact = network.evaluate_exact(x)
    assert exact == (Fraction(3, 4),)
    assert network.relu_form.forward(x[None])[0, 0] != 0.75
    assert_encloses(network, x, exact)


def test_division_and_normalisation_are_exact() -> None:
    module = nn.Sequential(nn.AvgPool2d(3), nn.Flatten(), nn.Linear(1, 1, bias=False))
    with torch.no_grad():
        module[2].weight.fill_(1.0)
    network = load(module, input_shape=(1, 3, 3), mean=0.1, std=0.3)
    x = np.full((1, 3, 3), 0.7)
    x[0, 0, 0] = 0.2
    total = Fraction(0.2) + 8 * Fraction(0.7) - 9 * Fraction(0.1)
    exact = network.evaluate_exact(x)
    assert exact == (total / Fraction(0.3) / 9,)
    assert_encloses(network, x, exact)
    assert evaluate_exact(network, x) == exact
    np.testing.assert_array_equal(enclose(network, x), network.enclose(x))


def test_float32_weights_are_taken_as_stored() -> None:
    """The fold in float64 rounds; the exact value does not."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(50, 40), nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 2))
    network = load(module, input_shape=(50,))
    x = np.random.default_rng(0).normal(size=50)
    exact = network.evaluate_exact(x)
    folded = network.relu_form.forward(x[None])[0]
    assert any(Fraction(float(f)) != e for f, e in zip(folded, exact, strict=True))
    assert_encloses(network, x, exact)
    lower, upper = network.enclose(x)
    assert np.max(upper - lower) < 1e-11


def test_many_points_at_once() -> None:
    torch.manual_seed(0)
    network = load(
        nn.Sequential(
            nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3)
        ),
        input_shape=(1, 6, 6),
    )
    x = np.random.default_rng(0).normal(size=(4, 1, 6, 6))
    lower, upper = network.enclose(x)
    assert lower.shape == upper.shape == (4, 3)
    for row, low, high in zip(x, lower, upper, strict=True):
        for value, a, b in zip(network.evaluate_exact(row), low, high, strict=True):
            assert a <= value <= b
    assert network.enclose(x[:1].reshape(1, -1))[0].shape == (1, 3)
    assert network.enclose(x[0])[0].shape == (3,)


def test_overflow_and_flushed_denormals_give_the_whole_line() -> None:
    network = load(plain([np.array([[1e200]])] * 2, [np.zeros(1)] * 2), input_shape=(1,))
    lower, upper = network.enclose(np.array([1.0]))
    assert (lower[0], upper[0]) == (-np.inf, np.inf)
    assert network.evaluate_exact(np.array([1.0]))[0] == Fraction(1e200) ** 2
    small = load(plain([np.array([[1.0]])], [np.zeros(1)]), input_shape=(1,))
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor does not flush denormals")
    try:
        lower, upper = small.enclose(np.array([1.0]))
    finally:
        torch.set_flush_denormal(False)
    assert (lower[0], upper[0]) == (-np.inf, np.inf)
    assert small.enclose(np.array([1.0]))[0][0] > 0.99


def test_underflow_is_covered() -> None:
    weights, biases = [np.full((1, 3), 1e-200)], [np.zeros(1)]
    network = load(plain(weights, biases), input_shape=(3,))
    x = np.full(3, 1e-200)
    exact = network.evaluate_exact(x)
    assert exact[0] > 0
    assert network.relu_form.forward(x[None])[0, 0] == 0
    assert_encloses(network, x, exact)


def test_network_travels_between_processes() -> None:
    network = load(nn.Linear(2, 2), input_shape=(2,))
    x = np.ones((1, 2))
    expected = network.runtime(x)
    copy = pickle.loads(pickle.dumps(network))  # noqa: S301 - what multiprocessing does
    np.testing.assert_array_equal(copy.runtime(x), expected)
    assert copy.sha256 == network.sha256


def test_relu_form_checks_its_blocks() -> None:
    good = FormLayer(np.zeros(2), ((0, np.ones((2, 3))),))
    form = ReluForm(
        (3,), (good, FormLayer(np.zeros(1), ((0, np.ones((1, 3))), (1, np.ones((1, 2))))))
    )
    assert form.output_size == 1
    np.testing.assert_array_equal(form.forward(np.ones((1, 3))), [[9.0]])
    with pytest.raises(Exception, match="layer 1 has a block"):
        ReluForm((3,), (FormLayer(np.zeros(2), ((1, np.ones((2, 3))),)),))
    with pytest.raises(Exception, match="layer 1 has a block"):
        ReluForm((3,), (FormLayer(np.zeros(2), ((0, np.ones((3, 2))),)),))
    with pytest.raises(Exception, match="no layer"):
        ReluForm((3,), ())


def test_matrices_are_stored_by_density() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(200, 4))
    first, second = load(module, input_shape=(1, 12, 12)).relu_form.layers
    assert not isinstance(first.terms[0][1], np.ndarray)
    assert isinstance(second.terms[0][1], np.ndarray)
    assert isinstance(compact(np.eye(2)), np.ndarray)
    assert not isinstance(compact(np.eye(20)), np.ndarray)
