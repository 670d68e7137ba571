"""Regions that are the image of a few parameters: brightness, contrast, any affine map."""

from __future__ import annotations

import math
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from audit_cases import seal
from forgery_networks import evaluate, largest, model_of, random_layers
from torch import nn

import qll
from qll.attacks import attack
from qll.audit import audit
from qll.audit.layout import unpack
from qll.errors import QllError
from qll.formula.moves import Resolver, rows_of, shifted_places
from qll.formula.parse import parse_specification
from qll.formula.show import show_specification
from qll.formula.vectors import Shifted
from qll.networks import load
from qll.verify.verdict import Evidence

ROBUST = "forall c in outputs: label(c) -> forall i in outputs where i != c: y[c] >= y[i]"
REGIONS = [
    "x in brightness(x0, 0.3)",
    "x in contrast(x0, 0.8)",
    "x in translation(x0, 2)",
    "b in [-0.2, 0.2], c in [-0.3, 0.3], x = x0 + c*(x0 - mean(x0)) + b and range(0, 1)",
    "a in [-0.3, 0.3], b in [-0.02, 0.02], x = x0 + a + b*row - b*column/2",
    "t in [0, 1], x = x0 + t*(right(x0) - x0) and x[0, 1, 1] <= 0.9",
]


@pytest.mark.parametrize("region", [*REGIONS, "t in [-1, 1], x = -t*{0: 1, 5: 2} + x0"])
def test_what_is_shown_is_read_again(region: str) -> None:
    read = parse_specification(f"forall {region}: y[0] <= 1")
    for style in ("ascii", "unicode"):
        shown = show_specification(read, style)  # type: ignore[arg-type]
        assert parse_specification(shown) == read
    assert repr(read.binders[0].parts[0]) and show_specification(read, "latex")


def picture() -> Any:
    """A value for each pixel of 2 channels of 2 rows and 3 columns."""
    return torch.arange(1.0, 13.0, dtype=torch.float64).reshape(1, 2, 2, 3)


@pytest.mark.parametrize(
    ("region", "at", "wanted"),
    [
        ("b in [0, 1], x = x0 + b", [1.0], lambda x: x + 1),
        ("c in [0, 1], x = x0 + c*(x0 - mean(x0))", [0.5], lambda x: x + 0.5 * (x - x.mean())),
        ("x in brightness(x0, 2)", [-2.0], lambda x: x - 2),
        ("x in contrast(x0, 1)", [-1.0], lambda x: x * 0 + x.mean()),
        ("t in [0, 1], x = x0 + t*(left(x0, 2) - x0)", [1.0], lambda x: shift(x, 0, -2)),
        ("t in [0, 1], x = (1 - t)*x0 + t*down(x0)", [0.25],
         lambda x: 0.75 * x + 0.25 * shift(x, 1, 0)),
        ("a in [0, 1], x = a*row + 2*column + x0/4", [0.5],
         lambda x: x / 4 + torch.tensor([[0, 2, 4], [0.5, 2.5, 4.5]])),
        ("t in [0, 1], x = x0 - t*{3: 2, 4: 1}", [1.0],
         lambda x: x - torch.tensor([0, 0, 0, 2, 1, *[0] * 7]).reshape(x.shape)),
        ("x in translation(x0, 2)", [0, 0, 1, 0.5, 0, 0, 0, 0],
         lambda x: 0.5 * shift(x, 0, 1) + 0.5 * shift(x, 0, 2)),
    ],
)  # fmt: skip
def test_a_map_is_what_its_words_say(region: str, at: list[float], wanted: Any) -> None:
    """In fractions, and in tensors."""
    x0 = picture()
    spec = parse_specification(f"forall {region}: y[0] <= 1")
    place = Resolver(lambda q: q.value, lambda i: i.offset, (2, 2, 3))  # type: ignore[attr-defined]
    move = place.move(spec.binders[0].parts[0])  # type: ignore[arg-type]
    rows = rows_of(move, x0.flatten().tolist(), 0, ())
    found = [
        float(sum(c * Fraction(at[k]) for (_, k), c in row.terms) + Fraction(row.constant))
        for row in rows
    ]
    assert found == pytest.approx(wanted(x0).flatten().tolist())
    frame = qll.Region.of(qll.parse(f"forall {region}: y[0] <= 1", outputs=1), x0).frame
    assert frame is not None
    assert torch.allclose(frame.expand(torch.tensor([at], dtype=torch.float64)),
                          wanted(x0).flatten(1).double())  # fmt: skip


