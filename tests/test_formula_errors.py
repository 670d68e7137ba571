"""Messages on bad input: three parts, with line and column, as written in tests/goldens/errors."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

import qll
from qll.errors import QllError
from qll.formula.nodes import (
    Definition,
    FormulaReference,
    NameDeclaration,
    Number,
    QuantityReference,
    Specification,
)

Y = torch.zeros(2, 3)
NAN = torch.tensor([[0.0, math.nan, 1.0], [0.0, 0.0, 0.0]])


def reading(text: str, y: torch.Tensor = Y, **arguments: torch.Tensor) -> Callable[[], object]:
    return lambda: qll.parse(text).loss(y, **arguments)


TEXTS = {
    # grammar
    "syntax-operator": "forall i in outputs:\n  y[i] >= >= 0",
    "syntax-character": "y[0] >= 0 @ y[1]",
    "syntax-end": "forall i in outputs:\n  y[i] >=",
    "syntax-parenthesis": "(y[0] >= 0",
    "syntax-empty": "",
    "syntax-comment-only": "# nothing else\n",
    "syntax-two-formulas": "y[0] >= 0\ny[1] >= 0",
    "syntax-single-equals": "y[0] = 0",
    "syntax-norm": "forall x in ball(x0, 0.1, linf): y[0] >= 0",
    "syntax-category": 'forall x in domain and x["material"] == "steel": y[0] >= 0',
    "syntax-category-order": 'forall x in domain and x["material"] >= "steel": y[0] >= 0',
    "syntax-unequal": "y[0] != y[1]",
    # sorts
    "sort-quantity-as-formula": "y[0] and y[1] >= 0",
    "sort-formula-as-quantity": "(y[0] >= 0) + 1 <= 2",
    "sort-comparison-of-formulas": "(y[0] >= 0) <= (y[1] >= 0)",
    "sort-parameter-as-formula": "parameter a: number = 1\nnot a",
    # names
    "name-unknown": "parameter epsilon: input = 0.1\nforall x in ball(x0, epsilom): y[0] >= 0",
    "name-index-as-quantity": "forall i in outputs: y[i] >= i",
    "name-unknown-set": "set clothing = {0, 1}\nforall i in clothes: y[i] >= 0",
    "name-unknown-index": "forall i in outputs: y[j] >= 0",
    "name-unknown-unit": "parameter delta: probabilty = 0.5\ny[0] >= delta",
    "name-declared-twice": "parameter a: number = 1\nset a = {0}\ny[0] >= a",
    "name-index-hides": "parameter i: number = 1\nforall i in outputs: y[i] >= 0",
    "name-index-twice": "forall i in outputs, i in outputs: y[i] >= 0",
    "name-built-in-set": "set outputs = {0, 1}\nforall i in outputs: y[i] >= 0",
    "name-cyclic-sets": "set a = b\nset b = a\nforall i in a: y[i] >= 0",
    "name-wrong-arity": "define f(i) = y[i] >= 0\nf(0, 1)",
    "name-used-before-definition": "define g = f\ndefine f = y[0] >= 0\ng",
    # names of outputs and inputs
    "entry-near-miss": 'outputs cat, dog\ny["cta"] >= 0',
    "entry-undeclared": 'y["cat"] >= y[1]',
    "entry-undeclared-input": 'outputs cat, dog\nx["weight"] >= 0 -> y["cat"] >= 0',
    "entry-of-the-other-kind": 'outputs cat, dog\ninputs weight, year\ny["weight"] >= 0',
    "entry-near-miss-label": 'outputs cat, dog\nlabel("dig") -> y["dog"] >= 0',
    "entry-near-miss-set": "outputs cat, dog\nset pets = {cat, dot}\nforall i in pets: y[i] >= 0",
    "entry-near-miss-region": 'inputs weight\nforall x in box(0, 1) and x["wieght"] <= 1: top',
    "entry-near-miss-argument": 'outputs cat\ndefine on(i) = y[i] >= 0\non("car")',
    "entry-of-many": f'outputs {", ".join(f"c{k:03}" for k in range(500))}\ny["c49"] >= 0',
    "entry-quoted-index": 'outputs cat, dog\nforall i in outputs: y["i"] >= 0',
    "entry-set-of-outputs": "outputs cat\ninputs age\nforall i in {cat}: x[i] >= 0",
    "entry-set-mixed": "outputs cat\ninputs age\nforall i in {cat, age}: y[i] >= 0",
    "entry-ambiguous": "outputs a, b\ninputs b, a\nforall i in {a}: y[i] >= 0",
    "entry-beside-an-index": 'inputs age\nx["age", 0] >= 0 -> y[0] >= 0',
    "entry-twice": "outputs cat, dog, cat\ny[0] >= 0",
    "entry-empty": 'outputs cat, ""\ny[0] >= 0',
    "entry-not-closed": 'outputs cat, "dog\ny[0] >= 0',
    "outputs-twice": "outputs 2\noutputs cat, dog\ny[0] >= 0",
    "inputs-twice": "inputs age\ninputs age\ny[0] >= 0",
    # indices
    "index-too-large": "outputs 3\ny[3] >= 0",
    "index-label": "outputs 3\nlabel(7) -o y[0] >= 0",
    "index-two-for-output": "y[0, 1] >= 0",
    "index-huge": "y[12345678901] >= 0",
    "index-pairs": "set s = {(0, 1)}\nforall i in s: y[i] >= 0",
    "index-mixed-tuples": "set s = {(0, 1), 2}\nforall i in s: y[i] >= 0",
    "set-empty": "set s = {}\nforall i in s: y[i] >= 0",
    "set-backwards": "forall i in 3..1: y[i] >= 0",
    "set-too-long": "forall i in 0..99999999: y[0] >= 0",
    # quantities
    "product-of-variables": "y[0] * y[1] <= 1",
    "division-by-variable": "1 / y[0] <= 1",
    "division-by-zero": "y[0] / 0 <= 1",
    "number-too-large": "y[0] <= 1e999",
    "number-undefined": "y[0] <= 0*inf",
    "number-infinite-factor": "inf*y[0] <= 1",
    "equal-negated": "not (y[0] == y[1])",
    "equal-premise": "y[0] == 0 -> y[1] >= 0",
    "equal-in-a-definition": "define tie = y[0] == y[1]\nnot tie or y[0] >= 1",
    # hardness
    "hardness-zero": "y[0] >= 0 and[0] y[1] >= 0",
    "hardness-negative": "forall[-1] i in outputs: y[i] >= 0",
    "hardness-mixed": "y[0] >= 0 and[2] y[1] >= 0 and y[2] >= 0",
    "hardness-parameter": "parameter p: number = 2\ny[0] >= 0 and[p] y[1] >= 0",
    # parameters
    "parameter-default-outside": "parameter delta: probability = 1.7\ny[0] >= delta",
    "parameter-default-expression": "parameter a: number = 1\nparameter b: number = a\ny[0] >= b",
    "outputs-none": "outputs 0\ny[0] >= 0",
    # regions
    "region-output": "forall x in box(0, 1) and y[0] >= 0: y[1] >= 0",
    "region-disjunction": "forall x in box(0, 1) and (x[0] <= 0 or x[1] <= 0): y[1] >= 0",
    "region-radius": "forall x in ball(x0, x[0]): y[0] >= 0",
    "region-bounds": "forall x in box([0, 0], [1, 1, 1]): y[0] >= 0",
    "region-own-centre": "forall x in ball(x, 0.1): y[0] >= 0",
    "region-x0-quantified": "forall x0 in box(0, 1): y[0] >= 0",
    "region-x2-first": "forall x2 in box(0, 1): y[0] >= 0",
    "region-one-hot-twice": 'inputs a, b\nforall x in one_hot(x[0], x["a"]): y[0] >= 0',
    "region-twice": "forall x in box(0, 1), x in box(0, 1): y[0] >= 0",
    "region-x2-unbound": "forall x in box(0, 1): y2[0] >= y[0]",
    "region-constraint-unbound": "forall x in box(0, 1) and x2[0] >= x[0]: y[0] >= 0",
    # nesting
    "too-deep": "not " * 200 + "y[0] >= 0",
    "too-deep-definitions": "define q0 = y[0]\n"
    + "".join(f"define q{k + 1} = q{k} + 1\n" for k in range(200))
    + "q200 <= 0",
}

CALLS: dict[str, Callable[[], object]] = {
    "read-nan-logits": reading("y[0] >= 0", NAN),
    "read-infinite-logits": reading("y[0] >= 0", NAN.nan_to_num(posinf=0, nan=math.inf)),
    "read-wrong-shape": reading("y[0] >= 0", Y[0]),
    "read-wrong-type": reading("y[0] >= 0", Y.long()),
    "read-no-labels": reading("label(0) -o y[0] >= 0"),
    "read-label-out-of-range": reading("label(0) -o y[0] >= 0", labels=torch.tensor([0, 5])),
    "read-label-negative": reading("label(0) -o y[0] >= 0", labels=torch.tensor([0, -1])),
    "read-label-shape": reading("label(0) -o y[0] >= 0", labels=torch.zeros(2, 2)),
    "read-index-out-of-range": reading("forall i in 0..4: y[i] >= 0"),
    "read-shifted-index": reading("forall i in outputs: y[i + 1] >= y[i]"),
    "read-missing-point": reading("x[0] <= y[0]"),
    "read-ill-fitting-points": reading("x[0] <= x0[0]", x=torch.zeros(2, 3), x0=torch.zeros(2, 4)),
    "read-nothing-to-range-over": reading("forall i in outputs where i > 9: y[i] >= 0"),
    "read-empty-premise": reading("(y[0] <= 0 and y[0] >= 0) -> y[1] >= 5"),
    "read-named-outputs": reading('outputs cat, dog\ny["cat"] >= 0'),
    "read-named-inputs": reading("inputs age\nx[0] >= 0 -> y[0] >= 0", x=torch.zeros(2, 2, 2)),
    "region-named-inputs": lambda: qll.Region.of(
        qll.parse("inputs age, year\nforall x in box(0, 1): y[0] >= 0"), torch.zeros(1, 3)
    ),
    "load-named-outputs": lambda: qll.parse("outputs cat, dog\ny[0] >= 0", outputs=10),
    "load-other-names": lambda: qll.parse("outputs cat, dog\ny[0] >= 0", outputs=["cat", "cow"]),
    "load-one-word": lambda: qll.parse("y[0] >= 0", outputs="cat"),
    "load-mixed-inputs": lambda: qll.parse("y[0] >= 0", inputs=("age", 3)),
    "read-inf-minus-inf": reading("y[0] + inf <= inf - inf"),
    "logic-p-zero": lambda: qll.QLL(p=0),
    "logic-p-negative": lambda: qll.logic("qll:-2"),
    "logic-p-word": lambda: qll.logic("qll:hard"),
    "logic-comparison": lambda: qll.QLL(5, "sigmoid"),
    "logic-unknown": lambda: qll.logic("qull:5"),
    "logic-no-parameter": lambda: qll.logic("dl2:3"),
    "logic-no-slack": lambda: qll.load("not-both").slack("dl2"),
    "property-unknown": lambda: qll.load("clasification-robustness"),
    "property-unknown-parameter": lambda: qll.load("not-both", epsilom=0.1),
    "property-parameter-outside": lambda: qll.load("strong-classification-robustness", delta=1.7),
    "property-negative-epsilon": lambda: qll.load("not-both", epsilon=-0.1),
    "property-outputs-unknown": lambda: qll.parse("forall i in outputs: y[i] >= 0").slack("qll"),
    "region-none": lambda: qll.Region.of(qll.parse("y[0] >= 0"), Y),
    "region-unbounded": lambda: qll.Region.of(
        qll.parse("forall x in x[0] <= 1: y[0] >= 0"), torch.zeros(2, 2)
    ),
    "region-outside-range": lambda: qll.Region.of(
        qll.load("not-both"), torch.tensor([[0.5, 0.5], [0.5, 7.0]])
    ),
    "region-vector-length": lambda: qll.Region.of(
        qll.parse("forall x in box([0, 0], [1, 1]): y[0] >= 0"), torch.zeros(1, 3)
    ),
    "region-never": lambda: qll.Region.of(
        qll.parse("forall x in box(0, 1) and x[0] >= inf: y[0] >= 0"), torch.zeros(1, 3)
    ),
    "python-truth": lambda: bool(qll.y[0] <= 1),
    "python-nan": lambda: qll.Property(Specification(qll.y[0] <= Number(math.nan))),
    "python-unknown-definition": lambda: qll.Property(Specification(FormulaReference("near", ()))),
    "python-wrong-sort": lambda: qll.Property(
        Specification(
            QuantityReference("near", ()) <= 1,
            definitions=(Definition("near", (), qll.y[0] <= 1),),
        )
    ),
    "python-cyclic-definition": lambda: qll.Property(
        Specification(
            FormulaReference("f", ()),
            definitions=(Definition("f", (), FormulaReference("f", ())),),
        )
    ),
    "python-names-and-number": lambda: qll.Property(
        Specification(qll.y["cat"] >= 0, outputs=2, names=(NameDeclaration("outputs", ("cat",)),))
    ),
    "python-no-names": lambda: qll.Property(
        Specification(qll.y[0] >= 0, names=(NameDeclaration("inputs", ()),))
    ),
    "python-name-with-quotes": lambda: qll.Property(
        Specification(qll.y[0] >= 0, names=(NameDeclaration("outputs", ('a "cat"',)),))
    ),
    "python-empty-connective": lambda: qll.Property(Specification(qll.all_of())),
}


def assert_message(error: QllError, check: Callable[[str, str], None], name: str) -> None:
    text = str(error)
    lines = text.split("\n")
    assert len(lines) == 3, text
    assert lines[0].endswith(".") and lines[1].startswith("Expected ") and ", found " in lines[1]
    assert lines[2].startswith("Fix: ") and lines[2].endswith(".")
    check(f"errors/{name}.txt", text + "\n")


@pytest.mark.parametrize("name", TEXTS)
def test_bad_text(name: str, assert_golden: Callable[[str, str], None]) -> None:
    with pytest.raises(QllError) as caught:
        qll.parse(TEXTS[name], name="bad.qll")
    assert caught.value.where is not None and caught.value.where.startswith("bad.qll:")
    assert_message(caught.value, assert_golden, name)


@pytest.mark.parametrize("name", CALLS)
def test_bad_calls(name: str, assert_golden: Callable[[str, str], None]) -> None:
    with pytest.raises(QllError) as caught:
        CALLS[name]()
    assert_message(caught.value, assert_golden, name)


def test_every_golden_has_a_test(request: pytest.FixtureRequest) -> None:
    folder = request.path.parent / "goldens" / "errors"
    known = {f"{name}.txt" for name in (*TEXTS, *CALLS)}
    assert {file.name for file in folder.glob("*.txt")} == known


def test_what_is_expected_is_said_as_it_is_typed() -> None:
    """No name of a terminal of the grammar stands in a message."""
    from qll.formula.parse import _READABLE, _grammar

    ignored = set(_grammar().ignore_tokens)
    assert {terminal.name for terminal in _grammar().terminals} - ignored <= set(_READABLE)


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("forall x in box(0, 1): y[0] => y[1]", "write >= for 'at least'"),
        ("y[0] >= y[1] && y[2] >= 0", "write and"),
        ("for all x in box(0, 1): y[0] >= y[1]", "write forall"),
        ("forall x in ball(x0, 0.1): argmax(y) == label", "say which output is the greatest"),
        ("!(y[0] >= y[1])", "write not"),
    ],
)
def test_what_other_languages_write(text: str, fix: str) -> None:
    with pytest.raises(QllError) as caught:
        qll.parse(text)
    assert caught.value.fix.startswith(fix)
