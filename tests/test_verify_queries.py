"""Queries, verdicts and backends: bad input is named, no searcher is believed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from verify_cases import FormNetwork, chain, random_condition, random_network

from qll.errors import FormulaError, InputError
from qll.formula.hard import Max, Min, affine
from qll.formula.normal import substitute
from qll.networks import load
from qll.networks.relu_form import FormLayer, ReluForm
from qll.verify.backend import BACKENDS, Backend, Budget
from qll.verify.condition import compile_condition, obligations
from qll.verify.judge import Worth, judge
from qll.verify.pattern import climb
from qll.verify.query import Query
from qll.verify.verdict import Reason, Status, Verdict

IDENTITY = chain((np.eye(2), [0.0, 0.0]), (np.eye(2), [0.0, 0.0]))
BELOW_ONE = affine([(("y", 0), 1.0)], -1.0)


def assert_three_parts(error: InputError, *words: str) -> None:
    text = str(error)
    assert "Expected" in text
    assert "Fix:" in text
    for word in words:
        assert word in text


@pytest.mark.parametrize(
    ("lower", "upper", "words"),
    [
        ([0.0], [1.0], ("2 numbers",)),
        ([0.0, -np.inf], [1.0, 1.0], ("not finite",)),
        ([0.0, 0.0], [1.0, np.nan], ("not finite",)),
        ([0.0, 2.0], [1.0, 1.0], ("empty at input 1",)),
    ],
)
def test_bad_regions_are_named(lower: Any, upper: Any, words: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as caught:
        Query(IDENTITY, np.array(lower), np.array(upper), BELOW_ONE)
    assert_three_parts(caught.value, *words)


@pytest.mark.parametrize(
    ("form", "word"),
    [
        (affine([(("y", 7), 1.0)]), "y[7]"),
        (affine([(("x", 2), 1.0)]), "x[2]"),
        (affine([(("y2", 0), 1.0)]), "y2"),
    ],
)
def test_conditions_that_do_not_fit_are_named(form: Any, word: str) -> None:
    with pytest.raises(InputError) as caught:
        Query(IDENTITY, np.zeros(2), np.ones(2), form)
    assert_three_parts(caught.value, word)


def test_coefficients_that_are_not_finite_are_named() -> None:
    with pytest.raises(FormulaError) as caught:
        affine([(("y", 0), float("nan"))])
    assert_three_parts(caught.value, "y[0]", "finite")


def test_weights_that_are_not_finite_are_named() -> None:
    broken = FormNetwork(ReluForm((1,), (FormLayer(np.zeros(1), ((0, np.array([[np.nan]])),)),)))
    with pytest.raises(InputError) as caught:
        Query(broken, np.zeros(1), np.ones(1), BELOW_ONE)
    assert_three_parts(caught.value, "weight")


def test_constants_decide_before_any_work() -> None:
    always, never = affine([], -1.0), affine([], 1.0)
    backend = BACKENDS["bab"]()
    box = (np.zeros(2), np.ones(2))
    vacuous = Query(IDENTITY, *box, Min((always, BELOW_ONE)))
    (found,) = backend.decide([vacuous], Budget())
    assert (found.status, found.stage, found.vacuous) == (Status.VERIFIED, "vacuous", True)
    hopeless = backend.decide([Query(IDENTITY, *box, Max((never, BELOW_ONE)))], Budget())[0]
    assert hopeless.status is Status.FALSIFIED
    assert hopeless.witness is not None


def test_substitution_and_collection_of_like_terms() -> None:
    form = Max((affine([(("y", 0), 1.0), (("y0", 0), -1.0)]), affine([(("x0", 1), 2.0)], 1.0)))
    found = substitute(form, {"y0": [3.0], "x0": [0.0, 5.0]})
    assert found == Max((affine([(("y", 0), 1.0)], -3.0), affine([], 11.0)))


@pytest.mark.parametrize("seed", range(30))
def test_obligations_expand_to_the_condition(seed: int) -> None:
    """At random points the condition is violated iff some fully expanded obligation is."""
    rng = np.random.default_rng(seed)
    condition = compile_condition(random_condition(rng, 3, 2, 3), output_size=3, input_size=2)
    stack, clauses = obligations(condition.tree), []
    while stack:
        obligation = stack.pop()
        if obligation.is_conjunction:
            clauses.append(list(obligation.leaves))
        else:
            stack.extend(obligation.expand())
    y, x = rng.standard_normal((200, 3)), rng.standard_normal((200, 2))
    leaves = condition.leaf_values(y, x)
    value = condition.value(leaves)
    best = np.max([leaves[:, clause].min(axis=1) for clause in clauses], axis=0)
    assert np.allclose(value, best)
    weights = condition.soft_weights(leaves, 50.0)
    assert np.allclose(weights.sum(axis=1), 1.0)
    for row in range(3):
        low, high = condition.exact_range(y[row], y[row], x[row])
        assert low == high
        assert float(low) == pytest.approx(value[row], abs=1e-12)


@dataclass
class Liar(Backend):
    """Answers what it is told to, to see who believes it."""

    name: ClassVar[str] = "liar"
    verdict: Verdict | None = None

    def run(self, queries: Sequence[Query], budget: Budget) -> list[Verdict]:
        assert self.verdict is not None
        return [self.verdict] * len(queries)


@pytest.mark.parametrize(
    "witness", [None, np.array([0.5, 0.5]), np.array([5.0, 5.0]), np.array([np.nan, 1.0])]
)
def test_a_wrong_witness_is_not_believed(witness: Any) -> None:
    query = Query(IDENTITY, np.zeros(2), 2 * np.ones(2), BELOW_ONE)
    said = Verdict(Status.FALSIFIED, "lie", witness=witness)
    verdict = Liar(said).decide([query], Budget())[0]
    assert verdict.status is Status.UNKNOWN
    assert verdict.reason is Reason.BACKEND
    right = Verdict(Status.FALSIFIED, "truth", witness=np.array([1.5, 0.0]))
    assert Liar(right).decide([query], Budget())[0].status is Status.FALSIFIED


def test_where_the_run_time_differs_the_answer_is_near_tie() -> None:
    @dataclass(frozen=True, eq=False)
    class Rounded(FormNetwork):
        def runtime(self, batch: Any) -> Any:
            return np.floor(self.relu_form.forward(np.asarray(batch)) * 10) / 10

    network = Rounded(IDENTITY.relu_form)
    query = Query(network, np.zeros(2), 2 * np.ones(2), BELOW_ONE)
    judgement = judge(query, np.array([1.01, 0.0]))
    assert judgement.worth is Worth.NEAR_TIE
    said = Verdict(Status.FALSIFIED, "attack", witness=np.array([1.01, 0.0]))
    verdict = Liar(said).decide([query], Budget())[0]
    assert (verdict.status, verdict.reason) == (Status.UNKNOWN, Reason.NEAR_TIE)


def test_a_tie_is_no_violation_in_exact_arithmetic() -> None:
    query = Query(IDENTITY, np.zeros(2), np.ones(2), BELOW_ONE)
    assert judge(query, np.array([1.0, 0.0])).worth is Worth.NOTHING
    strict = Query(IDENTITY, np.zeros(2), np.ones(2), BELOW_ONE, tie_violates=True)
    assert judge(strict, np.array([1.0, 0.0])).worth is Worth.VIOLATION


def float32_product(seed: int) -> tuple[Any, Fraction, float]:
    """Two linear layers of one float32 weight each: folded exactly their product, which the run
    time rounds. Returns the network, the exact value at 1 and the run time's."""
    rng = np.random.default_rng(seed)
    module = torch.nn.Sequential(
        torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False)
    )
    weights = rng.uniform(1, 2, size=2).astype(np.float32)
    with torch.no_grad():
        for layer, weight in zip(module, weights, strict=True):
            layer.weight.fill_(float(weight))
    network = load(module, input_shape=(1,))
    exact = Fraction(float(weights[0])) * Fraction(float(weights[1]))
    return network, exact, float(np.asarray(network.runtime(np.ones((1, 1)))).reshape(()))


