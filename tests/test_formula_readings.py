"""Grounding, templates, padding, masks and flattening against direct evaluation of the formula."""

from __future__ import annotations

import math

import naive
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from naive import Naive, Point, form_value, pushed_value, qll_value
from strategies import INPUTS, point, specification

import qll
from qll.errors import FormulaError

OTHERS = {
    "goedel": naive.Goedel(),
    "lukasiewicz": naive.Lukasiewicz(),
    "product": naive.Product(),
    "yager:2": naive.Yager(2.0),
    "yager:3.5": naive.Yager(3.5),
    "dl2": naive.DL2(),
    "stl:1": naive.STL(1.0),
    "stl:5": naive.STL(5.0),
}
SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


def tensors(points: list[Point]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    stacked = {
        name: torch.tensor([p.vectors[name] for p in points], dtype=torch.float64)
        for name in ("y", "y0", "x", "x0")
    }
    return stacked.pop("y"), stacked


def label_tensor(points: list[Point], *, multi_hot: bool) -> torch.Tensor:
    if not multi_hot:
        return torch.tensor([next(iter(p.labels)) for p in points])
    outputs = len(points[0].vectors["y"])
    return torch.tensor([[k in p.labels for k in range(outputs)] for p in points])


def readable(prop: qll.Property, points: list[Point] | None = None) -> None:
    """Random formulas may range over nothing or have an empty premise, for some labels at least:
    those are errors. ``points`` name the sets of labels; otherwise each class by itself."""
    patterns = {p.labels for p in points} if points else {frozenset({k}) for k in range(3)}
    for pattern in patterns:
        try:
            prop.hard_form(tuple(pattern), outputs=3, inputs=(INPUTS,))
        except FormulaError as error:
            assert "ranges over nothing" in error.what or "this premise" in error.what, error
            assume(False)


def assert_close(found: torch.Tensor, expected: list[float], what: str) -> None:
    for k, (a, b) in enumerate(zip(found.tolist(), expected, strict=True)):
        assert a == b or math.isclose(a, b, rel_tol=1e-7, abs_tol=1e-7), (what, k, a, b)


@settings(max_examples=80, suppress_health_check=SLOW)
@given(specification(), st.lists(point(), min_size=1, max_size=4), st.sampled_from([0.7, 5.0]))
def test_qll_and_boolean_agree_with_direct_evaluation(spec, points, p) -> None:
    prop = qll.Property(spec)
    readable(prop)
    y, given_points = tensors(points)
    labels = label_tensor(points, multi_hot=False)
    direct = [Naive(spec, prop.values, q, (INPUTS,)) for q in points]

    soft = prop.value(y, labels=labels, logic=qll.QLL(p), **given_points)
    assert_close(soft, [qll_value(d, spec.formula, p) for d in direct], "soft")

    hard = [qll_value(d, spec.formula, math.inf, hard=True) for d in direct]
    assert_close(-prop.margin(y, labels=labels, **given_points), hard, "hard")

    # Soundness: satisfied iff the value with every hardness at infinity is <= 0.
    holds = prop.holds(y, labels=labels, **given_points)
    for k, value in enumerate(hard):
        if abs(value) > 1e-9:  # rounding may decide exact ties either way
            assert bool(holds[k]) == (value <= 0)
        form = prop.hard_form(tuple(points[k].labels), outputs=3, inputs=(INPUTS,))
        found = form_value(form, points[k])
        assert found == value or math.isclose(found, value, rel_tol=1e-9, abs_tol=1e-9)


@settings(max_examples=30, suppress_health_check=SLOW)
@given(
    specification(linear=False),
    st.lists(point(), min_size=1, max_size=3),
    st.sampled_from(["relu", "softplus"]),
)
def test_other_comparisons_of_qll_agree_with_direct_evaluation(spec, points, comparison) -> None:
    prop = qll.Property(spec)
    readable(prop)
    y, given_points = tensors(points)
    labels = label_tensor(points, multi_hot=False)
    logic = qll.QLL(3.0, comparison)
    found = prop.value(y, labels=labels, logic=logic, **given_points)
    expected = [
        qll_value(Naive(spec, prop.values, q, (INPUTS,)), spec.formula, 3.0, comparison=comparison)
        for q in points
    ]
    assert_close(found, expected, comparison)


@pytest.mark.parametrize("multi_hot", [False, True])
@pytest.mark.parametrize("linear", [False, True])
def test_every_other_logic_agrees_with_direct_evaluation(linear: bool, multi_hot: bool) -> None:
    # DL2 and STL read `phi -o bottom` against a large finite number, and STL has no degree beyond
    # which `top -o phi` is still false: no constants, and no labels that become some, with -o.
    @settings(max_examples=30, suppress_health_check=SLOW)
    @given(
        specification(linear=linear, constants=not linear, labels=not linear),
        st.lists(point(multi_label=multi_hot), min_size=1, max_size=4),
    )
    def run(spec, points) -> None:
        prop = qll.Property(spec)
        readable(prop, points if multi_hot else None)
        y, given_points = tensors(points)
        labels = label_tensor(points, multi_hot=multi_hot) if prop.uses_labels else None
        for name, operations in OTHERS.items():
            values = prop.value(y, labels=labels, logic=name, **given_points)
            losses = prop.loss(y, labels=labels, logic=name, **given_points)
            for k, q in enumerate(points):
                direct = Naive(spec, prop.values, q, (INPUTS,))
                expected = pushed_value(direct, spec.formula, operations)
                found = float(values[k])
                # a residual jumps where its sides agree: rounding may put it on either side
                if not math.isclose(found, expected, rel_tol=1e-6, abs_tol=1e-6):
                    assert near_a_jump(direct, spec, operations, found), (name, found, expected)
                elif not math.isinf(found):
                    assert math.isclose(float(losses[k]), operations.loss(found), abs_tol=1e-9)

    run()


def near_a_jump(
    direct: Naive, spec: qll.Specification, operations: naive.Operations, found: float
) -> bool:
    """Whether some tiny change of the outputs gives the value that was found."""
    for step in (1e-9, -1e-9, 3e-9, -2e-9):
        for pattern in range(1, 64):
            moved = {
                source: [
                    v + step * ((pattern >> (k % 6)) & 1) for k, v in enumerate(vector, start=shift)
                ]
                for shift, (source, vector) in enumerate(direct.point.vectors.items())
            }
            other = Naive(spec, direct.values, Point(moved, direct.point.labels), (INPUTS,))
            value = pushed_value(other, spec.formula, operations)
            if math.isclose(found, value, rel_tol=1e-5, abs_tol=1e-5):
                return True
    return False


@settings(max_examples=50, suppress_health_check=SLOW)
@given(specification(linear=False), st.lists(point(), min_size=1, max_size=3))
def test_logics_that_claim_soundness_agree_with_the_boolean_reading(spec, points) -> None:
    prop = qll.Property(spec)
    readable(prop)
    y, given_points = tensors(points)
    labels = label_tensor(points, multi_hot=False)
    margin = prop.margin(y, labels=labels, **given_points)
    clear = margin.abs() > 1e-3  # closer to the boundary products and powers may underflow
    for name in qll.LOGICS:
        logic = qll.LOGICS[name]()
        if qll.logics.Law.SOUND not in logic.laws:
            continue
        value = prop.value(y, labels=labels, logic=logic, **given_points)
        at_least_true = value * logic.direction.value >= true_from(logic) * logic.direction.value
        assert torch.equal(at_least_true[clear], (margin >= 0)[clear]), name


def true_from(logic: qll.Logic) -> float:
    """The least true of the true values: the unit of the record."""
    return logic.unit


@settings(max_examples=80, suppress_health_check=SLOW)
@given(
    specification(constants=False),
    st.lists(point(), min_size=1, max_size=3),
    st.sampled_from([0.3, 1.0, 5.0, 60.0]),
)
def test_hard_value_lies_within_the_slack_of_the_soft_one(spec, points, p) -> None:
    prop = qll.Property(spec, outputs=3, inputs=(INPUTS,))
    readable(prop)
    y, given_points = tensors(points)
    labels = label_tensor(points, multi_hot=False)
    soft = prop.value(y, labels=labels, logic=qll.QLL(p), **given_points)
    hard = -prop.margin(y, labels=labels, **given_points)
    a, b = prop.slack(qll.QLL(p))
    assert a >= 0 and b >= 0
    finite = torch.isfinite(hard)
    assert torch.equal(soft[~finite], hard[~finite])
    assert (hard[finite] >= soft[finite] - a - 1e-9).all()
    assert (hard[finite] <= soft[finite] + b + 1e-9).all()
