"""A counterexample violates in float64 too: a near-tie of float32 is none."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import qll
from qll.attacks import attack as read_attack
from qll.attacks.shipped import attack_shipped
from qll.cli.main import build_app
from qll.errors import InputError
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


def test_a_rule_without_a_data_point_is_attacked_once(tmp_path: Path) -> None:
    """Without data, as it is verified; a query of others too."""
    module = nn.Linear(2, 1)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[1.0, 2.0]]))
        module.bias.zero_()
    (tmp_path / "net.onnx").write_bytes(load(module, input_shape=(2,)).source)
    rule, query, pair = (tmp_path / name for name in ("rule.qll", "query.vnnlib", "pair.qll"))
    rule.write_text("inputs a, b\noutputs 1\nforall x in box(0, 1): y[0] <= 2.5\n")
    query.write_text(
        "(declare-const X_0 Real)(declare-const X_1 Real)(declare-const Y_0 Real)"
        "(assert (and (>= X_0 0) (<= X_0 1) (>= X_1 0) (<= X_1 1) (>= Y_0 3.5)))"
    )
    pair.write_text("outputs 1\nforall x in box(0, 1), x2 in box(0, 1): y[0] <= y2[0] + 2\n")
    options = ["--network", str(tmp_path / "net.onnx"), "--attack", "apgd:20,restarts=1"]

    def attacked(path: Path, *more: str) -> str:
        shown = CliRunner().invoke(build_app(), ["attack", str(path), *options, *more])
        expected = 0 if "0 of 1 regions falsified" in shown.stdout else 10
        assert shown.exit_code == expected, shown.output
        return shown.stdout

    found = attacked(rule, "--out", str(tmp_path / "found"))
    assert "1 of 1 regions falsified" in found
    assert "  a = 1\n  b = 1\n  y[0]: 3\n" in found
    assert np.load(tmp_path / "found/counterexamples.npz")["attacked_x"].shape == (1, 2)
    for network in (module, tmp_path / "net.onnx"):
        assert bool(qll.attack(qll.load(str(rule)), network).falsified.all())
    assert "0 of 1 regions falsified, 1 not falsified" in attacked(query)
    assert "  x[1] = 1  and  0\n  y[0]: 3  and  0\n" in attacked(pair)
    rule.write_text("outputs 1\nforall x in ball(x0, 0.1): y[0] <= 2.5\n")
    with pytest.raises(InputError, match="speaks of data points"):
        CliRunner().invoke(build_app(), ["attack", str(rule), *options], catch_exceptions=False)


@pytest.mark.parametrize("weights", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64, np.float32, np.float64])
def test_data_points_are_taken_in_the_networks_type(weights: torch.dtype, kind: Any) -> None:
    """As verify takes them; numpy's own floats are of another type than torch's."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).to(weights)
    rule = qll.load("classification-robustness", epsilon=0.5)
    rows = np.random.default_rng(0).random((6, 3))
    x = torch.from_numpy(rows).to(kind) if isinstance(kind, torch.dtype) else rows.astype(kind)
    labels = model(torch.from_numpy(rows).to(weights)).argmin(1)  # wrong, so that all violate it
    found = qll.attack(rule, model, x, labels, method="pgd:2,step=0.1")
    assert bool(found.falsified.all())