@pytest.mark.parametrize("seed", range(6))
def test_a_float32_network_whose_exact_fold_differs(seed: int) -> None:
    """What float32 rounds away is no proof and no counterexample."""
    network, exact, rounded = float32_product(seed)
    assert exact != Fraction(rounded)
    limit = (exact + Fraction(rounded)) / 2
    condition = affine([(("y", 0), 1.0)], -float(limit))
    query = Query(network, np.ones(1), np.ones(1), condition)
    judgement = judge(query, np.ones(1))
    verdict = BACKENDS["bab"]().decide([query], Budget(seconds=5))[0]
    if exact > limit:  # violated, but not in the run time
        assert judgement.worth is Worth.NEAR_TIE
        assert (verdict.status, verdict.reason) == (Status.UNKNOWN, Reason.NEAR_TIE)
    else:  # satisfied in exact arithmetic, whatever the run time says
        assert judgement.worth is Worth.NOTHING
        assert verdict.status is not Status.FALSIFIED


def test_the_reference_agrees_and_says_who_it_is() -> None:
    decided = 0
    for seed in range(3000, 3010):
        rng = np.random.default_rng(seed)
        network = random_network(rng, skips=seed % 2 == 0)
        inputs = network.relu_form.input_size
        box = -np.ones(inputs), np.ones(inputs)
        query = Query(network, *box, random_condition(rng, 3, inputs, 1))
        ours, theirs = (
            BACKENDS[n]().decide([query], Budget(seconds=20))[0] for n in ("bab", "torch")
        )
        assert not ours.contradicts(theirs), seed
        assert (ours.backend, theirs.backend) == ("bab", "torch")
        decided += theirs.decided
    assert decided == 10


