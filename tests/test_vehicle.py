"""Vehicle: what is written for it, and its own verifier with ours as the solver."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exchange_cases import layered
from float32_cases import linear
from torch import nn
from typer.testing import CliRunner

import qll
from qll.cli.main import build_app
from qll.errors import InputError, LogicError
from qll.exchange.files import parse
from qll.exchange.vehicle import _number, lines, logic_lines
from qll.exchange.vehicle_loss import WorstPoint
from qll.logics import logic
from qll.networks import load
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


def test_the_file_is_as_before(tmp_path: Path, assert_golden: Callable[[str, str], None]) -> None:
    path = tmp_path / "query.vnnlib"
    path.write_text(QUERY)
    done = CliRunner().invoke(build_app(), ["export", str(path), "--to", "vehicle"])
    assert done.exit_code == 0, done.output
    assert_golden("vehicle/query.vcl", done.stdout)


def test_several_tensors_are_refused() -> None:
    text = """(vnnlib-version <2.0>)
(declare-network f
  (declare-input A real [1]) (declare-input C real [1]) (declare-output B real [1]))
(assert (<= A[0] 1)) (assert (>= A[0] 0)) (assert (<= C[0] 1)) (assert (>= C[0] 0))
(assert (<= B[0] 0))
"""
    with pytest.raises(InputError, match="one input and one output"):
        list(lines(parse(text)))


TWO_POINTS = """(vnnlib-version <2.0>)
(declare-network f (declare-input A real [2]) (declare-output B real [1]))
(declare-network g (equal-to f) (declare-input C real [2]) (declare-output D real [1]))
(assert (and (<= A[0] 1) (>= A[0] 0) (<= C[0] 1) (>= C[0] 0) (== A[1] 0.5) (== C[1] A[1])
  (<= C[1] 1) (>= C[1] 0)))
(assert (>= C[0] A[0])) (assert (<= D[0] (- B[0] 0.25)))
"""


def test_two_points_and_two_networks() -> None:
    """A network that is equal to another is that one at a second point."""
    text = "\n".join(lines(parse(TWO_POINTS)))
    assert text.count("@network") == 1
    assert "(f x ! 0)" in text and "(f x2 ! 0)" in text
    assert "forall x x2 . region x x2 => not (violated x x2)" in text
    other = "\n".join(lines(parse(TWO_POINTS.replace("equal-to", "isomorphic-to"))))
    assert other.count("@network") == 2
    assert "(f2 x2 ! 0)" in other


def test_vehicle_takes_what_is_written(tmp_path: Path) -> None:
    vehicle("typecheck", "--specification", GOLDEN)
    spec = tmp_path / "two.vcl"
    for relation in ("equal-to", "isomorphic-to"):
        text = TWO_POINTS.replace("equal-to", relation)
        spec.write_text("\n".join(lines(parse(text))) + "\n")
        vehicle("typecheck", "--specification", spec)


@pytest.mark.slow
def test_two_points_through_vehicle(tmp_path: Path, solver: Path) -> None:
    spec = tmp_path / "two.vcl"
    spec.write_text("\n".join(lines(parse(TWO_POINTS))) + "\n")
    first = ([[1, 0.5], [2, -1], [0.25, 1]], [0, -0.5, 0])
    for last, rises in (([[1, 1, 2]], True), ([[1, -1, 2]], False)):
        network = layered(tmp_path / "net.onnx", first, (last, [0]))
        said = vehicle("verify", "-s", spec, "-n", f"f:{network}", "-v", solver)
        assert ("no counterexample" in said) == rises, said


# Rules with a threshold m; beside each, what m must exceed, at points of the unit square.
RULES = {
    "one-output": ("forall x in box(0, 1): y[0] <= m", lambda y: y[:, 0]),
    "two-outputs": ("forall x in box(0, 1): y[0] <= y[1] + m", lambda y: y[:, 0] - y[:, 1]),
    "both": (
        "forall x in box(0, 1): y[0] <= m and y[0] + y[1] <= m",
        lambda y: np.maximum(y[:, 0], y[:, 0] + y[:, 1]),
    ),
    "either": (
        "forall x in box(0, 1): y[0] <= m or y[1] <= m",
        lambda y: np.minimum(y[:, 0], y[:, 1]),
    ),
    "premise": (
        "forall x in box(0, 1) and x[0] + x[1] <= 1: x[0] >= 0.5 -> y[0] + y[1] <= m",
        lambda y: y[:, 0] + y[:, 1],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_vehicle_and_marabou_find_what_we_find(name: str, tmp_path: Path, solver: Path) -> None:
    """Ten exported properties, each rule with an m that holds and one that does not: through
    Vehicle with our solver, through Vehicle with Marabou behind it, and without Vehicle."""
    text, most_of = RULES[name]
    rng = np.random.default_rng(len(text))
    first = linear(rng.normal(size=(4, 2)).tolist(), rng.normal(size=4).tolist())
    last = linear(rng.normal(size=(2, 4)).tolist(), [0.0, 0.0])
    network = load(nn.Sequential(first, nn.ReLU(), last), input_shape=(2,))
    (tmp_path / "net.onnx").write_bytes(network.source)
    (tmp_path / "rule.qll").write_text("parameter m: logit = 0\n" + text + "\n")
    points = rng.uniform(0, 1, size=(4000, 2))
    if name == "premise":
        points = points[(points.sum(1) <= 1) & (points[:, 0] >= 0.5)]
    most = float(most_of(network.relu_form.forward(points)).max())
    spec = tmp_path / "rule.vcl"
    for m, holds in ((most + 0.5, True), (most - 0.05, False)):
        asked = ["export", tmp_path / "rule.qll", "--network", tmp_path / "net.onnx"]
        options = ["--set", f"m={m!r}", "--to", "vehicle", "--out", spec]
        done = CliRunner().invoke(build_app(), list(map(str, [*asked, *options])))
        assert done.exit_code == 0, (done.output, done.exception)
        prop = qll.load(tmp_path / "rule.qll").with_parameters(m=m)
        (row,) = qll.verify(prop, network=network, timeout=20.0, fast=True)
        assert str(row.status) == ("verified" if holds else "falsified")
        call = ["verify", "-s", spec, "-n", f"f:{tmp_path / 'net.onnx'}", "-v", solver]
        for extra in ([], ["-a", "--backend marabou"]):
            if extra and find_spec("maraboupy") is None:
                pytest.skip("maraboupy is not installed")
            said = vehicle(*call, *extra)
            assert ("no counterexample" in said) == holds, (m, extra, said)


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
    from qll.verify.exported import document_of

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


# --- training from a specification ---


def test_a_logic_is_as_before(assert_golden: Callable[[str, str], None]) -> None:
    done = CliRunner().invoke(build_app(), ["export", "qll:5", "--to", "vehicle"])
    assert done.exit_code == 0, done.output
    assert_golden("vehicle/logic.vcl", done.stdout)
    with pytest.raises(LogicError, match="dl2 is not written as a logic of Vehicle"):
        CliRunner().invoke(
            build_app(), ["export", "dl2", "--to", "vehicle"], catch_exceptions=False
        )


READ = """
@network
f : Tensor Real [2] -> Tensor Real [3]

