"""``qll check``: what it says before any work is done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from qll.cli.main import build_app
from qll.networks.onnx_writer import export_onnx

OPTIONS = ["--data", "dice-rendered"]


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 28 * 28, 4), nn.ReLU(), nn.Linear(4, 6))
    path = tmp_path_factory.mktemp("check") / "net.onnx"
    export_onnx(model.eval(), path, input_shape=(3, 28, 28))
    return path


def _found(tmp_path: Path, *words: str) -> tuple[int, dict[str, dict[str, str]]]:
    out = tmp_path / "found.json"
    result = CliRunner().invoke(build_app(), ["check", *words, "--json", str(out)])
    findings = json.loads(out.read_text())["findings"]
    return result.exit_code, {item["topic"]: item for item in findings}


def test_what_fits(tmp_path: Path, network: Path) -> None:
    code, found = _found(tmp_path, "not-both", "--network", str(network), *OPTIONS)
    assert code == 0
    assert found["certificate"]["state"] == "ok"
    assert "2352 inputs move" in found["region"]["said"]
    assert found["clean data"]["state"] in ("ok", "note")
    assert "test points" in found["proof"]["said"]


def test_a_rule_of_more_outputs_than_there_are(tmp_path: Path, network: Path) -> None:
    rule = tmp_path / "rule.qll"
    rule.write_text("forall x in ball(x0, 0.1): y[7] <= 1\n")
    code, found = _found(tmp_path, str(rule), "--network", str(network), *OPTIONS)
    assert code == 1
    assert found["rule"]["state"] == "wrong" and found["rule"]["fix"]


def test_a_network_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(b"no network")
    code, found = _found(tmp_path, "not-both", "--network", str(path))
    assert code == 1 and found["network"]["state"] == "wrong"
    assert found["rule"]["state"] == "ok"


def test_a_premise_that_is_never_true(tmp_path: Path, network: Path) -> None:
    """No face of a die is both 1 and 6 (they lie opposite), so nothing is asked."""
    rule = tmp_path / "rule.qll"
    rule.write_text("outputs 6\nforall x in ball(x0, 0.1): label(0) and label(5) -> y[0] >= 1\n")
    code, found = _found(tmp_path, str(rule), "--network", str(network), *OPTIONS)
    assert code == 1
    assert "false at each" in found["premise"]["said"]


def test_a_rule_broken_already(tmp_path: Path, network: Path) -> None:
    rule = tmp_path / "rule.qll"
    rule.write_text("outputs 6\nforall x in ball(x0, 0.001): y[0] >= 100\n")
    code, found = _found(tmp_path, str(rule), "--network", str(network), *OPTIONS)
    assert code == 0
    assert found["clean data"]["state"] == "note"
    assert "falsified" in found["proof"]["said"]
