"""What a query asks is decided: disjunctions of boxes, ties, exact decimals, several tensors."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from exchange_cases import (
    BOX1,
    BOX2,
    HEAD1,
    HEAD2,
    MONOTONE,
    SUM,
    F,
    answer,
    ask,
    assert_answer,
    layered,
    save,
)
from onnx import TensorProto, helper, numpy_helper

from qll.errors import InputError, NetworkError
from qll.exchange.cases import cases
from qll.exchange.files import parse, read
from qll.exchange.models import attach, files_of
from qll.verify.documents import Answer, decide


@pytest.fixture
def adder(tmp_path: Path) -> Path:
    return layered(tmp_path / "sum.onnx", SUM)


@pytest.mark.parametrize(
    ("assertions", "expected"),
    [
        ("(assert (>= Y_0 2.0))", "sat"),
        ("(assert (> Y_0 2.0))", "not sat"),  # a bound shows no less than a tie
        ("(assert (> Y_0 2.001))", "unsat"),
        ("(assert (> Y_0 1.5))", "sat"),
        ("(assert (== Y_0 2.0))", "sat"),
        ("(assert (!= Y_0 0.0))", "sat"),
        ("(assert (>= Y_0 2.0))(assert (< X_0 1.0))", "not sat"),
        ("(assert (>= Y_0 1.5))(assert (< X_0 1.0))(assert (> X_1 0.25))", "sat"),
        ("(assert (>= Y_0 1.5))(assert (<= (+ X_0 (* 2 X_1)) 1.0))", "unsat"),
        ("(assert (>= Y_0 0.5))(assert (<= (+ X_0 (* 2 X_1)) 1.0))", "sat"),
        ("(assert (>= Y_0 (+ X_0 0.5)))(assert (<= X_1 0.25))", "unsat"),
        ("(assert (>= Y_0 (+ X_0 0.125)))(assert (<= X_1 0.25))", "sat"),
        ("(assert (or (and (>= X_0 2.0) (>= Y_0 0.0)) (>= Y_0 2.5)))", "unsat"),
        ("(assert (or (and (>= X_0 0.5) (<= Y_0 -0.25)) (>= Y_0 2.5)))", "sat"),
        ("(assert (<= X_0 -2.0))(assert (>= Y_0 0.0))", "unsat"),
        ("(assert (<= X_0 0.0))(assert (> X_0 0.0))(assert (>= Y_0 0.0))", "unsat"),
        ("(assert (<= 1.0 0.0))(assert (>= Y_0 0.0))", "unsat"),
        ("(assert (>= 1.0 0.0))(assert (>= Y_0 0.0))", "sat"),
        ("(assert (== X_0 X_1))(assert (>= Y_0 2.0))", "sat"),
        # Of inputs alone: any point of the region, strictly within and on a line.
        ("(assert (< (- X_1 X_0) 0))", "sat"),
        ("(assert (> (+ X_0 X_1) 1.9))(assert (< X_0 0.99))", "sat"),
        ("(assert (> (- X_1 X_0) 2))", "unsat"),
        ("(assert (== X_0 X_1))(assert (>= X_0 0.0))(assert (<= Y_0 -0.5))", "unsat"),
    ],
)  # fmt: skip
def test_answers(assertions: str, expected: str, adder: Path) -> None:
    assert_answer(ask(HEAD1 + BOX1 + assertions, adder), expected)


@pytest.mark.parametrize(
    ("assertions", "expected"),
    [
        # In float64, 3 * 0.3 is less than 0.9: only exact decimals say that there is a point, and
        # no float is that point.
        ("(assert (<= X_0 0.3))(assert (>= (* 3 X_0) 0.9))(assert (<= Y_0 9.0))", "not unsat"),
        ("(assert (<= X_0 0.3))(assert (> (* 3 X_0) 0.9))(assert (<= Y_0 9.0))", "not sat"),
        # 0.1 + 0.2 is more than 0.3 in floats.
        ("(assert (== X_0 0.1))(assert (== X_1 0.2))(assert (<= (+ X_0 X_1) 0.3))"
         "(assert (<= Y_0 9.0))", "sat"),
        ("(assert (== X_0 0.1))(assert (== X_1 0.2))(assert (< (+ X_0 X_1) 0.3))"
         "(assert (<= Y_0 9.0))", "unsat"),
        # The float next to 0.3 is less.
        ("(assert (== X_0 0.3))(assert (== X_1 0))(assert (>= Y_0 0.3))", "sat"),
        ("(assert (== X_0 0.3))(assert (== X_1 0))(assert (>= Y_0 0.31))", "unsat"),
        # A corner that no float has: the witness is the next one within.
        ("(assert (<= X_0 0.1))(assert (<= X_1 0.1))(assert (>= Y_0 0.1999999))", "sat"),
    ],
)  # fmt: skip
def test_decimals_are_exact(assertions: str, expected: str, adder: Path) -> None:
    assert_answer(ask(HEAD1 + BOX1 + assertions, adder), expected)


def test_witnesses_lie_within_the_exact_region(adder: Path) -> None:
    text = HEAD1 + "".join(f"(assert (> X_{k} 0.1))(assert (<= X_{k} 0.7))" for k in range(2))
    for threshold in ("1.3999998", "0.2000003"):
        sign = ">=" if threshold > "1" else "<="
        document = parse(text + f"(assert ({sign} Y_0 {threshold}))")
        decision, values = answer(document, str(adder))
        assert decision.answer is Answer.SAT
        for value in values[:2]:
            assert F(1, 10) < F(value) <= F(7, 10)
            assert float(np.float32(value)) == value  # what the network is given, unrounded


def test_products_of_disjunctions() -> None:
    either = "".join(
        f"(assert (or (and (>= X_{k} 0.5) (<= X_{k} 1.0)) (and (>= X_{k} -1.0) (<= X_{k} -0.5))))"
        for k in range(2)
    )
    document = parse(HEAD1 + either + "(assert (>= Y_0 0.0))")
    assert len(list(cases(document))) == 4
    # Contradictory products are dropped, equal boxes joined, inner disjunctions opened.
    text = either + "(assert (or (>= X_0 0.75) (and (<= X_0 -0.75) (or (>= X_1 0.9) (<= Y_0 1)))))"
    found = list(cases(parse(HEAD1 + text)))
    assert len(found) == 5
    same = "(assert (or (and (<= X_0 0.5) (>= Y_0 1)) (and (<= X_0 0.5) (<= Y_0 -1))))"
    assert len(list(cases(parse(HEAD1 + BOX1 + same)))) == 1


def test_too_many_products_stay_whole(adder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """2^20 boxes would be too many to list; the hull of each disjunction bounds the inputs."""
    size = 20
    names = [f"X_{k}" for k in range(size)] + ["Y_0"]
    head = "".join(f"(declare-const {name} Real)\n" for name in names)
    either = "".join(
        f"(assert (or (and (>= X_{k} 0.5) (<= X_{k} 1.0)) (and (>= X_{k} -1.0) (<= X_{k} -0.5))))"
        for k in range(size)
    )
    document = parse(head + either + f"(assert (>= Y_0 {size + 1}))")
    monkeypatch.setattr("qll.exchange.cases.MOST_PRODUCTS", 8)
    found = list(cases(document))
    assert len(found) == 8
    assert all(found[0].side(k, "lower") is not None for k in range(size))
    network = layered(adder.with_name("wide.onnx"), ([[1.0] * size], [0.0]))
    assert answer(document, str(network))[0].answer is Answer.UNSAT


def test_inputs_without_bounds_are_named(adder: Path) -> None:
    with pytest.raises(InputError, match="the input X_1 has no upper bound"):
        ask(HEAD1 + BOX1.replace("(assert (<= X_1 1.0))", "") + "(assert (>= Y_0 0.0))", adder)


@pytest.mark.parametrize("name", ["X_0", "Y_0", "(+ X_0 (* 2 Y_0))"])
def test_many_values_that_are_not_allowed(name: str, adder: Path) -> None:
    """As intervals between them: one by one, forty would be 2^40 cases."""
    apart = "".join(f"(assert (!= {name} {k / 40}))" for k in range(-20, 21))
    document = parse(HEAD1 + BOX1 + apart + "(assert (>= Y_0 0.5))")
    assert len(list(cases(document))) == (42 if name == "X_0" else 1)
    assert answer(document, str(adder))[0].answer is Answer.SAT
    for values, expected in (("0.5", "unsat"), ("0.51", "sat")):
        fixed = f"(assert (== X_0 0))(assert (and (>= X_1 {values}) (<= X_1 {values})))"
        one = "(assert (!= Y_0 0.25))(assert (!= (* -2 Y_0) -1))"
        assert ask(HEAD1 + BOX1 + one + fixed, adder) == expected


def test_a_region_without_a_float32_number(adder: Path) -> None:
    """Two neighbours are 7.5e-9 apart around 0.1."""
    for ends, expected in ((("0.1", "0.1000000001"), "unsat"), (("0.1", "0.10000001"), "sat")):
        box = "(assert (and (> X_0 {}) (< X_0 {}) (>= X_1 0) (<= X_1 1)))".format(*ends)
        document = parse(HEAD1 + box + "(assert (<= Y_0 5))")
        attached = attach(document, files_of(document, [str(adder)]))
        for arithmetic, wanted in (("float32", expected), ("real", "sat")):
            found = decide(attached.document, attached.network, seconds=20, arithmetic=arithmetic)
            assert found.answer == wanted


# --- tensors: several inputs, outputs, hidden nodes, networks ---

TWO = """(vnnlib-version <2.0>)
(declare-network f
  (declare-input A real [1,2])
  (declare-input B real [])
  (declare-output S real [1,2])
  (declare-output P real [1])
)
(assert (and (<= A[0,0] 1) (>= A[0,0] 0) (<= A[0,1] 1) (>= A[0,1] 0) (<= B 3) (>= B 2)))
"""


@pytest.fixture
def two_inputs(tmp_path: Path) -> Path:
    """S = A + B, P = relu(A[0] - A[1]) * 2."""
    nodes = [
        helper.make_node("Add", ["A", "B"], ["S"]),
        helper.make_node("MatMul", ["A", "w"], ["m"]),
        helper.make_node("Relu", ["m"], ["r"], name="hidden"),
        helper.make_node("Add", ["r", "r"], ["q"]),
        helper.make_node("Reshape", ["q", "one"], ["P"]),
        helper.make_node("Constant", [], ["unused"], value_float=1.0),
    ]
    nodes.insert(0, helper.make_node("Constant", [], ["one"], value_ints=[1]))
    path = tmp_path / "two.onnx"
    return save(
        path, nodes, {"A": [1, 2], "B": []}, {"S": [1, 2], "P": [1]}, {"w": [[1.0], [-1.0]]}
    )


@pytest.mark.parametrize(
    ("assertions", "expected"),
    [
        ("(assert (>= S[0,1] 4.0))", "sat"),
        ("(assert (> S[0,1] 4.001))", "unsat"),
        ("(assert (>= P[0] 1.5))(assert (>= A[0,1] 0.5))", "unsat"),
        ("(assert (>= P[0] 1.5))(assert (<= S[0,0] 3.0))", "sat"),
    ],
)
def test_several_inputs_and_outputs(assertions: str, expected: str, two_inputs: Path) -> None:
    decision, values = answer(parse(TWO + assertions), f"f={two_inputs}")
    assert decision.answer == expected
    if values:
        a0, a1, b, s0, s1, p = values
        assert (s0, s1, p) == pytest.approx((a0 + b, a1 + b, 2 * max(a0 - a1, 0)))


@pytest.mark.parametrize("node", ["r", "hidden"])
def test_hidden_nodes(node: str, two_inputs: Path) -> None:
    """By the name of the value, and by that of the node."""
    head = TWO.replace(
        "  (declare-output S", f'  (declare-hidden H real [1,1] "{node}")\n  (declare-output S'
    )
    decision, values = answer(parse(head + "(assert (>= H[0,0] 0.75))"), f"f={two_inputs}")
    assert decision.answer is Answer.SAT
    assert values[3] == pytest.approx(values[0] - values[1])
    unsat = head + "(assert (>= (- P[0] H[0,0]) 0.5))(assert (<= H[0,0] 0.25))"
    assert answer(parse(unsat), f"f={two_inputs}")[0].answer is Answer.UNSAT
    missing = parse(head.replace(f'"{node}"', '"none"') + "(assert (>= H[0,0] 0.75))")
    with pytest.raises(InputError, match="hidden node 'H' is not in"):
        answer(missing, f"f={two_inputs}")


def test_two_copies_of_a_network(tmp_path: Path) -> None:
    """Monotone in the first input: true of a sum of ReLUs of it, false if one has a minus."""
    rises = layered(
        tmp_path / "up.onnx", ([[1, 0.5], [2, -1], [0.25, 1]], [0, -0.5, 0]), ([[1, 1, 2]], [0])
    )
    falls = layered(
        tmp_path / "down.onnx", ([[1, 0.5], [2, -1], [0.25, 1]], [0, -0.5, 0]), ([[1, -1, 2]], [0])
    )
    query = parse(MONOTONE + "(assert (<= (- B[0,0] Y[0,0]) -0.1))")
    assert answer(query, f"f={rises}")[0].answer is Answer.UNSAT
    decision, values = answer(query, f"f={falls}")
    assert decision.answer is Answer.SAT
    x0, x1, a0, a1, y, b = values
    assert x1 == a1
    assert x0 <= a0
    assert b < y
    for wrong in ([f"f={rises}", f"g={falls}"], [f"g={rises}"], [f"f={rises}", "g=none.onnx"]):
        with pytest.raises(InputError, match="network files are not those"):
            answer(query, *wrong)
    # Vehicle names the file of an equal network once more.
    copy = tmp_path / "copy.onnx"
    copy.write_bytes(rises.read_bytes())
    for same in (rises, copy):
        assert answer(query, f"f={rises}", f"g={same}")[0].answer is Answer.UNSAT


def test_two_networks(tmp_path: Path) -> None:
    """A network and a slightly changed one differ by at most what changed."""
    first = layered(tmp_path / "a.onnx", ([[1, 2], [-1, 1]], [0, 0.5]), ([[1, 1]], [0]))
    second = layered(tmp_path / "b.onnx", ([[1, 2], [-1, 1]], [0, 0.5]), ([[1, 1]], [0.125]))
    head = MONOTONE.replace("equal-to", "isomorphic-to") + "(assert (== A[0,0] X[0,0]))"
    for limit, expected in (("0.13", Answer.UNSAT), ("0.12", Answer.SAT)):
        query = parse(head + f"(assert (>= (- B[0,0] Y[0,0]) {limit}))")
        assert answer(query, f"f={first}", f"g={second}")[0].answer is expected


def test_wrong_files_are_named(adder: Path, two_inputs: Path) -> None:
    query = parse(HEAD1 + BOX1 + "(assert (>= Y_0 0.0))")
    for given in ([], [str(adder), str(adder)]):
        with pytest.raises(InputError, match="network files are not those"):
            answer(query, *given)
    with pytest.raises(InputError, match="inputs are not those"):
        answer(query, str(two_inputs))
    with pytest.raises(NetworkError, match="cannot be read"):
        answer(query, "f=none.onnx")
    wide = layered(adder.with_name("wide.onnx"), ([[1.0] * 3], [0.0]))
    with pytest.raises(InputError, match="the input of the query is not that of"):
        answer(query, str(wide))
    tall = layered(adder.with_name("tall.onnx"), ([[1.0] * 2] * 2, [0.0] * 2))
    with pytest.raises(InputError, match="the output of the query is not that of"):
        answer(query, str(tall))
    start = "(vnnlib-version <2.1>)(declare-network f (declare-input X real [1,2] initialized)"
    fixed = parse(start + "(declare-output Y real [1,1]))(assert (>= Y[0,0] 0))")
    with pytest.raises(InputError, match="declared as initialized"):
        answer(fixed, f"f={adder}")


@pytest.mark.parametrize(
    "name", ["cartpole_case_safe_14", "dubinsrejoin_case_safe_3", "lunarlander_case_unsafe_45"]
)
def test_twins_have_the_same_answer(name: str, shared: Path) -> None:
    """Queries and networks as the benchmark ships them, compressed."""
    folder = shared / "standards/twins/rl_benchmarks"
    network = folder / f"onnx/{name.split('_')[0]}.onnx.gz"
    found = []
    for version in ("v1", "v2"):
        (path,) = (folder / "vnnlib" / version / f"{name}.vnnlib").iterdir()
        found.append(answer(read(path), str(network))[0].answer)
    assert found[0] == found[1]
    assert found[0] in (Answer.SAT, Answer.UNSAT)


def test_declared_types_are_those_of_the_network(adder: Path) -> None:
    """The standard, 5.3.2: an error, unless the query says real."""
    text = HEAD2 + BOX2 + "(assert (>= Y[0] 1.5))"
    single = parse(text.replace("real", "float32"))
    assert answer(single, f"f={adder}")[0].answer is Answer.SAT
    model = onnx.load(adder)
    for entry in (*model.graph.input, *model.graph.output):
        entry.type.tensor_type.elem_type = TensorProto.DOUBLE
    for weight in model.graph.initializer:
        values = numpy_helper.to_array(weight).astype(np.float64)
        weight.CopyFrom(numpy_helper.from_array(values, weight.name))
    double = adder.with_name("double.onnx")
    double.write_bytes(model.SerializeToString())
    with pytest.raises(InputError, match="has another type in"):
        answer(single, f"f={double}")
    assert answer(parse(text), f"f={double}")[0].answer is Answer.SAT


@pytest.mark.parametrize("seed", range(12))
def test_random_queries_against_a_grid(seed: int, tmp_path: Path) -> None:
    """Sat wherever a point of a grid is one; what is called unsat has none."""
    rng = np.random.default_rng(seed)
    layers = [
        (rng.standard_normal((4, 2)).round(2), rng.standard_normal(4).round(2)),
        (rng.standard_normal((2, 4)).round(2), rng.standard_normal(2).round(2)),
    ]
    path = layered(tmp_path / "net.onnx", *layers)

    def atom(allowed: list[str]) -> str:
        terms = " ".join(f"(* {rng.normal():.2f} {name})" for name in allowed)
        return f"({rng.choice(['<=', '>=', '<', '>'])} (+ {terms}) {rng.normal():.2f})"

    def box() -> str:
        low = rng.uniform(-1, 0.5, 2).round(3)
        return " ".join(f"(>= X_{k} {v:.3f}) (<= X_{k} {v + 0.5:.3f})" for k, v in enumerate(low))

    names = ["X_0", "X_1", "Y_0", "Y_1"]
    head = "".join(f"(declare-const {name} Real)\n" for name in names)
    parts = [
        f"(and {box()} {atom(names[2:])} {atom(names)} (or {atom(names[:2])} {atom(names[2:])}))"
        for _ in range(3)
    ]
    document = parse(head + f"(assert (or {' '.join(parts)}))(assert {atom(names[:2])})")
    decision, values = answer(document, str(path))
    grid = [F(k, 32) for k in range(-32, 33)]
    weights = [
        (
            [[F(float(v)) for v in row] for row in np.float32(w)],
            [F(float(v)) for v in np.float32(b)],
        )
        for w, b in layers
    ]

    def outputs(x: list[F]) -> list[F]:
        for k, (w, b) in enumerate(weights):
            x = [
                sum((c * v for c, v in zip(row, x, strict=True)), t)
                for row, t in zip(w, b, strict=True)
            ]
            x = [max(v, F(0)) for v in x] if k == 0 else x
        return x

    points = [[a, b] for a in grid for b in grid]
    inside = [p for p in points if document.holds(p, outputs(p))]
    if decision.answer is Answer.SAT:
        point = [F(v) for v in values[:2]]
        assert document.holds(point, outputs(point))
    elif decision.answer is Answer.UNSAT:
        assert not inside
    else:
        pytest.fail(f"not decided: {decision.notes}")
    assert not (inside and decision.answer is Answer.UNSAT)
    assert math.isfinite(sum(values))
