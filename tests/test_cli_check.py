"""``qll check``: what it says before any work is done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from qll.cli.main import build_app
from qll.errors import QllError
from qll.networks.onnx_writer import export_onnx

OPTIONS = ["--data", "dice-rendered"]


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 28 * 28, 4), nn.ReLU(), nn.Linear(4, 6))
    path = tmp_path_factory.mktemp("check") / "net.onnx"
    export_onnx(model.eval(), path, input_shape=(3, 28, 28))
    return path


def _found(tmp_path: Path, *words: str) -> tuple[int, dict[str, dict[str, str]]]:
    out = tmp_path / "found.json"
    result = CliRunner().invoke(build_app(), ["check", *words, "--json", str(out)])
    findings = json.loads(out.read_text())["findings"]
    return result.exit_code, {item["topic"]: item for item in findings}


def test_what_fits(tmp_path: Path, network: Path) -> None:
    code, found = _found(tmp_path, "not-both", "--network", str(network), *OPTIONS)
    assert code == 0
    assert found["certificate"]["state"] == "ok"
    assert "2352 inputs move" in found["region"]["said"]
    assert found["clean data"]["state"] in ("ok", "note")
    assert "test points" in found["proof"]["said"]


def test_a_rule_of_more_outputs_than_there_are(tmp_path: Path, network: Path) -> None:
    rule = tmp_path / "rule.qll"
    rule.write_text("forall x in ball(x0, 0.1): y[7] <= 1\n")
    code, found = _found(tmp_path, str(rule), "--network", str(network), *OPTIONS)
    assert code == 1
    assert found["rule"]["state"] == "wrong" and found["rule"]["fix"]


def test_a_network_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(b"no network")
    code, found = _found(tmp_path, "not-both", "--network", str(path))
    assert code == 1 and found["network"]["state"] == "wrong"
    assert found["rule"]["state"] == "ok"


def test_a_premise_that_is_never_true(tmp_path: Path, network: Path) -> None:
    """No face of a die is both 1 and 6 (they lie opposite), so nothing is asked."""
    rule = tmp_path / "rule.qll"
    rule.write_text("outputs 6\nforall x in ball(x0, 0.1): label(0) and label(5) -> y[0] >= 1\n")
    code, found = _found(tmp_path, str(rule), "--network", str(network), *OPTIONS)
    assert code == 1
    assert "false at each" in found["premise"]["said"]


def test_a_rule_broken_already(tmp_path: Path, network: Path) -> None:
    rule = tmp_path / "rule.qll"
    rule.write_text("outputs 6\nforall x in ball(x0, 0.001): y[0] >= 100\n")
    code, found = _found(tmp_path, str(rule), "--network", str(network), *OPTIONS)
    assert code == 0
    assert found["clean data"]["state"] == "note"
    assert "falsified" in found["proof"]["said"]


def test_a_rule_without_data_points_is_asked_once_and_judged_in_its_region(tmp_path: Path) -> None:
    """The network is y = x0; the rule speaks of x0 >= 5 alone, so points below break none."""
    model = nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 0.0]]))
        model.bias.zero_()
    export_onnx(model.eval(), tmp_path / "net.onnx", input_shape=(2,))
    rows = "\n".join(f"{k},{k % 3},{k}.5" for k in range(20))
    (tmp_path / "table.csv").write_text(f"a,b,y\n{rows}\n")
    rule = tmp_path / "rule.qll"
    rule.write_text('forall x in domain and x["a"] >= 5: y["y"] >= 4\n')
    words = [str(rule), "--network", str(tmp_path / "net.onnx")]
    table = ["--data", str(tmp_path / "table.csv"), "--target", "y"]
    code, found = _found(tmp_path, *words, *table)
    assert code == 0
    assert found["network"]["said"].startswith("2 inputs, 1 output,")
    assert found["clean data"]["state"] == "ok" and "in the region" in found["clean data"]["said"]
    assert "verified" in found["proof"]["said"] and "asked once" in found["proof"]["said"]
    rule.write_text("outputs 1\nforall x in box(0, 1): y[0] <= 0.5\n")
    _, found = _found(tmp_path, *words)  # without data, too
    assert "falsified" in found["proof"]["said"]


def test_what_training_would_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few steps are done; a network that is given would not be trained."""
    import qll.checkup

    monkeypatch.setattr(qll.checkup, "_WARM", 0.05)
    monkeypatch.setattr(qll.checkup, "_SECONDS", 0.2)
    rule, table = tmp_path / "rule.qll", tmp_path / "t.csv"
    rule.write_text("forall x in domain: y[0] <= 9\n")
    table.write_text("a,b\n" + "".join(f"{k % 7},{k}\n" for k in range(40)))
    code, found = _found(tmp_path, str(rule), "--data", str(table), "--target", "b")
    assert code == 0
    assert found["training"]["said"].startswith("qll train takes about ")
    assert "100 epochs" in found["training"]["said"]


EMPTY = {
    "beyond the domain": 'forall x in domain and x["a"] >= 7: y["y"] <= 1',
    "two at once": 'forall x in domain and x["a"] >= 3 and x["a"] + x["b"] <= 2: y["y"] <= 1',
    "no whole number": 'forall x in domain and x["a"] >= 3.2 and x["a"] <= 3.8: y["y"] <= 1',
    "two points": 'forall x in domain, x2 in domain and x2["a"] >= x["a"] + 7: y["y"] <= y2["y"]',
    "around points": 'forall x in ball(x0, 0.5) and x["a"] >= 9: y["y"] <= 1',
    "of the formula": 'forall x in domain: x["a"] >= 9 -> y["y"] <= 1',
}


