"""What a cycle does not call met: proofs that say nothing, and networks that predict nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_cycle import settings
from typer.testing import CliRunner

from qll.cli.main import build_app
from qll.cycle import cycle
from qll.cycle.accuracy import ALLOWANCE, Accuracy, plain_settings
from qll.cycle.loop import _Cycle
from qll.cycle.records import CycleResult, Round, best_round, summary
from qll.data import load as load_data
from qll.errors import RunError
from qll.training.config import resolve
from qll.training.progress import Silent

# Every label is predicted, so half of them wrongly: proved at once, at chance.
ALL_ON = (
    "outputs 6\nparameter epsilon: input = 0.0001\n"
    "forall x in ball(x0, epsilon) and range(0, 1): forall i in outputs: y[i] >= 0.2\n"
)
# Of face 1 alone.
SOME = (
    "outputs 6\nparameter epsilon: input = 0.0001\n"
    "forall x in ball(x0, epsilon) and range(0, 1): label(0) -> y[0] >= -1e6\n"
)


def rule(folder: Path, text: str) -> str:
    path = folder / "rule.qll"
    path.write_text(text)
    return str(path)


def found(number: int, pacc: float, csat: float, **more: object) -> Round:
    values: dict[str, object] = {
        "limit": 1.0, "verified": 1, "falsified": 0, "unknown": 0, "open_training": 0,
        "witnesses": 0, "seconds": 1.0, "epochs": 1, **more,
    }  # fmt: skip
    return Round(number=number, pacc=pacc, csat=csat, **values)  # type: ignore[arg-type]


def test_a_target_at_chance_is_not_met(tmp_path: Path) -> None:
    """97 % proved at a PAcc of 58.5 where chance is 50 was 'target met'."""
    config = settings(rule(tmp_path, ALL_ON), accuracy=None, target=0.5, most_rounds=1)
    heavy = config.train.model_copy(update={"weight": 30.0})
    config = config.model_copy(update={"train": heavy})
    result = cycle(config, tmp_path / "out")
    assert max(r.csat for r in result.rounds) >= 0.5, "the rule itself is easily proved"
    assert result.accuracy.plain is not None
    assert result.accuracy.least == pytest.approx(result.accuracy.plain - ALLOWANCE)
    assert all(r.pacc < result.accuracy.least for r in result.rounds) and result.ending != "met"
    assert "--accuracy" in summary(result, target=0.5, patience=4)
    record = json.loads((tmp_path / "out" / "cycle.json").read_text())
    assert record["accuracy"] == result.accuracy.model_dump()
    # measured once; what is enough may be said later
    again = cycle(config.model_copy(update={"accuracy": 0.0}), tmp_path / "out", resume=True)
    assert again.ending == "met" and again.accuracy.least == 0.0


def test_too_little_accuracy_makes_the_property_lighter(tmp_path: Path) -> None:
    config = settings(accuracy=0.8)
    work = _Cycle(config, tmp_path, load_data("dice-rendered", count_train=60, count_test=20),
                  None, Silent(), None)  # fmt: skip
    least = Accuracy(least=0.8, chance=0.5)
    work.rounds = [found(1, 0.9, 0.2), found(2, 0.9, 0.3), found(3, 0.6, 0.9)]
    alphas = [work._settings(number, least).alpha for number in (1, 2, 3, 4)]
    assert alphas == pytest.approx([0.5, 0.5 * 1.5, 0.5 * 1.5**2, 0.5 * 1.5])


def test_the_kept_round_is_accurate_if_any_is() -> None:
    least = Accuracy(least=0.8, chance=0.5)
    rounds = [found(1, 0.85, 0.4), found(2, 0.55, 0.99), found(3, 0.82, 0.6)]
    assert best_round(rounds, least).number == 3
    assert best_round([rounds[1], found(4, 0.79, 0.9)], least).number == 4


def test_the_network_without_the_rule_has_nothing_of_the_rule() -> None:
    train = resolve("classification-robustness", "mnist", options={"method": "small-box"})
    plain = plain_settings(train)
    assert train.stages and train.initialisation == "ramp"
    assert plain.is_baseline and not plain.stages and plain.initialisation == "default"
    assert (plain.network, plain.epochs, plain.batch_size) == (
        train.network, train.epochs, train.batch_size,
    )  # fmt: skip


def test_what_holds_vacuously_is_counted_apart(tmp_path: Path) -> None:
    data = load_data("dice-rendered", count_train=60, count_test=20)
    spoken = int(data.test.labels[:8, 0].sum())
    assert 0 < spoken < 8
    result = cycle(settings(rule(tmp_path, SOME), most_rounds=1), tmp_path / "out")
    one = result.chosen
    assert (one.verified, one.vacuous, one.csat, one.limit) == (spoken, 8 - spoken, 1.0, 1.0)
    total = json.loads((tmp_path / "out" / "verdicts.json").read_text())["total"]
    assert (total["verified"], total["vacuous"]) == (8, 8 - spoken)
    # regions that teach are of points that the property speaks of
    asked = json.loads((tmp_path / "out" / "round-01" / "regions.json").read_text())
    assert asked["total"]["vacuous"] == 0 and len(asked["verdicts"]) == 8


def test_a_rule_that_says_nothing_is_refused(tmp_path: Path) -> None:
    text = SOME.replace("label(0)", "label(0) and label(5)")  # opposite faces: never both
    with pytest.raises(RunError, match="says nothing of the data points") as error:
        cycle(settings(rule(tmp_path, text)), tmp_path / "out")
    assert "all 8" in str(error.value) and not (tmp_path / "out").exists()


def test_old_records_are_read(tmp_path: Path) -> None:
    """Of before vacuity and accuracy were kept."""
    config = settings(most_rounds=1)
    cycle(config, tmp_path)
    path = tmp_path / "cycle.json"
    record = json.loads(path.read_text())
    del record["accuracy"], record["asked"]["accuracy"]
    for row in record["rounds"]:
        del row["vacuous"]
    path.write_text(json.dumps(record))
    result = cycle(config, tmp_path, resume=True)
    assert isinstance(result, CycleResult) and result.rounds[0].vacuous == 0


def test_the_command_says_chance_and_the_least_accuracy(tmp_path: Path) -> None:
    answer = CliRunner().invoke(
        build_app(),
        [
            "cycle", rule(tmp_path, SOME), "--data", "dice-rendered",
            "--out", str(tmp_path / "out"), "--count", "8", "--feedback", "0", "--epochs", "1",
            "--jobs", "1", "--method", "attack",
            "--set", "data_options.count_train=32", "--set", "data_options.count_test=20",
            "--set", "steps=1", "--set", "restarts=0", "--set", "engine=autograd",
            "--budget", "100s", "--target", "1",
        ],
    )  # fmt: skip
    assert answer.exit_code in (0, 11), answer.output
    text = " ".join(answer.output.split())
    assert "chance is" in text and "points below the" in text
    assert "CSat leaves out" in text and "vacuous" in text
