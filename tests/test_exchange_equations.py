"""Equations between inputs, in real numbers and in float32, and the numbers that decimals are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from exchange_cases import (
    BOX1,
    HEAD1,
    MONOTONE,
    SUM,
    F,
    answer,
    assert_answer,
    layered,
    save,
)
from onnx import helper

from qll.exchange.files import parse
from qll.exchange.models import attach, files_of
from qll.verify.documents import Answer, decide, queries


@pytest.fixture
def adder(tmp_path: Path) -> Path:
    return layered(tmp_path / "sum.onnx", SUM)


ABSOLUTE = (
    ([[1, 0], [0, 1], [-1, 0], [0, -1]], [0] * 4),
    ([[1, 0, 1, 0], [0, 1, 0, 1]], [0, 0]),
)  # y = |x0|, |x1|
HEAD_TWO = HEAD1 + "(declare-const Y_1 Real)\n"


@pytest.mark.parametrize(
    ("assertions", "expected"),
    [
        ("(== X_1 (- X_0)) (> Y_1 0.5)", "sat"),
        ("(== X_1 (- X_0)) (> Y_1 (+ Y_0 0.01))", "unsat"),
        ("(== (* 2 X_1) X_0) (>= Y_1 0.5) (>= X_0 0)", "sat"),
        ("(== (* 2 X_1) X_0) (> Y_1 0.51)", "unsat"),
        ("(== (+ X_0 X_1) 1) (>= X_0 0) (>= X_1 0) (> Y_1 0.25)", "sat"),
        ("(== (+ X_0 X_1) 1) (>= X_0 0) (>= X_1 0) (> (+ Y_0 Y_1) 1.001)", "unsat"),
        # No float is a third of another: the point is judged as it is and printed rounded.
        ("(== (* 3 X_1) X_0) (>= X_0 0.5) (> Y_1 0.25)", "sat"),
        # An input that is fixed at a decimal fixes the other one.
        ("(== (+ X_0 X_1) 1) (== X_0 0.1) (>= Y_1 0.89) (>= X_1 0.9) (<= X_1 0.9)", "sat"),
        ("(== (+ X_0 X_1) 1) (== X_0 0.1) (> Y_1 0.91)", "unsat"),
        # A case of its own for each part of a disjunction.
        ("(or (== X_1 (- X_0)) (== X_1 (* 2 X_0))) (>= X_0 0.25) (> X_1 0.75)", "sat"),
        ("(or (== X_1 (- X_0)) (== X_1 (* 2 X_0))) (>= X_0 0.25) (> (- X_1 X_0) 0.51)", "unsat"),
    ],
)
def test_equations_between_inputs_are_solved(
    assertions: str, expected: str, tmp_path: Path
) -> None:
    path = layered(tmp_path / "absolute.onnx", *ABSOLUTE)
    decision, values = answer(parse(f"{HEAD_TWO}{BOX1}(assert (and {assertions}))"), str(path))
    assert decision.answer == expected
    if values:
        assert values[2:] == pytest.approx([abs(v) for v in values[:2]])
        if "3" not in assertions and "0.1)" not in assertions:  # floats that solve the equation
            assert not decision.notes
            assert values[1] in (-values[0], values[0] / 2, 1 - values[0], 2 * values[0])


@pytest.mark.parametrize(
    ("assertions", "expected"),
    [
        ("(== X_1 (- X_0)) (>= Y_1 0.5)", "sat"),
        ("(== X_1 (- X_0)) (> Y_1 (+ Y_0 0.01))", "unsat"),
        ("(== (* 2 X_1) X_0) (== X_1 (* -4 Y_1)) (> Y_1 0.1) (> X_0 0)", "unsat"),
        ("(== (* 4 X_1) X_0) (> Y_1 0.26)", "unsat"),
        ("(== (* 4 X_1) X_0) (> Y_1 0.24)", "sat"),
        ("(== X_1 (- X_0)) (== X_1 X_0) (> Y_1 0.1)", "unsat"),  # both are 0
        ("(== X_1 (- X_0)) (== X_1 X_0) (>= Y_1 0)", "sat"),
        ("(<= X_0 0.5) (>= (+ X_0 X_1) 1.5) (>= Y_1 1)", "sat"),  # in one corner of the box
    ],
)
def test_powers_of_two_lose_nothing_in_float32(
    assertions: str, expected: str, tmp_path: Path
) -> None:
    path = layered(tmp_path / "absolute.onnx", *ABSOLUTE)
    document = parse(f"{HEAD_TWO}{BOX1}(assert (and {assertions}))")
    attached = attach(document, files_of(document, [str(path)]))
    for arithmetic in ("float32", None):
        found = decide(attached.document, attached.network, seconds=20, arithmetic=arithmetic)
        assert found.answer == expected
    if found.witness is not None:
        x = attached.all_inputs(found.witness)
        y = attached.outputs(found.witness)
        values = [[F(v) for v in vector.tolist()] for vector in (x, y)]
        assert document.holds(*values)


@pytest.mark.parametrize(
    ("assertions", "expected"),
    [
        # Constraints that touch the box in a corner, also one that no float has.
        ("(>= (+ X_0 X_1) 2) (>= Y_0 1)", "sat"),
        ("(>= (+ X_0 X_1) 2) (> Y_0 1)", "unsat"),
        ("(>= (+ X_0 X_1) 2) (< Y_0 1)", "unsat"),
        ("(> (+ X_0 X_1) 2)", "unsat"),
        ("(<= X_0 0.1) (<= X_1 0) (>= (+ (* 2 X_0) X_1) 0.2) (>= X_0 0.1)", "sat"),
        ("(<= X_0 0.1) (<= X_1 0) (>= (+ (* 2 X_0) X_1) 0.2) (> Y_1 0.01)", "unsat"),
        ("(<= X_0 -0.1) (>= X_1 0.2) (== (- X_1 X_0) 0.3) (> Y_1 0.15)", "sat"),
        ("(<= X_0 -0.1) (>= X_1 0.2) (== (- X_1 X_0) 0.3) (> Y_1 0.25)", "unsat"),
        ("(< X_0 -0.1) (>= X_1 0.2) (== (- X_1 X_0) 0.3)", "unsat"),
    ],
)
def test_regions_that_touch_their_box(assertions: str, expected: str, tmp_path: Path) -> None:
    path = layered(tmp_path / "absolute.onnx", *ABSOLUTE)
    text = f"{HEAD_TWO}{BOX1}(assert (and {assertions}))"
    assert answer(parse(text), str(path))[0].answer == expected


@pytest.mark.parametrize(
    ("assertions", "expected"),
    [
        ("(== X_0 0.1) (== (+ X_0 X_1) 1)", "not sat"),  # of numbers next to 0.1 and 0.9
        ("(<= X_0 0.1) (>= (+ X_0 X_1) 1.1)", "unsat"),  # at 0.1 alone, which is no number
    ],
)
def test_float32_numbers_that_follow_from_others(
    assertions: str, expected: str, adder: Path
) -> None:
    document = parse(f"{HEAD1}{BOX1}(assert (and {assertions} (<= Y_0 5)))")
    attached = attach(document, files_of(document, [str(adder)]))
    found = decide(attached.document, attached.network, seconds=5, arithmetic="float32")
    assert_answer(found.answer, expected)


@pytest.mark.parametrize(
    ("assertions", "expected"),
    [
        # 0.1 is the number next to it wherever its input is, under another name too.
        ("(== X_0 0.1) (== X_1 0) (> Y_0 X_0)", "not sat"),
        ("(== X_0 0.1) (== X_1 0) (== Y_0 X_0)", "sat"),
        ("(== X_0 0.1) (<= X_1 0.10000000149011612) (> X_1 X_0)", "not sat"),
        ("(== X_0 0.1) (== X_1 X_0) (>= X_1 0.1000000014)", "sat"),
        ("(== X_0 0.1) (== X_1 X_0) (> Y_0 (* 2 X_1))", "not sat"),
        ("(or (and (== X_0 0.1) (== X_1 0)) (== X_0 3)) (> Y_0 X_0)", "not sat"),
        ("(== X_0 0.1) (== X_1 X_0) (or (== X_0 0.1) (== X_0 3))", "sat"),
        ("(== X_0 0.1) (== X_1 X_0) (or (== X_0 0.2) (== X_0 3))", "unsat"),
        # An interval without a point stands for no number.
        ("(> X_0 0.1) (<= X_0 0.1)", "unsat"),
        ("(> X_0 0.1) (<= X_0 0.1) (== X_1 X_0)", "unsat"),
        ("(>= X_0 0.1) (< X_0 0.1) (== X_1 X_0)", "unsat"),
        ("(== X_0 0.1) (< X_1 0.1) (== X_1 X_0)", "unsat"),
    ],
)
def test_float32_numbers_that_decimals_stand_for(
    assertions: str, expected: str, adder: Path
) -> None:
    document = parse(f"{HEAD1}{BOX1}(assert (and {assertions} (<= Y_0 5)))")
    attached = attach(document, files_of(document, [str(adder)]), "float32")
    found = decide(attached.document, attached.network, seconds=20, arithmetic="float32")
    assert_answer(found.answer, expected)


@pytest.mark.parametrize(
    ("assertions", "expected"),
    [
        ("(>= X_0 -1e39) (<= X_0 1e39)", {None: "sat", "float32": "sat"}),
        ("(== X_0 1e39)", {None: "sat", "float32": "unsat"}),
        ("(>= X_0 3.5e38) (<= X_0 1e39)", {None: "sat", "float32": "unsat"}),
        ("(>= X_0 -1e300) (<= X_0 1e300) (== X_1 (* 1e10 X_0))", {None: "sat"}),
        ("(>= X_0 0) (<= (* 1e-300 X_0) 1e300) (<= X_0 1)", {None: "sat"}),
    ],
)
def test_ends_beyond_the_floats(
    assertions: str, expected: dict[str | None, str], adder: Path
) -> None:
    document = parse(
        f"{HEAD1}(assert (and (>= X_1 -1) (<= X_1 1)))(assert (and {assertions} (>= Y_0 -1e38)))"
    )
    attached = attach(document, files_of(document, [str(adder)]))
    for arithmetic, wanted in expected.items():
        found = decide(attached.document, attached.network, seconds=20, arithmetic=arithmetic)
        assert found.answer in (wanted, Answer.UNKNOWN)


def test_an_equation_bounds_an_input(tmp_path: Path) -> None:
    path = layered(tmp_path / "absolute.onnx", *ABSOLUTE)
    box = "(assert (and (<= X_0 1) (>= X_0 0) (== (* 2 X_1) X_0) (>= Y_1 {})))"
    assert answer(parse(HEAD_TWO + box.format(0.5)), str(path))[0].answer is Answer.SAT
    assert answer(parse(HEAD_TWO + box.format(0.51)), str(path))[0].answer is Answer.UNSAT


def test_an_equation_between_two_networks(tmp_path: Path) -> None:
    """|x| at x and x itself at -x."""
    first = layered(tmp_path / "a.onnx", ([[1], [-1]], [0, 0]), ([[1, 1]], [0]))
    second = layered(tmp_path / "b.onnx", ([[1]], [0]))
    head = MONOTONE.replace("(equal-to f)", "").replace("[1,2]", "[1,1]").split("(assert")[0]
    box = "(assert (and (<= X[0,0] 1) (>= X[0,0] 0) (== A[0,0] (- X[0,0])) ({} B[0,0] {})))"
    for sign, value, expected in (("<", "(- Y[0,0] 1.5)", "sat"), (">", "0.01", "unsat")):
        query = parse(head + box.format(sign, value))
        assert answer(query, f"f={first}", f"g={second}")[0].answer == expected


def test_comparisons_of_outputs_see_through_the_last_layer(tmp_path: Path) -> None:
    """A softmax keeps the order of its outputs: what compares them alone is asked of logits."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["z"]),
        helper.make_node("Softmax", ["z"], ["y"], axis=1),
    ]
    sizes: dict[str, list[int]] = {"x": [1, 2]}
    path = save(tmp_path / "s.onnx", nodes, sizes, {"y": [1, 2]}, {"w": 40 * np.eye(2)})
    attached = attach(parse(HEAD_TWO + BOX1 + "(assert (>= Y_0 Y_1))"), {"": path})
    (query,) = queries(attached.document, attached.network)
    assert query.form.is_piecewise_linear
    ordered = "(assert (<= X_0 X_1))(assert (> Y_0 Y_1))"
    found = [answer(parse(HEAD_TWO + BOX1 + ordered.replace("X_1", f"(- X_1 {gap})")), str(path))
             for gap in ("0.01", "-0.01")]  # fmt: skip
    assert [decision.answer for decision, _ in found] == [Answer.UNSAT, Answer.SAT]
    by_value = parse(HEAD_TWO + BOX1 + "(assert (>= Y_0 0.5))")  # not of logits
    (query,) = queries(by_value, attached.network)
    assert not query.form.is_piecewise_linear
