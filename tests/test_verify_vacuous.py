"""What holds because its premise is false at the data point is counted apart: it says nothing of
the network."""

from __future__ import annotations

import numpy as np
import pytest
from verify_cases import chain

import qll
from qll.formula.hard import HardForm, Max, Min, affine
from qll.verify.backend import BACKENDS, Budget
from qll.verify.query import Query
from qll.verify.verdict import Status

IDENTITY = chain((np.eye(2), [0.0, 0.0]), (np.eye(2), [0.0, 0.0]))
ABOVE = affine([(("y", 0), 1.0)], -0.5)  # violated where y[0] > 0.5
SEVENS = """outputs 10
parameter epsilon: input = 0.01
forall x in ball(x0, epsilon):
  label(7) -> (forall i in outputs where i != 7: y[7] >= y[i])
"""


def test_a_rule_for_sevens_says_nothing_of_other_digits() -> None:
    network = chain((np.eye(10), np.zeros(10)), (np.eye(10), np.zeros(10)))
    labels = np.array([7, 3, 7, 0])
    points = np.eye(10)[labels]
    prop = qll.parse(SEVENS)
    forms = [prop.hard_form((c,), outputs=10, inputs=(10,)) for c in labels.tolist()]
    queries = [Query(network, x, x, f) for x, f in zip(points, forms, strict=True)]
    verdicts = BACKENDS["bab"]().decide(queries, Budget())
    assert [v.status for v in verdicts] == [Status.VERIFIED] * 4
    assert [v.vacuous for v in verdicts] == [False, True, False, True]
    assert [v.as_json()["vacuous"] for v in verdicts] == [False, True, False, True]
    assert str(verdicts[1]) == "verified, vacuously"


@pytest.mark.parametrize(
    ("condition", "vacuous"),
    [
        (ABOVE, False),
        (affine([], -1.0), True),
        # x[0] > 2 and y[0] > 0.5: no point of the unit box is that far out
        (Min((affine([(("x", 0), 1.0)], -2.0), ABOVE)), True),
        # x[0] > 1 is not possible either, x[0] > 0.9 is
        (Min((affine([(("x", 0), 1.0)], -1.0), ABOVE)), True),
        (Min((affine([(("x", 0), 1.0)], -0.9), ABOVE)), False),
        (Max((affine([(("x", 0), 1.0)], -2.0), ABOVE)), False),
        (Max((affine([(("x", 0), 1.0)], -2.0), affine([(("x", 1), -1.0)]))), True),
    ],
)
def test_premises_on_the_input_are_judged_over_the_box(condition: HardForm, vacuous: bool) -> None:
    query = Query(IDENTITY, np.zeros(2), np.ones(2), condition)
    assert query.vacuous is vacuous


def test_a_tie_keeps_a_premise_open_where_ties_violate() -> None:
    condition = Min((affine([(("x", 0), 1.0)], -1.0), ABOVE))
    query = Query(IDENTITY, np.zeros(2), np.ones(2), condition, tie_violates=True)
    assert not query.vacuous


def test_an_empty_region_is_vacuous() -> None:
    far = affine([(("x", 0), -1.0)], 3.0)  # x[0] >= 3
    query = Query(IDENTITY, np.zeros(2), np.ones(2), ABOVE, constraints=(far,))
    assert query.vacuous
    assert BACKENDS["torch"]().decide([query], Budget())[0].vacuous
