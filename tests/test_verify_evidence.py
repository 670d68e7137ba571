"""What a verdict rests on, and that a certificate that is not there is missed."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn
from typer.testing import CliRunner

import qll
from qll.cli.main import build_app
from qll.networks import load
from qll.verify.api import Problem, _decide
from qll.verify.evidence import obstacle
from qll.verify.journal import question

RULE = "outputs 2\nforall x in ball(x0, 0.1): y[0] <= 10\n"


def network(*middle: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), *middle, nn.Linear(4, 2)).eval()


def test_a_verdict_says_what_stands_behind_it(tmp_path: Path) -> None:
    prop, x = qll.parse(RULE), np.zeros((1, 3))
    (plain,) = qll.verify(prop, network(nn.ReLU()), x)
    (sure,) = qll.verify(prop, network(nn.ReLU()), x, certified=True)
    (kept,) = qll.verify(prop, network(nn.ReLU()), x, certificates=tmp_path)
    assert str(plain.evidence) == "the prover's word"
    assert str(sure.evidence) == str(kept.evidence) == "confirmed by the checker"
    assert (tmp_path / kept.certificate).is_file()
    broken = qll.parse("outputs 2\nforall x in ball(x0, 0.1): y[0] <= -10\n")
    (found,) = qll.verify(broken, network(nn.ReLU()), x)
    assert str(found.evidence) == "a witness, replayed exactly"


def unread() -> bytes:
    """A network that the verifier reads and the checker does not: one slope for each neuron."""
    tensor = numpy_helper.from_array
    weight = np.array([[1.0, 2.0, -1.0], [0.5, -1.0, 1.0]], np.float32)
    constants = [
        tensor(weight, "w"),
        tensor(np.array([0.1, 0.2], np.float32), "s"),
        tensor(np.eye(2, dtype=np.float32), "v"),
    ]
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["a"], transB=1, name="first"),
        helper.make_node("PRelu", ["a", "s"], ["b"], name="bend"),
        helper.make_node("Gemm", ["b", "v"], ["y"], name="last"),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size])
        for name, size in (("x", 3), ("y", 2))
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], constants)
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8)
    return bytes(model.SerializeToString())


def test_the_layer_that_cannot_be_certified_is_named() -> None:
    assert obstacle(load(network(nn.ReLU()), input_shape=(3,))) is None
    assert "layer 'bend', a PRelu" in str(obstacle(load(unread())))


def test_a_certificate_that_cannot_be_written_is_missed_on_the_screen(tmp_path: Path) -> None:
    """Before the work and after it, and by the exit code: nothing vanishes."""
    (tmp_path / "net.onnx").write_bytes(unread())
    (tmp_path / "rule.qll").write_text(RULE)
    head = struct.pack(">HBB2I", 0, 14, 2, 1, 3)
    (tmp_path / "points.idx").write_bytes(head + np.zeros((1, 3)).astype(">f8").tobytes())
    arguments = [
        "verify", str(tmp_path / "rule.qll"), "--network", str(tmp_path / "net.onnx"),
        "--images", str(tmp_path / "points.idx"), "--jobs", "1",
        "--certificate", str(tmp_path / "proofs"),
    ]  # fmt: skip
    found = CliRunner().invoke(build_app(), arguments)
    assert found.exit_code == 12, found.output
    assert "no certificate can be written for this network" in found.stderr
    assert "layer 'bend', a PRelu" in found.stderr
    assert "1 verified" in found.stdout
    assert "no certificate for 1 verdicts (points 0)" in found.stdout
    assert not list((tmp_path / "proofs").glob("*.qllcert"))


def problem(std: Any) -> Problem:
    prop = qll.parse("outputs 2\nforall x in ball(x0, 0.1): y[0] <= y[1]\n")
    module = nn.Sequential(nn.Linear(2000, 2)).eval()
    with torch.no_grad():
        module[0].weight.zero_()
        module[0].bias.copy_(torch.tensor([0.0, 0.5]))
        module[0].weight[0, 1000] = 1.0
    points = np.zeros((1, 2000))
    points[0, 1000] = 1.0
    return Problem.of(prop, module, points, mean=np.zeros(2000), std=std, timeout=5.0)


def test_two_normalisations_that_print_alike_are_two_questions() -> None:
    """numpy prints '...' for the middle of a long array, and 8 digits of a number."""
    wide, narrow = np.ones(2000), np.ones(2000)
    wide[1000] = 100.0
    assert repr(wide) == repr(narrow)
    first, second = problem(wide), problem(narrow)
    assert first.reading != second.reading
    assert question(first) != question(second)
    assert [str(v.status) for v in (_decide(first)[0], _decide(second)[0])] == [
        "verified",
        "falsified",
    ]
