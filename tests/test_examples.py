"""The examples, each as its README runs it, in quick mode."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from qll.cli.main import build_app

ROOT = Path(__file__).parent.parent
GERMAN = "tabular/fairness/german"  # in the shared folder
RULE = str(ROOT / "examples" / "fair-credit" / "fair-sex.qll")


def test_fair_credit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: Path) -> None:
    monkeypatch.syspath_prepend(ROOT / "bench")
    import fair_credit

    out = tmp_path / "fair.json"
    monkeypatch.setattr(
        sys, "argv", ["fair_credit.py", "--quick", "--networks", "GC3,GC4", "--json", str(out)]
    )
    fair_credit.main()
    rows = json.loads(out.read_text())["rows"]
    assert [row["network"] for row in rows] == ["GC3", "GC3", "GC4", "GC4"]
    assert all(row["whole"] == "falsified" and not row["contradicts"] for row in rows)
    assert all(row["partitions"]["unknown"] == 0 for row in rows)
    assert all(row["checked"] == row["partitions"]["verified"] for row in rows)


def test_fair_credit_from_the_command_line(tmp_path: Path, shared: Path) -> None:
    def run(*words: str) -> Any:
        return CliRunner().invoke(build_app(), list(words))

    found = run("verify", RULE, "--network", str(shared / GERMAN / "GC3.onnx"))
    assert found.exit_code == 10 and "sex = " in found.output and "  and  " in found.output
    network = ("--network", str(shared / GERMAN / "GC4.onnx"))
    part = ("--set", "least=300", "--set", "most=399", "--certificate", str(tmp_path))
    assert run("verify", RULE, *network, *part).exit_code == 0
    checked = run("audit", str(tmp_path))
    assert checked.exit_code == 0 and "1 of 1 confirmed" in checked.output


def test_fair_credit_by_construction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: Path
) -> None:
    """Trained on the table that german.py writes, in few epochs, and proved on the whole domain."""
    monkeypatch.syspath_prepend(ROOT / "examples" / "fair-credit")
    import german

    german.main(str(tmp_path / "german.csv"))
    text = (ROOT / "examples" / "fair-credit" / "german.toml").read_text()
    (tmp_path / "german.toml").write_text(text)
    words = ["train", RULE, "--data", str(tmp_path / "german.toml"), "--network", "mlp:6"]
    words += ["--method", "signed", "--epochs", "2", "--out", str(tmp_path / "run")]
    trained = CliRunner().invoke(build_app(), words, catch_exceptions=False)
    assert trained.exit_code == 0 and "by construction" in trained.output, trained.output
    words = ["verify", RULE, "--network", str(tmp_path / "run" / "model.onnx")]
    found = CliRunner().invoke(build_app(), words, catch_exceptions=False)
    assert found.exit_code == 0 and "1 of 1 proofs confirmed" in found.output, found.output


ALSOMITRA = ROOT / "examples" / "alsomitra"


def test_alsomitra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: Path) -> None:
    """The README's commands, with a small network and few epochs, for two properties at once."""
    monkeypatch.syspath_prepend(ALSOMITRA)
    import table

    table.main(str(tmp_path / "seeds.csv"))
    (tmp_path / "alsomitra.toml").write_text((ALSOMITRA / "alsomitra.toml").read_text())
    rule, data = str(ALSOMITRA / "both.qll"), str(tmp_path / "alsomitra.toml")
    out = tmp_path / "run"
    words = [
        "train",
        rule,
        "--data",
        data,
        "--network",
        "mlp:6",
        "--epochs",
        "2",
        "--out",
        str(out),
    ]
    words += ["--set", "weight=10", "--set", "attack='apgd:3,restarts=0'"]
    trained = CliRunner().invoke(build_app(), words, catch_exceptions=False)
    assert trained.exit_code == 0, trained.output
    held = json.loads((out / "evaluation.json").read_text())
    assert held["pacc"] is None and 0 < held["rmse"] < 0.02
    words = ["verify", rule, "--network", str(out / "model.onnx"), "--data", data, "--timeout", "5"]
    found = CliRunner().invoke(build_app(), words, catch_exceptions=False)
    assert found.exit_code in (0, 10, 11), found.output  # two epochs may or may not be enough
    assert any(word in found.output for word in ("verified", "falsified", "unknown"))
    shown = CliRunner().invoke(build_app(), ["data", data], catch_exceptions=False)
    assert "theta" in shown.output and "regression" in shown.output


MONOTONE = ROOT / "examples" / "monotone"


