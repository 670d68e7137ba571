"""ONNX operators read, folded and replayed, each against ONNX Runtime; and every refusal."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from networks_models import CASES, model, node, weights
from onnx import TensorProto

from qll.errors import InputError
from qll.networks import Network, load
from qll.networks.fold import fold

RNG = np.random.default_rng(0)


def assert_parity(network: Network, points: int = 5) -> None:
    """Folded, unfolded, exact and enclosed agree with each other, and with ONNX Runtime."""
    x = np.random.default_rng(1).normal(size=(points, network.input_size)).astype(np.float32)
    run = network.runtime(x)
    folded = network.relu_form.forward(x)
    scale = 1.0 + np.abs(run).max()
    session = onnxruntime.InferenceSession(network.source)
    shape = session.run(
        None,
        {
            "x": x[:1]
            .reshape(network.graph.tensor_shape)
            .astype(np.float64 if "double" in session.get_inputs()[0].type else np.float32)
        },
    )[0].shape
    assert network.graph.output_shape == shape
    np.testing.assert_allclose(folded, run, atol=1e-5 * scale, rtol=0)
    np.testing.assert_allclose(network.program.forward(x), folded, atol=1e-10 * scale, rtol=0)
    lower, upper = network.enclose(x)
    assert np.all(upper - lower < 1e-9 * scale)
    exact = network.evaluate_exact(x[0])
    for value, low, high in zip(exact, lower[0], upper[0], strict=True):
        assert low <= value <= high


@pytest.mark.parametrize("name", CASES)
def test_operator_agrees_with_onnx_runtime(name: str) -> None:
    assert_parity(load(CASES[name].SerializeToString()))


def test_residual_network_has_skip_blocks() -> None:
    form = load(CASES["residual"].SerializeToString()).relu_form
    assert not form.is_chain
    assert form.widths == (4, 4, 4, 4)
    assert form.relu_count == 8
    assert [tuple(j for j, _ in layer.terms) for layer in form.layers] == [(0,), (0, 1), (0, 2)]


def test_affine_run_is_one_layer() -> None:
    nodes = [
        node("Sub", "x m", "a"),
        node("Conv", "a k", "b"),
        node("Flatten", "b", "c"),
        node("Gemm", "c w b2", "y", transB=1),
    ]
    tensors = {"m": weights(1), "k": weights(2, 1, 2, 2), "w": weights(3, 18), "b2": weights(3)}
    form = load(model(nodes, (1, 1, 4, 4), tensors).SerializeToString()).relu_form
    assert form.widths == (16, 3)
    assert form.is_chain


def test_a_network_is_shown_in_a_line() -> None:
    nodes = [node("Gemm", "x w", transB=1)]
    source = model(nodes, (1, 2), {"w": weights(3, 2)}).SerializeToString()
    network = load(source)
    assert repr(network) == f"<Network '{network.name}': 2 to 3, SHA-256 {network.sha256[:12]}>"


def test_dead_and_duplicate_neurons_stay() -> None:
    w = np.array([[1, 1], [1, 1], [0, 0]], dtype=np.float32)
    v = np.array([[1, -1, 1]], dtype=np.float32)
    nodes = [
        node("Gemm", "x w b", "a", transB=1),
        node("Relu", "a", "r"),
        node("Gemm", "r v", transB=1),
    ]
    tensors = {"w": w, "v": v, "b": np.array([0, 0, -1], dtype=np.float32)}
    network = load(model(nodes, (1, 2), tensors).SerializeToString())
    assert network.relu_form.widths == (2, 3, 1)
    assert np.all(network.relu_form.forward(RNG.normal(size=(9, 2))) == 0)
    assert_parity(network)


@pytest.mark.parametrize(("mean", "std"), [(0.3, 0.7), ([0.1, 0.2], [0.5, 2.0])])
def test_normalisation_comes_first(mean: Any, std: Any) -> None:
    data = CASES["conv-stride-pad"].SerializeToString()
    plain, network = load(data), load(data, mean=mean, std=std)
    x = RNG.random((3, 2, 7, 6))
    centre, width = (np.broadcast_to(np.reshape(v, (-1, 1, 1)), (2, 7, 6)) for v in (mean, std))
    normal = ((x - centre) / width).reshape(3, -1)
    expected = plain.relu_form.forward(normal)
    flat = x.reshape(3, -1)
    np.testing.assert_allclose(network.relu_form.forward(flat), expected, atol=1e-12)
    prepended = plain.relu_form.prepend_normalisation(mean, std)
    np.testing.assert_allclose(prepended.forward(flat), expected, atol=1e-12)
    np.testing.assert_allclose(network.runtime(x), expected, atol=1e-5)
    lower, upper = network.enclose(x[0])
    for value, low, high in zip(network.evaluate_exact(x[0]), lower, upper, strict=True):
        assert low <= value <= high


def test_input_shape_fills_open_axes() -> None:
    built = model([node("Relu", "x")], ("n", "c", 3))
    assert load(built.SerializeToString(), input_shape=(2, 3)).relu_form.input_shape == (2, 3)
    with pytest.raises(InputError, match="input shape is not the network's"):
        load(built.SerializeToString(), input_shape=(2, 4))


def test_fold_is_lazy_and_cached() -> None:
    network = load(CASES["conv"].SerializeToString())
    assert network.relu_form is network.relu_form
    assert len(network.sha256) == 64
    np.testing.assert_array_equal(
        fold(network.program).layers[0].bias, network.relu_form.layers[0].bias
    )


def test_a_model_that_the_optimiser_fails_on_runs_without_it() -> None:
    """ONNX Runtime joins the two nodes, and cannot in float64."""
    low = {"l": np.array(-1.0)}
    nodes = [node("Relu", "x", "a"), node("Clip", "a l")]
    network = load(model(nodes, (1, 2), low, kind=TensorProto.DOUBLE).SerializeToString())
    np.testing.assert_array_equal(network.runtime(np.array([[-3.0, 2.0]])), [[0.0, 2.0]])


def test_a_padding_that_is_given_twice_is_refused() -> None:
    """ONNX Runtime refuses zeros beside an ``auto_pad`` as well."""
    from onnx import TensorProto, helper

    from qll.errors import NetworkError
    from qll.networks import load as load_network

    def model(**padding: object) -> bytes:
        node = helper.make_node("Conv", ["x", "w"], ["y"], **padding)
        graph = helper.make_graph(
            [node],
            "padded",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 3, 3])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [helper.make_tensor("w", TensorProto.FLOAT, [1, 1, 2, 2], [1.0] * 4)],
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
        return bytes(made.SerializeToString())

    assert load_network(model(auto_pad="SAME_UPPER")).output_size == 9
    with pytest.raises(NetworkError, match="padding is given twice"):
        load_network(model(auto_pad="SAME_UPPER", pads=[0, 0, 0, 0]))
