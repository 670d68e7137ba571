"""The cycle of training and proof, and repair."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import qll
from qll.cycle import CycleConfig, CycleResult, Repair, cycle, repair
from qll.cycle.budget import Budget, decide_within, seconds_of
from qll.data import load as load_data
from qll.errors import InputError, RunError
from qll.formula.hard import Affine, Max, Min
from qll.networks import load as load_network
from qll.networks.models import create
from qll.networks.onnx_writer import export_onnx, onnx_bytes
from qll.networks.trainable import to_module
from qll.properties import load
from qll.training.config import resolve
from qll.verify.api import Problem
from qll.verify.possible import possible

SMALL = {"count_train": 60, "count_test": 20}


def settings(prop: str = "not-both", **changes: object) -> CycleConfig:
    train = resolve(
        prop,
        "dice-rendered",
        options={
            "logic": "qll:5",
            "epochs": 2,
            "data_options": SMALL,
            "attack": "apgd:3,restarts=0",
            "learning_rate": 3e-3,
        },
        settings=["epsilon=0.002"],  # small regions are decided at once
    )
    values: dict[str, object] = {
        "target": 1.0, "budget": 36000.0, "asked": 8, "feedback": 8, "more_epochs": 1,
        "timeout": 1.0, "most_rounds": 2, "accuracy": 0.0, **changes,
    }  # fmt: skip
    return CycleConfig(train=train, **values)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CycleResult]:
    """A whole cycle, made once: tests read its folder and leave it as it is."""
    folder = tmp_path_factory.mktemp("cycle")
    return folder, cycle(settings(patience=5), folder)


def test_rounds_go_on_from_each_other_and_everything_is_kept(
    finished: tuple[Path, CycleResult],
) -> None:
    tmp_path, result = finished
    assert result.ending in ("met", "rounds")
    record = json.loads((tmp_path / "cycle.json").read_text())
    assert len(record["rounds"]) == len(result.rounds) >= 1
    assert (tmp_path / "model.onnx").is_file() and (tmp_path / "curve.png").is_file()
    verdicts = json.loads((tmp_path / "verdicts.json").read_text())["verdicts"]
    assert [row["point"] for row in verdicts] == list(range(8))
    kept = result.chosen
    proved = sum(row["status"] == "verified" for row in verdicts)
    assert kept.csat == proved / 8 and kept.csat <= kept.limit
    # what is kept is what was proved, and the checker agrees
    folder = tmp_path / f"round-{result.best:02d}"
    assert (folder / "model.onnx").read_bytes() == (tmp_path / "model.onnx").read_bytes()
    held = next((folder / "certificates").rglob("*.onnx"))
    assert held.read_bytes() == (tmp_path / "model.onnx").read_bytes()
    call = [sys.executable, "-c", "from qll.cli.main import run; run()", "audit"]
    audited = subprocess.run(
        [*call, str(folder / "certificates")], capture_output=True, text=True, check=False
    )
    assert audited.returncode == 0, audited.stdout + audited.stderr


def test_the_target_ends_it(tmp_path: Path) -> None:
    """A property that any network obeys is proved in the first round."""
    rule = tmp_path / "easy.qll"
    rule.write_text(
        "outputs 6\nparameter epsilon: input = 0.001\n"
        "forall x in ball(x0, epsilon) and range(0, 1): y[0] <= 1e6\n"
    )
    result = cycle(settings(str(rule)), tmp_path / "out")
    assert result.ending == "met" and len(result.rounds) == 1 and result.chosen.csat == 1.0


def test_a_contradiction_is_named_instead_of_trained_on(tmp_path: Path) -> None:
    rule = tmp_path / "never.qll"
    rule.write_text(
        "outputs 6\nparameter epsilon: input = 0.01\n"
        "forall x in ball(x0, epsilon) and range(0, 1): y[0] >= y[1] + 1 and y[1] >= y[0] + 1\n"
    )
    with pytest.raises(RunError, match="cannot be met") as error:
        cycle(settings(str(rule)), tmp_path / "out")
    assert "contradiction" in str(error.value)
    assert not (tmp_path / "out").exists()


def test_data_points_that_violate_whatever_the_outputs_are_named(tmp_path: Path) -> None:
    data = load_data("dice-rendered", **SMALL)
    values = np.sort(data.test.inputs[:8, 0, 0, 0])
    threshold = float((values[3] + values[4]) / 2)  # half of the asked points are above it
    rule = tmp_path / "input.qll"
    rule.write_text(
        "outputs 6\nparameter epsilon: input = 0.001\n"
        f"forall x in ball(x0, epsilon) and range(0, 1): x0[0] <= {threshold} and y[0] <= 1e6\n"
    )
    with pytest.raises(RunError, match="whatever the outputs are") as error:
        cycle(settings(str(rule), target=0.9), tmp_path / "out")
    assert f"{int((values > threshold).sum())} of 8" in str(error.value)


@pytest.mark.parametrize(
    ("form", "answer"),
    [
        (Affine(((("y", 0), 1.0),), 0.0), True),
        (Max((Affine(((("y", 0), 1.0),), 1.0), Affine(((("y", 0), -1.0),), 1.0))), False),
        (Min((Affine((), 1.0), Affine(((("y", 1), 1.0),), 5.0))), True),
        (Min((Affine((), 1.0), Affine((), 2.0))), False),
        (
            Max((
                Min((Affine(((("y", 0), 1.0),), 1.0), Affine(((("y", 1), 1.0),), 1.0))),
                Affine(((("y", 0), -1.0),), 0.0),
                Affine(((("y", 1), -1.0),), 0.0),
            )),
            False,
        ),
        (Max(()), True),
        (Min(()), False),
    ],
)  # fmt: skip
def test_possible_is_satisfiability_by_outputs(form, answer: bool) -> None:
    assert possible(form, 2) is answer


def test_a_kill_in_the_middle_changes_nothing(
    finished: tuple[Path, CycleResult], tmp_path: Path
) -> None:
    """Killed at several moments and resumed, a cycle gives what an uninterrupted one gives."""
    config = settings(patience=5)
    folder, whole = finished
    code = (
        "import sys, json, torch; torch.set_num_threads(1)\n"
        "from pathlib import Path\n"
        "from qll.cycle import CycleConfig, cycle\n"
        "config = CycleConfig.model_validate_json(Path(sys.argv[2]).read_text())\n"
        "cycle(config, sys.argv[1], resume=True)\n"
    )
    asked = tmp_path / "asked.json"
    asked.write_text(config.model_dump_json())
    call = [sys.executable, "-c", code, str(tmp_path / "killed"), str(asked)]
    marks = ["round-01/config.json", "round-01/asked.json.partial", "round-02/config.json"]
    for mark in marks:
        child = subprocess.Popen(call, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while child.poll() is None and not (tmp_path / "killed" / mark).exists():
            time.sleep(0.01)
        if child.poll() is None:
            os.kill(child.pid, signal.SIGKILL)
            child.wait()
    again = cycle(config, tmp_path / "killed", resume=True)
    assert [r.number for r in again.rounds] == [r.number for r in whole.rounds]
    for ours, theirs in zip(again.rounds, whole.rounds, strict=True):
        assert (ours.pacc, ours.epochs) == (theirs.pacc, theirs.epochs)
    one, other = (at / "round-01" / "model.onnx" for at in (folder, tmp_path / "killed"))
    assert one.read_bytes() == other.read_bytes()


def test_it_stops_within_its_budget(tmp_path: Path) -> None:
    config = settings(budget=8.0, most_rounds=50, patience=50, target=1.0)
    config = config.model_copy(update={"train": config.train.model_copy(update={"epochs": 500})})
    begun = time.monotonic()
    result = cycle(config, tmp_path)
    # The 500 epochs take many minutes; how far over its budget it ends is the machine's affair.
    assert time.monotonic() - begun < 120.0
    assert result.ending in ("out of budget", "met")
    assert result.rounds[0].epochs < 500


def test_a_folder_is_not_taken_twice(finished: tuple[Path, CycleResult]) -> None:
    folder, _ = finished
    with pytest.raises(RunError, match="holds a cycle already"):
        cycle(settings(patience=5), folder)
    with pytest.raises(RunError, match="another 'asked'"):
        cycle(settings(patience=5, asked=9), folder, resume=True)


def test_budgets_are_lengths_of_time(tmp_path: Path) -> None:
    assert (seconds_of("90s"), seconds_of("2h"), seconds_of("0.5m")) == (90, 7200, 30)
    for wrong in ("soon", "-3m", "0", "3d"):
        with pytest.raises(InputError, match="length of time"):
            seconds_of(wrong)
    # without time, nothing is decided and nothing is claimed
    torch.manual_seed(0)
    problem = Problem.of(
        qll.load("not-both"), create("paper-dice"), torch.rand(3, 3, 28, 28), timeout=1.0
    )
    found = decide_within(problem, tmp_path / "v.json", Budget(1.0, spent=2.0), jobs=1)
    assert {row["status"] for row in found.values()} == {"unknown"}


def test_a_cycle_from_a_network_reports_agreement(tmp_path: Path) -> None:
    torch.manual_seed(0)
    export_onnx(create("paper-dice").eval(), tmp_path / "net.onnx", input_shape=(3, 28, 28))
    start = to_module(load_network(tmp_path / "net.onnx"))
    result = cycle(settings(most_rounds=1), tmp_path / "out", start=start)
    assert result.rounds[0].agreement is not None and 0 <= result.rounds[0].agreement <= 1


# --- a network that can be trained further ---


@pytest.mark.parametrize("kind", ["convolutions", "dense", "subtracted mean"])
def test_a_module_computes_what_the_file_says(kind: str) -> None:
    torch.manual_seed(4)
    if kind == "convolutions":
        model, shape = create("paper-mnist"), (1, 28, 28)
    elif kind == "dense":
        layers = [nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)]
        model, shape = nn.Sequential(*layers), (1, 2, 3)
    else:
        bias = nn.Linear(4, 4)
        model, shape = nn.Sequential(bias, nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), (4,)
    network = load_network(onnx_bytes(model.eval(), input_shape=shape))
    module = to_module(network)
    x = torch.rand(7, *shape)
    torch.testing.assert_close(module(x), model(x), rtol=1e-4, atol=1e-4)
    if kind == "convolutions":
        assert any(isinstance(m, nn.Conv2d) for m in module)
    assert all(p.requires_grad for p in module.parameters())


# --- repair ---

BOX = "outputs 2\nforall x in box([0, 0], [1, 1]): y[0] <= y[1]\n"


def violating_network(path: Path) -> Path:
    """Obeys on most of the unit square; violates in the corner x0 > 0.8, x1 > 0.8."""
    model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    torch.manual_seed(0)
    with torch.no_grad():
        model[0].weight.copy_(torch.randn(8, 2) * 0.3)
        model[0].weight[0] = torch.tensor([5.0, 5.0])
        model[0].bias[0] = -8.0
        model[2].weight.copy_(torch.randn(2, 8) * 0.1)
        model[2].weight[0, 0] = 1.0
        model[2].bias.copy_(torch.tensor([-0.5, 0.5]))
    export_onnx(model.eval(), path, input_shape=(2,))
    return path


def test_repair_proves_the_network_and_moves_little(tmp_path: Path) -> None:
    rule = tmp_path / "rule.qll"
    rule.write_text(BOX)
    network = load_network(violating_network(tmp_path / "net.onnx"))
    prop = load(rule, outputs=2)
    before = qll.verify(prop, network, np.zeros((1, 2)), timeout=10.0)[0]
    assert before.status == "falsified"
    config = Repair(budget=60, timeout=10, samples=2000, steps=60, halvings=3)
    result, source = repair(prop, network, config, tmp_path / "out")
    assert result.status == "verified" and result.violated_before > 0
    assert result.checker == "confirmed"
    assert result.violated_after == 0
    after = qll.verify(prop, source, np.zeros((1, 2)), timeout=10.0)[0]
    assert after.status == "verified"
    assert (tmp_path / "out" / "model.onnx").read_bytes() == source
    assert result.agreement > 0.9
    assert 0 < result.moved < 1 and 0 < result.step_back <= 1
    record = json.loads((tmp_path / "out" / "repair.json").read_text())
    assert record["result"]["status"] == "verified"
    # the evidence is that of the network that was kept, and of no other
    assert [p.name for p in (tmp_path / "out").iterdir() if p.is_dir()] == ["certificates"]
    held = next((tmp_path / "out" / "certificates").rglob("*.onnx"))
    assert held.read_bytes() == source


def test_a_repair_that_the_checker_refuses_is_not_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qll.audit import Answer

    rule = tmp_path / "rule.qll"
    rule.write_text(BOX)
    network = load_network(violating_network(tmp_path / "net.onnx"))
    monkeypatch.setattr(
        sys.modules["qll.cycle.repair"], "audit", lambda *_: Answer("verified", False, "no")
    )
    config = Repair(budget=60, timeout=10, samples=500, steps=60, halvings=0)
    result, _ = repair(load(rule, outputs=2), network, config, tmp_path / "out")
    assert (result.status, result.checker) == ("unknown", "refused")


def test_repair_of_a_network_that_obeys_changes_nothing(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    with torch.no_grad():
        model[2].weight.zero_()
        model[2].bias.copy_(torch.tensor([0.0, 1.0]))
    rule = tmp_path / "rule.qll"
    rule.write_text(BOX)
    network = load_network(onnx_bytes(model.eval(), input_shape=(2,)))
    result, _ = repair(load(rule, outputs=2), network, Repair(budget=20, samples=200))
    assert (result.status, result.rounds, result.moved) == ("verified", 0, 0.0)
    assert result.checker == "not asked", "without a folder there is no evidence to check"


def test_repair_wants_a_box(tmp_path: Path) -> None:
    network = load_network(violating_network(tmp_path / "net.onnx"))
    with pytest.raises(InputError, match="speaks of data points"):
        repair(qll.load("label-robustness"), network)
