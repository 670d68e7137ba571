"""The examples, each as its README runs it, in quick mode."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from qll.cli.main import build_app

ROOT = Path(__file__).parent.parent
SHARED = os.environ.get("QLL_SHARED")
GERMAN = Path(SHARED or "") / "tabular" / "fairness" / "german"
RULE = str(ROOT / "examples" / "fair-credit" / "fair-sex.qll")


@pytest.mark.skipif(not SHARED or not GERMAN.is_dir(), reason="needs QLL_SHARED")
def test_fair_credit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "bench")
    import fair_credit

    out = tmp_path / "fair.json"
    monkeypatch.setattr(
        sys, "argv", ["fair_credit.py", "--quick", "--networks", "GC3,GC4", "--json", str(out)]
    )
    fair_credit.main()
    rows = json.loads(out.read_text())["rows"]
    assert [row["network"] for row in rows] == ["GC3", "GC3", "GC4", "GC4"]
    assert all(row["whole"] == "falsified" and not row["contradicts"] for row in rows)
    assert all(row["partitions"]["unknown"] == 0 for row in rows)
    assert all(row["checked"] == row["partitions"]["verified"] for row in rows)


@pytest.mark.skipif(not SHARED or not GERMAN.is_dir(), reason="needs QLL_SHARED")
def test_fair_credit_from_the_command_line(tmp_path: Path) -> None:
    def run(*words: str) -> Any:
        return CliRunner().invoke(build_app(), list(words))

    found = run("verify", RULE, "--network", str(GERMAN / "GC3.onnx"))
    assert found.exit_code == 10 and "sex = " in found.output and "  and  " in found.output
    network = ("--network", str(GERMAN / "GC4.onnx"))
    part = ("--set", "least=300", "--set", "most=399", "--certificate", str(tmp_path))
    assert run("verify", RULE, *network, *part).exit_code == 0
    checked = run("audit", str(tmp_path))
    assert checked.exit_code == 0 and "1 of 1 confirmed" in checked.output
