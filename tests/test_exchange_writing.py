"""Queries as they are written: read back, they ask exactly the same."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from exchange_cases import BOX1, BOX2, HEAD1, HEAD2, layered
from typer.testing import CliRunner

import qll
from qll.cli.main import build_app
from qll.errors import InputError
from qll.exchange.document import Document
from qll.exchange.files import parse, read
from qll.exchange.marabou import MOST_FILES, files
from qll.exchange.writers import write
from qll.networks import load
from qll.properties import names
from qll.verify.api import Problem
from qll.verify.condition import compile_condition, ways
from qll.verify.documents import document_of

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


SHIPPED = [name for name in names() if name != "monotonicity"]  # which relates two points


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_properties_in_every_format_and_back(name: str, tmp_path: Path) -> None:
    """Judged equal at random points, whatever the network might compute there."""
    prop, rng = qll.load(name), np.random.default_rng(1)
    outputs = prop.specification.outputs or 3
    weights = rng.standard_normal((outputs, 4))
    network = load(layered(tmp_path / "net.onnx", (weights, np.zeros(outputs))))
    labels = np.array([0]) if prop.uses_labels else None
    problem = Problem.of(prop, network, rng.uniform(0.3, 0.6, (1, 4)), labels, timeout=1.0)
    query = problem.query(0)
    document = document_of(query)
    again = [parse("\n".join(write(document, version))) for version in (1, 2)]
    for other in again:
        assert_same(document, other)
    texts = files(document) if ways(query.compiled.tree) <= MOST_FILES else None
    decided = set()
    for k in range(90):
        x = rng.uniform(query.lower, query.upper)
        near = network.relu_form.forward(x[None])[0] if k % 2 else np.zeros(outputs)
        near[0] += (0.0, 5.0)[k // 2 % 2]
        y = near + rng.normal(0, (0.01, 0.5, 3)[k % 3], outputs)
        exact = [F(v) for v in x.tolist()], [F(v) for v in y.tolist()]
        violated = query.contains(x) and query.compiled.exact_value(exact[1], x) > 0
        assert document.holds(*exact) == violated
        decided.add(violated)
        if texts is not None:
            assert any(all(_holds(line, x, y) for line in text) for text in texts) == violated
    assert decided == {False, True}


def _holds(line: str, x: np.ndarray, y: np.ndarray) -> bool:
    """A line of a Marabou file, read as Marabou's own parser does: terms, a sign, a number."""
    left, sign, right = re.fullmatch(r"(.*) ([<>]=) (\S+)", line).groups()  # type: ignore[union-attr]
    total = 0.0
    for term in left.split(" "):
        factor, source, index = re.fullmatch(r"([-+][\d.e-]+)?([xy])(\d+)", term).groups()  # type: ignore[union-attr]
        total += float(factor or 1) * (x if source == "x" else y)[int(index)]
    return total >= float(right) if sign == ">=" else total <= float(right)


def test_a_property_needs_a_network_and_a_point() -> None:
    with pytest.raises(InputError, match="around a data point"):
        CliRunner().invoke(
            build_app(), ["export", "not-both", "--to", "vnnlib"], catch_exceptions=False
        )


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
