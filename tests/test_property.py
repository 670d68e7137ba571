"""Readings of a property through the public interface."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

import qll
from qll.errors import FormulaError, InputError, LogicError
from qll.formula import rewrite

ROBUST = "forall c in outputs: label(c) -o forall i in outputs{}: y[c] >= y[i]"


def random(*shape: int, seed: int = 0, scale: float = 3.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64) * scale


# --- what the notes promise -----------------------------------------------------------------------


@given(st.integers(2, 8), st.integers(0, 1000))
def test_inclusive_robustness_at_p_1_is_cross_entropy(outputs: int, seed: int) -> None:
    prop = qll.parse(ROBUST.format(""), outputs=outputs)
    y = random(6, outputs, seed=seed).requires_grad_()
    labels = torch.arange(6) % outputs
    loss = prop.loss(y, labels=labels, logic=qll.QLL(1.0))
    expected = cross_entropy(y, labels, reduction="none")
    assert torch.allclose(loss, expected)
    (slope,) = torch.autograd.grad(loss.sum(), y, retain_graph=True)
    (wanted,) = torch.autograd.grad(expected.sum(), y)
    assert torch.allclose(slope, wanted)
    assert (loss > 0).all()  # also where it holds: satisfaction is never the sign of a soft value


def test_slack_of_robustness_and_exactly_one() -> None:
    robust = qll.load("classification-robustness")
    assert robust.slack(qll.QLL(5)) == pytest.approx((math.log(9) / 5, 0.0))
    assert robust.slack(qll.QLL(5)) == pytest.approx((0.4394, 0.0), abs=1e-4)
    assert robust.slack("qll:5", outputs=4) == pytest.approx((math.log(3) / 5, 0.0))
    assert robust.slack("qll:inf") == (0.0, 0.0)
    exactly_one = qll.load("exactly-one")
    assert exactly_one.slack(qll.QLL(5)) == pytest.approx((0.3584, 0.1386), abs=1e-4)
    assert exactly_one.slack("boolean") == (0.0, 0.0)


def test_slack_of_implication_is_crosswise() -> None:
    prop = qll.parse(
        "(y[0] <= 0 and y[1] <= 0) -o (y[2] <= 0 or y[3] <= 0 or y[0] <= 1)", outputs=4
    )
    assert prop.slack("qll:2") == pytest.approx((0.0, math.log(3) / 2 + math.log(2) / 2))
    prop = qll.parse("(y[0] <= 0 or y[1] <= 0) tensor (y[2] <= 0 and y[3] <= 0)", outputs=4)
    assert prop.slack("qll:2") == pytest.approx((math.log(2) / 2, math.log(2) / 2))
    assert qll.parse("y[0] <= 0 and[7] y[1] <= 0", outputs=2).slack("qll:2") == pytest.approx(
        (math.log(2) / 7, 0.0)
    )


def test_slack_is_attained() -> None:
    y = torch.zeros(1, 10, dtype=torch.float64)
    prop = qll.load("classification-robustness")
    soft = prop.value(y, labels=torch.tensor([3]), logic="qll:5")
    assert float(soft) == pytest.approx(prop.slack("qll:5")[0])  # the hard value is 0
    either = qll.parse("y[0] <= 0 or y[1] <= 0 or y[2] <= 0", outputs=10)
    assert float(either.value(y, logic="qll:5")) == pytest.approx(-either.slack("qll:5")[1])


def test_slack_with_softplus_is_against_its_own_hard_value() -> None:
    prop = qll.parse("y[0] <= 0 and y[1] <= 0", outputs=2)
    y = random(200, 2)
    soft = prop.value(y, logic="qll:3,comparison=softplus")
    hard = prop.value(y, logic="qll:inf,comparison=softplus")
    a, b = prop.slack("qll:3,comparison=softplus")
    assert ((hard >= soft - a - 1e-9) & (hard <= soft + b + 1e-9)).all()


@pytest.mark.parametrize("name", ["dl2", "stl", "goedel", "lukasiewicz", "product", "yager"])
def test_slack_is_refused_where_there_is_no_bound(name: str) -> None:
    with pytest.raises(LogicError, match="no bound"):
        qll.load("not-both").slack(name)


def test_slack_over_sets_of_labels() -> None:
    prop = qll.load("classification-robustness")
    # two true labels: each beats the others, 2 * 3 comparisons among 4 outputs
    assert prop.slack("qll:1", outputs=4, multi_label=True)[0] == pytest.approx(math.log(12))
    with pytest.raises(InputError, match="too many sets"):
        prop.slack("qll:1", outputs=40, multi_label=True)


# --- labels ---------------------------------------------------------------------------------------


def test_classes_and_one_hot_labels_agree() -> None:
    prop = qll.load("classification-robustness")
    y, classes = random(20, 10), torch.arange(20) % 10
    hot = torch.nn.functional.one_hot(classes, 10)
    for logic in qll.LOGICS:
        by_class = prop.loss(y, labels=classes, logic=logic)
        for labels in (hot, hot.bool(), hot.double()):
            assert torch.allclose(by_class, prop.loss(y, labels=labels, logic=logic)), logic
    assert torch.equal(prop.loss(y, labels=classes.int()), prop.loss(y, labels=classes))


def test_a_label_that_is_absent_says_nothing() -> None:
    prop = qll.load("clothing-footwear")
    y = random(3, 10).requires_grad_()
    labels = torch.tensor([1, 8, 0])  # trousers, a bag, a t-shirt
    for name in qll.LOGICS:
        loss = prop.loss(y, labels=labels, logic=name)
        assert loss[:2].tolist() == [0.0, 0.0], name
        value = prop.value(y, labels=labels, logic=name)
        assert value[:2].tolist() == [qll.LOGICS[name].top] * 2
        if loss.requires_grad:
            (slope,) = torch.autograd.grad(loss.sum(), y)
            assert torch.isfinite(slope).all() and (slope[:2] == 0).all()
    assert prop.holds(y, labels=labels)[:2].all()


def test_negated_labels_are_top_or_bottom() -> None:
    """``not label(c) or f`` is ``label(c) -> f`` is ``label(c) -o f``, in every logic."""
    y = random(12, 3)
    labels = torch.arange(12) % 3
    for name in qll.LOGICS:
        first, *others = (
            qll.parse(text).value(y, labels=labels, logic=name)
            for text in (
                "label(0) -o y[0] >= y[1]",
                "label(0) -> y[0] >= y[1]",
                "not label(0) or y[0] >= y[1]",
                "not (label(0) and y[0] < y[1])",
            )
        )
        for other in others:
            assert torch.equal(first, other), name


def test_a_negated_implication_from_a_label_is_the_usual_if() -> None:
    """Not a large finite number in the place of bottom, which would scale DL2's product."""
    y = torch.tensor([[1.0, 2.0]])
    prop = qll.parse("(label(0) -o y[0] >= 9) -> y[1] <= 0")
    for name in ("dl2", "stl", "product", "qll:5"):
        plain = qll.parse("y[1] <= 0").value(y, logic=name)
        assert torch.equal(prop.value(y, labels=torch.tensor([1]), logic=name), plain), name


