"""Balls in the norms l1 and l2: searched by projection, bounded by dual norms, proved, checked."""

from __future__ import annotations

import itertools
import math
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from audit_cases import seal
from forgery_networks import evaluate, model_of, random_layers
from torch import nn

import qll
from qll.attacks import attack
from qll.audit import audit
from qll.audit.layout import unpack
from qll.audit.round import Ball
from qll.bounds.round import BallOf
from qll.errors import QllError
from qll.formula.parse import parse_specification
from qll.formula.show import show_specification
from qll.networks import load
from qll.verify.verdict import Evidence

KINDS = ["l1", "l2"]
ROBUST = "forall c in outputs: label(c) -> forall i in outputs where i != c: y[c] >= y[i]"


def size_of(kind: str, away: Any) -> Any:
    return np.abs(away).sum(-1) if kind == "l1" else np.sqrt((away * away).sum(-1))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_shown_is_read_again(kind: str) -> None:
    read = parse_specification(f"forall x in ball(x0, 0.5, {kind}) and range(0, 1): y[0] <= 1")
    for style in ("ascii", "unicode"):
        assert parse_specification(show_specification(read, style)) == read  # type: ignore[arg-type]
    assert rf"\ell_{kind[1]}" in show_specification(read, "latex")
    built = qll.every("x", qll.ball(0.5, norm=kind), qll.valid_range(0, 1))
    assert read.binders == (built,)


@pytest.mark.parametrize("kind", KINDS)
def test_the_least_value_on_box_and_ball(kind: str) -> None:
    """Both bounds, the prover's and the checker's, are below every point, and the ball's own dual
    norm where the box does not matter."""
    rng = np.random.default_rng(0)
    close = 0
    for _ in range(80):
        n = int(rng.integers(1, 6))
        centre, radius = rng.normal(size=n), float(rng.uniform(0.1, 2))
        low = centre + rng.uniform(-2.5, 1.5, n)
        high = low + rng.uniform(0.05, 4, n)
        q = rng.normal(size=(3, n)) * rng.choice([1e-3, 1.0, 1e3])
        mid, rad = (low + high) / 2, (high - low) / 2
        checked = Ball(kind, np.arange(n), centre, radius).least(q, mid, rad, 2.0**-40)
        ball = BallOf(kind, torch.arange(n), torch.tensor(centre), radius)
        ends = (torch.tensor(side)[None] for side in (low, high))
        ours, at = ball.least(torch.tensor(q)[None], *ends)
        points = rng.uniform(low, high, (4000, n))
        points = points[size_of(kind, points - centre) <= radius]
        if len(points):
            least = (points @ q.T).min(0)
            assert (checked <= least + 1e-9 * np.abs(least)).all()
            assert (ours[0].numpy() <= least + 1e-9 * np.abs(least)).all()
            # Where box and ball do not meet, both grow without end.
            size = np.abs(q).sum(-1) * (1 + np.abs(centre).max() + radius)
            gap = np.abs(np.fmax(checked, q @ mid - np.abs(q) @ rad) - ours[0].numpy())
            assert (gap <= 1e-4 * size).all()
        assert ((at[0].numpy() >= low - 1e-12) & (at[0].numpy() <= high + 1e-12)).all()
        if (low < centre - radius).all() and (high > centre + radius).all():
            dual = np.abs(q).max(-1) if kind == "l1" else np.sqrt((q * q).sum(-1))
            assert np.allclose(checked, q @ centre - radius * dual, rtol=1e-4, atol=1e-6)
            close += 1
    assert close > 0


