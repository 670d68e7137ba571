"""PAcc, CAcc, CSec on networks whose figures are known."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import qll
from qll.attacks import attack
from qll.errors import InputError
from qll.metrics import (
    Evaluation,
    Share,
    constraint_accuracy,
    constraint_security,
    evaluate,
    prediction_accuracy,
    root_mean_square_error,
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
    assert root_mean_square_error(net, x, x + 2.0) == pytest.approx(2.0)
    assert root_mean_square_error(threshold(0.5), x[:, :2], x[:, 0]) == pytest.approx(0.5)


def test_constraint_accuracy_is_the_share_of_the_region() -> None:
    prop = qll.parse("forall x in ball(x0, 0.5): y[0] <= 0", outputs=1)
    x = torch.full((4000, 2), 0.5)
    # x[0] is uniform in [0, 1]: y <= 0 for x[0] <= 0.3.
    found = constraint_accuracy(threshold(-0.3), prop, x, None, samples=3, seed=1)
    assert found.total == 12000 and found.value == pytest.approx(0.3, abs=0.02)
    assert constraint_accuracy(threshold(-2.0), prop, x, None) == Share(4000, 4000)


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
