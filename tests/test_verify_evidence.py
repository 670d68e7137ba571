"""What a verdict rests on, and that a certificate that is not there is missed."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn
from typer.testing import CliRunner, Result

import qll
from qll.audit import Answer
from qll.cli.main import build_app
from qll.networks import load
from qll.verify import boxes, certificate, evidence, root
from qll.verify.api import Problem, _decide
from qll.verify.evidence import obstacle
from qll.verify.journal import question

RULE = "outputs 2\nforall x in ball(x0, 0.1): y[0] <= 10\n"


def network(*middle: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), *middle, nn.Linear(4, 2)).eval()


def test_a_verdict_says_what_stands_behind_it(tmp_path: Path) -> None:
    prop, x = qll.parse(RULE), np.zeros((1, 3))
    (plain,) = qll.verify(prop, network(nn.ReLU()), x, fast=True)
    (usual,) = qll.verify(prop, network(nn.ReLU()), x)
    (sure,) = qll.verify(prop, network(nn.ReLU()), x, certified=True)
    (kept,) = qll.verify(prop, network(nn.ReLU()), x, certificates=tmp_path)
    assert str(plain.evidence) == "the prover's word"
    assert str(usual.evidence) == "confirmed by the checker" and not usual.uncertified
    assert str(sure.evidence) == str(kept.evidence) == "confirmed by the checker"
    assert (tmp_path / kept.certificate).is_file()
    broken = qll.parse("outputs 2\nforall x in ball(x0, 0.1): y[0] <= -10\n")
    (found,) = qll.verify(broken, network(nn.ReLU()), x)
    assert str(found.evidence) == "a witness, replayed exactly"


BIG = "outputs 2\nforall x in ball(x0, 0.1): y[0] <= 100\n"


def test_what_the_checker_is_not_asked_of_stays_the_provers_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A large network, one that it does not read, a backend without proofs, no time."""
    x = np.zeros((1, 3))
    (found,) = qll.verify(qll.parse(BIG), unread(), x)
    assert str(found.evidence) == "the prover's word" and "Sum" in found.uncertified
    monkeypatch.setattr(evidence, "MOST_CHECKED", 10)
    (found,) = qll.verify(qll.parse(BIG), network(nn.ReLU()), x)
    assert (str(found.status), str(found.evidence)) == ("verified", "the prover's word")
    assert "20 weights in its matrices, more than 10" in found.uncertified
    monkeypatch.undo()
    monkeypatch.setattr(certificate, "audit", lambda *_, **__: LATE)
    (found,) = qll.verify(qll.parse(BIG), network(nn.ReLU()), x)
    assert (str(found.status), found.uncertified) == ("verified", "no time")
    (found,) = qll.verify(qll.parse(BIG), network(nn.ReLU()), x, certified=True)
    assert str(found) == "unknown: not confirmed (no time)"


LATE = Answer("verified", False, "no time", beyond=True)
WRONG = Answer("verified", False, "a leaf is not proved")


