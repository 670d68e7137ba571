"""What cycle, repair and tune refuse, and how: before any work, in three lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from test_cycle import settings
from test_tuning import config as tune_config
from torch import nn
from typer.testing import CliRunner

from qll.cli.main import build_app
from qll.cycle import Repair, cycle, repair
from qll.cycle.records import Saving
from qll.errors import InputError, QllError, RunError
from qll.networks import load as load_network
from qll.networks.models import create
from qll.networks.onnx_writer import export_onnx
from qll.properties import load
from qll.training.progress import Silent
from qll.tuning import tune


def refused(*words: object) -> str:
    """The message of a command that a user got wrong."""
    result = CliRunner().invoke(build_app(), [str(word) for word in words])
    assert isinstance(result.exception, QllError), (result.exception, result.output)
    return str(result.exception)


def small_network(folder: Path) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))
    path = folder / "net.onnx"
    export_onnx(model, path, input_shape=(2,))
    return path


def box_rule(folder: Path, body: str) -> Path:
    path = folder / "rule.qll"
    path.write_text(f"outputs 2\nforall x in box([0, 0], [1, 1]): {body}\n")
    return path


# --- repair ---


@pytest.mark.parametrize(
    ("body", "words"),
    [("y[0] <= -1 and y[0] >= 1", "contradiction"), ("x[0] <= 0.5 and y[0] <= 9", "at [")],
)
def test_a_repair_that_no_network_could_be_is_named(body: str, words: str, tmp_path: Path) -> None:
    network = load_network(small_network(tmp_path))
    rule = load(box_rule(tmp_path, body), outputs=2)
    with pytest.raises(RunError, match="cannot be met") as error:
        repair(rule, network, Repair(budget=5, samples=200), tmp_path / "out")
    assert words in str(error.value)
    assert not (tmp_path / "out").exists()


def test_a_failed_repair_leaves_no_evidence_and_no_nan(tmp_path: Path) -> None:
    network, rule = small_network(tmp_path), box_rule(tmp_path, "y[0] <= y[1] - 50")
    out = tmp_path / "out"
    words = ("repair", rule, "--network", network, "--budget", "2s", "--out", out)
    result = CliRunner().invoke(build_app(), [str(word) for word in words])
    assert result.exit_code == 11, result.output
    assert "no certificate" in result.output and "nan" not in result.output
    assert not (out / "certificates").exists()
    held = json.loads((out / "repair.json").read_text())["result"]
    assert held["status"] != "verified" and held["agreement"] is None
    # the folder is that network's: another repair in it could leave evidence of the wrong one
    assert "holds results already" in refused(*words)


def test_a_cycle_without_data_points_to_repair(tmp_path: Path) -> None:
    rule = box_rule(tmp_path, "y[0] <= 9")
    said = refused("cycle", rule, "--network", small_network(tmp_path))
    assert said.startswith("there is nothing to train on") and "qll repair" in said


# --- numbers ---


@pytest.mark.parametrize(
    ("command", "option", "value"),
    [
        ("cycle", "--target", "0"),
        ("cycle", "--target", "1.5"),
        ("cycle", "--count", "0"),
        ("cycle", "--jobs", "-1"),
        ("cycle", "--timeout", "0"),
        ("cycle", "--feedback", "-1"),
        ("cycle", "--more-epochs", "0"),
        ("tune", "--trials", "0"),
        ("tune", "--regions", "0"),
        ("tune", "--timeout", "0"),
        ("tune", "--jobs", "0"),
    ],
)
def test_a_wrong_number_is_named_by_its_option(
    command: str, option: str, value: str, tmp_path: Path
) -> None:
    said = refused(
        command, "not-both", "--data", "dice-rendered", option, value, "--out", tmp_path / "out"
    )
    assert said.startswith(f"{option} has a wrong value") and "Fix: " in said
    assert not (tmp_path / "out").exists()


# --- the cycle ---


def test_a_cycle_is_not_resumed_from_another_network(tmp_path: Path) -> None:
    def network(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return create("paper-dice")

    asked = settings(most_rounds=1)
    cycle(asked, tmp_path, start=network(0))
    cycle(asked, tmp_path, start=network(0), resume=True)
    for other in (network(1), None):
        with pytest.raises(RunError, match="began from another network"):
            cycle(asked, tmp_path, start=other, resume=True)


def test_what_cannot_be_proved_is_said_before_the_first_epoch(tmp_path: Path) -> None:
    rule = tmp_path / "two.qll"
    rule.write_text(
        "outputs 6\nparameter epsilon: input = 0.002\n"
        "forall x in ball(x0, epsilon) and range(0, 1), x2:\n"
        "  y[0] - y2[0] <= 1\n"
    )
    with pytest.raises(QllError):
        cycle(settings(str(rule)), tmp_path / "out")
    assert not list((tmp_path / "out").glob("round-*"))


def test_the_time_of_every_epoch_is_recorded() -> None:
    saved: list[int] = []
    reporter = Saving(Silent(), lambda: saved.append(1))
    reporter.start("title", 2, 1, 0)
    reporter.epoch({})
    reporter.epoch({})
    assert len(saved) == 2


def test_a_killed_cycle_has_used_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before the end of its first round, it does not get its budget again."""

    class Killed(Silent):
        def epoch(self, row) -> None:
            raise SystemExit(9)

    with pytest.raises(SystemExit):
        cycle(settings(), tmp_path, reporter=Killed())
    held = json.loads((tmp_path / "cycle.json").read_text())
    assert held["rounds"] == [] and held["spent"] > 0.05


# --- tuning ---


def test_a_study_that_cannot_work_says_why_before_its_first_trial(tmp_path: Path) -> None:
    asked = tune_config(options={"epochs": 1, "validation": 1000,
                                 "data_options": {"count_train": 40, "count_test": 8}})  # fmt: skip
    with pytest.raises(InputError, match="nothing is left to train on"):
        tune(asked, tmp_path)
    assert not list(tmp_path.glob("trial-*"))


def test_failed_trials_are_told_and_a_study_of_them_is_an_error(tmp_path: Path) -> None:
    told: list[str] = []
    asked = tune_config(methods=("bound",), settings=("epsilon=0.002", "logic=stl:5"), trials=2)
    with pytest.raises(RunError, match="no trial of this study has a result"):
        tune(asked, tmp_path, on_failure=lambda trial, reason: told.append(reason))
    assert len(told) == 2 and all("monotone" in reason for reason in told), told
    assert not list(tmp_path.glob("trial-*"))


def test_what_the_user_fixes_is_not_drawn(tmp_path: Path) -> None:
    asked = tune_config(
        methods=("bound",), settings=("epsilon=0.002", "logic=dl2", "learning_rate=0.002"), trials=2
    )
    for point in tune(asked, tmp_path):
        assert point.settings.get("logic", "dl2") == "dl2"
        assert point.settings.get("learning_rate", 0.002) == 0.002
