"""Text and Python build the same nodes; printing parses back to them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import specification

import qll
from qll import (
    all_of,
    any_of,
    ball,
    box,
    equal,
    every,
    exists,
    forall,
    index_set,
    indices,
    label,
    par,
    parameter,
    tensor,
    valid_range,
    x,
    x0,
    x2,
    y,
    y0,
    y2,
)
from qll.errors import FormulaError
from qll.formula.nodes import (
    Ball,
    Box,
    Linear,
    ParameterDeclaration,
    PointBinder,
    SetDeclaration,
    Specification,
)
from qll.formula.parse import parse_specification
from qll.formula.show import show, show_specification
from qll.properties import names

i, j, c, k = indices("i j c k")

SAME = [
    ("y[0] >= y[1]", y[0] >= y[1]),
    ("y[0] - 2*y[1] + 3 <= -y0[2]/4", y[0] - 2 * y[1] + 3 <= -y0[2] / 4),
    ("x[0, 1, 2] < x0[5]", x[0, 1, 2] < x0[5]),
    ("1 <= y[0]", 1 <= y[0]),  # noqa: SIM300 - Python turns it round, as the text does not
    ("3 - y[0] > y2[1] + x2[0]", 3 - y[0] > y2[1] + x2[0]),
    ("y[0] == y[1]", equal(y[0], y[1])),
    ("a and b and c", None),
    ("not y[0] <= 1 or y[1] <= 1", ~(y[0] <= 1) | (y[1] <= 1)),
    ("(y[0] <= 1 or y[1] <= 1) and y[2] <= 1", ((y[0] <= 1) | (y[1] <= 1)) & (y[2] <= 1)),
    ("y[0] <= 1 -o y[1] <= 1", (y[0] <= 1) >> (y[1] <= 1)),
    ("y[0] <= 1 -> y[1] <= 1", (y[0] <= 1).implies(y[1] <= 1)),
    ("y[0] <= 1 and[3] y[1] <= 1", all_of(y[0] <= 1, y[1] <= 1, hardness=3)),
    ("y[0] <= 1 or[inf] y[1] <= 1", any_of(y[0] <= 1, y[1] <= 1, hardness=float("inf"))),
    ("y[0] <= 1 tensor y[1] <= 1 tensor unit", tensor(y[0] <= 1, y[1] <= 1, qll.unit)),
    ("top par bottom", par(qll.top, qll.bottom)),
    (
        "forall c in outputs: label(c) -o forall i in outputs where i != c: y[c] >= y[i]",
        forall(
            c, "outputs", label(c) >> forall(i, "outputs", y[c] >= y[i], where=[qll.differ(i, c)])
        ),
    ),
    ("exists[2] (i, j) in {(0, 1), (1, 2)}: y[i] >= y[j]", None),
    ("forall k in 0..2 where k not in {1} and k < 2: y[k] <= 0", None),
]


@pytest.mark.parametrize(
    ("text", "node"), [case for case in SAME if case[1] is not None], ids=lambda v: str(v)[:40]
)
def test_text_and_python_build_the_same_nodes(text: str, node: qll.formula.nodes.Formula) -> None:
    if text == "1 <= y[0]":
        text = "y[0] >= 1"  # Python itself turns `1 <= y[0]` into `y[0] >= 1`
    assert parse_specification(text).formula == node


def test_quantifiers_from_python() -> None:
    pairs = [(0, 1), (1, 2)]
    assert parse_specification(
        "exists[2] (i, j) in {(0, 1), (1, 2)}: y[i] >= y[j]"
    ).formula == exists((i, j), pairs, y[i] >= y[j], hardness=2.0)
    conditions = [qll.condition(k, "not in", index_set([1])), qll.condition(k, "<", 2)]
    assert parse_specification(
        "forall k in 0..2 where k not in {1} and k < 2: y[k] <= 0"
    ).formula == forall(k, range(3), y[k] <= 0, where=conditions)


def test_three_conjuncts_are_one_connective() -> None:
    text = parse_specification("y[0] <= 1 and y[1] <= 1 and y[2] <= 1").formula
    assert text == (y[0] <= 1) & (y[1] <= 1) & (y[2] <= 1)
    nested = parse_specification("(y[0] <= 1 and y[1] <= 1) and y[2] <= 1").formula
    assert nested == all_of(all_of(y[0] <= 1, y[1] <= 1), y[2] <= 1) != text


def test_whole_specifications_from_python() -> None:
    text = """
    outputs 3
    parameter epsilon: input = 0.25
    set ends = {0, 2}
    forall x in ball(x0, epsilon) and range(0, 1) and x[0] + x[1] <= 1,
           x2 in box([0, 0], [1, 0.5]) and ball(x, 0.1):
      forall i in ends: y2[i] >= y[i]
    """
    built = Specification(
        forall(i, "ends", y2[i] >= y[i]),
        (
            every("x", ball(parameter("epsilon")), valid_range(0, 1), x[0] + x[1] <= 1),
            every("x2", box([0, 0], [1, 0.5]), ball(0.1, "x")),
        ),
        (ParameterDeclaration("epsilon", "input", 0.25),),
        (SetDeclaration("ends", index_set([0, 2])),),
        outputs=3,
    )
    read = parse_specification(text)
    assert read == built
    first, second = read.binders
    assert isinstance(first, PointBinder)
    assert [type(part) for part in first.parts] == [Ball, Box, Linear]
    assert second.parts[1] == Ball("x", (qll.formula.nodes.Number(0.1),))
    assert parse_specification(show_specification(built)) == built


def test_unicode_and_ascii_read_alike() -> None:
    ascii_text = (
        "forall x in ball(x0, 0.1): forall i in outputs where i != 0: not (y[i] <= 0) or"
        " (y0[0] >= 1 and top) -o bottom tensor (unit par y[0] <= inf) -> 2*y[1] <= 1"
    )
    unicode_text = (
        "∀ x ∈ ball(x₀, 0.1): ∀ i ∈ outputs where i ≠ 0: ¬(y[i] ≤ 0) ∨"
        " (y₀[0] ≥ 1 ∧ ⊤) ⊸ ⊥ ⊗ (𝟙 ⊕ y[0] ≤ ∞) → 2·y[1] ≤ 1"
    )
    assert parse_specification(ascii_text) == parse_specification(unicode_text)


@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])
@given(specification(), st.sampled_from(["ascii", "unicode"]))
def test_random_specifications_print_and_parse_back(spec: Specification, style: str) -> None:
    text = show_specification(spec, style)  # type: ignore[arg-type]
    assert parse_specification(text) == spec, text


@pytest.mark.parametrize(
    "text",
    [
        "-1*(2*y[0]) <= 0",  # a minus sign would be taken into the product
        "-1*-y[0] <= 0",
        "y[1] - 1*(-1*-y[0]) <= 0",
        "y[1] + -1*(2*y[0]) <= 0",
        "y[0] - (y[1] - y[2]) <= -(y[0] + 1)",
        "2*(y[0] + 1)/3 <= 1e-07",
        "y[0] <= 1e+22 and y[1] >= 1.5e-300",
        "not not (y[0] <= 1)",
        "not (forall i in outputs: y[i] <= 1) and y[0] <= 1",
        "(forall i in outputs: y[i] <= 1) and y[0] <= 1",
        "y[0] <= 1 and forall i in outputs: y[i] <= 1 or y[i] >= 3",
        "(y[0] <= 1 -> y[1] <= 1) -> y[2] <= 1",
        "y[0] <= 1 -> y[1] <= 1 -o y[2] <= 1",
        "((y[0] <= 1 and y[1] <= 1) and y[2] <= 1) or (y[0] <= 1 or y[1] <= 1)",
        "parameter a: number = -0.5 a*y[0] + (a + 1)*y[1] <= a*2",
        "define f = y[0] + 1; (y[1] <= f)",
    ],
)
@pytest.mark.parametrize("style", ["ascii", "unicode"])
def test_hard_texts_round_trip(text: str, style: str) -> None:
    spec = parse_specification(text)
    assert parse_specification(show_specification(spec, style)) == spec  # type: ignore[arg-type]


def test_long_sums_are_flat() -> None:
    """A mean over all pixels is one sum, not a tower of them."""
    text = " + ".join(f"x[{n}]" for n in range(784))
    spec = parse_specification(f"({text})/784 <= 0.5")
    assert parse_specification(show_specification(spec)) == spec


def assert_balanced(latex: str) -> None:
    depth = 0
    for position, sign in enumerate(latex):
        if position and latex[position - 1] == "\\":
            continue
        depth += {"{": 1, "}": -1}.get(sign, 0)
        assert depth >= 0, latex
    assert depth == 0, latex
    words = re.findall(r"\\[a-z]+", latex)
    assert words.count(r"\left") == words.count(r"\right")
    assert latex.count(r"\begin") == latex.count(r"\end")


@pytest.mark.parametrize("name", names())
def test_shipped_properties_as_latex(name: str) -> None:
    latex = qll.load(name).show("latex")
    assert_balanced(latex)
    assert "forall" not in latex.replace(r"\forall", "") and " and " not in latex


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(specification())
def test_random_formulas_as_latex(spec: Specification) -> None:
    assert_balanced(show_specification(spec, "latex"))


def test_latex_of_robustness() -> None:
    formula = parse_specification("forall c in outputs: label(c) -o y[c] >= 0.5").formula
    assert show(formula, "latex") == (
        r"\bigwedge_{c \in \mathrm{outputs}} \left(\hat{y}_{c} \multimap y_{c} \ge 0.5\right)"
    )


def test_python_truth_of_a_formula_is_refused() -> None:
    for wrong in (
        lambda: 0 <= y[0] <= 1,
        lambda: (y[0] <= 1) and (y[1] <= 1),
        lambda: not (y[0] <= 1),
        lambda: y[0] <= "1",
        lambda: y[0] * y[1],
        lambda: y[0] / y[1],
        lambda: y[0] / 0,
        lambda: y[0] + True,
    ):
        with pytest.raises(FormulaError):
            wrong()


def test_a_repr_is_the_text() -> None:
    """Of a formula, of every part of a specification, of a ground formula: never the tree."""
    formula = forall(c, "outputs", label(c) >> (y[c] - 2 * x[0, 1] >= 0.5))
    assert repr(formula) == "forall c in outputs: label(c) -o y[c] - 2*x[0, 1] >= 0.5"
    assert parse_specification(repr(formula)).formula == formula
    read = parse_specification(
        "set s = {0, 2}\nforall x in ball(x0, 0.1): exists k in s: y[k] <= 1"
    )
    assert repr(read) == show_specification(read).rstrip("\n")
    assert repr([y, i, index_set([0, 2]), ball(0.2), every("x", box(0, 1)), *read.sets]) == (
        "[y, i, {0, 2}, ball(x0, 0.2), x in box(0, 1), set s = {0, 2}]"
    )
    assert repr((qll.differ(i, 3), read.formula.binders[0])) == "(i != 3, k in s)"
    assert repr(all_of()) == "and()"  # refused later, but shown
    ground = qll.parse("y[0]/3 <= 1 and (y[1] <= 0 -o y[0] >= 2)", outputs=2)
    assert repr(ground.ground(None, qll.logic("qll:5"), outputs=2)) == (
        "1/3*y[0] <= 1 and (y[1] <= 0 -o 2 <= y[0])"
    )


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(specification())
def test_the_repr_of_a_random_formula_reads_back(spec: Specification) -> None:
    assert parse_specification(repr(spec)) == spec


def test_documentation_is_kept() -> None:
    prop = qll.load("not-both")
    assert prop.documentation.startswith("Not both: two opposite faces")
    assert parse_specification(prop.show()).documentation == prop.documentation


def test_the_examples_of_the_reference_are_as_they_say() -> None:
    page = (Path(__file__).parent.parent / "docs" / "language.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.M | re.S)
    rules = [text for language, text in blocks if not language and "\n\nforall x" in text]
    assert len(rules) == 2
    for rule in rules:
        spec = parse_specification(rule)
        assert parse_specification(show_specification(spec, "unicode")) == spec
    for text in [text for language, text in blocks if language == "python"]:
        exec(compile(text, "docs/language.md", "exec"), {})  # noqa: S102 - our own page