def shift(x: Any, down: int, right: int) -> Any:
    found = torch.zeros_like(x)
    height, width = x.shape[-2:]
    for row in range(height):
        for column in range(width):
            if 0 <= row - down < height and 0 <= column - right < width:
                found[..., row, column] = x[..., row - down, column - right]
    return found


def test_shifts_take_from_the_right_places() -> None:
    assert shifted_places((2, 3), Shifted("right")) == [-1, 0, 1, -1, 3, 4]
    assert shifted_places((2, 3), Shifted("up")) == [3, 4, 5, -1, -1, -1]


def small() -> nn.Sequential:
    torch.manual_seed(3)
    layers = nn.Flatten(), nn.Linear(36, 16), nn.ReLU(), nn.Linear(16, 3)
    model = nn.Sequential(*layers)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 3
    return model


@pytest.mark.parametrize("region", REGIONS)
def test_attack_proof_and_checker_agree(region: str) -> None:
    """What an attack falsifies is not proved; what is decided, the checker confirms."""
    x = 0.25 + 0.5 * torch.rand(8, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    model = small()
    labels = model(x).argmax(1)
    prop = qll.parse(f"forall {region}: {ROBUST}", outputs=3)
    verdicts = qll.verify(prop, load(model, input_shape=(1, 6, 6)), x, labels, certified=True,
                          timeout=20)  # fmt: skip
    assert all(v.decided for v in verdicts)
    assert {v.evidence for v in verdicts} <= {Evidence.CHECKED, Evidence.VACUOUS}
    found = attack("apgd:20")(model, prop, x, labels)
    sampled = qll.Region.of(prop, x).sample(torch.Generator().manual_seed(0))
    assert bool(qll.Region.of(prop, x).contains(sampled).all())
    assert bool(found.inside.all())
    for row, verdict in enumerate(verdicts):
        assert not (found.falsified[row] and verdict.status == "verified")
        if verdict.witness is not None:
            assert "image of" in verdict.notes[-1]
            moved = torch.from_numpy(verdict.witness)[None]
            region_of = qll.Region.of(prop, x[row : row + 1].double())
            assert bool(region_of.contains({"x": moved}, 1e-9).all())
    bad = [v for v in verdicts if v.status == "falsified"]
    assert int(found.falsified.sum()) >= len(bad) - 1
    assert bad or "x[0, 1, 1]" in region or "range" in region


def line_rule(rng: np.random.Generator) -> tuple[str, Any, Any, bool]:
    """Of one parameter: whether the rule holds is known, by enumeration of the pieces."""
    layers = random_layers(rng)
    layers = [*layers[:-1], (layers[-1][0][:1], layers[-1][1][:1])]
    inputs = len(layers[0][0][0])
    x0, way = rng.integers(-8, 9, inputs) / 4, rng.integers(-4, 5, inputs) / 2
    low = float(rng.integers(-4, 1)) / 4
    high = low + float(rng.integers(0, 9)) / 4
    weight, bias = layers[0]
    line = [((weight @ way)[:, None], weight @ x0 + bias), *layers[1:]]
    _, most = largest(line, [Fraction(1)], low, high)
    bound = float(most) + float(rng.choice([-0.25, -(2.0**-10), 2.0**-10, 0.25, 2]))
    text = f"forall t in [{low!r}, {high!r}], x = x0 + t*{way.tolist()}: y[0] <= {bound!r}"
    return text, layers, x0, Fraction(bound) >= most


def plane_rule(rng: np.random.Generator) -> tuple[str, Any, Any, bool]:
    """Of two parameters, with a box beside the map: what is violated at some of many points is."""
    layers = random_layers(rng)
    layers = [*layers[:-1], (layers[-1][0][:1], layers[-1][1][:1])]
    inputs = len(layers[0][0][0])
    x0, ways = rng.integers(-8, 9, inputs) / 4, rng.integers(-4, 5, (2, inputs)) / 4
    cut = float(rng.integers(-4, 9)) / 4
    values = []
    for s in range(-8, 9):
        for t in range(-8, 9):
            x = x0 + s / 8 * ways[0] + t / 8 * ways[1]
            if (x <= cut).all():
                values.append(evaluate(layers, [Fraction(float(v)) for v in x])[0])
    bound = float(max(values, default=Fraction(0))) + float(rng.choice([-0.25, 0.125, 1, 4]))
    body = f"x0 + s*{ways[0].tolist()} + t*{ways[1].tolist()}"
    text = f"forall s in [-1, 1], t in [-1, 1], x = {body} and box(-100, {cut!r}): "
    true = all(v <= bound for v in values)
    return f"{text}y[0] <= {bound!r}", layers, x0, true


def ask(rng: np.random.Generator, make: Any, *, certified: bool, exact: bool) -> str:
    text, layers, x0, true = make(rng)
    prop = qll.parse(text, outputs=1)
    network = load(model_of(layers))
    (verdict,) = qll.verify(prop, network, x0[None], certified=certified, timeout=5)
    assert verdict.status != "verified" or true, (text, layers, x0)
    assert not exact or verdict.status != "falsified" or not true, (text, layers, x0)
    if certified and verdict.decided and not verdict.vacuous:
        assert verdict.evidence is Evidence.CHECKED
    return str(verdict.status)


def test_verdicts_are_those_of_enumeration() -> None:
    rng = np.random.default_rng(11)
    lines = [ask(rng, line_rule, certified=k % 3 == 0, exact=True) for k in range(100)]
    assert lines.count("verified") > 30 and lines.count("falsified") > 25
    planes = [ask(rng, plane_rule, certified=k % 3 == 0, exact=False) for k in range(40)]
    assert planes.count("verified") > 10 and planes.count("falsified") > 5


@pytest.mark.slow
@pytest.mark.parametrize("make", [line_rule, plane_rule])
def test_thousands_of_verdicts_are_those_of_enumeration(make: Any) -> None:
    rng = np.random.default_rng(12)
    for number in range(2000):
        ask(rng, make, certified=number % 10 == 0, exact=make is line_rule)


def test_two_points_may_differ_by_a_map() -> None:
    """x2 is x, brighter: the two runs share what is not moved."""
    network = load(model_of([([[1.0, 1.0], [1.0, -1.0]], [0.0, 0.0]), ([[1.0, 0.5]], [0.0])]))
    text = "forall x in box(0, 1), b in [0, 0.5], x2 = x + b: y2[0] - y[0] <= {}"
    (good,) = qll.verify(qll.parse(text.format(1.01), outputs=1), network, certified=True)
    assert good.status == "verified" and good.evidence is Evidence.CHECKED
    (bad,) = qll.verify(qll.parse(text.format(0.9), outputs=1), network, certified=True)
    assert bad.status == "falsified" and bad.witness2 is not None and bad.witness is not None
    assert np.allclose(bad.witness2 - bad.witness, (bad.witness2 - bad.witness)[0])
    same = "forall x in box(0, 1), x2 in brightness(x, 0.5): y2[0] - y[0] <= 1.01"
    (named,) = qll.verify(qll.parse(same, outputs=1), network)
    assert named.status == "verified"


def test_a_certificate_belongs_to_its_map(tmp_path: Path) -> None:
    network = load(model_of([([[1.0, -1.0]], [0.0]), ([[1.0]], [0.0])]))
    x0 = np.array([[0.5, 0.25]])
    prop = qll.parse("forall b in [-1, 1], x = x0 + b: y[0] <= 0.3", outputs=1)
    qll.verify(prop, network, x0, certificates=tmp_path)
    data = (tmp_path / "00000.qllcert").read_bytes()
    assert audit(data, network.source).confirmed
    header, arrays = unpack(data)
    for body in ("x0 + 2*b", "x0 + b*[1, -1]", "2*x0 + b", "x0 - b"):
        text = header.text.replace("x0 + b", body)
        answer = audit(seal({**asdict(header), "text": text}, arrays), network.source)
        # Where both inputs move by the same, so does nothing that the network sees.
        assert answer.confirmed == (body in ("x0 + 2*b", "x0 - b")), (body, answer)
    other = {**arrays, "x0": np.array([0.75, 0.25])}
    assert not audit(seal(asdict(header), other), network.source).confirmed


def test_a_forged_witness_is_no_image(tmp_path: Path) -> None:
    """The certificate holds parameters: beyond their ends, or too many, they are refused."""
    network = load(model_of([([[1.0, 1.0]], [0.0]), ([[1.0]], [0.0])]))
    prop = qll.parse("forall b in [-1, 1], x = x0 + b and range(-5, 1): y[0] <= 1", outputs=1)
    qll.verify(prop, network, np.zeros((1, 2)), certificates=tmp_path)
    data = (tmp_path / "00000.qllcert").read_bytes()
    assert audit(data, network.source).confirmed
    header, arrays = unpack(data)
    forged: Any = (1.5, -1.0, 0.25, math.nan, math.inf)
    for witness in (*([v] for v in forged), [1.0, 1.0], []):
        again = seal(asdict(header), {**arrays, "witness": np.array(witness)})
        assert not audit(again, network.source).confirmed, witness


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("b in [-1, 1], x in box(0, 1)", "moves no point"),
        ("b in [-1, 1], x = x0 + b*b", "multiplies two parameters"),
        ("x in rotation(x0, 5)", "interpolate towards a turned picture"),
        ("t in [0, 1], x = rotate(x0, t)", "interpolate towards a turned picture"),
        ("x in blurr(x0, 5)", "'blurr' is no region"),
        ("b in [0, 1], x = x + b", "depends on itself"),
        ("b in [0, 1], x = x0 + b + q", "unknown name 'q'"),
        ("b in [0, 1], x = x0", "moves no point"),
        ("b in [0, 1], x = x0 + b and integer(x)", "whole numbers"),
        ("x in brightness(x0, 0.1) and contrast(x0, 0.1)", "two maps"),
        ("x in box(0, 1), x2 in contrast(x, 0.1)", "wrong point"),
        ("b in [0, 1], b in [0, 1], x = x0 + b", "declared twice"),
        ("b in [0, 1], x = right(x0, b)", "no number of pixels"),
        ("b in [0, 1], x = x0 + b and x[0] <= b", "no parameter that moves"),
        ("b in [0, 1], x = x0 + b/0", "not by a number"),
    ],
)
def test_what_cannot_be_said_is_refused_by_name(text: str, words: str) -> None:
    with pytest.raises(QllError) as error:
        parse_specification(f"forall {text}: y[0] <= 1")
    said = str(error.value)
    assert words in said and "Fix:" in said and "<text>:1:" in said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x in translation(x0, 1)", "no picture"),
        ("x in brightness(x0, -1)", "no size"),
        ("b in [1, -1], x = x0 + b", "no interval"),
        ("b in [0, inf], x = x0 + b", "no interval"),
        ("t in [0, 1], x = x0 + t*[1, 2]", "does not fit"),
        ("t in [0, 1], x = x0 + t*row", "no picture"),
    ],
)
def test_what_does_not_fit_the_data_is_refused(text: str, words: str) -> None:
    network = load(model_of([([[1.0, 1.0, 1.0]], [0.0])]))
    with pytest.raises(QllError, match=words):
        qll.verify(qll.parse(f"forall {text}: y[0] <= 1", outputs=1), network, np.zeros((1, 3)))


