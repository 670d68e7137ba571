"""Points of regions with several constraints, exactly, and regions without one."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import nn
from verify_cases import chain

import qll
from qll.formula.hard import Affine, affine
from qll.verify.member import _allows, find_member
from qll.verify.query import Query

NETWORK = chain((np.ones((1, 4)), [0.0]))


def query(*constraints: Affine, lower: float = 0.0, upper: float = 1.0) -> Query:
    box = np.full(4, lower), np.full(4, upper)
    return Query(NETWORK, *box, affine([(("y", 0), 1.0)], -100.0), constraints)


def row(coefficients: list[float], end: float) -> Affine:
    """``coefficients . x <= end``."""
    return affine([(("x", k), c) for k, c in enumerate(coefficients) if c], -end)


def equals(coefficients: list[float], end: float) -> tuple[Affine, Affine]:
    return row(coefficients, end), row([-c for c in coefficients], -end)


def test_a_point_on_equations_is_exact() -> None:
    """A third is no float: in no point of floats are three times x[0] exactly 1."""
    asked = query(*equals([3, 0, 0, 0], 1), *equals([1, 1, 1, 0], 0.1), lower=-1)
    point = find_member(asked).point
    assert point is not None and point[0] == Fraction(1, 3)
    assert sum(point[:3]) == Fraction(0.1)
    assert _allows(asked, point)


def test_no_point_meets_all_though_some_meet_each() -> None:
    up, down = row([-1, -1, 0, 0], -1.5), row([1, 1, 0, 0], 1.5 - 1e-9)
    asked = query(up, down)
    assert find_member(asked).empty and asked.vacuous
    assert not query(up).vacuous and not query(down).vacuous
    touching = query(up, row([1, 1, 0, 0], 1.5))
    assert touching.member.point is not None and not touching.vacuous


@pytest.mark.parametrize("seed", range(40))
def test_against_linear_programmes(seed: int) -> None:
    """What is called empty is, what is named is inside, and clear cases are decided."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(-3, 4, (int(rng.integers(2, 6)), 4)).astype(float)
    inside = rng.random(4)
    ends = rows @ inside + rng.choice([-0.3, 0.0, 0.3], len(rows))
    asked = query(*(row(r.tolist(), float(e)) for r, e in zip(rows, ends, strict=True)))
    if asked._folded.is_empty:
        return
    found = find_member(asked)
    slack = np.hstack([rows, -np.ones((len(rows), 1))])
    best = linprog(np.append(np.zeros(4), 1.0), A_ub=slack, b_ub=ends,
                   bounds=[(0, 1)] * 4 + [(None, None)]).fun  # fmt: skip
    if found.point is not None:
        assert best < 1e-9 and _allows(asked, found.point)
    elif found.empty:
        assert best > -1e-9
    if abs(best) > 1e-6:
        assert found.empty is (best > 0) and (found.point is not None) is (best < 0)


def test_a_rule_about_an_empty_region_holds_vacuously() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)).eval()
    rule = "forall x in box(0, 1) and x[0] + x[1] <= 1 and x[0] >= 0.6 and x[1] >= 0.6: y[0] <= 0"
    other = rule.replace("x[0] >= 0.6 and x[1] >= 0.6", "x[0] - x[1] >= 0.5 and x[1] - x[0] >= 0")
    for text in (rule, other):
        (verdict,) = qll.verify(qll.parse(text, outputs=1), module, np.zeros((1, 2)))
        assert str(verdict) == "verified, vacuously"