def test_new_label_patterns_extend_the_tables() -> None:
    prop = qll.parse(ROBUST.format(" where i != c"), outputs=4)
    y = random(6, 4)
    hot = torch.eye(4, dtype=torch.bool)[torch.tensor([0, 1, 2, 3, 0, 1])]
    before = prop.loss(y, labels=hot)
    many = hot.clone()
    many[0, 3] = many[1, 2] = True
    mixed = prop.loss(y, labels=many)
    assert torch.equal(before[2:], mixed[2:])
    assert torch.equal(before, prop.loss(y, labels=hot))


@pytest.mark.parametrize(
    "labels",
    [
        torch.tensor([-1]),
        torch.tensor([3]),
        torch.tensor([0.0]),
        torch.tensor([True]),
        torch.tensor([0, 1]),
        torch.tensor([[0, 2, 1]]),
        torch.tensor([[0, 1]]),
        None,
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "text",
    [
        "label(0) -o y[0] >= 0",  # constant for two of the three classes
        ROBUST.format(" where i != c"),
        "(label(0) -o y[0] >= 0) and (label(1) -o (y[0] >= 0 or y[1] >= 0))",
        "label(0) -> bottom",  # constant for all of them
    ],
)
def test_bad_labels_are_refused(text: str, labels: torch.Tensor | None) -> None:
    with pytest.raises(InputError, match="label"):
        qll.parse(text).loss(random(1, 3), labels=labels)


# --- points ---------------------------------------------------------------------------------------


def test_points_are_checked() -> None:
    prop = qll.parse("x[1] - x0[1] <= y[0] - y0[0]")
    y = random(2, 3)
    good = {"x": random(2, 4), "x0": random(2, 4), "y0": random(2, 3)}
    assert prop.loss(y, **good).shape == (2,)
    for wrong in (
        {**good, "x0": random(2, 3)},  # another input space: rows would be read askew
        {**good, "x0": random(2, 2, 2)},
        {**good, "x": random(3, 4)},
        {**good, "x": random(2)},
        {**good, "x": torch.tensor(1.0)},
        {**good, "y0": random(2, 4)},
        {**good, "x": good["x"].tolist()},
        {**good, "x1": random(2, 4)},
        {**good, "x": good["x"] * math.nan},
        {name: t for name, t in good.items() if name != "x0"},
    ):
        with pytest.raises(InputError):
            prop.loss(y, **wrong)
    for bad in (y[0], y.long(), y.numpy(), y * math.inf, [[1.0]]):
        with pytest.raises(InputError):
            prop.loss(bad, **good)
    with pytest.raises(InputError, match="outputs do not fit"):
        qll.parse("y[0] <= 0", outputs=4).loss(y)


def test_large_finite_logits_are_not_taken_for_infinite() -> None:
    y = torch.full((4, 3), 3e38)  # their sum overflows
    assert qll.parse("y[0] <= y[1]").holds(y).all()


def test_images_may_be_indexed_flat_or_by_axis() -> None:
    x, y = random(5, 2, 3, 4), random(5, 2)
    flat, axes = qll.parse("x[17] <= y[0]"), qll.parse("x[1, 1, 1] <= y[0]")
    assert torch.equal(flat.value(y, x=x), axes.value(y, x=x))
    assert torch.equal(flat.value(y, x=x), x.flatten(1)[:, 17] - y[:, 0])
    with pytest.raises(FormulaError, match="does not exist"):
        qll.parse("x[2, 0, 0] <= y[0]").value(y, x=x)
    with pytest.raises(FormulaError, match="does not exist"):
        qll.parse("x[24] <= y[0]").value(y, x=x)


def test_gradients_reach_every_point() -> None:
    prop = qll.parse("y[0] + 2*x[0] <= y0[1] - x0[1]")
    points = {n: random(3, 2, seed=k).requires_grad_() for k, n in enumerate(("x", "x0", "y0"))}
    y = random(3, 2, seed=9).requires_grad_()
    slopes = torch.autograd.grad(prop.loss(y, **points).sum(), [y, *points.values()])
    assert [s[0].tolist() for s in slopes] == [[1, 0], [2, 0], [0, 1], [0, -1]]


def test_empty_batches_and_single_samples() -> None:
    for name in qll.properties.names():
        prop = qll.load(name, inputs=(3,), outputs=10)
        wanted = {n: torch.zeros(0, 3 if n[0] == "x" else 10) for n in prop.sources if n != "y"}
        labels = torch.zeros(0, dtype=torch.long) if prop.uses_labels else None
        assert prop.loss(torch.zeros(0, 10), labels=labels, **wanted).shape == (0,), name


def test_mixed_precision_keeps_the_type_of_the_outputs() -> None:
    prop = qll.load("classification-robustness")
    for dtype in (torch.float32, torch.float64):
        assert prop.loss(random(2, 10).to(dtype), labels=torch.tensor([0, 1])).dtype == dtype


# --- parameters -----------------------------------------------------------------------------------


def test_a_probability_becomes_a_logit_once() -> None:
    prop = qll.load("strong-classification-robustness", delta=0.7)
    threshold = math.log(0.7 / 0.3)
    assert prop.values["delta"] == pytest.approx(threshold) == pytest.approx(0.8473, abs=1e-4)
    assert prop.value_of("delta") == 0.7
    y = random(4, 10)
    value = prop.value(y, labels=torch.tensor([0, 1, 2, 3]), logic="qll:5")
    assert torch.allclose(value, threshold - y.diagonal())
    logit = qll.parse("parameter delta: logit = 0.7 y[0] >= delta")
    assert logit.values["delta"] == 0.7
    again = prop.with_parameters(delta=0.5)
    assert again.values["delta"] == 0.0 and again.value_of("epsilon") == 0.1
    assert prop.values["delta"] == pytest.approx(threshold)  # the first is as it was


def test_defaults_may_be_fractions() -> None:
    assert qll.load("not-both").value_of("epsilon") == 4 / 255


def test_logics_from_text() -> None:
    assert qll.logic("qll:5") == qll.QLL(5.0)
    assert qll.logic("QLL:p=2, comparison=relu") == qll.QLL(2.0, "relu")
    assert qll.logic("stl") == qll.STL() and qll.logic("yager:3") == qll.Yager(3.0)
    assert qll.logic(qll.DL2()) == qll.DL2()
    for text in ("qll:0", "qll:-1", "qll:nan", "qll:x", "qll:1,2,3", "qll:q=1", "stl:0", "yager:0"):
        with pytest.raises(LogicError):
            qll.logic(text)
    with pytest.raises(qll.QllError, match="unknown logic"):
        qll.logic("qlll")


@given(st.floats(1e-6, 1e9))
def test_the_text_of_a_logic_reads_back_exactly(p: float) -> None:
    for record in (qll.QLL(p, "softplus"), qll.STL(p), qll.Yager(p)):
        assert qll.logic(record.spec()) == record


def test_strict_comparisons_are_noted() -> None:
    assert qll.parse("y[0] <= 1").notes == ()
    for text in (
        "y[0] < 1",
        "define f = y[0] > 1; f or y[1] <= 0",
        "forall x in box(0, 1) and x[0] < 0.5: y[0] <= 1",
    ):
        assert "strict" in qll.parse(text).notes[0], text


def test_empty_premises_are_errors_not_proofs() -> None:
    y = random(1, 2)
    for premise in (
        "y[0] <= 0 and y[0] >= 0",
        "y[0] <= 1 and y[1] <= 0 and y[0] >= 2",
        "y[0] - y[1] <= 0 and y[1] <= y[0] - 1",
        "1 <= 0",
        "(y[0] <= 0 and y[0] >= 0) or (y[1] >= 3 and y[1] <= 2)",
        "not (y[0] >= 0 or y[0] <= 0)",
    ):
        with pytest.raises(FormulaError, match="premise"):
            qll.parse(f"({premise}) -> y[1] >= 5").holds(y)
        with pytest.raises(FormulaError, match="premise"):
            qll.parse(f"not (({premise}) -> y[1] >= 5)").holds(y)
    for premise in ("y[0] <= 1 and y[0] >= 0", "y[0] <= 0 or y[0] >= 0", "0 <= 0", "top"):
        qll.parse(f"({premise}) -> y[1] >= 5").holds(y)


def test_nested_premises_take_linear_time() -> None:
    text = "y[0] <= 0"
    for k in range(40):
        text = f"({text}) -> y[1] <= {k}"
    assert qll.parse(text).holds(random(2, 2)).shape == (2,)


def test_definitions_that_double_take_linear_time() -> None:
    chain = " ".join(f"define q{k + 1} = q{k} + q{k}" for k in range(60))
    prop = qll.parse(f"define q0 = y[0] {chain} q60 <= 0")
    assert float(prop.value(torch.ones(1, 1, dtype=torch.float64), logic="qll")) == 2.0**60


def test_unfolding_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewrite, "MAX_GROUND_NODES", 20_000)
    chain = " ".join(f"define f{k + 1} = f{k} and f{k}" for k in range(40))
    prop = qll.parse(f"define f0 = y[0] <= 0 {chain} f40")
    with pytest.raises(FormulaError, match="too many parts"):
        prop.holds(random(1, 1))


