"""Numbers of a property are collected without rounding: what prover and checker share."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

import qll
from qll.errors import QllError
from qll.formula.build import literal
from qll.formula.hard import Affine, affine
from qll.formula.nodes import Divide, Number, Scale
from qll.formula.parse import parse_specification
from qll.formula.show import show_specification
from qll.networks import Network, load
from qll.properties import parse
from qll.verify.certificate import certify
from qll.verify.query import Query
from qll.verify.subject import explicit
from qll.verify.verdict import Status, Verdict


def constant(value: float) -> Network:
    """A network whose only output is this number."""
    module = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
        module[2].bias.fill_(value)
    return load(module, input_shape=(1,))


def ask(body: str, value: float = 1.0, certified: bool = False) -> Verdict:
    prop = parse(f"forall x in box(0, 1): {body}", outputs=1)
    return qll.verify(prop, constant(value), np.zeros((1, 1)), timeout=5.0, certified=certified)[0]


# --- the claims ---

FALSE_AT_ONE = (
    "1e30*y[0] + y[0] - 1e30*y[0] <= 0",
    "y[0] + 1e30 <= 1e30",
    "1e30*(y[0]/3 + y[0]/3 + y[0]/3 - y[0]) + y[0] <= 0",
    "1e16*(0.1*3*y[0] - 0.1*y[0] - 0.1*y[0] - 0.1*y[0]) + y[0] <= 0.5",
)
TRUE_AT_ONE = (
    "y[0] + 1e17 <= 1e17 + 1",
    "y[0]/3 + y[0]/3 + y[0]/3 <= y[0]",
    "y[0]/(1/3) <= 3*y[0]",
    "1e17*y[0] + 1 >= 1e17*y[0] + y[0]",
)


@pytest.mark.parametrize("certified", [False, True])
@pytest.mark.parametrize("body", FALSE_AT_ONE)
def test_a_false_claim_is_not_verified(body: str, certified: bool) -> None:
    assert ask(body, certified=certified).status is Status.FALSIFIED


@pytest.mark.parametrize("body", TRUE_AT_ONE)
def test_a_true_claim_is_not_falsified(body: str) -> None:
    """They hold with equality: a prover with a margin may leave them open."""
    assert ask(body).status is not Status.FALSIFIED


@pytest.mark.parametrize(
    "body",
    [
        "1e-200*(1e-200*y[0]) <= 0",
        "1e-200*1e-200*y[0] <= 0",
        "1e200*(1e200*y[0]) <= 0",
        "y[0] <= 1e200*1e200",
        "1e-200*(1e200*(1e200*y[0])) <= 1e200*1e200",
        "(1 + inf)*y[0] <= 0",
        "y[0] <= " + " + ".join(f"1/{n}" for n in range(3, 12001, 2)),
    ],
)
def test_numbers_beyond_the_floats_are_refused(body: str) -> None:
    with pytest.raises(QllError) as caught:
        ask(body)
    assert "too large or too small" in str(caught.value) or "digits" in str(caught.value)
    assert "Fix:" in str(caught.value)


def test_the_difference_of_two_sides_that_no_float_holds_is_refused() -> None:
    """Each side is a fine number, what is left of them is 2^-1074."""
    tiny = 2.0**-1022
    body = f"{tiny + 2.0**-1074!r}*y[0] <= {tiny!r}*y[0]"
    with pytest.raises(QllError, match="too large or too small"):
        ask(body)


# --- the nodes ---


@pytest.mark.parametrize(
    "text, expected",
    [("4/255", Divide(Number(4.0), 255.0)), ("4/2", Number(2.0)), ("0.5*3", Number(1.5)),
     ("0.1*3", Scale(Number(0.1), Number(3.0)))],
)  # fmt: skip
def test_only_what_is_exact_is_worked_out_at_once(text: str, expected: object) -> None:
    specification = parse_specification(f"{text} <= y[0]", outputs=1)
    assert specification.formula.left == expected  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "body",
    ["y[0] - 4/255", "-(y[0]/3)", "y[0]/3/7", "2*y[0]/3", "2*(y[0]/3)", "1/3*y[0]", "(y[0] + 1)/3",
     "-4/255", "y[0]/-3", "0.1*3 + y[0]", "y[0] - 0.1*3", "-0.1*3", "y[0] - (4 - y[0]/3)"],
)  # fmt: skip
def test_quotients_are_printed_as_they_are_read(body: str) -> None:
    specification = parse_specification(f"{body} <= 1", outputs=1)
    printed = show_specification(specification)
    assert parse_specification(printed, outputs=1) == specification, printed
    assert show_specification(parse_specification(printed, outputs=1)) == printed


def test_a_default_and_a_hardness_may_be_quotients() -> None:
    text = "parameter a: number = 4/255\ny[0] <= a and[1/3] y[0] >= 0"
    specification = parse_specification(text, outputs=1)
    assert specification.parameters[0].default == 4 / 255
    assert specification.formula.hardness == 1 / 3  # type: ignore[attr-defined]
    assert literal(Number(2.0)) == 2.0


def test_like_terms_are_collected_without_rounding() -> None:
    found = affine([(("y", 0), 0.1), (("y", 0), 0.2), (("y", 1), 1.0), (("y", 1), -1.0)], 0.3)
    assert found == Affine(((("y", 0), Fraction(0.1) + Fraction(0.2)),), Fraction(0.3))
    assert found.floats == (((("y", 0), 0.1 + 0.2),), 0.3)


# --- the text of a query ---


def test_a_query_is_written_without_rounding() -> None:
    """Coefficients that are no floats: thirds, and 2^60 + 1."""
    network = constant(1.0)
    form = affine([(("y", 0), Fraction(1, 3)), (("x", 0), Fraction(2**60 + 1))], Fraction(-1, 7))
    query = Query(network, np.zeros(1), np.ones(1), form)
    claimed = Verdict(Status.FALSIFIED, "attack", witness=np.ones(1))
    _, answer = certify(query, claimed)
    assert answer.confirmed, answer
    text = explicit(query).text
    read = parse_specification(text, outputs=1)
    from qll.formula.rewrite import Grounder, Shape
    from qll.formula.slack import hard_form

    again = hard_form(Grounder(read, {}, Shape(1, (1,))).ground())
    assert isinstance(again, Affine)
    assert again == affine([(slot, 21 * c) for slot, c in form.terms], 21 * Fraction(form.constant))
