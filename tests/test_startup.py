"""What a command imports before it answers: seconds that every query would pay."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

HEAVY = (
    "torch",
    "numba",
    "scipy",
    "onnx",
    "numpy",
    "onnxruntime",
    "matplotlib",
    "pandas",
    "pydantic",
)
UNSAT = "(assert (>= Y_0 100.0))"
SAT = "(assert (>= Y_0 -100.0))"


def loaded_after(code: str, *arguments: str) -> tuple[list[str], set[str]]:
    """What it prints, and the heavy packages that it has imported."""
    ending = f"import sys; print('loaded', *(m for m in {HEAVY} if m in sys.modules))"
    whole = f"try:\n    {code}\nexcept SystemExit: pass\n{ending}"
    done = subprocess.run(
        [sys.executable, "-c", whole, *arguments], capture_output=True, text=True, check=True
    )
    *lines, last = done.stdout.splitlines()
    return lines, set(last.split()[1:])


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two inputs, eight neurons, one output."""
    rng = np.random.default_rng(0)
    shapes = {"a": (8, 2), "p": (8,), "b": (1, 8), "q": (1,)}
    stored = [
        numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("Gemm", ["x", "a", "p"], ["z"], transB=1),
        helper.make_node("Relu", ["z"], ["h"]),
        helper.make_node("Gemm", ["h", "b", "q"], ["y"], transB=1),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size])
        for name, size in (("x", 2), ("y", 1))
    ]
    graph = helper.make_graph(nodes, "small", ends[:1], ends[1:], stored)
    path = tmp_path_factory.mktemp("startup") / "net.onnx"
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def test_importing_the_package_imports_nothing_heavy() -> None:
    assert loaded_after("import qll") == ([], set())


def test_help_imports_nothing_heavy() -> None:
    lines, heavy = loaded_after("from qll.cli.main import run; run()", "--help")
    assert any("verify" in line for line in lines)
    assert heavy == set()


def test_the_list_of_rules_imports_neither_torch_nor_numpy() -> None:
    lines, heavy = loaded_after("from qll.cli.main import run; run()", "show")
    assert any(line.startswith("not-both ") for line in lines)
    assert not heavy & {"torch", "numpy"}


@pytest.mark.parametrize(("claim", "answer"), [(UNSAT, "unsat"), (SAT, "sat")])
def test_an_easy_query_needs_neither_torch_nor_kernels(
    network: Path, tmp_path: Path, claim: str, answer: str
) -> None:
    lines = ["(declare-const X_0 Real)", "(declare-const X_1 Real)", "(declare-const Y_0 Real)"]
    for k in range(2):
        lines += [f"(assert (>= X_{k} -1.0))", f"(assert (<= X_{k} 1.0))"]
    query = tmp_path / "query.vnnlib"
    query.write_text("\n".join([*lines, claim]) + "\n")
    run = "from qll.cli.main import run; run()"
    said, heavy = loaded_after(run, "verify", str(query), "--network", str(network))
    assert said[0] == answer
    assert not {"torch", "numba", "scipy"} & heavy


@pytest.mark.parametrize("module", ["qll", "qll.cli.main"])
def test_the_package_runs_as_a_module(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip()[0].isdigit()
