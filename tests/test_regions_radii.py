"""A radius for each feature: lists, names, and the schema's scale, in every reading."""

from __future__ import annotations

from dataclasses import asdict
from fractions import Fraction
from pathlib import Path

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
from qll.data import load as load_data
from qll.errors import QllError
from qll.formula.domain import Domain
from qll.formula.parse import parse_specification
from qll.formula.show import show_specification
from qll.networks import load
from qll.verify.verdict import Evidence

DOMAIN = Domain((0.0, 0.0), (1.0, 1.0), scales=(3.7, 2.0))


@pytest.mark.parametrize(
    "text",
    [
        "forall x in ball(x0, [0.1, 0.2]): y[0] <= 1",
        'inputs age, "yearly income"\n'
        'forall x in ball(x0, {age: 2, "yearly income": 1e3}): y[0] <= 1',
        "forall x in ball(x0, {1: 0.5}) and ball(x0, 1), x2 in ball(x, [0, 1]): y[0] <= y2[0]",
        "forall x in ball(x0, 0.1 * scale) and box(-3 * scale, scale/3): y[0] <= 1",
    ],
)
def test_what_is_shown_is_read_again(text: str) -> None:
    read = parse_specification(text, domain=DOMAIN)
    for style in ("ascii", "unicode"):
        assert parse_specification(show_specification(read, style)) == read
    assert "scale" not in show_specification(read)
    assert "B_{" in show_specification(read, "latex")


def test_python_builds_what_text_says() -> None:
    i = qll.formula.y[0] <= 1
    built = qll.Specification(i, (qll.every("x", qll.ball([0.1, 0.2]), qll.ball({1: 0.5})),))
    text = "forall x in ball(x0, [0.1, 0.2]) and ball(x0, {1: 0.5}): y[0] <= 1"
    assert parse_specification(text) == built


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_every_input_has_its_own_range(dtype: torch.dtype) -> None:
    x0 = torch.tensor([[0.5, 1.0, -1.0], [0.0, 0.0, 0.0]], dtype=dtype)
    text = "forall x in ball(x0, [0.25, 0, 2]), x2 in ball(x, {2: 0.5}) and ball(x, 1): y[0] <= 1"
    found = qll.Region.of(qll.parse(text, outputs=1), x0)
    assert (found.upper - x0).tolist() == [[0.25, 0.0, 2.0]] * 2
    points = found.sample(torch.Generator().manual_seed(0))
    assert bool(found.contains(points).all())
    assert torch.equal(points["x2"][:, :2], points["x"][:, :2])  # those without a radius stay
    moved = {**points, "x2": points["x2"] + torch.tensor([0.0, 0.1, 0.0], dtype=dtype)}
    assert not bool(found.contains(moved).any())


def test_an_attack_stays_within_each_radius() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    prop = qll.parse("forall x in ball(x0, [0.5, 0, 0.01]): y[0] <= y0[0]", outputs=1)
    x0 = torch.rand(20, 3)
    for engine in ("compiled", "autograd"):
        found = attack("pgd:10")(model, prop, x0, engine=engine)  # type: ignore[arg-type]
        away = (found.x - x0).abs()
        assert bool(found.inside.all()) and bool(found.falsified.all())
        assert float(away[:, 1].max()) == 0 and float(away[:, 2].max()) < 0.0100001
        assert float(away[:, 0].min()) > 0.4  # the widest is used, not cut to the narrowest


