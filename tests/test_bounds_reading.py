"""Bounds as a reading: sound over the region, differentiable, refused where not monotone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import qll
from qll.bounds.modules import module_bounds
from qll.networks.models import Normalize

MONOTONE = ["qll:5", "qll:0.5", "dl2", "goedel", "lukasiewicz", "product", "yager:2", "boolean"]
FORMULAS = [
    "forall c in outputs: label(c) -o forall i in outputs where i != c: y[c] >= y[i]",
    "forall c in outputs: label(c) -> y[c] >= 0.2 or y[c] - y[0] >= 1",
    "(y[0] >= 0 -o y[1] >= 0) and (y[2] <= 1 -> not (y[3] >= 0 and y[0] <= 2))",
    "exists i in outputs: y[i] >= 0 and[2] y[0] + 2*y[1] <= 3",
    "(y[0] >= 0 tensor y[1] <= 1) par y[2] >= 0",
]


def small_network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        Normalize((0.3,), (0.5,)),
        nn.Conv2d(1, 2, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(2, 3, 3, padding=1),
        nn.Flatten(),
        nn.Linear(27, 6),
        nn.ReLU(),
        nn.Linear(6, 4),
    ).double()


@pytest.mark.parametrize("kind", ["interval", "crown"])
@pytest.mark.parametrize("text", FORMULAS)
@pytest.mark.parametrize("logic", MONOTONE)
def test_the_enclosure_contains_sampled_values(text: str, logic: str, kind: str) -> None:
    prop = qll.parse(f"forall x in ball(x0, 0.15) and range(0, 1): {text}", outputs=4)
    model = small_network(len(text))
    x0 = torch.rand(6, 1, 6, 6, dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 3, 1, 0])
    region = qll.Region.of(prop, x0)
    bounds = module_bounds(model, region.lower, region.upper, kind=kind)
    low, high = prop.enclose(bounds, labels=labels, logic=logic)
    upper = prop.upper(bounds, labels=labels, logic=logic)
    generator = torch.Generator().manual_seed(1)
    for step in range(40):
        x = region.sample(generator)["x"]
        if step % 2:  # corners, where the extremes are
            x = torch.where(x > x0, region.upper, region.lower)
        y = model(x)
        value = prop.value(y, labels=labels, logic=logic)
        assert (value >= low - 1e-9).all()
        assert (value <= high + 1e-9).all()
        assert (prop.loss(y, labels=labels, logic=logic) <= upper + 1e-9).all()


def test_crown_is_tighter_than_intervals_on_average() -> None:
    model, x0 = small_network(3), torch.rand(20, 1, 6, 6, dtype=torch.float64)
    prop = qll.load("classification-robustness", epsilon=0.1)
    region = qll.Region.of(prop, x0)
    labels = torch.arange(20) % 4
    losses = [
        prop.upper(
            module_bounds(model, region.lower, region.upper, kind=kind), labels=labels
        ).mean()
        for kind in ("crown", "interval")
    ]
    assert losses[0] < losses[1]


def test_a_point_region_gives_the_value_itself() -> None:
    model, x0 = small_network(4), torch.rand(5, 1, 6, 6, dtype=torch.float64)
    prop = qll.load("not-both", epsilon=0.0, outputs=6)
    wide = nn.Sequential(*list(model)[:-1], nn.Linear(6, 6).double())
    for kind in ("interval", "crown"):
        bounds = module_bounds(wide, x0, x0, kind=kind)
        torch.testing.assert_close(prop.upper(bounds), prop.loss(wide(x0)))


def test_gradients_of_the_bound_are_finite_and_reach_every_weight() -> None:
    model, x0 = small_network(5), torch.rand(8, 1, 6, 6, dtype=torch.float64)
    prop = qll.load("classification-robustness", epsilon=0.05)
    region = qll.Region.of(prop, x0)
    for kind in ("interval", "crown"):
        bounds = module_bounds(model, region.lower, region.upper, kind=kind)
        prop.upper(bounds, labels=torch.arange(8) % 4).mean().backward()
        for weight in model.parameters():
            assert weight.grad is not None
            assert torch.isfinite(weight.grad).all()
            assert weight.grad.abs().sum() > 0
            weight.grad = None


def test_stl_is_refused_because_it_is_not_monotone() -> None:
    model, x0 = small_network(6), torch.rand(2, 1, 6, 6, dtype=torch.float64)
    prop = qll.load("classification-robustness")
    with pytest.raises(qll.QllError, match="cannot bound a formula"):
        prop.upper(module_bounds(model, x0, x0), labels=torch.tensor([0, 1]), logic="stl:5")


def test_a_layer_without_a_rule_is_refused() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2), nn.ELU(), nn.Linear(2, 2))
    for kind in ("interval", "crown"):
        with pytest.raises(qll.QllError, match="no bound rule for 'elu'"):
            module_bounds(model, torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 2, 2), kind=kind)


def test_rows_of_label_patterns_are_picked_alike_however_many_there_are() -> None:
    from qll.bounds import modules

    torch.manual_seed(0)
    values, rows = torch.randn(30, 7), torch.randn(10, 9, 7)
    pick = torch.randint(0, 10, (30,))
    one_by_one = torch.stack([rows[p] @ v for v, p in zip(values, pick, strict=True)])
    torch.testing.assert_close(modules._picked(values, rows, pick), one_by_one)
    many = rows.repeat(1, 40, 1)
    assert many.shape[0] * many.shape[1] > modules._ALL_ROWS
    torch.testing.assert_close(modules._picked(values, many, pick)[:, :9], one_by_one)
