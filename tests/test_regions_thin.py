"""Regions without an inside: equations between inputs are solved for one of them, exactly."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forgery_networks import evaluate, largest, model_of, random_layers

import qll
from qll.audit import audit
from qll.audit.layout import unpack
from qll.errors import InputError
from qll.networks import load
from qll.verify.api import Problem
from qll.verify.certificate import pack
from qll.verify.moved import Moved
from qll.verify.verdict import Evidence


def equation_rule(rng: np.random.Generator) -> tuple[str, Any, bool | None]:
    """``a x[0] + b x[1] == c`` in a box; other inputs are fixed, so that a line is left, and what
    holds on it is known. None: the region is empty."""
    layers = random_layers(rng)
    while len(layers[0][0][0]) < 2:
        layers = random_layers(rng)
    layers = [*layers[:-1], (layers[-1][0][:1], layers[-1][1][:1])]
    inputs = len(layers[0][0][0])
    a, b = int(rng.choice([-3, -1, 1, 2])), int(rng.choice([-2, -1, 1, 2]))
    c = int(rng.integers(-4, 5)) / 4
    fixed = rng.integers(-4, 5, inputs) / 4
    low, high = -1.0, 1.0
    # x[1] = (c - a x[0]) / b lies in the box too.
    ends = sorted((Fraction(c) - b * Fraction(side)) / a for side in (low, high))
    first, last = max(Fraction(low), ends[0]), min(Fraction(high), ends[1])
    region = f"box(-1, 1) and {a}*x[0] + {b}*x[1] == {c!r}"
    region += "".join(f" and x[{k}] == {float(fixed[k])!r}" for k in range(2, inputs))
    if first > last:
        return f"forall x in {region}: y[0] <= 0", layers, None
    if float(first) != first or float(last) != last:  # ends that enumeration does not take
        return equation_rule(rng)
    weight, bias = layers[0]
    way = weight[:, 0] - weight[:, 1] * a / b
    base = bias + weight[:, 1] * c / b + weight[:, 2:] @ fixed[2:]
    line = [(way[:, None], base), *layers[1:]]
    _, most = largest(line, [Fraction(1)], float(first), float(last))
    bound = float(most) + float(rng.choice([-0.25, -(2.0**-8), 2.0**-8, 0.25, 1]))
    return f"forall x in {region}: y[0] <= {bound!r}", layers, Fraction(bound) >= most


def run(seed: int, count: int, every: int) -> list[str]:
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        text, layers, true = equation_rule(rng)
        prop = qll.parse(text, outputs=1)
        certified = number % every == 0
        (verdict,) = qll.verify(prop, load(model_of(layers)), certified=certified, timeout=5)
        if true is None:
            assert verdict.vacuous
        elif true:
            assert verdict.status == "verified", (text, layers, verdict)
        else:
            assert verdict.status == "falsified", (text, layers, verdict)
        if certified and not verdict.vacuous:
            assert verdict.evidence is Evidence.CHECKED
        found.append("empty" if true is None else str(verdict.status))
    return found


def test_rules_on_a_line_are_decided() -> None:
    """Every one of them: neither side of an equation is out of reach of a search."""
    found = run(21, 50, 2)
    assert found.count("verified") > 10 and found.count("falsified") > 10, found


@pytest.mark.slow
def test_a_thousand_rules_on_a_line_are_decided() -> None:
    run(22, 1000, 10)


@pytest.mark.parametrize(
    "region",
    [
        "box(0, 1) and x[0] + x[1] == 1",
        "box(0, 1) and x[0] + x[1] + x[2] == 1",
        "box(0, 1) and x[0] + x[1] + x[2] == 1 and x[0] == 2*x[1]",
        "box(0, 1) and x[0]/3 + x[1] == 0.3 and x[2] <= 0.5",
        "box(0, 1) and x[0] + x[1] + x[2] == 1 and integer(x[0])",
    ],
)
def test_violated_rules_of_thin_regions_have_witnesses(region: str) -> None:
    first = [[1.0, -1.0, 0.5], [0.5, 1.0, 1.0]], [0.0, 0.1]
    network = load(model_of([first, ([[1.0, 1.0]], [0.0])]))
    (bad,) = qll.verify(qll.parse(f"forall x in {region}: y[0] <= 0.4", outputs=1), network,
                        certified=True, timeout=10)  # fmt: skip
    assert bad.status == "falsified" and bad.evidence is Evidence.CHECKED
    (good,) = qll.verify(qll.parse(f"forall x in {region}: y[0] <= 5", outputs=1), network,
                         certified=True, timeout=10)  # fmt: skip
    assert good.status == "verified" and good.evidence is Evidence.CHECKED


def test_an_input_that_is_fixed_is_no_equation() -> None:
    """It is for the box, so that points of a data set share one network."""
    network = load(model_of([([[1.0, 1.0]], [0.0])]))
    prop = qll.parse("forall x in ball(x0, 1) and x[0] == x0[0]: y[0] <= 1", outputs=1)
    assert Problem.of(prop, network, np.zeros((1, 2)), timeout=1).query(0).network is network
    both = qll.parse("forall x in ball(x0, 1) and x[0] + x[1] == 1: y[0] <= 2", outputs=1)
    problem = Problem.of(both, network, np.zeros((1, 2)), timeout=1)
    assert isinstance(problem.query(0).network, Moved)
    plain = problem.query(0, solved=False)  # what is written in other formats
    assert plain.network is network and len(plain.constraints) == 2


def test_a_ball_around_x_bounds_the_second_point() -> None:
    """By the ends of x; the checker derives the same."""
    network = load(model_of([([[1.0, -1.0]], [0.0]), ([[1.0]], [0.0])]))
    text = "forall x in box(0, 1), x2 in ball(x, 0.25): y2[0] - y[0] <= {}"
    (good,) = qll.verify(qll.parse(text.format(0.51), outputs=1), network, certified=True)
    assert good.status == "verified" and good.evidence is Evidence.CHECKED
    (bad,) = qll.verify(qll.parse(text.format(0.4), outputs=1), network, certified=True)
    assert bad.status == "falsified" and bad.witness2 is not None and bad.witness is not None
    assert (np.abs(bad.witness2 - bad.witness) <= 0.25).all()


def test_a_closed_rule_that_says_nothing_is_told_so() -> None:
    network = load(model_of([([[1.0, -1.0]], [0.0])]))
    (empty,) = qll.verify(qll.parse("forall x in box(0, 1): x[0] >= 2 -> y[0] <= -5"), network)
    assert empty.vacuous and "no point of the region meets its premise" in empty.notes[0]


SUM = model_of([(np.array([[1.0, 2.0, 3.0]]), np.zeros(1)), (np.ones((1, 1)), np.zeros(1))])


@pytest.mark.parametrize(
    ("region", "least", "bound", "status"),
    [
        # The solution of both has a divisor of 100 bits: the second one stays a constraint.
        ("0.1*x[0] + 0.3*x[1] + 0.7*x[2] == 0.5 and 0.7*x[0] + 0.9*x[1] + 0.2*x[2] == 0.61",
         0, 6, "verified"),
        # A single point is left.
        ("x[0] + x[1] == 1 and x[0] - x[1] == 0.5 and x[2] + x[1] == 0.5", 0, 2.01, "verified"),
        ("x[0] + x[1] == 1 and x[0] - x[1] == 0.5 and x[2] + x[1] == 0.5", 0, 1.99, "falsified"),
        ("x[0] + x[1] == 1 and x[0] - x[1] == 0.5 and x[2] + x[1] == 5", 0, 1.99, "verified"),
        # Ends beyond all floats.
        ("1e-300*x[0] + 1e300*x[1] == 0.5", -1, 6.5, "verified"),
    ],
)  # fmt: skip
def test_equations_whose_solution_no_prover_can_store(
    region: str, least: int, bound: float, status: str
) -> None:
    prop = qll.parse(f"forall x in box({least}, 1) and {region}: y[0] <= {bound}", outputs=1)
    (verdict,) = qll.verify(prop, load(SUM), timeout=20)
    assert verdict.status == status


@pytest.mark.parametrize("map_", ["x0/3.3 + b/7.7 + b/1.1", "x0 + 1e-200*(1e-200*b)"])
def test_a_map_that_cannot_be_stored_is_named(map_: str) -> None:
    prop = qll.parse(f"forall b in [-1, 1], x = {map_}: y[0] <= 6", outputs=1)
    with pytest.raises(InputError, match="cannot be stored without rounding"):
        qll.verify(prop, load(SUM), np.full((1, 3), 0.5))


# --- equations that no floats solve ---

DECIMAL = "box(0, 1) and 0.3*x[0] + 0.7*x[1] == 0.21 and 0.1*x[1] + 0.9*x[2] == 0.33"
SHIFTED = "x in box(0, 1), x2 in box(0, 1) and x2[0] == x[0] + {} and x2[1] == x[1]"


@pytest.mark.parametrize("kind", ["two equations", "a step of 0.25", "a step of 0.1"])
def test_false_rules_of_equations_are_falsified_at_fractions(kind: str, tmp_path: Path) -> None:
    """A witness is shown in floats; its certificate has it exactly, and the checker replays it."""
    rng = np.random.default_rng(5)
    inputs = 3 if kind == "two equations" else 2
    layers = [
        (rng.integers(-4, 5, (4, inputs)) / 4, rng.integers(-4, 5, 4) / 4),
        (rng.integers(-4, 5, (1, 4)) / 4, np.zeros(1)),
    ]
    text = f"forall x in {DECIMAL}: y[0] <= {{}}"
    if inputs == 2:
        step = kind.rsplit(" ", 1)[1]
        text = f"forall {SHIFTED.format(step)}: y2[0] - y[0] <= {{}}"
    network = load(model_of(layers))
    for most, wanted in ((-50, "falsified"), (50, "verified")):
        rule = qll.parse(text.format(most), outputs=1)
        folder = tmp_path / wanted
        (found,) = qll.verify(rule, network, certified=True, certificates=folder, timeout=20)
        assert found.status == wanted and found.evidence is Evidence.CHECKED
    (found,) = qll.verify(qll.parse(text.format(-50), outputs=1), network)
    data = (tmp_path / "falsified" / "00000.qllcert").read_bytes()
    header, arrays = unpack(data)
    if kind == "a step of 0.25":
        assert header.point is None and found.witness2[0] == found.witness[0] + 0.25
        return
    assert header.point is not None and any("rounded" in note for note in found.notes)
    point = [Fraction(v) for v in header.point]
    if inputs == 3:  # x[1] follows from x[0]; the other equation has to be solved by the two
        x0, x2 = point
        x1 = (Fraction(0.21) - Fraction(0.3) * x0) / Fraction(0.7)
        assert Fraction(0.1) * x1 + Fraction(0.9) * x2 == Fraction(0.33)
        assert evaluate(layers, [x0, x1, x2])[0] > -50
    for change in (
        {"point": None},
        {"point": header.point[:-1]},
        {"point": (f"{point[0] + Fraction(1, 10**30)}", *header.point[1:])},
        {"point": tuple("1/2" for _ in point)},
        {"text": header.text.replace("-50", "50")},
    ):
        forged = pack(replace(header, **change), arrays)
        assert not audit(forged, network.source).confirmed, change


def falling_rule(rng: np.random.Generator) -> tuple[str, Any, bool]:
    """Two points a decimal step apart, and a threshold near what dyadic pairs reach."""
    layers = random_layers(rng)
    layers = [*layers[:-1], (layers[-1][0][:1], layers[-1][1][:1])]
    inputs = len(layers[0][0][0])
    step = Fraction(float(rng.choice([0.1, 0.3, 0.7])))
    same = "".join(f" and x2[{k}] == x[{k}]" for k in range(1, inputs))
    rises = []
    for _ in range(150):
        x = [Fraction(int(v), 16) for v in rng.integers(0, 17, inputs)]
        x[0] *= 1 - step
        moved = [x[0] + step, *x[1:]]
        rises.append(evaluate(layers, moved)[0] - evaluate(layers, x)[0])
    most = float(max(rises)) + float(rng.choice([-0.1, 0.05, 0.5]))
    region = f"x in box(0, 1), x2 in box(0, 1) and x2[0] == x[0] + {float(step)!r}{same}"
    return f"forall {region}: y2[0] - y[0] <= {most!r}", layers, max(rises) <= most


def assert_steps(seed: int, count: int) -> list[str]:
    rng, found = np.random.default_rng(seed), []
    for number in range(count):
        text, layers, true = falling_rule(rng)
        network = load(model_of(layers))
        certified = number % 3 == 0
        rule = qll.parse(text, outputs=1)
        (verdict,) = qll.verify(rule, network, certified=certified, timeout=1)
        assert true or verdict.status != "verified", (text, layers)
        if certified and verdict.decided:
            assert verdict.evidence is Evidence.CHECKED, (text, layers)
        found.append(str(verdict.status))
    return found


def test_steps_of_decimals_are_decided() -> None:
    found = assert_steps(6, 8)
    assert found.count("falsified") > 1 and found.count("verified") > 1, found


@pytest.mark.slow
def test_many_steps_of_decimals_are_decided() -> None:
    assert_steps(7, 500)