def test_a_box_outside_the_ball_has_no_least_value() -> None:
    for kind in KINDS:
        ball = Ball(kind, np.arange(2), np.zeros(2), 1.0)
        assert (
            ball.least(np.array([[1.0, 1.0]]), np.full(2, 2.0), np.full(2, 0.1), 1e-12) > 100
        ).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_projections_are_the_nearest_points(kind: str, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(0)
    x0 = torch.rand(200, 2, 3, generator=draw).to(dtype)
    prop = qll.parse(f"forall x in ball(x0, 0.5, {kind}) and range(0, 1): y[0] <= 1", outputs=1)
    region = qll.Region.of(prop, x0)
    assert bool(region.contains(region.sample(draw)).all())
    free = qll.Region.of(qll.parse(f"forall x in ball(x0, 0.5, {kind}): y[0] <= 1", outputs=1), x0)
    aim = x0 + torch.randn(200, 2, 3, generator=draw).to(dtype)
    found = free.project({"x": aim})["x"]
    assert bool(free.contains({"x": found}).all())
    there = (found - aim).flatten(1).norm(dim=1)
    for _ in range(30):  # no other point is nearer
        other = free.project({"x": x0 + 0.3 * torch.randn(200, 2, 3, generator=draw).to(dtype)})
        assert bool(((other["x"] - aim).flatten(1).norm(dim=1) >= there - 1e-4).all())
    assert torch.equal(free.project({"x": x0})["x"], x0)


def affine_rule(rng: np.random.Generator) -> tuple[str, Any, Any, str, bool]:
    """Of one layer: the largest value is known, by the dual norm."""
    n = int(rng.integers(1, 9))
    weight, bias = rng.integers(-8, 9, (1, n)) / 4, rng.integers(-4, 5, 1) / 4
    x0, radius = rng.integers(-8, 9, n) / 4, float(rng.integers(1, 9)) / 8
    kind = str(rng.choice(KINDS))
    dual = np.abs(weight).max() if kind == "l1" else math.sqrt((weight * weight).sum())
    most = float((weight @ x0 + bias)[0]) + radius * float(dual)
    gap = float(rng.choice([-0.25, -0.01, 0.01, 0.25]))
    text = f"forall x in ball(x0, {radius!r}, {kind}): y[0] <= {most + gap!r}"
    # A layer of ReLUs that are open all the time keeps it no plain linear question.
    layers = [(np.eye(n), np.full(n, 64.0)), (weight, bias - 64.0 * weight.sum(1))]
    return text, layers, x0, kind, gap > 0


def bent_rule(rng: np.random.Generator) -> tuple[str, Any, Any, str, bool]:
    """Of small networks: what is violated at one of many points of the ball is violated."""
    layers = random_layers(rng)
    layers = [*layers[:-1], (layers[-1][0][:1], layers[-1][1][:1])]
    n, kind = len(layers[0][0][0]), str(rng.choice(KINDS))
    x0, radius = rng.integers(-8, 9, n) / 4, float(rng.integers(1, 9)) / 4
    points = x0 + rng.integers(-16, 17, (300, n)) / 16 * radius
    points = points[size_of(kind, points - x0) <= radius * (1 - 1e-12)]
    values = [evaluate(layers, [Fraction(float(v)) for v in p])[0] for p in [x0, *points]]
    bound = float(max(values)) + float(rng.choice([-0.25, 0.05, 0.5, 2]))
    text = f"forall x in ball(x0, {radius!r}, {kind}): y[0] <= {bound!r}"
    return text, layers, x0, kind, all(v <= bound for v in values)


def wide_rule(rng: np.random.Generator) -> tuple[str, Any, Any, str, bool]:
    """The same of more inputs than boxes are halved on: neurons are split."""
    widths = [int(rng.integers(11, 15)), 6, 4, 1]
    layers = [
        (rng.integers(-4, 5, (after, before)) / 4, rng.integers(-4, 5, after) / 4)
        for before, after in itertools.pairwise(widths)
    ]
    kind, n = str(rng.choice(KINDS)), widths[0]
    x0, radius = rng.integers(-4, 5, n) / 4, float(rng.integers(2, 9)) / 4
    points = rng.normal(size=(300, n))
    points = x0 + np.floor(points / size_of(kind, points)[:, None] * radius * 960) / 1024
    points = points[size_of(kind, points - x0) <= radius * (1 - 1e-9)]
    best = load(model_of(layers)).relu_form.forward(points)[:, 0].argsort()[-5:]
    values = [evaluate(layers, [Fraction(float(v)) for v in p])[0] for p in [x0, *points[best]]]
    bound = float(max(values)) + float(rng.choice([-0.25, 0.5, 1, 2])) * radius
    text = f"forall x in ball(x0, {radius!r}, {kind}): y[0] <= {bound!r}"
    return text, layers, x0, kind, all(v <= bound for v in values)


def ask(rng: np.random.Generator, make: Any, *, certified: bool) -> str:
    text, layers, x0, kind, true = make(rng)
    prop = qll.parse(text, outputs=1)
    (verdict,) = qll.verify(prop, load(model_of(layers)), x0[None], certified=certified, timeout=3)
    assert verdict.status != "verified" or true, (text, layers, x0)
    if make is affine_rule:
        assert verdict.status == ("verified" if true else "falsified"), (text, layers, x0, verdict)
    if verdict.witness is not None:
        away = [Fraction(float(a)) - Fraction(float(b)) for a, b in zip(verdict.witness, x0)]
        radius = Fraction(float(text.split("ball(x0, ")[1].split(",")[0]))
        far = sum(abs(v) for v in away) if kind == "l1" else sum(v * v for v in away)
        assert far <= (radius if kind == "l1" else radius**2)
        value = evaluate(layers, [Fraction(float(v)) for v in verdict.witness])[0]
        assert value > Fraction(float(text.rsplit(" ", 1)[1]))
    if certified and verdict.decided:
        assert verdict.evidence is Evidence.CHECKED
    return str(verdict.status)


def test_verdicts_are_those_of_dual_norms_and_of_points() -> None:
    rng = np.random.default_rng(31)
    plain = [ask(rng, affine_rule, certified=k % 3 == 0) for k in range(12)]
    assert plain.count("verified") > 2 and plain.count("falsified") > 1
    bent = [ask(rng, bent_rule, certified=k % 3 == 0) for k in range(12)]
    assert bent.count("verified") > 2 and bent.count("falsified") > 1, bent
    assert bent.count("unknown") < 3, bent


def test_neurons_are_split_in_balls() -> None:
    rng = np.random.default_rng(33)
    found = [ask(rng, wide_rule, certified=k % 2 == 0) for k in range(10)]
    assert found.count("verified") > 2 and found.count("falsified") > 1, found
    assert found.count("unknown") < 3, found


@pytest.mark.slow
@pytest.mark.parametrize("make", [affine_rule, bent_rule, wide_rule])
def test_thousands_of_verdicts_are_those_of_dual_norms_and_of_points(make: Any) -> None:
    rng = np.random.default_rng(32)
    for number in range(1500):
        ask(rng, make, certified=number % 10 == 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_ball_is_less_than_the_box_around_it(kind: str) -> None:
    """Of many inputs: regions that the box violates are proved for the ball, and the checker
    confirms it; an attack does not falsify what is proved."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(36, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(),
                          nn.Linear(16, 3))  # fmt: skip
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 2
    x = torch.rand(4, 36)
    labels, network = model(x).argmax(1), load(model, input_shape=(36,))
    box = qll.parse(f"forall x in ball(x0, 0.125): {ROBUST}", outputs=3)
    ball = qll.parse(f"forall x in ball(x0, 0.125, {kind}): {ROBUST}", outputs=3)
    wide = qll.verify(box, network, x, labels, timeout=2)
    found = qll.verify(ball, network, x, labels, certified=True, timeout=2)
    assert sum(v.status == "falsified" for v in wide) > 2
    assert sum(v.status == "verified" for v in found) > 1
    assert all(v.evidence is Evidence.CHECKED for v in found if v.decided)
    hit = attack("apgd:20")(model, ball, x, labels)
    assert bool(hit.inside.all())
    for row, verdict in enumerate(found):
        assert not (hit.falsified[row] and verdict.status == "verified")


def test_a_certificate_of_a_ball_proves_no_other(tmp_path: Path) -> None:
    network = load(model_of([([[1.0, 1.0]], [0.0]), ([[1.0]], [0.0])]))
    prop = qll.parse("forall x in ball(x0, 0.5, l2): y[0] <= 0.75", outputs=1)
    qll.verify(prop, network, np.zeros((1, 2)), certificates=tmp_path)
    data = (tmp_path / "00000.qllcert").read_bytes()
    assert audit(data, network.source).confirmed
    header, arrays = unpack(data)
    for part in ("ball(x0, 0.5)", "ball(x0, 0.6, l2)", "ball(x0, 0.5, l1)"):
        text = header.text.replace("ball(x0, 0.5, l2)", part)
        answer = audit(seal({**asdict(header), "text": text}, arrays), network.source)
        assert answer.confirmed == (part == "ball(x0, 0.5, l1)")  # which lies in it


def test_a_witness_outside_the_ball_is_refused(tmp_path: Path) -> None:
    network = load(model_of([([[1.0, 1.0]], [0.0]), ([[1.0]], [0.0])]))
    prop = qll.parse("forall x in ball(x0, 0.5, l2): y[0] <= 0.6", outputs=1)
    qll.verify(prop, network, np.zeros((1, 2)), certificates=tmp_path)
    data = (tmp_path / "00000.qllcert").read_bytes()
    assert audit(data, network.source).confirmed
    header, arrays = unpack(data)
    edge = math.sqrt(0.125)
    for witness in ([0.5, 0.5], [0.4, 0.4], [np.nextafter(edge, 1), edge + 1e-12]):
        again = seal(asdict(header), {**arrays, "witness": np.array(witness)})
        assert not audit(again, network.source).confirmed, witness


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x in ball(x0, [1, 2], l2)", "has one radius"),
        ("x in ball(x0, {0: 1}, l1)", "has one radius"),
        ("x in box(0, 1), x2 in ball(x, 1, l2)", "around x0"),
        ("b in [0, 1], x = x0 + b and ball(x0, 1, l2)", "beside a map"),
        ("x in ball(x0, 1, l3)", "does not follow the grammar"),
    ],
)
def test_what_cannot_be_said_is_refused(text: str, words: str) -> None:
    with pytest.raises(QllError) as error:
        parse_specification(f"forall {text}: y[0] <= 1")
    assert words in str(error.value) and "Fix:" in str(error.value)


def test_equations_and_ties_beside_a_ball_stay_sound() -> None:
    """The ball is then of no use to bounds: its box is proved, or the verdict is unknown."""
    network = load(model_of([([[1.0, 1.0]], [0.0]), ([[1.0]], [0.0])]))
    for region in ("x[0] == x[1]", "x[0] + 2*x[1] == 0"):
        text = f"forall x in ball(x0, 0.5, l2) and {region}: y[0] <= {{}}"
        (good,) = qll.verify(qll.parse(text.format(1.1), outputs=1), network, np.zeros((1, 2)),
                             certified=True)  # fmt: skip
        assert good.status == "verified" and good.evidence is Evidence.CHECKED
        (bad,) = qll.verify(qll.parse(text.format(0.1), outputs=1), network, np.zeros((1, 2)),
                            certified=True)  # fmt: skip
        assert bad.status == "falsified" and bad.witness is not None
        assert float((bad.witness**2).sum()) <= 0.25
