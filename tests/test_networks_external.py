"""Weights in a second file: read if it lies beside the model, and nowhere else."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from networks_models import model, node, weights
from onnx import external_data_helper
from torch import nn
from typer.testing import CliRunner

import qll
from qll.audit import audit
from qll.audit.onnx_file import network_bytes as auditor_bytes
from qll.cli.main import build_app
from qll.errors import NetworkError
from qll.networks import load
from qll.networks.onnx_external import network_bytes
from qll.networks.runtime import OnnxRuntime

TENSORS = {"w": weights(4, 3), "b": weights(4), "v": weights(2, 4)}
PLAIN = model(
    [
        node("Gemm", "x w b", "a", transB=1),
        node("Relu", "a", "r"),
        node("Gemm", "r v", transB=1),
    ],
    ("n", 3),
    TENSORS,
)
RULE = "outputs 2\nforall x in box([-1, -1, -1], [1, 1, 1]): y[0] <= 1000"


def saved(folder: Path, name: str = "net.onnx", *, apart: bool = False) -> Path:
    """The model, its weights in one file beside it, or in one for each tensor."""
    copy = onnx.ModelProto()
    copy.CopyFrom(PLAIN)
    path = folder / name
    onnx.save_model(
        copy,
        path,
        save_as_external_data=True,
        all_tensors_to_one_file=not apart,
        location=None if apart else f"{name}.data",
        size_threshold=0,
    )
    return path


def changed(path: Path, change: Callable[[Any], None]) -> Path:
    stored = onnx.load(path, load_external_data=False)
    change(stored.graph.initializer[0])
    path.write_bytes(stored.SerializeToString())
    return path


def entry(key: str, value: str) -> Callable[[Any], None]:
    def change(tensor: Any) -> None:
        found = [e for e in tensor.external_data if e.key == key]
        (found[0] if found else tensor.external_data.add(key=key)).value = value

    return change


@pytest.mark.parametrize("apart", [False, True])
def test_weights_beside_the_model_are_read(apart: bool, tmp_path: Path) -> None:
    path = saved(tmp_path, apart=apart)
    assert all(t.data_location for t in onnx.load(path, load_external_data=False).graph.initializer)
    plain, network = load(PLAIN.SerializeToString()), load(path)
    x = np.random.default_rng(0).normal(size=(5, 3))
    np.testing.assert_array_equal(network.program.forward(x), plain.program.forward(x))
    np.testing.assert_allclose(network.runtime(x), plain.program.forward(x), atol=1e-5)
    np.testing.assert_allclose(OnnxRuntime(path)(x), plain.program.forward(x), atol=1e-5)


def test_the_network_is_one_file_that_anyone_can_make(tmp_path: Path) -> None:
    path = saved(tmp_path)
    one = onnx.load(path).SerializeToString()
    assert load(path).source == network_bytes(path) == auditor_bytes(path) == one
    whole = tmp_path / "whole.onnx"
    whole.write_bytes(PLAIN.SerializeToString())
    assert network_bytes(whole) == auditor_bytes(whole) == whole.read_bytes()


def outside(folder: Path) -> Path:
    (folder / "secret").write_bytes(TENSORS["w"].tobytes())
    inner = folder / "inner"
    inner.mkdir()
    return saved(inner)


REFUSED: dict[str, tuple[Callable[[Any], None], str]] = {
    "folder-above": (entry("location", "../secret"), "plain name"),
    "folder-above-by-detour": (entry("location", "x/../../secret"), "plain name"),
    "folder-below": (entry("location", "below/secret"), "plain name"),
    "backslashes": (entry("location", "..\\secret"), "plain name"),
    "the-folder-itself": (entry("location", "."), "plain name"),
    "no-name": (entry("location", ""), "plain name"),
    "missing": (entry("location", "nowhere"), "no such file"),
    "link-out": (entry("location", "link"), "a symbolic link"),
    "offset-beyond": (entry("offset", "9999"), "bytes for shape"),
    "negative-offset": (entry("offset", "-1"), "a number of bytes"),
    "other-length": (entry("length", "47"), "bytes for shape"),
    "huge-length": (entry("length", "9" * 30), "a number of bytes"),
    "unknown-key": (entry("secret", "1"), "a location"),
    "key-twice": (lambda t: t.external_data.add(key="offset", value="0"), "a location"),
    "huge-shape": (lambda t: t.dims.__setitem__(0, 1 << 40), "bytes for shape"),
    "half-precision": (lambda t: setattr(t, "data_type", 10), "float32"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_weights_elsewhere_are_refused(name: str, tmp_path: Path) -> None:
    change, message = REFUSED[name]
    path = outside(tmp_path)
    (path.parent / "link").symlink_to(tmp_path / "secret")
    (path.parent / "below").mkdir()
    (path.parent / "below" / "secret").write_bytes(TENSORS["w"].tobytes())
    with pytest.raises(NetworkError, match=message) as caught:
        load(changed(path, change))
    assert caught.value.where == str(path)
    assert "one folder" in caught.value.fix


def test_an_absolute_path_is_refused(tmp_path: Path) -> None:
    path = outside(tmp_path)
    with pytest.raises(NetworkError, match="plain name"):
        load(changed(path, entry("location", str(tmp_path / "secret"))))


def test_bytes_alone_have_nothing_beside_them(tmp_path: Path) -> None:
    data = saved(tmp_path).read_bytes()
    with pytest.raises(NetworkError, match="in another file"):
        load(data)


def test_what_no_tensor_needs_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(PLAIN.SerializeToString())
    opened = []
    real = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda p: opened.append(p.name) or real(p))
    load(path)
    assert opened == ["net.onnx"]


def test_certificates_are_about_the_whole_network(tmp_path: Path) -> None:
    """Stored with its weights inside; `qll audit --network` takes the file as it was exported."""
    path, proofs = saved(tmp_path), tmp_path / "proofs"
    verdicts = qll.verify(qll.parse(RULE), path, np.zeros((1, 3)), certificates=proofs)
    assert [v.status.value for v in verdicts] == ["verified"]
    (certificate,) = proofs.glob("*.qllcert")
    (stored,) = proofs.glob("*.onnx")
    assert stored.read_bytes() == onnx.load(path).SerializeToString()
    assert audit(certificate.read_bytes(), stored.read_bytes()).confirmed
    for network in (path, stored):
        arguments = ["audit", str(proofs), "--network", str(network)]
        result = CliRunner().invoke(build_app(), arguments)
        assert result.exit_code == 0, result.output
    (tmp_path / "net.onnx.data").write_bytes(bytes(tensor_bytes()))
    result = CliRunner().invoke(build_app(), ["audit", str(proofs), "--network", str(path)])
    assert result.exit_code == 12 and "another network" in result.output
    (tmp_path / "net.onnx.data").unlink()
    result = CliRunner().invoke(build_app(), ["audit", str(proofs), "--network", str(path)])
    assert result.exit_code != 0 and "nor beside it" in str(result.exception or result.output)


def tensor_bytes() -> int:
    return sum(value.nbytes for value in TENSORS.values())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_what_pytorch_exports_by_default_is_read(tmp_path: Path) -> None:
    torch.manual_seed(0)
    parts = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)
    module = nn.Sequential(
        *parts, nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3)
    ).eval()
    path = tmp_path / "net.onnx"
    torch.onnx.export(module, (torch.zeros(1, 1, 8, 8),), path, verbose=False)
    assert (tmp_path / "net.onnx.data").is_file()
    network, x = load(path), np.random.default_rng(0).normal(size=(3, 64))
    wanted = module(torch.tensor(x, dtype=torch.float32).reshape(3, 1, 8, 8)).detach().numpy()
    np.testing.assert_allclose(network.program.forward(x), wanted, atol=1e-5)
    stored = onnx.load(path, load_external_data=False).graph.initializer
    assert any(external_data_helper.uses_external_data(tensor) for tensor in stored)


def test_a_network_may_be_compressed(tmp_path: Path) -> None:
    """As the competitions ship them; what it is, is what was compressed."""
    packed = tmp_path / "net.onnx.gz"
    whole = gzip.compress(PLAIN.SerializeToString())
    packed.write_bytes(whole)
    assert network_bytes(packed) == PLAIN.SerializeToString()
    assert load(packed).source == PLAIN.SerializeToString()
    for damaged in (whole[:-9], whole[: len(whole) // 2], whole[:40] + bytes(9) + whole[49:]):
        packed.write_bytes(damaged)
        with pytest.raises(NetworkError, match="the network cannot be unpacked"):
            load(packed)


def test_a_small_file_does_not_unpack_into_a_huge_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = tmp_path / "net.onnx.gz"
    packed.write_bytes(gzip.compress(bytes(1 << 20)))
    monkeypatch.setattr("qll.networks.onnx_external.MAX_FILE", 1 << 16)
    with pytest.raises(NetworkError, match="the network is too large"):
        load(packed)
