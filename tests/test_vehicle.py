"""Vehicle: what is written for it, and its own verifier with ours as the solver."""

from __future__ import annotations

import shutil
import subprocess
import sys
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from float32_cases import linear
from torch import nn
from typer.testing import CliRunner

from qll.cli.main import build_app
from qll.errors import InputError
from qll.exchange.files import parse
from qll.exchange.vehicle import _number, lines
from qll.networks import load
from qll.verify.backend import BACKENDS, Budget
from qll.verify.documents import queries

GOLDEN = Path(__file__).parent / "goldens" / "vehicle" / "query.vcl"
QUERY = """(declare-const X_0 Real) (declare-const X_1 Real) (declare-const Y_0 Real)
(assert (>= X_0 0)) (assert (<= X_0 0.5)) (assert (>= X_1 -0.25)) (assert (<= X_1 1))
(assert (or (and (>= Y_0 1.5) (>= (+ X_0 Y_0) 0.1)) (<= Y_0 -3)))
"""


def vehicle(*arguments: object) -> str:
    command = shutil.which("vehicle", path=str(Path(sys.executable).parent)) or pytest.skip(
        "vehicle-lang is not installed"
    )
    done = subprocess.run(
        [command, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def solver(tmp_path: Path) -> Path:
    path = tmp_path / "qll"
    call = f'"{sys.executable}" -c "from qll.cli.main import run; run()"'
    path.write_text(f'#!/bin/sh\nexec {call} "$@"\n')
    path.chmod(0o755)
    return path


def test_numbers_are_not_rounded() -> None:
    rng = np.random.default_rng(0)
    values = [Fraction(float(v)) for v in rng.normal(size=20)]
    for value in [*values, Fraction(1, 3), Fraction(-7, 12), Fraction(5), Fraction(0)]:
        text = _number(value)
        above, _, below = text.strip("()").partition(" / ")
        assert Fraction(above.strip("()")) / Fraction(below or "1") == value


def test_the_file_is_as_before(tmp_path: Path) -> None:
    path = tmp_path / "query.vnnlib"
    path.write_text(QUERY)
    done = CliRunner().invoke(build_app(), ["export", str(path), "--to", "vehicle"])
    assert done.exit_code == 0, done.output
    assert done.stdout == GOLDEN.read_text()


def test_several_networks_are_refused() -> None:
    text = """(vnnlib-version <2.0>)
(declare-network f (declare-input A real [1]) (declare-output B real [1]))
(declare-network g (declare-input C real [1]) (declare-output D real [1]))
(assert (<= A[0] 1)) (assert (>= A[0] 0)) (assert (<= C[0] 1)) (assert (>= C[0] 0))
(assert (<= B[0] D[0]))
"""
    with pytest.raises(InputError, match="one network"):
        list(lines(parse(text)))


def test_vehicle_takes_what_is_written(tmp_path: Path) -> None:
    vehicle("typecheck", "--specification", GOLDEN)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_vehicle_and_marabou_find_what_we_find(tmp_path: Path, solver: Path, seed: int) -> None:
    """Ten queries: each network with a threshold that it exceeds and one that it does not."""
    rng = np.random.default_rng(seed)
    first = linear(rng.normal(size=(3, 2)).tolist(), rng.normal(size=3).tolist())
    last = linear(rng.normal(size=(1, 3)).tolist(), [0.0])
    network = load(nn.Sequential(first, nn.ReLU(), last), input_shape=(2,))
    (tmp_path / "net.onnx").write_bytes(network.source)
    points = rng.uniform([0.0, -0.25], [0.5, 1.0], size=(4000, 2))
    most = float(network.relu_form.forward(points)[:, 0].max())
    for bound, wanted in ((most + 0.5, "verified"), (most - 0.05, "falsified")):
        document = parse(QUERY.split("(assert (or")[0] + f"(assert (>= Y_0 {bound!r}))")
        spec = tmp_path / "query.vcl"
        spec.write_text("\n".join(lines(document)) + "\n")
        said = vehicle("verify", "-s", spec, "-n", f"f:{tmp_path / 'net.onnx'}", "-v", solver)
        assert ("no counterexample" in said) == (wanted == "verified"), said
        (query,) = queries(document, network)
        if find_spec("maraboupy") is not None:
            verdict = BACKENDS["marabou"]().decide([query], Budget(20.0))[0]
            assert str(verdict.status) == wanted


@pytest.mark.slow
def test_the_wind_controller_through_vehicle(tmp_path: Path, solver: Path, shared: Path) -> None:
    """Vehicle's own example, with the name that its numbers have today."""
    folder = shared / "tabular" / "controllers" / "wind"
    spec = tmp_path / "wind.vcl"
    spec.write_text(
        (folder / "windController.vcl").read_text().replace("Tensor Rat", "Tensor Real")
    )
    network = f"controller:{folder / 'controller.onnx'}"
    assert "no counterexample" in vehicle("verify", "-s", spec, "-n", network, "-v", solver)
    spec.write_text(spec.read_text().replace("-1.25 <", "1.0 <"))
    assert "no counterexample" not in vehicle("verify", "-s", spec, "-n", network, "-v", solver)


def test_a_query_of_normalised_inputs_asks_the_same() -> None:
    """On the network without its normalisation: the ends, and terms of the input, move along."""
    from qll.formula.parse import parse_specification
    from qll.property import Property
    from qll.verify.api import Problem
    from qll.verify.documents import document_of

    mean, std = np.array([0.3, -0.7]), np.array([0.2, 3.0])
    plain = load(nn.Sequential(linear([[1.0, -2.0]], [0.5])), input_shape=(2,))
    scaled = load(plain.source, mean=mean, std=std)
    prop = Property(parse_specification("forall x in ball(x0, 0.5): y[0] + 2*x[1] <= 1"), {})
    asked = Problem.of(prop, scaled, np.array([[0.1, 0.2]]), timeout=1.0).query(0)
    (found,) = queries(document_of(asked, scaled.normalisation), plain)
    rng = np.random.default_rng(0)
    for x in rng.uniform(asked.lower, asked.upper, size=(50, 2)):
        z = (x - mean) / std
        assert (z >= found.lower).all() and (z <= found.upper).all()
        values = [
            q.compiled.value(q.compiled.leaf_values(n.relu_form.forward(p[None]), p[None]))[0]
            for q, n, p in ((asked, scaled, x), (found, plain, z))
        ]
        assert values[0] == pytest.approx(values[1], abs=1e-9)
    assert np.allclose(found.lower, (asked.lower - mean) / std, atol=1e-12)
