"""Regions: boxes, balls, ranges, linear constraints, second points."""

from __future__ import annotations

import pytest
import torch

import qll
from qll.errors import InputError


def region(text: str, x0: torch.Tensor, **parameters: float) -> qll.Region:
    return qll.Region.of(qll.parse(text, **parameters), x0)


def grid(*rows: tuple[float, ...]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def test_ball_and_range_intersect_in_raw_units() -> None:
    x0 = grid((0.05, 0.5), (1.0, 0.9))
    found = region("forall x in ball(x0, 0.1) and range(0, 1): y[0] >= 0", x0)
    assert torch.allclose(found.lower, grid((0.0, 0.4), (0.9, 0.8)))
    assert torch.allclose(found.upper, grid((0.15, 0.6), (1.0, 1.0)))
    assert not found.relates_two_points


def test_parameters_bound_the_region() -> None:
    prop = qll.load("classification-robustness", epsilon=0.25)
    found = qll.Region.of(prop, torch.full((1, 1, 2, 2), 0.5))
    assert found.lower.shape == (1, 1, 2, 2)
    assert (found.lower == 0.25).all() and (found.upper == 0.75).all()
    zero = qll.Region.of(prop.with_parameters(epsilon=0.0), torch.full((1, 4), 0.5))
    assert torch.equal(zero.lower, zero.upper)


def test_box_vectors_follow_the_flat_order() -> None:
    text = "forall x in box([0, 1, 2, 3], [1, 2, 3, 4]): y[0] >= 0"
    found = region(text, torch.zeros(3, 2, 2, dtype=torch.float64))
    assert found.lower[0].tolist() == [[0, 1], [2, 3]]
    assert found.upper[2].tolist() == [[1, 2], [3, 4]]
    mixed = region("forall x in box(-1, [1, 2]): y[0] >= 0", torch.zeros(1, 2))
    assert mixed.lower.tolist() == [[-1, -1]] and mixed.upper.tolist() == [[1, 2]]


def test_the_smallest_of_several_parts_counts() -> None:
    found = region(
        "forall x in ball(x0, 0.5) and ball(x0, 0.1) and box(0, 0.55): y[0] >= 0", grid((0.5,))
    )
    assert found.lower.item() == pytest.approx(0.4) and found.upper.item() == pytest.approx(0.55)


def test_contains_is_exact() -> None:
    found = region("forall x in box(0, 1) and x[0] + x[1] <= 1: y[0] >= 0", torch.zeros(5, 2))
    x = torch.tensor([[0.0, 1.0], [0.5, 0.5], [0.6, 0.5], [-0.1, 0.0], [1.0, 1e-6]])
    assert found.contains({"x": x}).tolist() == [True, True, False, False, False]
    assert found.contains({"x": x}, tolerance=0.2).tolist() == [True, True, True, True, True]


def test_linear_constraints_of_many_kinds() -> None:
    text = (
        "parameter gap: number = 0.25\n"
        "forall x in box(-1, 1) and x[0] <= x[1] - gap and 0 <= x[2] <= 0.5"
        " and (forall k in 0..1: x[k] >= x0[k]) and x[1] == 2*x[2]: y[0] >= 0"
    )
    x0 = torch.zeros(500, 3, dtype=torch.float64)
    found = region(text, x0)
    assert len(found.constraints) == 1 + 2  # what is said of one input is in the box
    inside = found.contains({"x": grid((0.25, 0.5, 0.25)).expand(500, 3)})
    assert inside.all()
    assert not found.contains({"x": grid((0.25, 0.4, 0.2)).expand(500, 3)}).any()  # gap too small
    sampled = found.sample(torch.Generator().manual_seed(0))
    assert found.contains(sampled).float().mean() > 0.95


def test_samples_and_projections_lie_inside() -> None:
    x0 = torch.rand(200, 3, 2, generator=torch.Generator().manual_seed(2))
    found = region("forall x in ball(x0, 0.1) and range(0, 1): y[0] >= 0", x0)
    sampled = found.sample(torch.Generator().manual_seed(3))
    assert found.contains(sampled).all()
    again = found.sample(torch.Generator().manual_seed(3))
    assert torch.equal(sampled["x"], again["x"])
    spread = (sampled["x"] - found.lower) / (found.upper - found.lower)
    assert 0.45 < spread.mean() < 0.55 and spread.min() < 0.02 and spread.max() > 0.98
    far = found.project({"x": torch.randn(200, 3, 2) * 9})
    assert found.contains(far).all()
    assert torch.equal(found.project(sampled)["x"], sampled["x"])  # what is inside stays


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_second_points(dtype: torch.dtype) -> None:
    prop = qll.load("monotonicity", step=0.125)
    x0 = torch.zeros(100, 4, dtype=dtype)
    found = qll.Region.of(prop, x0)
    assert found.relates_two_points and found.radius2 == 0.125
    sampled = found.sample(torch.Generator().manual_seed(1))
    x, x2 = sampled["x"], sampled["x2"]
    assert found.contains(sampled).all()
    assert (x2[:, 0] >= x[:, 0] - 1e-6).all()
    assert torch.allclose(x2[:, 1:], x[:, 1:], atol=1e-6)
    assert ((x2 - x).abs() <= 0.125 + 1e-6).all()
    moved = {"x": x, "x2": x.clone()}
    moved["x2"][:, 1] += 0.01
    assert not found.contains(moved).any()


def test_a_ball_around_the_first_point() -> None:
    text = "forall x in box(0, 1), x2 in ball(x, 0.25): y2[0] <= y[0]"
    found = region(text, torch.zeros(50, 2, dtype=torch.float64))
    assert (found.lower2 == -0.25).all() and (found.upper2 == 1.25).all()
    sampled = found.sample(torch.Generator().manual_seed(4))
    assert found.contains(sampled).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    "text",
    [
        "forall x in box(0, 1), x2 in ball(x, 0.1): y[0] >= 0",
        "forall x in box(0, 1) and x[0] + x[1] + x[2] <= 1 and x[1] >= 2*x[0]: y[0] >= 0",
        "forall x in ball(x0, 0.3), x2 in ball(x, 0.1) and x2[1] == x[1]"
        " and x2[0] - x[0] <= x0[0]/3 - 0.1 and x[2] == 0.1: y[0] >= 0",
    ],
)
def test_projections_are_inside_exactly(text: str, dtype: torch.dtype) -> None:
    """A point outside by rounding alone is no counterexample: an attack would find nothing."""
    x0 = 0.1 * torch.rand(500, 5, generator=torch.Generator().manual_seed(5)).to(dtype)
    found = region(text, x0)
    sampled = found.sample(torch.Generator().manual_seed(6))
    assert found.contains(sampled).float().mean() > 0.99


