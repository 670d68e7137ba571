"""Steps at which somebody new stumbled: each says what to do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import qll
from qll.cli.main import build_app
from qll.errors import FormulaError, NetworkError, QllError
from qll.exchange.files import read
from qll.networks import load
from qll.networks.onnx_writer import export_onnx
from qll.verify.documents import decide


def test_a_category_is_not_one_input(tmp_path: Path) -> None:
    table = tmp_path / "houses.csv"
    rows = "\n".join(f"{30 + k},{('flat', 'house', 'loft')[k % 3]},{k}" for k in range(30))
    table.write_text(f"size,kind,price\n{rows}\n")
    data = qll.data.load(str(table), target="price")
    text = 'forall x in domain, x2 in domain and x2["kind"] == x["kind"]: y2[0] >= y[0]'
    with pytest.raises(FormulaError) as found:
        qll.parse(text, schema=data.schema)
    assert "kind=flat" in found.value.fix and "forall i in inputs where" in found.value.fix
    qll.parse(text.replace('x2["kind"] == x["kind"]', '(forall i in inputs where i != "size": '
              "x2[i] == x[i])"), schema=data.schema)  # fmt: skip


def test_a_single_point_wants_its_axis() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 2)).eval()
    rule = qll.parse("forall x in ball(x0, 0.1): y[0] >= y[1]", outputs=2)
    with pytest.raises(NetworkError) as found:
        qll.verify(rule, model, torch.zeros(1, 8, 8))
    assert "x[None]" in found.value.fix


def test_a_query_writes_json(tmp_path: Path) -> None:
    export_onnx(nn.Linear(1, 1).eval(), tmp_path / "net.onnx", input_shape=(1,))
    query = tmp_path / "q.vnnlib"
    query.write_text(
        "(declare-const X_0 Real)\n(declare-const Y_0 Real)\n"
        "(assert (<= X_0 1))\n(assert (>= X_0 0))\n(assert (>= Y_0 -1000))\n"
    )
    words = [
        *(sys.executable, "-c", "from qll.cli.main import run; run()", "verify", str(query)),
        *("--network", str(tmp_path / "net.onnx"), "--timeout", "60"),
        *("--json", str(tmp_path / "answer.json")),
    ]
    # A solver's time is that of its process, which it ends: it has to be one of its own.
    subprocess.run(words, check=True, timeout=300)
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert answer["answer"] == "sat" and 0 <= answer["inputs"][0] <= 1
    shown = CliRunner().invoke(build_app(), ["explain", str(query)])
    assert isinstance(shown.exception, QllError) and "qll export" in str(shown.exception)


def test_a_rule_without_a_point_is_asked_once(tmp_path: Path) -> None:
    export_onnx(nn.Linear(2, 1).eval(), tmp_path / "net.onnx", input_shape=(2,))
    (tmp_path / "rule.qll").write_text("inputs a, b\nforall x in box(0, 1): y[0] <= 100\n")
    out = tmp_path / "v.json"
    words = ["verify", str(tmp_path / "rule.qll"), "--network", str(tmp_path / "net.onnx")]
    assert CliRunner().invoke(build_app(), [*words, "--json", str(out)]).exit_code == 0
    shown = CliRunner().invoke(build_app(), ["explain", str(out)]).output
    assert "asked once" in shown and "point 0" not in shown


@pytest.mark.parametrize(
    ("sign", "wanted"), [(">", ("unsat", "unknown")), ("<=", ("sat", "unknown"))]
)
def test_inputs_fixed_at_decimals_are_those_decimals(
    tmp_path: Path, sign: str, wanted: tuple[str, ...]
) -> None:
    """3 * 0.1 is 0.3, though it is more for the floats next to them."""
    module = nn.Linear(2, 2)
    with torch.no_grad():
        module.weight.copy_(torch.eye(2))
        module.bias.zero_()
    export_onnx(module.double().eval(), tmp_path / "net.onnx", input_shape=(2,))
    query = tmp_path / "q.vnnlib"
    query.write_text(
        "(vnnlib-version <2.0>)\n(declare-network f (declare-input X real [1,2]) "
        "(declare-output Y real [1,2]))\n(assert (== X[0,0] 0.1))\n(assert (== X[0,1] 0.3))\n"
        f"(assert ({sign} (* 3 Y[0,0]) Y[0,1]))\n"
    )
    found = decide(read(query), load(tmp_path / "net.onnx"), seconds=5)
    assert str(found.answer) in wanted
