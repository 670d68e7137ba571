"""The command line of the VNN-LIB standard, as its chapter 5 says."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from exchange_cases import BOX1, BOX2, HEAD1, HEAD2, layered

import qll
from qll.cli.solver import age, query_arguments
from qll.exchange.recognition import is_query

SUM = ([[1.0, 1.0]], [0.0])


def run(*arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from qll.cli.main import run; run()", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture
def adder(tmp_path: Path) -> Path:
    return layered(tmp_path / "sum.onnx", SUM)


def query(folder: Path, text: str, name: str = "query.vnnlib") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_sat_with_its_assignment(tmp_path: Path, adder: Path) -> None:
    path = query(tmp_path, HEAD2 + BOX2 + "(assert (>= Y[0] 1.5))")
    done = run("verify", path, "--network", f"f={adder}", "--timeout", "60")
    lines = done.stdout.splitlines()
    assert [lines[0], lines[1], lines[4]] == ["sat", "X real [1,2]", "Y real [1]"]
    x0, x1, y = float(lines[2]), float(lines[3]), float(lines[5])
    assert len(lines) == 6
    assert y == pytest.approx(x0 + x1)
    assert y >= 1.5
    assert max(abs(x0), abs(x1)) <= 1


def test_as_vehicle_calls_it(tmp_path: Path, adder: Path) -> None:
    """Without the word, and with a file that has another suffix."""
    path = query(
        tmp_path, "; a comment\n\n" + HEAD2 + BOX2 + "(assert (>= Y[0] 2.5))", "query1.txt"
    )
    assert run(path, "--network", f"f={adder}").stdout == "unsat\n"


def test_version_1_answers_as_the_competition_does(tmp_path: Path, adder: Path) -> None:
    path = query(tmp_path, HEAD1 + BOX1 + "(assert (>= Y_0 1.5))")
    lines = run("verify", path, "--network", adder).stdout.splitlines()
    assert lines[0] == "sat"
    assert [line.split()[0].strip("(") for line in lines[1:]] == ["X_0", "X_1", "Y_0"]
    assert lines[1].startswith("((")
    assert lines[-1].endswith("))")


def test_serialised_assignments(tmp_path: Path, adder: Path) -> None:
    path = query(tmp_path, HEAD2 + BOX2 + "(assert (>= Y[0] 1.5))")
    folder = tmp_path / "deep" / "out"
    done = run("verify", path, "--network", f"f={adder}", "--serialise-assignments", folder)
    assert done.stdout == "sat\n"
    found = {
        p.stem: onnx.numpy_helper.to_array(onnx.TensorProto.FromString(p.read_bytes()))
        for p in folder.iterdir()
    }
    assert {name: array.shape for name, array in found.items()} == {"X": (1, 2), "Y": (1,)}
    assert found["Y"][0] == pytest.approx(found["X"].sum())
    assert found["X"].dtype == np.float64


def test_types_that_no_verdict_is_sound_for(tmp_path: Path, adder: Path) -> None:
    """The standard: a solver that is not sound for them must say so, unless the query says real."""
    text = (HEAD2 + BOX2).replace("real", "float64") + "(assert (>= Y[0] 1.5))"
    done = run(query(tmp_path, text), "--network", f"f={adder}", code=2)
    assert done.stdout == ""
    assert "query.vnnlib:3:18: no verdict about 'X' in float64 would be sound" in done.stderr
    assert "--element real" in done.stderr


@pytest.mark.parametrize(
    ("networks", "message"),
    [
        ([], "network files are not those"),
        (["f={net}", "g={net}"], "network files are not those"),
        (["h={net}"], "network files are not those"),
        (["f=none.onnx"], "cannot be read"),
    ],
)
def test_wrong_files_are_errors(
    networks: list[str], message: str, tmp_path: Path, adder: Path
) -> None:
    path = query(tmp_path, HEAD2 + BOX2 + "(assert (>= Y[0] 1.5))")
    options = [part for n in networks for part in ("--network", n.format(net=adder))]
    done = run("verify", path, *options, code=2)
    assert done.stdout == ""
    assert message in done.stderr
    assert "\nFix: " in done.stderr


def test_bad_queries_are_errors(tmp_path: Path, adder: Path) -> None:
    path = query(tmp_path, HEAD2 + "(assert (>= (* X[0,0] X[0,1]) 1.5))")
    done = run("verify", path, "--network", f"f={adder}", code=2)
    assert done.stdout == ""
    assert "query.vnnlib:6:14: a product of two variables is not linear" in done.stderr
    assert run("verify", tmp_path / "none.vnnlib", "--network", "f=a", code=2).stdout == ""
    assert run("verify", path, "--timeout", "0", code=2).stdout == ""


def test_timed_out(tmp_path: Path) -> None:
    """The answer comes in time, whatever is being computed."""
    rng = np.random.default_rng(0)
    sizes = [12, 60, 60, 60, 2]
    layers = [
        (rng.standard_normal((b, a)) / np.sqrt(a), rng.standard_normal(b) / 4)
        for a, b in itertools.pairwise(sizes)
    ]
    network = layered(tmp_path / "wide.onnx", *layers)
    names = [f"X_{k}" for k in range(12)] + ["Y_0", "Y_1"]
    text = "".join(f"(declare-const {name} Real)\n" for name in names)
    text += "".join(f"(assert (>= X_{k} -2.0))\n(assert (<= X_{k} 2.0))\n" for k in range(12))
    path = query(tmp_path, text + "(assert (>= Y_0 9.0))(assert (<= Y_1 -2.0))")
    out = tmp_path / "answer.json"
    done = run("verify", path, "--network", network, "--timeout", "1", "--json", out)
    assert done.stdout == "timed-out\n"
    assert json.loads(out.read_text())["answer"] == "timed-out"


@pytest.mark.parametrize(
    ("slow", "query_first"), [("query.vnnlib", True), ("net.onnx", True), ("net.onnx", False)]
)
def test_the_time_covers_reading(slow: str, query_first: bool, tmp_path: Path, adder: Path) -> None:
    """A pipe that nobody writes to is a file that takes for ever."""
    path = query(tmp_path, HEAD1 + BOX1 + "(assert (>= Y_0 1.5))")
    files = {"query.vnnlib": path, "net.onnx": adder}
    files[slow] = tmp_path / f"slow-{slow}"
    os.mkfifo(files[slow])
    order: list[str | Path] = ["--network", files["net.onnx"], "--timeout", "1"]
    order.insert(0 if query_first else len(order), files["query.vnnlib"])
    assert run("verify", *order).stdout == "timed-out\n"


def test_the_time_is_that_of_the_process(tmp_path: Path, adder: Path) -> None:
    """Start-up counts: what the process has spent before it is asked is not given again."""
    path = query(tmp_path, HEAD1 + BOX1 + "(assert (>= Y_0 1.5))")
    code = "import qll.cli.main as main; main.age = lambda: 1e6; main.run()"
    command = [sys.executable, "-c", code, "verify", path, "--network", adder, "--timeout", "1000"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
    assert done.stdout == "timed-out\n"
    before = age()
    time.sleep(0.1)
    assert 0.05 < age() - before < 60


def test_name_and_version() -> None:
    assert run("--name").stdout == "qll\n"
    assert run("--version").stdout == f"{qll.__version__}\n"


@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        ("onnx-element-types", "real float32"),
        ("vnnlib-versions", "1.0 2.1"),
        ("hidden-node-theories", "NH H"),
        ("multiple-input-output-theories", "SIO MIO"),
        ("multiple-network-theories", "SNET MENET MINET MNET"),
        ("multiple-node-comparison-theories", "SNC MNC"),
        ("arithmetic-complexity-theories", "BND COUT LIN"),
        ("optimised-disjunctive-reasoning", "true"),
        ("serialise-assignments", "true"),
    ],
)
def test_capabilities(capability: str, expected: str) -> None:
    from qll.cli.solver import capability as lines

    assert lines(capability) == expected.split()


def test_capabilities_of_the_network_reader() -> None:
    from qll.cli.solver import capability as lines
    from qll.networks.onnx_reader import OPERATORS

    oldest, newest = map(int, lines("onnx-opset-versions"))
    assert oldest <= 13 <= newest
    assert lines("onnx-operators") == sorted(OPERATORS)
    assert run("supports", "--onnx-operators").stdout.split() == sorted(OPERATORS)
    assert "Relu" in OPERATORS
    for arguments in ([], ["--onnx-operator"]):
        assert "\nFix: " in run("supports", *arguments, code=2).stderr


def test_deciding_a_query_loads_neither_torch_nor_the_parser_of_rules() -> None:
    """Of an easy query, the start of the process is most of the time."""
    code = "import sys, qll.exchange.models, qll.verify.documents; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "qll.verify.documents" in loaded
    assert not {"torch", "lark", "scipy"} & set(loaded)


def test_our_own_properties_are_not_queries(tmp_path: Path) -> None:
    rule = tmp_path / "rule.qll"
    rule.write_text("forall x in ball(x0, 0.1): y[0] >= 0\n")
    assert not is_query(str(rule))
    assert not is_query("not-both")
    assert query_arguments(["verify", "not-both", "--network", "net.onnx"]) is None
    assert query_arguments(["verify", "--network", "f=net.onnx", "q.vnnlib"]) is not None
    assert query_arguments(["show", "q.vnnlib"]) is None
    assert query_arguments([]) is None
    # A folder is no property: it is said of the query that it cannot be read.
    assert query_arguments(["verify", "tests", "--network", "f=net.onnx"]) is not None
    assert query_arguments(["verify", "rule.qll", "--data", "tests"]) is None