def test_constants_in_tensor_and_par() -> None:
    """The unit is neutral for both in QLL; in a fuzzy logic it is top, which decides a par."""
    y = torch.tensor([[1.0]])
    tensor, par = qll.parse("unit tensor y[0] <= 0"), qll.parse("unit par y[0] <= 0")
    plain = qll.parse("y[0] <= 0")
    for name in ("qll:5", "boolean"):
        assert tensor.value(y, logic=name) == par.value(y, logic=name) == plain.value(y, logic=name)
    for name in ("goedel", "product", "lukasiewicz", "yager"):
        assert float(par.value(y, logic=name)) == 1.0
        assert float(tensor.value(y, logic=name)) == pytest.approx(
            float(plain.value(y, logic=name))
        )
    assert float(par.value(y, logic="dl2")) == 0.0
    assert float(tensor.value(-y, logic="stl")) == 0.0  # a conjunction with 0, not dropped


def test_immutable_and_rebuilt_by_its_repr() -> None:
    prop = qll.load("classification-robustness", epsilon=0.3)
    with pytest.raises(AttributeError):
        prop.outputs = 3  # type: ignore[misc]
    assert prop == qll.load("classification-robustness", epsilon=0.3)
    assert repr(prop) == prop.show().rstrip("\n")
    again = qll.parse(repr(prop))
    assert again.value_of("epsilon") == 0.3 and again.formula == prop.formula
    assert repr(again) == repr(prop)
    assert "Quantified" not in repr(prop) and "forall c in outputs" in repr(prop)


def test_the_text_of_a_property_for_other_outputs_says_so() -> None:
    """A certificate quotes the text: it must be about the network's outputs."""
    prop = qll.load("classification-robustness", outputs=6)
    assert "outputs 6" in prop.show() and "outputs 10" not in prop.show()
    assert "outputs 10" in qll.load("classification-robustness").show()
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 5), torch.nn.ReLU())
    model.append(torch.nn.Linear(5, 6))
    x = torch.full((1, 4), 0.5)
    (verdict,) = qll.verify(prop, model.eval(), x, torch.tensor([2]), certified=True, timeout=2.0)
    assert verdict.decided
