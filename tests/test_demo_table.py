"""``qll demo tabular``: a network that is proved fair, beside one that is not."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from qll.cli.main import build_app
from qll.data import load
from qll.errors import QllError


def test_the_demo_proves_a_rule_over_two_points(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    found = CliRunner().invoke(
        build_app(), ["demo", "tabular", "--out", str(out)], catch_exceptions=False
    )
    assert found.exit_code == 0, found.output
    line = next(each for each in found.output.splitlines() if "on the whole domain" in each)
    assert "falsified" in line and "verified" in line.replace("falsified", "")
    assert "A witness against the baseline" in found.output and "group " in found.output
    assert {p.name for p in out.iterdir()} == {
        "applicants.csv", "fair.qll", "baseline.onnx", "fair.onnx",
    }  # fmt: skip
    data = load(str(out / "applicants.csv"), target="granted", task="binary")
    assert data.schema is not None and data.schema.output_names == ("granted",)


def test_an_unknown_demo_is_named() -> None:
    found = CliRunner().invoke(build_app(), ["demo", "cats"])
    assert isinstance(found.exception, QllError)
