"""Queries as they are written: read back, they ask exactly the same."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from exchange_cases import BOX1, BOX2, HEAD1, HEAD2, layered
from typer.testing import CliRunner

import qll
from qll.cli.main import build_app
from qll.errors import FormulaError, InputError
from qll.exchange.document import Document
from qll.exchange.files import parse, read
from qll.exchange.writers import write
from qll.verify.condition import compile_condition

F = Fraction
TAIL = (
    "(assert (or (and (< {x} 0.5) (>= {y} (* -2 {x}))) (!= {y} 1e-9)))"
    "(assert (== (+ {x} (* 0.125 {y})) 0.25))(assert (<= (* 3 {x}) 1))(assert (<= 0 1))"
)


def assert_same(one: Document, two: Document) -> None:
    assert list(one.bounds.atoms()) == list(two.bounds.atoms())
    assert one.assertions == two.assertions


@pytest.mark.parametrize(
    "text",
    [
        HEAD1 + BOX1 + TAIL.format(x="X_0", y="Y_0"),
        HEAD2 + BOX2 + TAIL.format(x="X[0,1]", y="Y[0]"),
    ],
)
def test_both_versions_and_back(text: str) -> None:
    document = parse(text)
    rng = np.random.default_rng(0)
    for version in (1, 2):
        again = parse("\n".join(write(document, version)))
        assert again.version[0] == version
        assert_same(document, again)
        for _ in range(200):
            point = [[F(int(v), 8) for v in rng.integers(-9, 9, n)] for n in (2, 1)]
            assert document.holds(*point) == again.holds(*point)


def test_the_standards_files_and_back(shared: Path) -> None:
    for path in sorted((shared / "standards/vnnlib-2/syntax/test").iterdir()):
        document = read(path)
        again = parse("\n".join(write(document, 2)))
        assert_same(document, again)
        assert again.networks == document.networks
        assert again.version == document.version
    with pytest.raises(InputError, match="cannot say this"):
        list(write(read(path.with_name("multiple_networks.vnnlib")), 1))


def export(*arguments: object) -> str:
    done = CliRunner().invoke(build_app(), ["export", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_property_needs_a_network_and_perhaps_a_point(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a property asks about a network"):
        export("not-both", "--to", "vnnlib")
    net = layered(tmp_path / "net.onnx", (np.ones((6, 2)), np.zeros(6)))
    with pytest.raises(InputError, match="speaks of data points"):
        export("not-both", "--to", "vnnlib", "--network", net)
    rule = tmp_path / "rule.qll"
    rule.write_text("forall x in box(0, 1) and x[0] <= x[1]: y[0] <= 1\n")
    text = export(rule, "--to", "vnnlib", "--network", net)
    assert "(assert (<= X_1 1.0))" in text
    assert "(assert (> Y_0 1.0))" in text


def test_what_other_formats_cannot_say_is_refused(tmp_path: Path) -> None:
    """Not exported as if the inputs were real: what satisfies that need not violate the rule."""
    net = layered(tmp_path / "net.onnx", (np.ones((1, 2)), np.zeros(1)))
    rule = tmp_path / "rule.qll"
    rule.write_text("forall x in box(0, 3) and integer(x[1]): y[0] <= 1\n")
    for form in ("vnnlib", "vnnlib2", "marabou", "vehicle"):
        with pytest.raises(InputError, match="no whole numbers"):
            export(rule, "--to", form, "--network", net)


def test_values_of_a_set_become_a_disjunction(tmp_path: Path) -> None:
    net = layered(tmp_path / "net.onnx", (np.ones((1, 2)), np.zeros(1)))
    rule = tmp_path / "rule.qll"
    rule.write_text("forall x in box(0, 3) and x[1] in {0.25, 1.5}: y[0] <= 1\n")
    document = parse(export(rule, "--to", "vnnlib", "--network", net))
    for value, holds in ((F(1, 4), True), (F(3, 2), True), (F(1, 2), False)):
        assert document.holds([F(1), value], [F(2)]) == holds
        assert not document.holds([F(1), value], [F(1)])


def test_equal_inputs_stay_equal(tmp_path: Path) -> None:
    """Two inputs that are one variable of ours are two of the network's."""
    net = layered(tmp_path / "net.onnx", (np.ones((1, 3)), np.zeros(1)))
    rule = tmp_path / "rule.qll"
    rule.write_text("forall x in box(0, 3) and x[0] == x[2]: y[0] + x[2] <= 1\n")
    document = parse(export(rule, "--to", "vnnlib", "--network", net))
    assert document.inputs == 3
    assert document.holds([F(1), F(0), F(1)], [F(1)])
    assert not document.holds([F(1), F(0), F(2)], [F(1)])
    assert not document.holds([F(0), F(0), F(0)], [F(1)])


