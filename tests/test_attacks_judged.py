"""A counterexample violates in float64 too: a near-tie of float32 is none."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import qll
from qll.attacks import attack as read_attack
from qll.attacks.shipped import attack_shipped
from qll.cli.main import build_app
from qll.networks import load


def test_what_only_float32_violates_is_a_near_tie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice the same sum, its terms in another order: equal, whatever float32 says."""
    torch.manual_seed(0)
    inputs = 40
    weight = torch.randn(inputs) * 10.0 ** torch.randint(-3, 4, (inputs,))
    module = nn.Sequential(nn.Linear(inputs, 2, bias=False)).eval()
    with torch.no_grad():
        module[0].weight[0], module[0].weight[1] = weight, weight.flip(0)
    network = load(module, input_shape=(inputs,))
    half = torch.rand(64, inputs // 2)
    x = torch.cat([half, half.flip(1)], dim=1)  # the same from either end
    prop = qll.parse("outputs 2\nforall x in ball(x0, 0.0): y[0] >= y[1]\n")
    found = attack_shipped(read_attack("apgd:2,restarts=0"), network, prop, x)
    assert bool((found.margins < 0).any()), "no near-tie among the points: choose others"
    assert not bool(found.falsified.any())
    assert bool((found.near_ties == (found.margins < 0)).all())
    (tmp_path / "net.onnx").write_bytes(network.source)
    (tmp_path / "rule.qll").write_text(prop.show())
    points = SimpleNamespace(batch=lambda _: (x, torch.zeros(len(x), dtype=torch.long)))
    data = SimpleNamespace(schema=None, test=points)
    monkeypatch.setattr("qll.data.load", lambda *_, **__: data)
    command = ["attack", str(tmp_path / "rule.qll"), "--network", str(tmp_path / "net.onnx")]
    command += ["--data", "these", "--attack", "apgd:2,restarts=0"]
    shown = CliRunner().invoke(build_app(), command)
    assert shown.exit_code == 0, shown.output
    assert "0 of 64 regions falsified, 64 not falsified" in shown.stdout
    row = int(found.near_ties.nonzero()[0, 0])
    margin = float(found.margins[row])
    line = f"point {row}: near-tie: margin {margin:.2g} in float32, not violated in float64"
    assert line in shown.stdout