def test_radii_and_boxes_ask_the_same() -> None:
    """Verdicts are those of the box with the same ends; witnesses are looked at again."""
    rng = np.random.default_rng(3)
    statuses = []
    for _ in range(40):
        layers = random_layers(rng)
        inputs = len(layers[0][0][0])
        x0, radii = rng.integers(-4, 5, inputs) / 4, rng.integers(0, 5, inputs) / 4
        values = [evaluate(layers, [Fraction(float(v)) for v in x0])[0]]
        most = float(values[0]) + float(rng.choice([-0.25, 0.25, 1, 3]))
        ball = qll.parse(f"forall x in ball(x0, {radii.tolist()}): y[0] <= {most!r}", outputs=1)
        box = qll.parse(
            f"forall x in box({(x0 - radii).tolist()}, {(x0 + radii).tolist()}): y[0] <= {most!r}"
        )
        layers = [*layers[:-1], (layers[-1][0][:1], layers[-1][1][:1])]
        network = load(model_of(layers))
        (one,) = qll.verify(ball, network, x0[None], certified=True, timeout=10)
        (other,) = qll.verify(box, network, certified=True, timeout=10)
        assert one.status == other.status
        if one.witness is not None:
            assert (np.abs(one.witness - x0) <= radii).all()
            assert evaluate(layers, [Fraction(float(v)) for v in one.witness])[0] > most
        assert not one.decided or one.evidence is Evidence.CHECKED
        statuses.append(str(one.status))
    assert statuses.count("verified") > 5 and statuses.count("falsified") > 5


def test_a_certificate_for_narrow_radii_does_not_prove_wide_ones(tmp_path: Path) -> None:
    network = load(model_of([([[1.0, 1.0]], [0.0]), ([[1.0]], [0.0])]))
    prop = qll.parse("forall x in ball(x0, [0.5, 0.125]): y[0] <= 0.7", outputs=1)
    qll.verify(prop, network, np.zeros((1, 2)), certificates=tmp_path)
    data = (tmp_path / "00000.qllcert").read_bytes()
    assert audit(data, network.source).confirmed
    header, arrays = unpack(data)
    for radii in ("[0.5, 0.25]", "[0.125, 0.5]", "0.5", "{0: 0.5, 1: 0.125}"):
        text = header.text.replace("[0.5, 0.125]", radii)
        again = audit(seal({**asdict(header), "text": text}, arrays), network.source)
        assert again.confirmed == (radii.startswith("{")), radii  # which says the same
    (wide,) = qll.verify(qll.parse("forall x in ball(x0, 0.5): y[0] <= 0.7"), network,
                         np.zeros((1, 2)))  # fmt: skip
    assert wide.status == "falsified"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("forall x in ball(x0, 0.1*scale): y[0] <= 1", "pass --data with the table"),
        ("forall x in box(0, 1): y[0] <= scale", "where one number does"),
        ("forall x in box(0, 1) and x[0] <= scale: y[0] <= 1", "where one number does"),
        ("forall x in ball(x0, {age: 1}): y[0] <= 1", "unknown name 'age'"),
        ("forall x in ball(x0, {0: 1, 0: 2}): y[0] <= 1", "two radii"),
        ("forall x in ball(x0, [1, x[0]]): y[0] <= 1", "is not constant"),
    ],
)
def test_what_is_wrong_is_named_where_it_stands(text: str, words: str) -> None:
    with pytest.raises(QllError) as error:
        qll.parse(text, outputs=1)
    assert (
        words in str(error.value) and "Fix:" in str(error.value) and "<text>:" in str(error.value)
    )


@pytest.mark.parametrize(
    ("radii", "words"),
    [("[1, 1, 1]", "do not fit"), ("[1, -1]", "negative"), ("{7: 1}", "does not exist")],
)
def test_radii_that_do_not_fit_the_data_are_refused(radii: str, words: str) -> None:
    prop = qll.parse(f"forall x in ball(x0, {radii}): y[0] <= 1", outputs=1)
    with pytest.raises(QllError, match=words):
        qll.Region.of(prop, torch.zeros(1, 2))


def test_the_schema_has_the_scale(tmp_path: Path) -> None:
    rows = "\n".join(f"{20 + k},{1000 * k},{k % 2}" for k in range(40))
    (tmp_path / "people.csv").write_text(f"age,income,good\n{rows}\n")
    data = load_data(str(tmp_path / "people.csv"), target="good")
    assert data.schema is not None
    prop = qll.parse("forall x in ball(x0, 0.5 * scale): y[0] <= 1", schema=data.schema)
    (ball,) = prop.binders[0].parts
    sizes = qll.Region.of(prop, torch.zeros(1, 2)).upper[0].tolist()
    wanted = [0.5 * scale for scale in data.schema.input_scales]
    assert sizes == pytest.approx(wanted) and sizes[1] > 100 * sizes[0]
    assert isinstance(ball, qll.formula.nodes.Ball)
