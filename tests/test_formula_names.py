"""Names of outputs and inputs: another way to write indices, in every reading and in print."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from audit_cases import hashes
from torch import nn

import qll
from qll.audit import audit
from qll.audit.layout import unpack
from qll.errors import QllError
from qll.formula import differ, every, forall, index_set, indices, label, x, x0, y
from qll.formula.build import ball
from qll.formula.nodes import NameDeclaration, Specification
from qll.formula.parse import parse_specification
from qll.formula.rewrite import Shape
from qll.formula.show import show_specification
from qll.verify.certificate import pack

NAMED = """\
# A heavier cat is never taken for a bird.
outputs cat, "big dog", bird
inputs weight, age
set pets = {cat, "big dog"}
define on(i) = y[i] >= 0
forall x in ball(x0, 0.25) and x["weight"] >= x0["weight"]:
  (label("cat") -> forall i in outputs where i != "cat": y["cat"] >= y[i]) and \
(not on("bird") or forall i in pets where i not in {cat, 2}: not on(i))
"""
BY_INDEX = """\
outputs 3
set pets = {0, 1}
define on(i) = y[i] >= 0
forall x in ball(x0, 0.25) and x[0] >= x0[0]:
  (label(0) -> forall i in outputs where i != 0: y[0] >= y[i]) and \