def test_a_translation_is_by_whole_pixels() -> None:
    prop = qll.parse("forall x in translation(x0, 0.5): y[0] <= 1", outputs=1)
    with pytest.raises(QllError, match="a part of a pixel"):
        qll.Region.of(prop, picture())


def test_float32_is_refused_by_name() -> None:
    network = load(model_of([([[1.0, 1.0]], [0.0])]))
    prop = qll.parse("forall x in brightness(x0, 1): y[0] <= 1", outputs=1)
    with pytest.raises(QllError, match="moves inputs by a map"):
        qll.verify(prop, network, np.zeros((1, 2)), arithmetic="float32")


def test_bounds_and_training_take_the_box_around_the_image() -> None:
    model, x = small(), torch.rand(4, 1, 6, 6)
    prop = qll.parse(f"forall x in brightness(x0, 0.05): {ROBUST}", outputs=3)
    ends = qll.bounds(prop, model, x)
    region = qll.Region.of(prop, x)
    assert torch.allclose(region.upper - x, torch.full_like(x, 0.05), atol=1e-6)
    labels = model(x).argmax(1)
    y = model(region.sample(torch.Generator().manual_seed(2))["x"])
    assert bool((-prop.margin(y, labels=labels) <= prop.upper(ends, labels=labels) + 1e-5).all())
    term = qll.PropertyLoss(prop, logic="qll:5")(model, x, labels)
    term.backward()
    assert bool(torch.isfinite(term))