@pytest.mark.parametrize("backend", ["bab", "torch"])
def test_a_formula_with_billions_of_ways_to_violate_it(backend: str) -> None:
    """20 disjunctions of 3 parts each that must all hold: only one pair of them contradicts."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((6, 2))
    network = chain((weight, rng.standard_normal(6)), (rng.standard_normal((3, 6)), np.zeros(3)))

    def above(limit: float) -> Any:
        rows = rng.standard_normal((3, 3))
        return Max(
            tuple(affine([(("y", k), float(c)) for k, c in enumerate(row)], limit) for row in rows)
        )

    parts = [above(100.0) for _ in range(18)]
    never = [affine([(("y", 0), 1.0)], -1e3), affine([(("y", 0), -1.0)], -1e3)]
    box = (-np.ones(2), np.ones(2))
    false = Query(network, *box, Min((*parts, Max((never[0], never[1])))))
    assert BACKENDS[backend]().decide([false], Budget(seconds=20))[0].status is Status.VERIFIED
    true = Query(network, *box, Min(tuple(parts)))
    assert BACKENDS[backend]().decide([true], Budget(seconds=20))[0].status is Status.FALSIFIED


def test_an_input_between_two_floats_counts_as_fixed() -> None:
    """As files have it whose decimals are no floats: eight of dist_shift's inputs move, and 165
    lie between neighbouring floats, which was no reason to split neurons."""
    from qll.verify.backends.bab import FEW_INPUTS, splits_boxes

    many = 4 * FEW_INPUTS
    network = chain((np.ones((2, many)), [0.0, 0.0]), (np.eye(2), [0.0, 0.0]))
    lower = np.full(many, 0.1)
    upper = np.nextafter(lower, 1.0)
    upper[:2] = 1.0
    assert splits_boxes(Query(network, lower, upper, BELOW_ONE))
    upper[: FEW_INPUTS + 1] = 1.0
    assert not splits_boxes(Query(network, lower, upper, BELOW_ONE))


@pytest.mark.parametrize("constant", [0, 1, 2])
def test_layers_without_weights_have_programmes_too(constant: int) -> None:
    """What a network's zeros leave of a layer has no terms at all."""
    layers = [FormLayer(np.full(2, 0.25), ((k, np.eye(2)),)) for k in range(3)]
    layers[constant] = FormLayer(np.full(2, 0.25), ())
    query = Query(FormNetwork(ReluForm((2,), tuple(layers))), -np.ones(2), np.ones(2), BELOW_ONE)
    point, value = climb(query, np.zeros(2), [0], rounds=3, deadline=np.inf)
    assert value == float(query.form.forward(point[None])[0, 0]) - 1.0
    assert value == pytest.approx([-0.25, -0.5, -0.75][constant])