unit : Tensor Real [2] -> Bool
unit x = forall i . 0.0 <= x ! i <= 1.0

@property
safe : Bool
safe = forall x . unit x =>
  (((f x ! 0 >= f x ! 1 and f x ! 0 <= 2.0) or f x ! 2 == 1.0 or not (f x ! 1 > 0.5)) and
   (forall j . f x ! j <= 3.0))
"""


class Fixed:
    """A sampler that looks at one point."""

    def get_loss(self, dims: Any, lower: Any, upper: Any, value: Any) -> torch.Tensor:
        return torch.stack([value((lower + upper) / 2)])


@pytest.mark.parametrize(
    "name",
    [
        "qll:2,comparison=relu",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("qll:5", "qll:1", "qll:inf", "qll:3,comparison=softplus")
        ),
    ],
)
def test_vehicle_reads_our_logic_as_we_do(name: str, tmp_path: Path) -> None:
    """Value and gradient of a formula with every connective, near and far from 0."""
    vcl = pytest.importorskip("vehicle_lang")
    from vehicle_lang.loss.pytorch import load_specification

    ours = logic(name)
    spec = tmp_path / "spec.vcl"
    spec.write_text(READ + "\n" + "\n".join(logic_lines(ours)) + "\n")
    samplers = {"x": Fixed()}
    safe = load_specification(spec, logic=vcl.CustomDifferentiableLogic("qll"), samplers=samplers)[
        "safe"
    ]
    rng = np.random.default_rng(0)
    for scale in (0.5, 3.0, 60.0):
        start = torch.tensor(rng.normal(1.0, scale, 3), dtype=torch.float32)
        y, z = (start.clone().requires_grad_(True) for _ in range(2))
        theirs = safe(lambda x, y=y: y + 0 * x.sum())
        one, two, half = (torch.tensor(v) for v in (1.0, 2.0, 0.5))
        leq, conj, disj = ours.leq, ours.conj, ours.disj
        both = conj(torch.stack([leq(z[1], z[0]), leq(z[0], two)]))
        equal = conj(torch.stack([leq(z[2], one), leq(one, z[2])]))
        above = leq(half, z[1])
        either = disj(torch.stack([disj(torch.stack([both, equal])), -above]))
        most = conj(torch.stack([leq(z[j], torch.tensor(3.0)) for j in range(3)]))
        wanted = conj(torch.stack([either, most]))
        assert float(theirs) == pytest.approx(float(wanted), rel=1e-4, abs=1e-4)
        theirs.backward()
        wanted.backward()
        assert y.grad is not None and z.grad is not None
        assert torch.isfinite(y.grad).all()
        if name != "qll:inf" and "relu" not in name:  # at ties any share will do
            assert y.grad.tolist() == pytest.approx(z.grad.tolist(), abs=1e-3)


def test_the_worst_point_is_found_in_the_box() -> None:
    found = WorstPoint(seed=0).get_loss(
        [2],
        torch.tensor([0.0, -1.0]),
        torch.tensor([1.0, 1.0]),
        lambda x: (x[0] - 0.3).abs() + x[1],
    )
    assert found.shape == (1,)
    assert float(found) == pytest.approx(-1.0, abs=0.05)


@pytest.mark.slow
def test_training_from_a_specification_until_it_is_proved(tmp_path: Path, solver: Path) -> None:
    """One ``.vcl`` is trained on with QLL and proved by Vehicle with our solver."""
    vcl = pytest.importorskip("vehicle_lang")
    from vehicle_lang.loss.pytorch import load_specification

    spec, path = tmp_path / "spec.vcl", tmp_path / "net.onnx"
    spec.write_text(
        "@network\nf : Tensor Real [2] -> Tensor Real [1]\n\n"
        "@property\nsafe : Bool\n"
        "safe = forall x . (forall i . 0.0 <= x ! i <= 1.0) => -0.5 <= f x ! 0 <= 0.5 + x ! 0\n\n"
        + "\n".join(logic_lines(logic("qll:5")))
        + "\n"
    )
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
    with torch.no_grad():
        module[2].bias.fill_(1.5)

    def proved() -> bool:
        path.write_bytes(load(module, input_shape=(2,)).source)
        said = vehicle("verify", "-s", spec, "-n", f"f:{path}", "-v", solver)
        return "no counterexample" in said

    assert not proved()
    safe = load_specification(
        spec,
        logic=vcl.CustomDifferentiableLogic("qll"),
        samplers={"x": WorstPoint(seed=0)},
    )["safe"]
    optimiser = torch.optim.Adam(module.parameters(), lr=0.02)
    for _ in range(60):
        optimiser.zero_grad()
        loss = safe(module)
        loss.backward()
        optimiser.step()
    assert float(loss.detach()) < 0
    assert proved()


ROBUST = """
@network
f : Tensor Real [2] -> Tensor Real [3]

