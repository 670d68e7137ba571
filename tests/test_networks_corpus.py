"""The published networks, against ONNX Runtime and against our own factories."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

from qll.networks import load
from qll.networks.models import create
from qll.networks.onnx_writer import onnx_bytes


@pytest.fixture(scope="module")
def corpus() -> Path:
    shared = os.environ.get("QLL_SHARED")
    if shared is None:
        pytest.skip("QLL_SHARED is not set: it names the folder that holds 'corpus'")
    return Path(shared) / "corpus"


NORMALISATION = {
    "mnist": (0.1307, 0.3081),
    "fashion": (0.2860, 0.3530),
    "dice": (
        [0.7232479453086853, 0.7257601618766785, 0.6415771842002869],
        [0.32942402362823486, 0.24738003313541412, 0.2831753194332123],
    ),
}


def test_published_networks(corpus: Path) -> None:
    paths = sorted((corpus / "models").rglob("*.onnx"))
    assert len(paths) == 111
    rng = np.random.default_rng(0)
    for path in paths:
        mean, std = NORMALISATION[path.parts[-3]]
        network = load(path, mean=mean, std=std)
        x = rng.random((2, network.input_size))
        run = network.runtime(x)
        np.testing.assert_allclose(network.relu_form.forward(x), run, atol=1e-4, rtol=0)
        assert network.relu_form.is_chain
        assert network.relu_form.widths[1:3] == (784, 16)
        lower, upper = network.enclose(x)
        assert np.all(upper - lower < 1e-9)
        np.testing.assert_allclose((lower + upper) / 2, run, atol=1e-4, rtol=0)


def test_enclosure_holds_on_published_networks(corpus: Path) -> None:
    rng = np.random.default_rng(0)
    for path in sorted((corpus / "models").rglob("*.onnx"))[::10]:
        mean, std = NORMALISATION[path.parts[-3]]
        network = load(path, mean=mean, std=std)
        x = rng.random(network.input_size)
        lower, upper = network.enclose(x)
        for value, low, high in zip(network.evaluate_exact(x), lower, upper, strict=True):
            assert low <= value <= high


def test_enclosure_is_fast(corpus: Path) -> None:
    mean, std = NORMALISATION["dice"]
    path = next(iter(sorted((corpus / "models" / "exactly-one" / "dice").rglob("*.onnx"))))
    network = load(path, mean=mean, std=std)
    x = np.random.default_rng(0).random(network.input_size)
    network.enclose(x)
    start = time.process_time()
    for _ in range(50):
        network.enclose(x)
    assert (time.process_time() - start) / 50 < 0.005  # measured: 0.25 ms


def test_acasxu_networks(corpus: Path) -> None:
    paths = sorted((corpus / "acasxu").glob("*.onnx"))
    assert len(paths) == 45
    rng = np.random.default_rng(0)
    for path in paths:
        network = load(path)
        assert network.input_shape == (1, 1, 5)
        assert network.relu_form.widths == (5, *[50] * 6, 5)
        assert network.relu_form.is_chain
        x = rng.uniform(-0.5, 0.5, size=(8, 5))
        run = network.runtime(x)
        scale = 1.0 + np.abs(run).max()
        np.testing.assert_allclose(network.relu_form.forward(x), run, atol=1e-4 * scale, rtol=0)
        lower, upper = network.enclose(x[0])
        for value, low, high in zip(network.evaluate_exact(x[0]), lower, upper, strict=True):
            assert low <= value <= high


@pytest.mark.parametrize(("name", "data"), [("paper-mnist", "mnist"), ("paper-dice", "dice")])
def test_our_networks_are_the_published_ones(corpus: Path, name: str, data: str) -> None:
    """The same layers, attributes and shapes, after our normalisation."""
    path = next(iter(sorted((corpus / "models").glob(f"*/{data}/0/*.onnx"))))
    published = onnx.load(str(path))
    shape = (3, 28, 28) if data == "dice" else (1, 28, 28)
    ours = onnx.load_from_string(onnx_bytes(create(name), input_shape=shape))

    def describe(model: onnx.ModelProto) -> list[tuple[object, ...]]:
        dims = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
        return [
            (
                node.op_type,
                [dims[i] for i in node.input if i in dims],
                {a.name: tuple(a.ints) for a in node.attribute if a.ints},
            )
            for node in model.graph.node
        ]

    assert ours.graph.node[0].op_type == "BatchNormalization"
    assert describe(ours)[1:] == describe(published)


def test_published_network_cut_anywhere_is_refused(corpus: Path) -> None:
    from qll.errors import NetworkError

    data = next(iter(sorted((corpus / "models").rglob("*.onnx")))).read_bytes()
    cuts = np.random.default_rng(0).integers(0, len(data) - 40, size=150)
    for cut in cuts.tolist():
        with pytest.raises(NetworkError):
            load(data[:cut])
