"""Rules over whole numbers and over two points, against enumeration on random small networks."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from forgery_networks import evaluate, model_of, random_layers

import qll
from qll.networks import load
from qll.verify.verdict import Evidence

Point = tuple[Fraction, ...]


def grid(lower: Any, upper: Any) -> list[Point]:
    sides = [range(int(a), int(b) + 1) for a, b in zip(lower, upper, strict=True)]
    return [tuple(Fraction(v) for v in point) for point in itertools.product(*sides)]


def ask(text: str, layers: Any, true: bool, *, certified: bool) -> str:
    """The verdict, which must be the true one, or unknown; a witness is looked at again."""
    network = load(model_of(layers))
    (verdict,) = qll.verify(
        qll.parse(text, outputs=len(layers[-1][1])), network, certified=certified, timeout=20
    )
    assert verdict.status != ("falsified" if true else "verified"), (text, layers)
    if verdict.status == "falsified":
        assert verdict.witness is not None and (verdict.witness == np.rint(verdict.witness)).all()
    if certified and verdict.decided and not verdict.vacuous:
        assert verdict.evidence is Evidence.CHECKED
    return str(verdict.status)


def integer_rule(rng: np.random.Generator) -> tuple[str, Any, bool]:
    layers = random_layers(rng)
    inputs = len(layers[0][0][0])
    lower = rng.integers(-3, 2, inputs)
    upper = lower + rng.integers(0, 4, inputs)
    points = grid(lower, upper)
    region = f"box({lower.tolist()}, {upper.tolist()}) and integer(x)"
    if rng.random() < 0.3:  # values with gaps
        allowed = sorted({int(lower[0]), int(upper[0])})
        region += f" and x[0] in {{{', '.join(map(str, allowed))}}}"
        points = [p for p in points if p[0] in allowed]
    if inputs > 1 and rng.random() < 0.3:
        region += " and x[0] + x[1] <= 1"
        points = [p for p in points if p[0] + p[1] <= 1]
    premise = ""
    if rng.random() < 0.3:
        cut = int(rng.integers(-2, 3))
        premise = f"(x[0] >= {cut} or x[0] <= {cut - 2}) -> "
        points = [p for p in points if p[0] >= cut or p[0] <= cut - 2]
    values = [evaluate(layers, list(p))[0] for p in points]
    most = max(values, default=Fraction(0)) + Fraction(str(rng.choice(["-0.125", "0.125", "1"])))
    true = all(v <= most for v in values)
    return f"forall x in {region}: {premise}y[0] <= {float(most)!r}", layers, true


def pair_rule(rng: np.random.Generator) -> tuple[str, Any, bool]:
    """Two whole points that share all inputs but the first: how far the output may rise, and
    whether it may change its sign."""
    layers = random_layers(rng)
    inputs = len(layers[0][0][0])
    lower = rng.integers(-3, 2, inputs)
    upper = lower + rng.integers(1, 4, inputs)
    box = f"box({lower.tolist()}, {upper.tolist()})"
    same = "" if inputs == 1 else " and (forall i in inputs where i != 0: x2[i] == x[i])"
    upward = bool(rng.random() < 0.5)
    more = " and x2[0] >= x[0]" if upward else ""
    found = []
    for x in grid(lower, upper):
        for first in range(int(lower[0]), int(upper[0]) + 1):
            if not upward or first >= x[0]:
                y = evaluate(layers, list(x))[0]
                found.append((y, evaluate(layers, [Fraction(first), *x[1:]])[0]))
    region = f"forall x in {box} and integer(x), x2 in {box} and integer(x2){same}{more}: "
    if rng.random() < 0.5:
        most = max(b - a for a, b in found) + Fraction(str(rng.choice(["-0.125", "0.125", "1"])))
        true = all(b - a <= most for a, b in found)
        return region + f"y2[0] - y[0] <= {float(most)!r}", layers, true
    level = float(rng.integers(-4, 5)) / 4
    true = not any(a > level and b < level for a, b in found)
    return region + f"y[0] > {level} -> y2[0] >= {level}", layers, true


def rising_rule(rng: np.random.Generator, several: bool) -> tuple[str, Any, bool]:
    """Real points: whether the output may fall as the first input rises, or as ``several`` do.
    Weights are mostly of the signs that make it rise, so that both answers occur; a fall is looked
    for at many points."""
    layers = random_layers(rng)
    inputs = len(layers[0][0][0])
    moving = inputs if several else 1
    for k, (weight, _) in enumerate(layers):
        part = weight[:, :moving] if k == 0 else weight
        part[:] = np.where(rng.random(part.shape) < 0.9, np.abs(part), part)
    steps = [f"x2[{k}] {'>=' if k < moving else '=='} x[{k}]" for k in range(inputs)]
    region = f"forall x in box(-1, 1), x2 in box(-1, 1) and {' and '.join(steps)}"
    falls = False
    for _ in range(60):
        x = [Fraction(int(v), 16) for v in rng.integers(-16, 17, inputs)]
        for share in (Fraction(1), Fraction(1, 8), Fraction(1, 256)):
            for chosen in {(k,) for k in range(moving)} | {tuple(range(moving))}:
                moved = [v + share * (1 - v) if k in chosen else v for k, v in enumerate(x)]
                falls |= evaluate(layers, moved)[0] < evaluate(layers, x)[0]
    return f"{region}: y2[0] >= y[0]", layers, not falls


MAKERS = {"integers": integer_rule, "two points": pair_rule}


@pytest.mark.parametrize("kind", MAKERS)
def test_verdicts_are_those_of_enumeration(kind: str) -> None:
    rng = np.random.default_rng(7)
    found = []
    for number in range(30):
        text, layers, true = MAKERS[kind](rng)
        found.append(ask(text, layers, true, certified=number % 5 == 0))
    assert found.count("verified") > 5 and found.count("falsified") > 4
    assert found.count("unknown") == 0, found.count("unknown")


def rising(rng: np.random.Generator, count: int, several: bool) -> list[str]:
    found = []
    for _ in range(count):
        text, layers, true = rising_rule(rng, several)
        prop = qll.parse(text, outputs=len(layers[-1][1]))
        (verdict,) = qll.verify(prop, load(model_of(layers)), certified=True, timeout=3)
        assert true or verdict.status != "verified", (text, layers)
        found.append(str(verdict.status))
    return found


@pytest.mark.parametrize("several", [False, True])
def test_what_rises_everywhere_is_proved(several: bool) -> None:
    """Ties included: where x2 is x, both sides are equal. The checker confirms every answer."""
    found = rising(np.random.default_rng(9), 12, several)
    assert found.count("verified") > 5 and found.count("falsified") > 0, found


@pytest.mark.slow
@pytest.mark.parametrize("several", [False, True])
def test_nothing_that_falls_is_proved_to_rise(several: bool) -> None:
    rising(np.random.default_rng(10), 600, several)


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAKERS)
def test_thousands_of_verdicts_are_those_of_enumeration(kind: str) -> None:
    rng = np.random.default_rng(8)
    for number in range(2000):
        text, layers, true = MAKERS[kind](rng)
        ask(text, layers, true, certified=number % 10 == 0)
