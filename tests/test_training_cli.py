"""``qll train``, ``evaluate``, ``attack`` and ``demo`` as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from qll.cli.main import build_app
from qll.errors import QllError

SMALL = ["--set", "data_options.count_train=16", "--set", "data_options.count_test=6"]
FAST = ["--set", "steps=2", "--set", "restarts=0", "--set", "engine=autograd"]


def call(*arguments: str) -> Result:
    return CliRunner().invoke(build_app(), list(arguments))


def train(folder: Path, *more: str) -> Result:
    return call(
        "train", "not-both", "--data", "dice-rendered", "--epochs", "2", "--out", str(folder),
        *SMALL, *FAST, *more,
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "run"
    result = train(folder)
    assert result.exit_code == 0, result.output
    assert "PAcc" in result.output and "CSec (QLL)" in result.output
    return folder


def test_train_then_evaluate_says_the_same(run: Path) -> None:
    written = json.loads((run / "evaluation.json").read_text())
    result = call("evaluate", str(run), "--json", "-", "--jobs", "1")
    found = json.loads(result.stdout)
    assert result.exit_code == 0
    csat = found.pop("csat")
    assert found == {name: value for name, value in written.items() if name != "csat"}
    # at epsilon and at half of it: what is proved in a region is proved in a smaller one
    whole, half = csat.values()
    assert whole["total"] == half["total"] > 0 and whole["good"] <= half["good"]
    assert "PAcc" in call("evaluate", str(run), "--prove", "0").output


def test_resume_of_a_finished_run_changes_nothing(run: Path) -> None:
    before = (run / "metrics.jsonl").read_bytes()
    result = call("train", "--resume", "--out", str(run))
    assert result.exit_code == 0 and (run / "metrics.jsonl").read_bytes() == before


def test_a_configuration_file_names_everything(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        'property = "not-both"\ndata = "dice-rendered"\nlogic = "baseline"\nepochs = 1\n'
        'engine = "autograd"\nsteps = 1\nrestarts = 0\n'
        "[data_options]\ncount_train = 8\ncount_test = 4\n"
    )
    result = call("train", "--config", str(file), "--out", str(tmp_path / "run"))
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "run" / "config.json").read_text())["logic"] == "baseline"
    assert "CSec (self)" not in result.output


def test_attack_keeps_counterexamples_that_violate(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "found"
    result = call(
        "attack", "not-both", "--network", str(run / "model.onnx"), "--data", "dice-rendered",
        "--count", "12", "--attack", "apgd:20,restarts=1", "--set", "epsilon=0.9",
        "--out", str(out), "--json", "-",
    )  # fmt: skip
    assert result.exit_code == 10, result.output
    summary = json.loads(result.stdout)
    assert summary["attacked"] == 12 == summary["falsified"] + summary["not_falsified"]
    kept = np.load(out / "counterexamples.npz", allow_pickle=False)
    assert len(kept["index"]) == summary["falsified"] > 0
    assert (np.abs(kept["attacked_x"] - kept["clean"]) <= 0.9 + 1e-6).all()
    opposite = [(0, 5), (1, 4), (2, 3)]
    both = [np.minimum(kept["outputs"][:, i], kept["outputs"][:, j]) for i, j in opposite]
    np.testing.assert_allclose(np.max(both, axis=0), -kept["margin"], rtol=1e-6)
    assert (kept["margin"] < 0).all()
    assert (out / "counterexamples.png").read_bytes().startswith(b"\x89PNG")


def test_demo_trains_attacks_and_compares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from qll.cli import demo

    monkeypatch.setattr(demo, "IMAGES", 64)
    monkeypatch.setattr(demo, "TEST_IMAGES", 16)
    monkeypatch.setattr(demo, "PROVED", 4)
    monkeypatch.setattr(demo, "TAUGHT", 4)
    monkeypatch.setattr(demo, "BUDGET", 15.0)
    kept = tmp_path / "table.json"
    result = call("demo", "--epochs", "1", "--out", str(tmp_path / "demo"), "--json", str(kept))
    assert result.exit_code == 0, result.output
    assert [one["name"] for one in json.loads(kept.read_text())] == ["baseline", "cycle"]
    for word in ("baseline", "qll:5", "PAcc", "CAcc", "CSec", "CSat"):
        assert word in result.output
    names = {path.name for path in (tmp_path / "demo").iterdir()}
    assert names >= {"baseline.onnx", "baseline.png", "cycle.onnx", "cycle.png", "rounds.png"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--data", "mnist"], "PROPERTY is missing"),
        (["train", "not-both"], "--data is missing"),
        (["train", "not-both", "--data", "dcie"], "unknown data set 'dcie'"),
        (["train", "not-bth", "--data", "dice"], "unknown property 'not-bth'"),
        (["train", "not-both", "--data", "dice", "--set", "epoch=1"], "unknown setting 'epoch'"),
        (["train", "not-both", "--data", "dice", "--logic", "qqq"], "unknown logic 'qqq'"),
        (["train", "--resume"], "a run is resumed as it was started"),
        (["train", "--resume", "--out", "nowhere"], "not the folder of a run"),
        (["evaluate", "nowhere"], "not the folder of a run"),
        (
            ["attack", "not-both", "--network", "none.onnx", "--data", "dice-rendered"],
            "none.onnx",
        ),
    ],
)
def test_mistakes_are_three_lines(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = call(*arguments)
    assert isinstance(result.exception, QllError), result.output
    text = str(result.exception)
    assert message in text and text.count("\n") == 2 and "Fix:" in text
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").rglob("config.json"))


def test_what_is_said_again_on_resuming_must_be_the_same(run: Path) -> None:
    result = call("train", "--resume", "--out", str(run), "--epochs", "9")
    assert isinstance(result.exception, QllError) and "another epochs" in str(result.exception)
    result = call("evaluate", str(run), "--split", "validation")
    assert isinstance(result.exception, QllError) and "no images called" in str(result.exception)