(not on(2) or forall i in pets where i not in {0, 2}: not on(i))
"""


def test_a_text_is_printed_as_it_was_written() -> None:
    assert show_specification(parse_specification(NAMED)) == NAMED
    spec = parse_specification(NAMED)
    shown = show_specification(spec, "unicode")
    assert 'label("cat") → ∀ i ∈ outputs where i ≠ "cat": y["cat"] ≥ y[i]' in shown
    assert parse_specification(shown) == spec


def test_latex_sets_names_as_text() -> None:
    spec = parse_specification('outputs "T-shirt & top", b_1\ny["T-shirt & top"] >= y["b_1"]')
    assert show_specification(spec, "latex") == (
        r"y_{\text{T-shirt \& top}} \ge y_{\text{b\_1}}" + "\n"
    )
    assert r"\{\text{b\_1}, 0\}" in show_specification(
        parse_specification("outputs a, b_1\nforall i in {b_1, 0}: y[i] >= 0"), "latex"
    )


@pytest.mark.parametrize("name", ["and", "forall", "x", "y0", "outputs", "in", "label", "inf", "o"])
def test_words_of_the_language_may_be_names(name: str) -> None:
    text = f'outputs {name}, other\nset s = {{{name}}}\nforall i in s: y["{name}"] >= y[i]\n'
    spec = parse_specification(text)
    assert spec.outputs == 2 and show_specification(spec) == text.replace("}\nf", "};\nf")
    assert parse_specification(show_specification(spec, "unicode")) == spec


def test_python_builds_the_same_nodes() -> None:
    i, c = indices("i c")
    text = """
    outputs cat, dog
    inputs weight
    forall x in ball(x0, 0.5) and x["weight"] >= x0["weight"]:
      (label("cat") -o forall i in {cat, dog} where i != "cat": y["cat"] >= y[i]) and
      forall c in outputs: y[c] <= 9
    """
    formula = (
        label("cat") >> forall(i, ["cat", "dog"], y["cat"] >= y[i], where=[differ(i, "cat")])
    ) & forall(c, "outputs", y[c] <= 9)
    names = (NameDeclaration("outputs", ("cat", "dog")), NameDeclaration("inputs", ("weight",)))
    region = every("x", ball(0.5), x["weight"] >= x0["weight"])
    built = Specification(formula, (region,), names=names)
    assert built == parse_specification(text)
    assert built.outputs == 2
    assert index_set(["cat", ("dog", 1)]).items == (("cat",), ("dog", 1))


def test_names_may_be_given_in_python() -> None:
    rule = 'y["cat"] >= y["dog"] + x["age"]'
    prop = qll.parse(rule, outputs=["cat", "dog"], inputs=("age",))
    assert prop.show() == f"outputs cat, dog\ninputs age;\n{rule}\n"
    assert bool(prop.holds(torch.tensor([[2.0, 0.5]]), x=torch.tensor([[1.0]])))
    assert not bool(prop.holds(torch.tensor([[2.0, 1.5]]), x=torch.tensor([[1.0]])))
    again = qll.parse(prop.show(), outputs=("cat", "dog"), inputs=("age",))
    assert again == prop
    assert qll.parse("outputs 5\ny[0] >= 0", outputs=["a", "b"]).specification.outputs == 2
    digits = [f"digit {k}" for k in range(10)]
    assert 'outputs "digit 0"' in qll.load("classification-robustness", outputs=digits).show()


def test_every_reading_is_that_of_the_indices() -> None:
    named, plain = qll.parse(NAMED), qll.parse(BY_INDEX)
    outputs = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(40) % 3
    for logic in qll.LOGICS:
        assert torch.equal(
            named.loss(outputs, labels=labels, logic=logic),
            plain.loss(outputs, labels=labels, logic=logic),
        )
    assert named.hard_form(0, inputs=(2,)) == plain.hard_form(0, inputs=(2,))
    points = torch.rand(4, 2)
    assert torch.equal(qll.Region.of(named, points).lower, qll.Region.of(plain, points).lower)


def test_names_of_inputs_say_how_many_there_are() -> None:
    prop = qll.parse('inputs age, year\nx["year"] >= 1 or y[0] >= 0', outputs=1)
    assert {s for s, _ in _slots(prop)} == {"x", "y"} and ("x", 1) in _slots(prop)


def _slots(prop: qll.Property) -> set[tuple[str, int]]:
    form = prop.hard_form()
    return {slot for part in form.parts for slot, _ in part.terms}  # type: ignore[union-attr]


def test_a_name_that_both_have_is_told_by_its_vector() -> None:
    prop = qll.parse('outputs price, cost\ninputs age, price\ny["price"] >= x["price"]')
    assert _atom(prop) == {("y", 0), ("x", 1)}
    same = qll.parse("outputs a, b\ninputs a, b\nforall i in {b}: y[i] >= x[i]")
    assert _atom(same) == {("y", 1), ("x", 1)}


def _atom(prop: qll.Property) -> set[tuple[str, int]]:
    return {slot for slot, _ in prop.hard_form().terms}  # type: ignore[union-attr]


def network() -> nn.Module:
    """``cat`` grows with the weight, ``bird`` falls with it."""
    first, last = nn.Linear(2, 3), nn.Linear(3, 3)
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]))
        first.bias.copy_(torch.tensor([0.0, 0.0, 1.0]))
        last.weight.copy_(torch.eye(3))
        last.bias.copy_(torch.tensor([0.0, -2.0, -0.5]))
    return nn.Sequential(first, nn.ReLU(), last).eval()


def test_a_rule_with_names_is_proved_and_certified(tmp_path: Path) -> None:
    rule = qll.parse(NAMED)
    points, labels = np.array([[1.0, 0.5], [0.5, 0.5], [0.1, 0.5]]), [0, 0, 0]
    verdicts = qll.verify(
        rule, network(), points, labels, certified=True, certificates=tmp_path, timeout=10.0
    )
    assert [str(v.status) for v in verdicts] == ["verified", "verified", "falsified"]
    (stored,) = tmp_path.glob("*.onnx")
    files = sorted(tmp_path.glob("*.qllcert"))
    answers = [audit(file.read_bytes(), stored.read_bytes()) for file in files]
    assert len(files) == 3 and all(answer.confirmed for answer in answers)


def test_the_checker_refuses_names_that_are_moved(tmp_path: Path) -> None:
    """The claim is read from the text: with two outputs exchanged it is another one, and false."""
    rule = """
    outputs cat, "big dog", bird
    inputs weight, age
    forall x in ball(x0, 0.25): y["cat"] >= y["bird"]
    """
    point = np.array([1.0, 0.5])
    (verdict,) = qll.verify(qll.parse(rule), network(), point[None], certificates=tmp_path)
    assert verdict.status == "verified"
    (file,), (stored,) = tmp_path.glob("*.qllcert"), tmp_path.glob("*.onnx")
    header, arrays = unpack(file.read_bytes())
    assert audit(pack(header, arrays), stored.read_bytes()).confirmed
    names = 'outputs cat, "big dog", bird'
    assert names in header.text
    moved = header.text.replace(names, 'outputs bird, "big dog", cat')
    restated = hashes(moved, None, Shape(3, (2,)), point - 0.25, point + 0.25)
    answer = audit(pack(replace(header, text=moved, **restated), arrays), stored.read_bytes())
    assert not answer.confirmed and "not proved" in answer.reason
    for wrong in ("inputs weight", "inputs weight, age, year"):
        text = header.text.replace("inputs weight, age", wrong)
        answer = audit(pack(replace(header, text=text), arrays), stored.read_bytes())
        assert not answer.confirmed and "another number of inputs" in answer.reason


def test_a_network_of_another_size_is_named(tmp_path: Path) -> None:
    file = tmp_path / "pets.qll"
    file.write_text(NAMED)
    with pytest.raises(QllError, match=r"pets\.qll:2:1: the network has another number of outputs"):
        qll.load(file, outputs=4)
    with pytest.raises(QllError, match=r"pets\.qll:3:1: the network has another number of inputs"):
        qll.verify(qll.load(file), nn.Linear(5, 3).eval(), np.zeros((1, 5)), [0])


def test_a_specification_is_not_given_two_numbers() -> None:
    spec = parse_specification(NAMED)
    assert replace(spec, documentation="").outputs == 3
    with pytest.raises(QllError, match="another number of outputs"):
        qll.Property(replace(spec, outputs=4))