@pytest.mark.parametrize("with_network", [False, True])
@pytest.mark.parametrize("rule", EMPTY.values(), ids=EMPTY)
def test_premises_that_no_input_meets(tmp_path: Path, rule: str, with_network: bool) -> None:
    """Nothing would be asked of any network: decided, before anything is trained."""
    (tmp_path / "rule.qll").write_text(rule)
    (tmp_path / "t.csv").write_text(
        "a,b,y\n" + "".join(f"{k % 7},{k % 3},{k}\n" for k in range(40))
    )
    words = [str(tmp_path / "rule.qll"), "--data", str(tmp_path / "t.csv"), "--target", "y"]
    if with_network:
        export_onnx(nn.Linear(2, 1).eval(), tmp_path / "net.onnx", input_shape=(2,))
        words += ["--network", str(tmp_path / "net.onnx")]
    code, found = _found(tmp_path, *words)
    assert code == 1 and "training" not in found
    assert found["premise"]["state"] == "wrong" and "no input meets it" in found["premise"]["said"]


def test_premises_that_an_input_meets_are_not_doubted(tmp_path: Path) -> None:
    (tmp_path / "rule.qll").write_text('forall x in domain and x["a"] >= 6: y["y"] <= 1')
    (tmp_path / "t.csv").write_text(
        "a,b,y\n" + "".join(f"{k % 7},{k % 3},{k}\n" for k in range(40))
    )
    export_onnx(nn.Linear(2, 1).eval(), tmp_path / "net.onnx", input_shape=(2,))
    words = [str(tmp_path / "rule.qll"), "--data", str(tmp_path / "t.csv"), "--target", "y"]
    _, found = _found(tmp_path, *words, "--network", str(tmp_path / "net.onnx"))
    assert "premise" not in found and "proof" in found


def test_nothing_is_trained_on_premises_that_no_input_meets(tmp_path: Path) -> None:
    (tmp_path / "rule.qll").write_text('forall x in domain and x["a"] >= 7: y["y"] <= 1')
    (tmp_path / "t.csv").write_text(
        "a,b,y\n" + "".join(f"{k % 7},{k % 3},{k}\n" for k in range(40))
    )
    words = [str(tmp_path / "rule.qll"), "--data", str(tmp_path / "t.csv")]
    for command, column in (("train", "--target"), ("cycle", "--predict")):
        out = ["--out", str(tmp_path / command)]
        found = CliRunner().invoke(build_app(), [command, *words, column, "y", *out])
        assert isinstance(found.exception, QllError), found.output
        assert "no input meets the premises" in str(found.exception)


def test_a_rule_of_a_table_is_shown_with_it(tmp_path: Path) -> None:
    (tmp_path / "rule.qll").write_text('forall x in domain and x["a"] >= 5: y["y"] <= 1')
    (tmp_path / "t.csv").write_text(
        "a,b,y\n" + "".join(f"{k % 7},{k % 3},{k}\n" for k in range(40))
    )
    words = ["show", str(tmp_path / "rule.qll"), "--data", str(tmp_path / "t.csv")]
    found = CliRunner().invoke(build_app(), [*words, "--target", "y", "--as", "ascii"])
    assert found.exit_code == 0 and "box([0, 0], [6, 2])" in found.output


RULES = {
    "met": ("forall x in box(0, 1) and x[1] >= 0.5: y[0] >= y[1]", {}),
    "empty": (
        "forall x in box(0, 1) and x[1] >= 2: y[0] >= y[1]",
        {"premise": "no input meets it"},
    ),
    "two points": (
        "forall x in box(0, 1), x2 in box(0, 1) and x2[3] >= x[3] + 2: y2[0] >= y[0]",
        {"premise": "no input meets it"},
    ),
    "always": ("forall x in box(0, 1): y[0] >= y[0]", {"claim": "true of every network"}),
    # Read as closed, it says nothing; as it is written, none could obey.
    "strict": ("forall x in box(0, 1): y[0] > y[0]", {"premise": "the rule says nothing"}),
    "a part always": ("forall x in box(0, 1): y[0] >= y[0] and y[1] >= 0", {}),
    "never": (
        "forall x in box(0, 1): y[1] >= y[1] + 1 or y[2] <= y[2] - 1",
        {"claim": "none can obey"},
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_a_rule_alone(tmp_path: Path, name: str) -> None:
    text, wrong = RULES[name]
    (tmp_path / "rule.qll").write_text(text)
    code, found = _found(tmp_path, str(tmp_path / "rule.qll"))
    assert {t: f["said"] for t, f in found.items() if f["state"] == "wrong"}.keys() == wrong.keys()
    assert code == bool(wrong)
    for topic, said in wrong.items():
        assert said in found[topic]["said"]
    assert found["for every"]["said"].startswith("x") and "--network" in found["next"]["said"]


def test_what_a_shipped_rule_asks_for(tmp_path: Path) -> None:
    code, found = _found(tmp_path, "classification-robustness", "--set", "epsilon=8/255")
    assert code == 0
    assert "asked around each data point and its label" in found["rule"]["said"]
    assert found["parameter"]["said"].startswith("epsilon = 0.0313725, in the units of the inputs")


def test_an_epsilon_of_255ths(tmp_path: Path) -> None:
    _, found = _found(tmp_path, "not-both", *OPTIONS, "--set", "epsilon=8")
    assert found["region"]["state"] == "note"
    assert "the data go from 0 to 1" in found["region"]["fix"]
    assert "write 8/255" in found["region"]["fix"]


def test_a_shipped_rule_takes_as_many_outputs_as_the_data_have_classes(tmp_path: Path) -> None:
    """It says ten, the classes of MNIST; a die has six faces."""
    code, found = _found(tmp_path, "classification-robustness", *OPTIONS)
    assert code == 0
    assert "6 outputs" in found["entries"]["said"]
    assert found["training"]["said"].startswith("qll train takes about")
