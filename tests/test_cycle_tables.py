"""Cycles and repairs of tables: R2 in place of PAcc, your data as the anchor, constant networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import qll
from qll.cli.main import build_app
from qll.cycle import CycleConfig, cycle
from qll.cycle.accuracy import Accuracy
from qll.cycle.records import Round, best_round
from qll.cycle.repair import RepairResult, check_proved
from qll.data import load
from qll.data.base import DataSet
from qll.errors import DataError, RunError
from qll.networks.onnx_writer import export_onnx
from qll.training.config import resolve

RULE = 'forall x in domain: y["z"] <= 3.4'


def data(rows: int = 160) -> DataSet:
    """z = a + 2 b, a little noisy, for a and b from 0 to 1 and 2."""
    rng = np.random.default_rng(0)
    a, b = rng.uniform(0, 1, rows), rng.uniform(0, 2, rows)
    columns = {"a": a, "b": b, "z": a + 2 * b + rng.normal(0, 0.05, rows)}
    columns["a"][:2], columns["b"][:2], columns["z"][:2] = [0, 1], [0, 2], [0, 5]
    return load(columns, target="z")


def rule(tmp_path: Path, text: str = RULE) -> Path:
    path = tmp_path / "rule.qll"
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that computes a + 2 b."""
    model = nn.Sequential(nn.Linear(2, 12), nn.ReLU(), nn.Linear(12, 1))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 2.0]]) * torch.ones(12, 1))
        model[0].bias.copy_(-torch.arange(12.0) * 0.4)
        model[2].weight.fill_(0.0)
        model[2].weight[0, 0] = 1.0
        model[2].bias.fill_(0.0)
    path = tmp_path_factory.mktemp("network") / "net.onnx"
    export_onnx(model.eval(), path, input_shape=(2,))
    return path


def test_a_repair_keeps_to_your_data(tmp_path: Path, network: Path) -> None:
    settings: dict[str, Any] = {"budget": "60s", "steps": 200, "learning_rate": 5e-3}
    result, _ = qll.repair(rule(tmp_path), str(network), data=data(), **settings)
    kept = result.kept
    assert result.status == "verified" and result.is_success and kept is not None
    assert kept.measure == "R2" and kept.before > 0.99 and kept.after > 0.75
    assert kept.rmse_before is not None and kept.rmse_after is not None
    assert kept.rmse_before < 0.1 < kept.rmse_after < 0.6
    assert result.agreement is None, "an output of one sign is no decision"
    assert kept.constant is None
    check_proved(result)


def test_the_command_repairs_with_data(tmp_path: Path, network: Path) -> None:
    table = data()
    both = [table.train, table.test]
    rows = np.concatenate([np.c_[s.inputs, s.labels] for s in both])
    path = tmp_path / "table.csv"
    path.write_text("a,b,z\n" + "\n".join(",".join(map(str, r)) for r in rows.tolist()) + "\n")
    words = ["repair", str(rule(tmp_path)), "--network", str(network), "--data", str(path)]
    words += ["--target", "z", "--budget", "60s", "--out", str(tmp_path / "out")]
    found = CliRunner().invoke(build_app(), words, catch_exceptions=False)
    assert found.exit_code == 0, found.output
    assert "R2 on the test data: before" in found.output and "RMSE on the test" in found.output
    assert "of one sign: none" in found.output


def test_data_of_another_network_are_named(network: Path, tmp_path: Path) -> None:
    other = load({"a": [0.0, 1, 2, 3], "z": [0.5, 1.5, 2.5, 3.5]}, target="z", test=0.5)
    with pytest.raises(DataError, match="the data do not fit the network"):
        qll.repair(qll.parse("forall x in box(0, 1): y[0] <= 9", outputs=1), str(network),
                   data=other)  # fmt: skip


def test_a_constant_network_is_no_repair() -> None:
    figures: dict[str, Any] = {
        "status": "verified", "checker": "confirmed", "rounds": 1, "step_back": 1.0, "moved": 0.5,
        "agreement": 0.5, "output_change": 0.1, "violated_before": 0.5, "violated_after": 0.0,
        "seconds": 1.0, "history": (),
    }  # fmt: skip
    good = RepairResult(**figures)
    check_proved(good)
    flat = RepairResult(**figures, constant="it answers class 0")
    assert good.is_success and not flat.is_success
    with pytest.raises(RunError, match="it answers class 0"):
        check_proved(flat)


def test_a_cycle_of_a_regression_goes_by_r2(tmp_path: Path) -> None:
    source = str(rule(tmp_path, 'forall x in ball(x0, 0.05) and domain: y["z"] <= 4.6'))
    options = {"epochs": 25, "logic": "qll:5", "network": "mlp:12", "learning_rate": 0.01}
    config = CycleConfig(
        train=resolve(source, "data", options=options), target=0.8, budget=60, asked=10, feedback=4,
        most_rounds=2,
    )  # fmt: skip
    result = cycle(config, tmp_path / "out", data=data())
    assert result.accuracy.measure == "R2" and result.accuracy.chance == 0.0
    assert "least R2" in str(result.accuracy)
    assert result.chosen.pacc > 0.8 and result.ending == "met"


def test_one_answer_is_a_repair_where_the_rule_asks_for_it(tmp_path: Path) -> None:
    """Class 1 wins from x[0] + x[1] = 1.4 on; the rule leaves class 0 alone in its region."""
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 1.0]] * 4))
        model[0].bias.copy_(torch.tensor([0.0, -1.2, -1.3, -1.4]))
        model[2].weight.zero_()
        model[2].weight[1].copy_(torch.tensor([1.0, 0.5, 0.5, 0.5]))
        model[2].bias.copy_(torch.tensor([1.4, -0.15]))
    rule = qll.parse("forall x in box(0, 1) and x[0] <= 0.5: y[0] >= y[1]", outputs=2)
    export_onnx(model.eval(), tmp_path / "net.onnx", input_shape=(2,))
    result, _ = qll.repair(rule, str(tmp_path / "net.onnx"), budget="30s", steps=100)
    assert result.violated_before > 0
    assert result.status == "verified" and result.constant is None and result.is_success


def found(number: int, pacc: float, constant: str | None = None) -> Round:
    return Round(
        number=number, epochs=1, pacc=pacc, csat=1.0, limit=1.0, verified=1, falsified=0, unknown=0,
        open_training=0, witnesses=0, seconds=1.0, constant=constant,
    )  # fmt: skip


def test_a_constant_network_is_not_the_best_round() -> None:
    rounds = [found(1, 0.95, "it answers class 1"), found(2, 0.9)]
    assert best_round(rounds, Accuracy(least=0.85, chance=0.95)).number == 2
    # whoever asks for no accuracy at all gets what is proved
    assert best_round(rounds, Accuracy(least=0.0, chance=0.95)).number == 1


@pytest.mark.parametrize(
    "text",
    [
        'forall x in domain: y["z"] <= 4.6',
        'forall x in domain, x2 in domain and x2["a"] == x["a"]: y2["z"] - y["z"] <= 30',
    ],
)
def test_a_rule_over_the_domain_is_one_question(text: str, tmp_path: Path) -> None:
    options = {"epochs": 8, "logic": "qll:5", "network": "mlp:8", "learning_rate": 0.01}
    train = resolve(str(rule(tmp_path, text)), "data", options=options)
    config = CycleConfig(
        train=train, target=1.0, accuracy=0.2, budget=60, asked=50, feedback=20, most_rounds=1,
    )  # fmt: skip
    result = cycle(config, tmp_path / "out", data=data())
    kept = result.chosen
    assert kept.verified + kept.falsified + kept.unknown == 1