@parameter
epsilon : Real

@parameter(infer=True)
n : Nat

@dataset
images : Vector (Tensor Real [2]) n

@dataset
labels : Vector (Index 3) n

advises : Tensor Real [2] -> Index 3 -> Bool
advises x c = forall j . j != c => f x ! c > f x ! j

robustAround : Tensor Real [2] -> Index 3 -> Bool
robustAround x0 c = forall x . (forall i . 0 <= x ! i <= 1 and
  x0 ! i - epsilon <= x ! i <= x0 ! i + epsilon) => advises x c

@property
robust : Vector Bool n
robust = foreach i . robustAround (images ! i) (labels ! i)
"""


def write_idx(path: Path, values: np.ndarray, kind: int) -> Path:
    head = bytes([0, 0, kind, values.ndim]) + np.array(values.shape, ">u4").tobytes()
    path.write_bytes(head + values.astype({0x08: "u1", 0x0E: ">f8"}[kind]).tobytes())
    return path


@pytest.mark.slow
def test_robustness_with_a_data_set_through_vehicle(tmp_path: Path, solver: Path) -> None:
    """Each image by its own: what Vehicle says of all of them, and what we say without it."""
    rng = np.random.default_rng(8)  # two of four hold
    first = linear(rng.normal(size=(6, 2)).tolist(), rng.normal(size=6).tolist())
    last = linear(rng.normal(size=(3, 6)).tolist(), rng.normal(size=3).tolist())
    network = load(nn.Sequential(first, nn.ReLU(), last), input_shape=(2,))
    (tmp_path / "net.onnx").write_bytes(network.source)
    (tmp_path / "spec.vcl").write_text(ROBUST)
    images = rng.uniform(0.1, 0.9, size=(4, 2))
    labels = network.relu_form.forward(images).argmax(1)
    rule = "forall x in ball(x0, 0.15) and range(0, 1):\n  forall c in outputs: label(c) -o"
    (tmp_path / "rule.qll").write_text(
        f"outputs 3\n{rule} forall i in outputs where i != c: y[c] >= y[i]\n"
    )
    prop = qll.load(tmp_path / "rule.qll")
    ours = [str(v.status) for v in qll.verify(prop, network=network, x=images, labels=labels)]
    assert set(ours) == {"verified", "falsified"}
    files = {
        "images": write_idx(tmp_path / "images.idx", images, 0x0E),
        "labels": write_idx(tmp_path / "labels.idx", labels, 0x08),
    }
    data = [part for name, file in files.items() for part in ("-d", f"{name}:{file}")]
    call = ["-s", tmp_path / "spec.vcl", "-n", f"f:{tmp_path / 'net.onnx'}", "-p", "epsilon:0.15"]
    said = vehicle("verify", *call, *data, "-v", solver)
    results = [line for line in said.splitlines() if "result:" in line]
    found = ["verified" if "no counterexample" in line else "falsified" for line in results]
    assert found == ours
    assert f"verified:  {ours.count('verified')}/4" in said