@pytest.mark.parametrize(
    ("rule", "table"), [("larger.qll", "cars.toml"), ("risk.qll", "heart.toml")]
)
def test_monotone(tmp_path: Path, rule: str, table: str, shared: Path) -> None:
    """The README's commands, with a small network and few epochs: proved all the same."""
    words = [str(MONOTONE / rule), "--data", str(MONOTONE / table)]

    def run(*more: str) -> Any:
        return CliRunner().invoke(build_app(), list(more), catch_exceptions=False)

    out = tmp_path / "run"
    small = ("--network", "mlp:6,6", "--method", "signed", "--epochs", "3", "--out", str(out))
    trained = run("train", *words, *small)
    assert trained.exit_code == 0 and "by construction" in trained.output, trained.output
    proofs = ("--network", str(out / "model.onnx"), "--certificate", str(tmp_path / "proofs"))
    found = run("verify", *words, *proofs)
    assert found.exit_code == 0 and "1 of 1 proofs confirmed" in found.output, found.output
    assert run("audit", str(tmp_path / "proofs")).exit_code == 0


CONTROLLERS = ROOT / "examples" / "controllers"
WIND = "tabular/controllers/wind/controller.onnx"  # in the shared folder


def test_the_published_wind_controller(shared: Path) -> None:
    words = ["verify", str(CONTROLLERS / "wind-published.qll"), "--network", str(shared / WIND)]
    found = CliRunner().invoke(build_app(), words, catch_exceptions=False)
    assert found.exit_code == 0 and "1 of 1 proofs confirmed" in found.output, found.output


@pytest.mark.parametrize("name", ["wind", "pendulum"])
def test_controllers(tmp_path: Path, name: str) -> None:
    """The README's commands, with fewer epochs: bounds of rules that speak of inputs."""
    words = [str(CONTROLLERS / f"{name}.qll"), "--data", str(CONTROLLERS / f"{name}.toml")]
    how = ["--network", "mlp:16", "--method", "bound", "--epochs", "20", "--set", "weight=10"]
    how += ["--set", "learning_rate=0.01", "--out", str(tmp_path / "run")]
    trained = CliRunner().invoke(build_app(), ["train", *words, *how], catch_exceptions=False)
    assert trained.exit_code == 0, trained.output
    network = ["--network", str(tmp_path / "run" / "model.onnx"), "--timeout", "20"]
    found = CliRunner().invoke(build_app(), ["verify", *words, *network], catch_exceptions=False)
    assert found.exit_code == 0 and "1 of 1 proofs confirmed" in found.output, found.output


def test_a_rule_of_a_table_is_exported_with_its_names(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from qll.networks.onnx_writer import export_onnx

    path = tmp_path / "net.onnx"
    export_onnx(torch.nn.Linear(2, 1).eval(), path, input_shape=(2,))
    words = ["export", str(CONTROLLERS / "wind.qll"), "--network", str(path), "--to", "vnnlib"]
    table = ["--data", str(CONTROLLERS / "wind.csv"), "--target", "velocity"]
    found = CliRunner().invoke(build_app(), [*words, *table], catch_exceptions=False)
    assert found.exit_code == 0 and "declare-const X_1" in found.output, found.output
    assert "declare-const Y_0" in found.output


def test_what_the_pendulum_rule_says_of_its_steps() -> None:
    """The affine step of the rule against the pendulum's own, at the corners of the set."""
    for angle in (-0.3, -0.1, 0.2, 0.3):
        for lean in (-0.8, 0.3, 0.8):
            for push in (-8.0, 0.0, 3.0):
                rate = lean - 3 * angle
                then = rate + 0.05 * (9.81 * math.sin(angle) - 0.1 * rate + push)
                after = angle + 0.05 * rate
                assert after == pytest.approx(0.85 * angle + 0.05 * lean)
                affine = 1.145 * lean + 0.0555 * angle + 0.05 * push
                assert abs(then + 3 * after - affine) < 0.0023


HIERARCHY = ROOT / "examples" / "hierarchy"


def test_hierarchy(tmp_path: Path) -> None:
    """The README's commands, with few epochs: proved all the same."""
    rule = str(HIERARCHY / "hierarchy.qll")
    words = [rule, "--data", str(HIERARCHY / "animals.toml")]
    how = ["--network", "mlp:8", "--method", "projected", "--set", f"surrogate={rule}"]
    how += ["--set", "reach=1.0", "--epochs", "2", "--out", str(tmp_path / "run")]
    trained = CliRunner().invoke(build_app(), ["train", *words, *how], catch_exceptions=False)
    assert trained.exit_code == 0 and "by construction" in trained.output, trained.output
    network = ["--network", str(tmp_path / "run" / "model.onnx")]
    found = CliRunner().invoke(build_app(), ["verify", *words, *network], catch_exceptions=False)
    assert found.exit_code == 0 and "1 of 1 proofs confirmed" in found.output, found.output


def test_fair_credit_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: Path
) -> None:
    """A row for each part, all in one command."""
    monkeypatch.syspath_prepend(ROOT / "examples" / "fair-credit")
    import parts

    task = json.loads((shared / GERMAN / "task.json").read_text())
    assert parts.write(task, "sex", tmp_path / "all") == 201
    task["partition"] = 5_000  # the least values of five parts; one has a single amount
    assert parts.write(task, "sex", tmp_path) == 5
    words = ["verify", str(tmp_path / "fair.qll"), "--network", str(shared / GERMAN / "GC4.onnx")]
    words += ["--data", str(tmp_path / "parts.toml"), "--count", "5"]
    words += ["--json", str(tmp_path / "verdicts.json")]
    found = CliRunner().invoke(build_app(), words, catch_exceptions=False)
    assert "4 verified, 1 falsified" in found.output and found.exit_code == 10, found.output
    held = json.loads((tmp_path / "verdicts.json").read_text())["verdicts"]
    assert [row["status"] for row in held].index("falsified") == 2
    amount = [i["name"] for i in task["inputs"]].index("credit_amount")
    assert 12_900 <= held[2]["witness"][amount] <= 13_099