def test_a_proof_that_the_checker_refuses_is_unknown_and_loud(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never verified, whatever was asked for but --fast, which asks nobody."""
    monkeypatch.setattr(certificate, "audit", lambda *_, **__: WRONG)
    x, module = np.zeros((1, 3)), network(nn.Sigmoid())
    for options in ({}, {"certified": True}, {"certificates": tmp_path / "proofs"}):
        (found,) = qll.verify(qll.parse(BIG), module, x, **options)
        assert str(found) == "unknown: refused by the checker (a leaf is not proved)"
    (found,) = qll.verify(qll.parse(BIG), module, x, fast=True)
    assert str(found.status) == "verified"
    result = command(tmp_path, load(module, input_shape=(3,)).source)
    assert result.exit_code == 11, result.output
    assert "REFUSED: the checker does not confirm 1 of the prover's answers (points 0)" in (
        result.stderr
    )
    assert "0 verified, 0 falsified, 1 unknown" in result.stdout


def test_the_summary_says_how_many_were_confirmed(tmp_path: Path) -> None:
    source = load(network(nn.ReLU()), input_shape=(3,)).source
    assert "1 of 1 proofs confirmed by the independent checker\n" in (
        command(tmp_path, source).stdout
    )
    assert "0 of 1 proofs confirmed by the independent checker; the others are the prover's" in (
        command(tmp_path, source, "--fast").stdout
    )
    assert "word: operator Sum" in command(tmp_path, unread()).stdout


@pytest.mark.parametrize("inputs", [3, 20])
def test_a_proof_that_grows_too_large_is_dropped_and_its_verdict_stays(
    monkeypatch: pytest.MonkeyPatch, inputs: int
) -> None:
    """By boxes and by neurons."""
    monkeypatch.setattr(root, "MOST_PROOF_BYTES", 1)
    monkeypatch.setattr(boxes, "MOST_TREE_BYTES", 1)
    rng = np.random.default_rng(3)
    module = nn.Sequential(nn.Linear(inputs, 40), nn.ReLU(), nn.Linear(40, 2)).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.tensor(rng.standard_normal(tuple(parameter.shape))))
        corners = torch.tensor(rng.choice([-1.0, 1.0], (4000, inputs)), dtype=torch.float32)
        top = float((module(corners)[:, 0] - module(corners)[:, 1]).max())
    # above what corners reach, below what the root shows: many domains, all closed at last
    limit = {3: 1.05, 20: 1.25}[inputs] * top
    prop = qll.parse(f"outputs 2\nforall x in ball(x0, 1): y[0] - y[1] <= {limit}\n")
    (found,) = qll.verify(prop, module, np.zeros((1, inputs)), timeout=60)
    assert (str(found.status), str(found.evidence)) == ("verified", "the prover's word"), found
    assert "outgrew the memory" in found.uncertified


def command(folder: Path, source: bytes, *more: str) -> Result:
    (folder / "net.onnx").write_bytes(source)
    (folder / "rule.qll").write_text(BIG)
    head = struct.pack(">HBB2I", 0, 14, 2, 1, 3)
    (folder / "points.idx").write_bytes(head + np.zeros((1, 3)).astype(">f8").tobytes())
    arguments = [
        "verify", str(folder / "rule.qll"), "--network", str(folder / "net.onnx"),
        "--images", str(folder / "points.idx"), "--jobs", "1", *more,
    ]  # fmt: skip
    return CliRunner().invoke(build_app(), arguments)


def unread() -> bytes:
    """A network that the verifier reads and the checker does not: a sum by its own operator."""
    tensor = numpy_helper.from_array
    weight = np.array([[1.0, 2.0, -1.0], [0.5, -1.0, 1.0]], np.float32)
    constants = [
        tensor(weight, "w"),
        tensor(np.array([0.1, 0.2], np.float32), "s"),
        tensor(np.eye(2, dtype=np.float32), "v"),
    ]
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["a"], transB=1, name="first"),
        helper.make_node("Sum", ["a", "s"], ["b"], name="bend"),
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
    assert "layer 'bend', a Sum" in str(obstacle(load(unread())))


def test_a_certificate_that_cannot_be_written_is_missed_on_the_screen(tmp_path: Path) -> None:
    """Before the work and after it, and by the exit code: nothing vanishes."""
    found = command(tmp_path, unread(), "--certificate", str(tmp_path / "proofs"))
    assert found.exit_code == 12, found.output
    assert "no certificate can be written for this network" in found.stderr
    assert "layer 'bend', a Sum" in found.stderr
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


def against(other: float, **options: Any) -> Problem:
    """Is a network that computes x within a half of one that computes ``other`` times x?"""
    rule = "forall x in box(-1, 1), x2 in box(-1, 1) and x2[0] == x[0]: -0.5 <= y[0] - y2[0] <= 0.5"
    modules = []
    for factor in (1.0, other):
        module = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1)).eval()
        with torch.no_grad():
            for values, wanted in zip(
                module.parameters(), ([[1], [-1]], [0, 0], [[factor, -factor]], [0]), strict=True
            ):
                values.copy_(torch.tensor(wanted))
        modules.append(load(module, input_shape=(1,)))
    prop = qll.parse(rule, outputs=1)
    given = {"against": modules[1].source, "timeout": 5.0, **options}
    return Problem.of(prop, modules[0], **given)


def test_a_worker_that_compared_with_another_network_compares_anew() -> None:
    found = [str(_decide(against(other))[0].status) for other in (1.25, 3.0)]
    assert found == ["verified", "falsified"]


def test_what_hinders_a_certificate_is_asked_anew_in_another_arithmetic() -> None:
    readings = [
        against(1.25, **o).reading for o in ({}, {"arithmetic": "real"}, {"backend": "torch"})
    ]
    assert len(set(readings)) == 3
