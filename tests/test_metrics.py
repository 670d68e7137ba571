"""PAcc, CAcc, CSec on networks whose figures are known."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import qll
from qll.attacks import attack
from qll.attacks.base import Attack
from qll.attacks.problem import AttackBatch
from qll.cli.train import figures
from qll.errors import InputError
from qll.metrics import (
    Evaluation,
    Share,
    chance_accuracy,
    constraint_accuracy,
    constraint_security,
    evaluate,
    missed_regions,
    prediction_accuracy,
    proved_share,
    regression_errors,
    tally,
    vacuous_labels,
)


def threshold(bias: float) -> nn.Linear:
    """One output, x[0] + bias."""
    net = nn.Linear(2, 1)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[1.0, 0.0]]))
        net.bias.fill_(bias)
    return net


def test_shares_count_and_add() -> None:
    assert Share(3, 4) + Share(1, 4) == Share(4, 8)
    assert Share(1, 3).value == pytest.approx(1 / 3) and str(Share(1, 3)) == "33.3 %"
    assert Share(0, 0).value != Share(0, 0).value  # no images, no figure


def test_accuracy_over_more_images_than_a_batch() -> None:
    net = nn.Linear(3, 3, bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.eye(3))
    x = torch.eye(3).repeat(1000, 1)
    labels = torch.arange(3).repeat(1000)
    labels[:300] = (labels[:300] + 1) % 3
    assert prediction_accuracy(net, x, labels) == Share(2700, 3000)
    multi = torch.nn.functional.one_hot(labels, 3)
    # A wrong image has two wrong labels: what is there, and what is not.
    assert prediction_accuracy(net, x, multi, task="multi-label") == Share(9000 - 600, 9000)
    assert regression_errors(net, x, x + 2.0)[0] == pytest.approx(2.0)
    assert regression_errors(threshold(0.5), x[:, :2], x[:, 0])[0] == pytest.approx(0.5)


def test_constraint_accuracy_is_the_share_of_the_region() -> None:
    prop = qll.parse("forall x in ball(x0, 0.5): y[0] <= 0", outputs=1)
    x = torch.full((4000, 2), 0.5)
    # x[0] is uniform in [0, 1]: y <= 0 for x[0] <= 0.3.
    found = constraint_accuracy(threshold(-0.3), prop, x, None, samples=3, seed=1)
    assert found.total == 12000 and found.value == pytest.approx(0.3, abs=0.02)
    assert constraint_accuracy(threshold(-2.0), prop, x, None) == Share(4000, 4000)


def test_points_of_constraint_accuracy_are_drawn_before_the_valid_range_cuts_the_ball() -> None:
    prop = qll.parse("forall x in ball(x0, 0.5) and range(0, 1): y[0] <= 0", outputs=1)
    # Around 0 half of the ball is below the range and ends at 0; of the rest 0.2 / 0.5 is <= 0.2.
    found = constraint_accuracy(threshold(-0.2), prop, torch.zeros(4000, 2), None, seed=1)
    assert found.value == pytest.approx(0.5 + 0.5 * 0.4, abs=0.03)


def test_constraint_security_is_what_no_attack_breaks() -> None:
    prop = qll.parse("forall x in ball(x0, 0.1): y[0] <= 0", outputs=1)
    x = torch.linspace(0, 1, 1500)[:, None].repeat(1, 2)
    found = constraint_security(
        threshold(-0.5), prop, x, None, logic="qll:5", attack=attack("apgd:10"), engine="autograd"
    )
    # Broken exactly where x0 + 0.1 > 0.5.
    expected = int((x[:, 0] + 0.1 <= 0.5).sum())
    assert found == Share(expected, 1500)


def test_evaluation_asks_every_oracle_and_survives_json() -> None:
    prop = qll.parse("forall x in ball(x0, 0.1): y[0] <= 0", outputs=1)
    x = torch.linspace(0, 1, 40)[:, None].repeat(1, 2)
    labels = (x[:, :1] > 0.5).long()
    asked: list[str] = []

    def prove(model: nn.Module) -> dict[str, Share]:
        asked.append(type(model).__name__)
        return {"0.1": Share(7, 40)}

    found = evaluate(
        threshold(-0.5),
        prop,
        x,
        labels,
        attack=attack("apgd:5"),
        logic="dl2",
        task="multi-label",
        engine="autograd",
        csat=prove,
    )
    assert found.pacc == Share(40, 40) and found.csec_self == found.csec_qll
    assert found.cacc.good >= found.csec_qll.good and asked == ["Linear"]
    assert Evaluation.from_json(json.loads(json.dumps(found.to_json()))) == found
    baseline = evaluate(
        threshold(-0.5),
        prop,
        x,
        x[:, 0],
        attack=attack("apgd:5"),
        logic=None,
        task="regression",
        engine="autograd",
    )
    assert baseline.csec_self is None and baseline.pacc is None
    assert baseline.rmse == pytest.approx(0.5, abs=1e-6)


def test_a_modes_and_gradients_are_as_before() -> None:
    net = nn.Sequential(nn.Linear(2, 1), nn.Dropout(0.9)).train()
    prop = qll.parse("forall x in ball(x0, 0.1): y[0] <= 9", outputs=1)
    x = torch.rand(10, 2)
    first = constraint_accuracy(net, prop, x, None)
    assert net.training and net[1].training and first == Share(10, 10)
    assert net[0].weight.requires_grad and net[0].weight.grad is None


@pytest.mark.parametrize(
    "values", [{}, {"cacc": 3}, {"pacc": None, "cacc": None, "csec_self": None, "csec_qll": None}]
)
def test_other_json_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(InputError, match="not figures of a network"):
        Evaluation.from_json(values)


# --- what says nothing of a network, and what a guess is worth ---


def test_vacuous_points_are_counted_beside_every_share() -> None:
    """``label(1) -> ...``: of the others the property says nothing."""
    prop = qll.parse("forall x in ball(x0, 0.1): label(1) -> y[0] <= 0", outputs=2)
    net = nn.Linear(2, 2)
    with torch.no_grad():
        net.weight.copy_(torch.eye(2))
        net.bias.zero_()
    x = torch.tensor([[-1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    labels = torch.tensor([1, 1, 0, 0, 0])  # one holds, one does not, three say nothing
    expected = Share(1, 2, vacuous=3)
    assert constraint_accuracy(net, prop, x, labels) == expected
    assert constraint_accuracy(net, prop, x, labels, samples=2) == Share(2, 4, vacuous=6)
    found = evaluate(
        net, prop, x, labels, attack=attack("apgd:2"), logic="dl2", engine="autograd",
        csat=lambda _: {"0.1": expected},
    )  # fmt: skip
    assert found.csec_self == found.csec_qll == found.cacc == expected
    assert Evaluation.from_json(json.loads(json.dumps(found.to_json()))) == found
    assert str(expected) == "50.0 %" and str(expected.with_vacuous) == "80.0 %"
    assert vacuous_labels(prop, labels, 2, (2,)).tolist() == [False, False, True, True, True]
    multi = torch.nn.functional.one_hot(labels, 2)
    assert vacuous_labels(prop, multi, 2, (2,)).tolist() == [False, False, True, True, True]
    assert not vacuous_labels(qll.load("lipschitz-robustness"), labels, 10, (2,)).any()
    assert not vacuous_labels(qll.load("classification-robustness"), labels, 10, (2,)).any()


def test_nothing_to_count_is_no_figure() -> None:
    prop = qll.parse("forall x in ball(x0, 0.1): label(1) -> y[0] <= 0", outputs=2)
    found = constraint_accuracy(nn.Linear(2, 2), prop, torch.zeros(3, 2), torch.zeros(3).long())
    assert found == Share(0, 0, vacuous=3)
    values = Evaluation(None, found, None, found).to_json()
    assert values["cacc"] == {"good": 0, "total": 0, "share": None, "vacuous": 3}
    assert any("n/a" in line and "3 vacuous" in line for line in figures(values))


def test_verdicts_of_old_and_new_records() -> None:
    new = [
        {"status": "verified", "stage": "root", "vacuous": False},
        {"status": "verified", "stage": "vacuous", "vacuous": True},
        {"status": "falsified", "stage": "attack", "vacuous": False},
    ]
    old = [{"status": "verified", "stage": "root"}, {"status": "verified", "stage": "trivial"},
           {"status": "falsified", "stage": "trivial"}]  # fmt: skip
    for rows in (new, old):
        assert proved_share(rows) == Share(1, 2, vacuous=1)
        assert tally(rows) == {"verified": 2, "falsified": 1, "unknown": 0, "vacuous": 1}


def test_chance_is_the_best_constant_answer() -> None:
    assert chance_accuracy(torch.tensor([2, 0, 2, 1])) == Share(2, 4)
    multi = torch.tensor([[1, 0, 1], [1, 0, 0], [1, 1, 0]])
    assert chance_accuracy(multi, task="multi-label") == Share(3 + 2 + 2, 9)
    old = {"pacc": None, "cacc": {"good": 1, "total": 2}, "csec_self": None}
    read = Evaluation.from_json({**old, "csec_qll": {"good": 1, "total": 2}})
    assert read.chance is None and read.cacc == Share(1, 2)
    shown = figures(
        {**read.to_json(), "pacc": {"good": 1, "total": 2, "share": 0.5},
         "chance": {"good": 1, "total": 4, "share": 0.25}}
    )  # fmt: skip
    assert shown[0].endswith("50.0 %   (1 of 2; chance 25.0 %)")


def test_what_an_attack_misses_at_epsilon_and_finds_at_half_of_it() -> None:
    @dataclass(frozen=True)
    class OneStep(Attack):
        """Up by all that the region allows: too far where the violation is nearer."""

        def search(self, problem: AttackBatch) -> dict[str, Tensor]:
            return {"x": problem.region.upper.clone()}

    class Ridge(nn.Module):
        """Above 0 within 0.1 of x = 0.15 only."""

        def forward(self, x: Tensor) -> Tensor:
            return 0.1 - (x[:, :1] - 0.15).abs()

    text = "parameter epsilon: input = 0.4\nforall x in ball(x0, epsilon): y[0] <= 0"
    x = torch.tensor([[0.0], [0.0], [-0.2], [5.0]])
    found = missed_regions(
        Ridge(), qll.parse(text, outputs=1), x, None, logic="qll:5", attack=OneStep()
    )
    # At 0.4 the step ends at 0.4 and finds nothing, at 0.2 it ends on the ridge; from -0.2 it ends
    # on it at 0.4, so that nothing is missed there; around 5 there is nothing.
    assert found == Share(2, 3)
    closed = qll.parse("forall x in ball(x0, 0.4): y[0] <= 0", outputs=1)
    assert missed_regions(Ridge(), closed, x, None, logic="qll:5", attack=OneStep()) is None
    share = Share(0, 1)
    shown = figures(Evaluation(None, share, None, share, missed=found).to_json())
    assert "around 2 of 3 points" in shown[-1]
    assert "Misled" not in figures(Evaluation(None, share, None, share).to_json())[-1]