def test_some_of_the_samples() -> None:
    x0 = torch.rand(6, 2)
    found = region("forall x in ball(x0, 0.1): y[0] >= 0", x0)
    some = found[torch.tensor([4, 1])]
    assert torch.equal(some.lower, found.lower[[4, 1]]) and torch.equal(some.x0, x0[[4, 1]])
    assert found[2:4].upper.shape == (2, 2)


def test_definitions_and_units_in_regions() -> None:
    text = "parameter r: probability = 0.5\nforall x in ball(x0, 0.1 + r): y[0] >= 0"
    found = region(text, grid((0.0,)))
    assert found.upper.item() == pytest.approx(0.1)  # the logit of 0.5 is 0


def test_empty_and_unbounded_regions_are_refused() -> None:
    x0 = grid((0.5, 0.5))
    for text in (
        "forall x in ball(x0, 0.1) and box(2, 3): y[0] >= 0",
        "forall x in box(1, 0): y[0] >= 0",
        "forall x in ball(x0, inf): y[0] >= 0",
        "forall x in x[0] <= 1: y[0] >= 0",
        "forall x in ball(x0, -0.1): y[0] >= 0",
        "forall x in box(0, 1), x2 in x2[0] >= x[0]: y[0] >= 0",
    ):
        with pytest.raises(InputError):
            region(text, x0)
    with pytest.raises(InputError):
        region("forall x in ball(x0, 0.1): y[0] >= 0", x0 * float("nan"))


@pytest.mark.parametrize(
    ("region", "rule", "broken"),
    [
        ("box(0, 10) and x[0] in {1, 4}", "y[0] <= 1.5 or y[0] >= 3.5", False),
        ("box(0, 10) and x[0] in {1, 2.5, 4}", "y[0] <= 1.5 or y[0] >= 2.25", False),
        ("box(0, 10) and x[0] <= 2 and x[0] in {1, 2.5, 4}", "y[0] <= 1.5", False),
        ("box(0, 10) and x[0] in {1, 2.5, 4}", "y[0] <= 3", True),
        ("box(0, 10) and x[0] in {1, 2.5, 4}, x2 in box(0, 10) and x2[0] in {0, 3}",
         "y2[0] - y[0] <= 1", True),
        ("box(0, 10) and x[0] in {1, 2.5, 4}, x2 in box(0, 10) and x2[0] in {0, 3}",
         "y2[0] - y[0] <= 2", False),
    ],
)  # fmt: skip
def test_inputs_that_have_a_few_values(region: str, rule: str, broken: bool) -> None:
    """Attacked, sampled and judged at these values, as the verifier decides it."""
    network = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.ReLU())
    with torch.no_grad():
        network[0].weight.fill_(1.0)
        network[0].bias.fill_(0.0)
    prop = qll.parse(f"forall x in {region}: {rule}", outputs=1)
    hit = qll.attack(prop, network, torch.full((8, 1), 5.0))
    assert bool(hit.inside.all())
    assert bool(hit.falsified.any()) == broken
    (verdict,) = qll.verify(prop, network, torch.full((1, 1), 5.0))
    assert (verdict.status == "falsified") == broken


@pytest.mark.parametrize(
    ("premise", "may"),
    [("x[1] == 1", {1}), ("x[1] == 0", {0, 2}), ("x[0] <= 0 and x[2] <= 0", {1})],
)
def test_a_category_keeps_to_the_values_that_a_rule_leaves_it(premise: str, may: set[int]) -> None:
    """The attack aims where the loss is largest; the rule speaks of some of the values alone."""
    head = "forall x in box(0, 1) and one_hot(x[0], x[1], x[2])"
    found = region(f"{head} and {premise}:\n  y[0] >= 0", torch.zeros(6, 4))
    points = found.project({"x": torch.eye(4).repeat(2, 1)[:6] * 3 - 1})
    assert bool(found.contains(points).all())
    assert {int(k) for k in points["x"][:, :3].argmax(1)} == may


def test_an_attack_on_one_value_of_a_category_finds_its_violation() -> None:
    rule = qll.parse(
        "forall x in box(0, 1) and one_hot(x[0], x[1], x[2]) and x[1] == 1:\n  y[0] >= 0"
    )
    model = torch.nn.Linear(4, 1)
    with torch.no_grad():  # the other values are worse by far, but the rule is not about them
        model.weight.copy_(torch.tensor([[-9.0, 0.0, -9.0, -2.0]]))
        model.bias.fill_(1.0)
    found = qll.attack(rule, model, torch.zeros(3, 4))
    assert bool(found.falsified.all())