ACAS = ROOT / "examples" / "acasxu"
PUBLISHED = "corpus/acasxu"  # in the shared folder


def test_acasxu_asks_what_is_published(shared: Path) -> None:
    """The rule's cases against the VNN-LIB files: the same boxes and the same outputs that violate;
    the heading of property 4 alone is wider."""
    np = pytest.importorskip("numpy")
    import qll
    from qll.exchange.files import read
    from qll.networks import load
    from qll.regions.clauses import clauses
    from qll.verify.documents import queries

    torch = pytest.importorskip("torch")
    network = load(shared / PUBLISHED / "ACASXU_run2a_2_1_batch_2000.onnx")
    far, comes, leaves = clauses(qll.load(str(ACAS / "acasxu.qll")))
    costs = np.random.default_rng(0).normal(3.0, 2.0, (2000, 5))
    breaks = []
    for number, rule in ((1, far), (2, far), (3, comes), (4, leaves)):
        (query,) = queries(read(shared / PUBLISHED / f"prop_{number}.vnnlib"), network)
        region = qll.Region.of(rule, torch.zeros(1, 5, dtype=torch.float64))
        free = [k for k in range(5) if number != 4 or k != 2]
        for ours, theirs in ((region.lower, query.lower), (region.upper, query.upper)):
            assert np.allclose(ours[0].numpy()[free], theirs.ravel()[free], rtol=0, atol=1e-12)
        assert (region.lower[0].numpy() <= query.lower.ravel() + 1e-12).all()
        holds = rule.holds(torch.tensor(costs)).numpy()
        breaks.append(np.array([value_of(query.condition, y) > 0 for y in costs]))
        if number != 1:
            both = breaks[0] | breaks[1] if number == 2 else breaks[-1]
            assert (holds == ~both).all() and 0 < holds.sum() < len(holds)


def value_of(form: Any, y: Any) -> float:
    from qll.formula.hard import Affine, Max

    if isinstance(form, Affine):
        return float(form.constant) + sum(float(c) * y[k] for (_, k), c in form.terms)
    values = [value_of(part, y) for part in form.parts]
    return max(values) if isinstance(form, Max) else min(values)


def test_acasxu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: Path) -> None:
    """The README's commands, with a small network, a small table and few epochs: proved all the
    same; the teacher is not."""
    monkeypatch.syspath_prepend(ACAS)
    import teacher

    teacher.tables(tmp_path, 600)
    for name in ("advice.toml", "recipe.toml"):
        (tmp_path / name).write_text((ACAS / name).read_text())
    rule = str(ACAS / "acasxu.qll")

    def run(*words: str) -> Any:
        return CliRunner().invoke(build_app(), list(words), catch_exceptions=False)

    data = ("--data", str(tmp_path / "advice.toml"), "--config", str(tmp_path / "recipe.toml"))
    small = ("--network", "mlp:8", "--epochs", "8", "--set", "batch_size=60", "--set", "stages=[]")
    out = ("--set", "weight=5", "--set", "learning_rate=0.02", "--out", str(tmp_path / "run"))
    trained = run("train", rule, *data, *small, "--logic", "qll:5", *out)
    assert trained.exit_code == 0, trained.output
    model = str(tmp_path / "run" / "model.onnx")
    found = run("verify", rule, "--network", model, "--timeout", "30")
    assert found.exit_code == 0 and "1 of 1 proofs confirmed" in found.output, found.output
    assert 0 < teacher.agreement(model, 500)["domain"] <= 1
    falsified = run("verify", rule, "--network", str(shared / PUBLISHED / teacher.TEACHER))
    assert falsified.exit_code == 10 and "intruder = " in falsified.output, falsified.output
