"""The competition's three scripts, as its harness calls them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from exchange_cases import BOX1, HEAD1, layered

SCRIPTS = Path(__file__).parents[1] / "vnncomp_scripts"


def run(name: str, *arguments: object, **environment: str) -> int:
    command = [str(SCRIPTS / name), *map(str, arguments)]
    return subprocess.run(
        command, check=False, timeout=200, env={**os.environ, **environment}
    ).returncode


def test_an_instance(tmp_path: Path) -> None:
    qll = tmp_path / "qll"
    qll.write_text(
        f"#!/bin/sh\nexec {sys.executable} -c 'from qll.cli.main import run; run()' \"$@\"\n"
    )
    qll.chmod(0o755)
    network = layered(tmp_path / "sum.onnx", ([[1.0, 1.0]], [0.0]))
    query, results = tmp_path / "q.vnnlib", tmp_path / "results.txt"
    query.write_text(HEAD1 + BOX1 + "(assert (>= Y_0 1.5))")
    assert run("prepare_instance.sh", "v1", "some", network, query) == 0
    assert run("run_instance.sh", "v1", "some", network, query, results, 60, QLL=str(qll)) == 0
    assert results.read_text().startswith("sat\n((X_0 ")
    query.write_text("(assert")
    assert run("run_instance.sh", "v1", "some", network, query, results, 60, QLL=str(qll)) == 0
    assert results.read_text() == "error\n"
    fake = tmp_path / "fake"
    fake.write_text("#!/bin/sh\necho timed-out\n")
    fake.chmod(0o755)
    assert run("run_instance.sh", "v1", "some", network, query, results, 60, QLL=str(fake)) == 0
    assert results.read_text() == "timeout\n"


@pytest.mark.parametrize("name", ["install_tool.sh", "prepare_instance.sh", "run_instance.sh"])
def test_another_version_of_the_scripts_is_refused(name: str) -> None:
    assert run(name, "v2") == 1


def test_what_the_install_script_compiles_is_compiled() -> None:
    """The line that it ends with, by this interpreter."""
    text = (SCRIPTS / "install_tool.sh").read_text()
    (line,) = (row for row in text.splitlines() if "prepare()" in row)
    call = line.replace(".venv/bin/python", f'"{sys.executable}"')
    assert subprocess.run(["sh", "-c", call], check=False, timeout=280).returncode == 0
