"""No NaN in any value or gradient: huge and tiny numbers, ties, zeros, every hardness."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

import qll
from qll.logics import Logic

VALUES = [
    *(0.0, 1e-45, 1e-30, -1e-11, 1e-11, 0.5, -1.0),
    *(88.7, -103.0, 300.0, -200.0, 1e20, 1e38, -1e38),
]
SPECS = [
    *("qll:0.001", "qll:1", "qll:5", "qll:1e6", "qll:inf", "qll:5,comparison=relu"),
    *("qll:5,comparison=softplus", "qll:1e6,comparison=softplus"),
    *("stl:0.001", "stl:1", "stl:5", "stl:1e6", "stl:inf", "dl2", "goedel", "lukasiewicz"),
    *("product", "yager:0.01", "yager:0.5", "yager:1", "yager:2", "yager:1e3", "yager:inf"),
    "boolean",
]
FORMULAS = [
    "y[0] <= y[1]",
    "y[0] <= y[1] or y[1] <= y[2] or y[2] <= y[0]",
    "y[0] <= y[1] and y[1] <= y[2] and y[0] >= y[2]",
    "y[0] >= 0 and y[1] >= 0 and y[2] >= 0",
    "(y[0] <= 0 or y[1] <= 0) and (y[2] >= 0 or y[0] >= y[1]) and y[1] <= 1",
    "(y[0] <= y[1] and y[1] <= y[2]) -o (y[1] <= y[2] or y[0] >= 1)",
    "y[0] <= inf and (y[1] >= inf or y[2] <= y[1])",
    "(y[0] <= y[1]) tensor (y[1] <= y[2]) par not (y[0] <= y[2])",
    "forall i in outputs: forall j in outputs: y[i] - y[j] <= 0",
]


def assert_no_nan(prop: qll.Property, logic: Logic, y: torch.Tensor) -> None:
    leaf = y.clone().requires_grad_()
    loss = prop.loss(leaf, logic=logic)
    assert not torch.isnan(loss).any(), (prop.show(), logic, y[torch.isnan(loss)])
    if not loss.requires_grad:  # the Boolean reading is a count
        return
    (slope,) = torch.autograd.grad(loss.sum(), leaf)
    bad = torch.isnan(slope).any(1)
    assert not bad.any(), (prop.show(), logic, y[bad], slope[bad])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("spec", SPECS)
def test_extreme_values_give_no_nan(spec: str, dtype: torch.dtype) -> None:
    rows = list(itertools.product(VALUES, repeat=3))
    y = torch.tensor(rows, dtype=torch.float64).to(dtype)
    for text in FORMULAS:
        assert_no_nan(qll.parse(text), qll.logic(spec), y)


@pytest.mark.parametrize("spec", ["qll:0.001", "qll:5", "qll:1e6", "qll:inf", "stl:5", "stl:inf"])
def test_masked_operands_take_no_part_however_extreme(spec: str) -> None:
    """Samples whose conjunction is shorter are padded: the padding must never be the extreme."""
    prop = qll.parse(
        "(label(0) -o (y[0] <= y[1] and y[0] <= y[2] and y[1] <= y[2])) and"
        "(label(1) -o (y[1] <= y[0] and y[2] <= y[0]))"
    )
    logic = qll.logic(spec)
    y = torch.tensor([[1e38, -1e38, -5e37], [-1e38, 0.0, 1e38], [1.0, 0.5, -3.0]])
    for name, signs in (("first", 1.0), ("second", -1.0)):
        short = (signs * y).requires_grad_()
        value = prop.value(short, labels=torch.tensor([1, 1, 1]), logic=logic)
        alone = qll.parse("y[1] <= y[0] and y[2] <= y[0]").value(short, logic=logic)
        assert torch.allclose(value, alone, rtol=1e-5), name
        (slope,) = torch.autograd.grad(value.sum(), short, retain_graph=True)
        (expected,) = torch.autograd.grad(alone.sum(), short)
        assert torch.allclose(slope, expected, rtol=1e-5), name


def test_conjunction_of_huge_operands_is_exact() -> None:
    y = torch.tensor([[1e38, 2.0, -1e38]])
    assert float(qll.parse("y[0] <= 0 and y[1] <= 0 and y[2] <= 0").value(y, logic="qll:1e6")) == (
        pytest.approx(1e38)
    )
    low = torch.tensor([[-1e38, -2e38, -3e38]])
    value = qll.parse("y[0] <= 0 and y[1] <= 0 and y[2] <= 0").value(low, logic="qll:1e6")
    assert float(value) == pytest.approx(-1e38)


def test_stl_gives_a_far_operand_no_weight() -> None:
    conj = qll.STL(5.0).conj
    assert float(conj(torch.tensor([1.0, 1e38]))) == 1.0
    assert float(conj(torch.tensor([1.0, 1e34]))) == 1.0
    leaf = torch.tensor([1e20, 1e-11, 1e-11], requires_grad=True)
    (slope,) = torch.autograd.grad(conj(leaf), leaf)
    assert torch.isfinite(slope).all()


def test_stl_at_exactly_zero() -> None:
    for connective in (qll.STL(5.0).conj, qll.STL(5.0).disj):
        leaf = torch.zeros(3, requires_grad=True)
        value = connective(leaf)
        (slope,) = torch.autograd.grad(value, leaf)
        assert float(value.detach()) == 0.0
        assert torch.isfinite(slope).all() and float(slope.sum()) == pytest.approx(1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_yager_where_both_sides_round_to_one(dtype: torch.dtype) -> None:
    """sigmoid(300) and sigmoid(200) are both 1 in float32: 0 / 0 in the residual."""
    leaf = torch.tensor([[300.0, 200.0]], dtype=dtype, requires_grad=True)
    loss = qll.parse("y[0] <= y[1]").loss(leaf, logic="yager:2")
    (slope,) = torch.autograd.grad(loss.sum(), leaf)
    assert float(loss.detach()) == pytest.approx(0.0, abs=1e-6) and torch.isfinite(slope).all()


def test_dl2_product_overflow_keeps_a_satisfied_disjunct() -> None:
    y = torch.tensor([[1e38, 1e38, -1.0]])
    prop = qll.parse("y[0] <= 0 or y[1] <= 0 or y[2] <= 0")
    assert float(prop.loss(y, logic="dl2")) == 0.0
    assert math.isfinite(float(prop.loss(y.abs(), logic="dl2")))


@pytest.mark.parametrize("name", sorted(qll.LOGICS))
def test_implication_between_infinite_degrees_is_no_nan(name: str) -> None:
    logic = qll.LOGICS[name]()
    ends = torch.tensor([logic.top, logic.bottom, logic.unit], dtype=torch.float64)
    a, b = ends.repeat_interleave(3), ends.repeat(3)
    assert not torch.isnan(logic.implies(a, b)).any()
    for op in (logic.tensor, logic.par):
        if name in ("dl2", "stl"):  # readings never meet these: constants are worked in before
            continue
        assert not torch.isnan(op(torch.stack([a, b]))).any()
