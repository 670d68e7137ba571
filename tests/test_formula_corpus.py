"""The corpus through parser, printers, rewrite, every logic and the region."""

from __future__ import annotations

import math

import pytest
import torch
from corpus import CASES, At, Case, Layer, Provable
from naive import Naive, Point, form_value, qll_value

import qll
from qll.formula.parse import parse_specification
from qll.formula.show import show_specification

points = pytest.mark.parametrize(
    ("case", "at"),
    [pytest.param(c, at, id=f"{c.name}-{k}") for c in CASES for k, at in enumerate(c.at)],
)
provable = pytest.mark.parametrize(
    ("case", "claim"),
    [pytest.param(c, p, id=f"{c.name}-{k}") for c in CASES for k, p in enumerate(c.provable)],
)


def row(values: tuple[float, ...]) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64)


def arguments(at: At, outputs: int) -> dict[str, torch.Tensor]:
    hot = torch.tensor([[k in at.labels for k in range(outputs)]])
    return {"labels": hot, **{name: row(v) for name, v in at.points.items()}}


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
@pytest.mark.parametrize("style", ["ascii", "unicode"])
def test_printing_parses_back_to_the_same_nodes(case: Case, style: str) -> None:
    first = parse_specification(case.text)
    text = show_specification(first, style)  # type: ignore[arg-type]
    assert parse_specification(text) == first
    assert show_specification(parse_specification(text), style) == text  # type: ignore[arg-type]


@points
def test_truth_at_points(case: Case, at: At) -> None:
    prop = case.property()
    found = prop.holds(row(at.y), **arguments(at, case.outputs))
    assert bool(found) is at.holds

    form = prop.hard_form(at.labels, outputs=case.outputs, inputs=case.inputs)
    vectors = {"y": at.y, **at.points}
    assert (form_value(form, Point(vectors)) <= 1e-12) is at.holds

    direct = Naive(prop.specification, prop.values, Point(vectors, frozenset(at.labels)))
    value = qll_value(direct, prop.formula, math.inf, hard=True)
    assert (value <= 1e-12) is at.holds


@points
def test_every_logic_reads_it(case: Case, at: At) -> None:
    prop = case.property()
    for name in qll.LOGICS:
        leaf = row(at.y).requires_grad_()
        loss = prop.loss(leaf, logic=name, **arguments(at, case.outputs))
        assert torch.isfinite(loss).all(), name
        if loss.requires_grad:
            (slope,) = torch.autograd.grad(loss.sum(), leaf)
            assert torch.isfinite(slope).all(), name


def run(layers: tuple[Layer, ...], x: torch.Tensor) -> torch.Tensor:
    for k, (weight, bias) in enumerate(layers):
        if k:
            x = torch.relu(x)
        x = x @ x.new_tensor(weight).T + x.new_tensor(bias)
    return x


def at_points(case: Case, claim: Provable, found: dict[str, torch.Tensor]) -> torch.Tensor:
    x0 = found["x"].new_tensor([claim.x0]).expand_as(found["x"])
    known = {"x": found["x"], "x0": x0, "y0": run(claim.layers, x0)}
    if "x2" in found:
        known |= {"x2": found["x2"], "y2": run(claim.layers, found["x2"])}
    labels = None if claim.label is None else torch.full((len(x0),), claim.label)
    prop = case.property()
    wanted = {name: t for name, t in known.items() if name in prop.sources}
    return prop.holds(run(claim.layers, found["x"]), labels=labels, **wanted)


@provable
def test_verdicts_of_the_corpus_are_right(case: Case, claim: Provable) -> None:
    prop = case.property()
    if claim.verdict == "falsified":
        witness = {name: row(v) for name, v in claim.witness.items()}
        inside = qll.Region.of(prop, row(claim.x0)).contains(witness, tolerance=1e-12)
        assert bool(inside) and not bool(at_points(case, claim, witness))
        return
    many = row(claim.x0).repeat(2000, 1)
    region = qll.Region.of(prop, many)
    generator = torch.Generator().manual_seed(0)
    sampled = region.sample(generator)
    inside = region.contains(sampled, tolerance=1e-9)
    assert inside.float().mean() > 0.9
    # The hard value may pass 0 by rounding where the property is tight.
    good = at_points(case, claim, sampled)
    margins = good | ~inside
    assert margins.float().mean() > 0.999


def test_names_are_distinct() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