def test_consent_to_reals(tmp_path: Path) -> None:
    """What the solver advises for a query in float32 works."""
    source, target = tmp_path / "q.vnnlib", tmp_path / "real.vnnlib"
    source.write_text((HEAD2 + BOX2).replace("real", "float32") + "(assert (>= Y[0] 1.5))")
    options = ["export", str(source), "--to", "vnnlib2", "--element", "real", "--out", str(target)]
    done = CliRunner().invoke(build_app(), options)
    assert done.exit_code == 0, done.output
    found = read(target)
    assert_same(read(source), found)
    assert {t.element for t in found.tensors} == {"real"}
    with pytest.raises(InputError, match="--to marabu is not known"):
        CliRunner().invoke(
            build_app(), ["export", str(source), "--to", "marabu"], catch_exceptions=False
        )
    with pytest.raises(InputError, match="--element float16 is not known"):  # nor could we read it
        export(source, "--to", "vnnlib2", "--element", "float16")
    dropped = CliRunner().invoke(build_app(), ["export", str(source), "--to", "vnnlib"])
    assert "note: vnnlib has no element types" in dropped.stderr
    assert "X float32, Y float32" in dropped.stderr
    meant = CliRunner().invoke(build_app(), [*options[:3], "vnnlib", "--element", "real"])
    assert not meant.stderr


@pytest.mark.parametrize("cases", [1, 2])
def test_a_query_becomes_a_rule_of_our_own(cases: int, tmp_path: Path) -> None:
    """To be shown, attacked, trained on and repaired: the same points violate it."""
    from typer.testing import CliRunner

    from qll.cli.main import build_app

    head = "(declare-const X_0 Real) (declare-const X_1 Real) (declare-const Y_0 Real)\n"
    first = "(and (>= X_0 0) (<= X_0 1) (>= X_1 0) (<= X_1 1) (>= (+ X_0 Y_0) 0.5))"
    second = "(and (>= X_0 2) (<= X_0 3) (>= X_1 -1) (<= X_1 1) (<= Y_0 -1))"
    body = f"(assert {first})" if cases == 1 else f"(assert (or {first} {second}))"
    (tmp_path / "query.vnnlib").write_text(head + body)
    layered(tmp_path / "net.onnx", (np.array([[1.0, -2.0]]), np.zeros(1)))
    asked = ["export", tmp_path / "query.vnnlib", "--network", tmp_path / "net.onnx", "--to", "qll"]
    done = CliRunner().invoke(build_app(), [*map(str, asked), "--out", str(tmp_path / "rule.qll")])
    assert done.exit_code == 0, (done.output, done.exception)
    prop, document = qll.load(tmp_path / "rule.qll"), parse(head + body)
    form, rng, decided = (
        prop.hard_form(None, outputs=1, inputs=(2,)),
        np.random.default_rng(0),
        set(),
    )
    condition = compile_condition(form, output_size=1, input_size=2)
    for _ in range(200):
        x, y = rng.uniform([-0.2, -1], [3, 1]), rng.normal(0, 2, 1)
        x = np.clip(x, 0, 1) if cases == 1 else x
        inside = cases == 1 or (0 <= x[0] <= 3)
        violated = inside and condition.exact_value([F(v) for v in y.tolist()], x) > 0
        assert document.holds([F(v) for v in x.tolist()], [F(v) for v in y.tolist()]) == violated
        decided.add(violated)
    assert decided == {False, True}


RELATED = """(vnnlib-version <2.0>)
(declare-network f (declare-input A real [2]) (declare-output B real [1]))
(declare-network g (equal-to f) (declare-input C real [2]) (declare-output D real [1]))
(assert (and (<= A[0] 1) (>= A[0] 0) (<= C[0] 1) (>= C[0] 0) (<= A[1] 1) (>= A[1] 0)))
(assert (== C[1] A[1])) (assert (>= C[0] A[0])) (assert (<= D[0] (- B[0] 0.25)))
(assert (and (<= C[1] 1) (>= C[1] 0)))
"""


def test_two_networks_become_a_rule_of_two_points(tmp_path: Path) -> None:
    """Of the network that the user has, not of one that joins two of them."""
    query = tmp_path / "query.vnnlib"
    query.write_text(RELATED)
    rule = tmp_path / "rule.qll"
    rule.write_text(export(query, "--to", "qll"))
    assert "x2 in box" in rule.read_text()
    first = ([[1, 0.5], [2, -1], [0.25, 1]], [0, -0.5, 0])
    for last, status in (([[1, 1, 2]], "verified"), ([[1, -1, 2]], "falsified")):
        net = layered(tmp_path / "net.onnx", first, (last, [0]))
        (verdict,) = qll.verify(qll.load(rule), network=net)
        assert verdict.status == status
    several = RELATED.replace(
        "(declare-output B", '(declare-hidden H real [2] "h") (declare-output B'
    )
    query.write_text(several)
    with pytest.raises(InputError, match="at one point or two"):
        export(query, "--to", "qll")


def test_a_query_is_a_property_wherever_one_is_asked_for(tmp_path: Path) -> None:
    """Shown, checked and repaired by its path; thresholds keep their size."""
    query = tmp_path / "query.vnnlib"
    query.write_text(HEAD1 + BOX1 + "(assert (>= Y_0 1.7))")
    prop = qll.load(query)
    assert prop.is_closed
    text = CliRunner().invoke(build_app(), ["show", str(query)], catch_exceptions=False).stdout
    assert "y[0] - 1.7" in text
    net = layered(tmp_path / "net.onnx", ([[1.0, 1.0]], [0.0]))
    (verdict,) = qll.verify(prop, network=net, certified=True)
    assert verdict.status == "falsified"
    small = layered(tmp_path / "small.onnx", ([[0.5, 0.5]], [0.0]))
    assert qll.verify(prop, network=small, certified=True)[0].status == "verified"
    query.write_text("(assert (<= X_0")
    with pytest.raises(FormulaError, match=r"query\.vnnlib:1:"):
        qll.load(query)
