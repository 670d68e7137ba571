"""Steps at which somebody new stumbled: each says what to do."""

from __future__ import annotations

import io
import json
import logging
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner, Result

import qll
from qll.cli.main import build_app
from qll.errors import FormulaError, NetworkError, QllError
from qll.exchange.files import read
from qll.networks import load
from qll.networks.onnx_writer import export_onnx
from qll.verify.documents import decide


def test_a_category_is_not_one_input(tmp_path: Path) -> None:
    table = tmp_path / "houses.csv"
    rows = "\n".join(f"{30 + k},{('flat', 'house', 'loft')[k % 3]},{k}" for k in range(30))
    table.write_text(f"size,kind,price\n{rows}\n")
    data = qll.data.load(str(table), target="price")
    text = 'forall x in domain, x2 in domain and x2["kind"] == x["kind"]: y2[0] >= y[0]'
    with pytest.raises(FormulaError) as found:
        qll.parse(text, schema=data.schema)
    assert "kind=flat" in found.value.fix and "forall i in inputs where" in found.value.fix
    qll.parse(text.replace('x2["kind"] == x["kind"]', '(forall i in inputs where i != "size": '
              "x2[i] == x[i])"), schema=data.schema)  # fmt: skip


def test_a_single_point_wants_its_axis() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 2)).eval()
    rule = qll.parse("forall x in ball(x0, 0.1): y[0] >= y[1]", outputs=2)
    with pytest.raises(NetworkError) as found:
        qll.verify(rule, model, torch.zeros(1, 8, 8))
    assert "x[None]" in found.value.fix


def test_a_query_writes_json(tmp_path: Path) -> None:
    export_onnx(nn.Linear(1, 1).eval(), tmp_path / "net.onnx", input_shape=(1,))
    query = tmp_path / "q.vnnlib"
    query.write_text(
        "(declare-const X_0 Real)\n(declare-const Y_0 Real)\n"
        "(assert (<= X_0 1))\n(assert (>= X_0 0))\n(assert (>= Y_0 -1000))\n"
    )
    words = [
        *(sys.executable, "-c", "from qll.cli.main import run; run()", "verify", str(query)),
        *("--network", str(tmp_path / "net.onnx"), "--timeout", "60"),
        *("--json", str(tmp_path / "answer.json")),
    ]
    # A solver's time is that of its process, which it ends: it has to be one of its own.
    subprocess.run(words, check=True, timeout=300)
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert answer["answer"] == "sat" and 0 <= answer["inputs"][0] <= 1
    shown = CliRunner().invoke(build_app(), ["explain", str(query)])
    assert isinstance(shown.exception, QllError) and "qll verify --json" in str(shown.exception)


def test_a_rule_without_a_point_is_asked_once(tmp_path: Path) -> None:
    export_onnx(nn.Linear(2, 1).eval(), tmp_path / "net.onnx", input_shape=(2,))
    (tmp_path / "rule.qll").write_text("inputs a, b\nforall x in box(0, 1): y[0] <= 100\n")
    out = tmp_path / "v.json"
    words = ["verify", str(tmp_path / "rule.qll"), "--network", str(tmp_path / "net.onnx")]
    assert CliRunner().invoke(build_app(), [*words, "--json", str(out)]).exit_code == 0
    shown = CliRunner().invoke(build_app(), ["explain", str(out)]).output
    assert "asked once" in shown and "point 0" not in shown


@pytest.mark.parametrize(
    ("sign", "wanted"), [(">", ("unsat", "unknown")), ("<=", ("sat", "unknown"))]
)
def test_inputs_fixed_at_decimals_are_those_decimals(
    tmp_path: Path, sign: str, wanted: tuple[str, ...]
) -> None:
    """3 * 0.1 is 0.3, though it is more for the floats next to them."""
    module = nn.Linear(2, 2)
    with torch.no_grad():
        module.weight.copy_(torch.eye(2))
        module.bias.zero_()
    export_onnx(module.double().eval(), tmp_path / "net.onnx", input_shape=(2,))
    query = tmp_path / "q.vnnlib"
    query.write_text(
        "(vnnlib-version <2.0>)\n(declare-network f (declare-input X real [1,2]) "
        "(declare-output Y real [1,2]))\n(assert (== X[0,0] 0.1))\n(assert (== X[0,1] 0.3))\n"
        f"(assert ({sign} (* 3 Y[0,0]) Y[0,1]))\n"
    )
    found = decide(read(query), load(tmp_path / "net.onnx"), seconds=5)
    assert str(found.answer) in wanted


@pytest.mark.parametrize(
    ("typed", "meant"), [("domian", "domain"), ("bal(x0, 1)", "ball"), ("rnage(0, 1)", "range")]
)
def test_a_misspelt_region_is_recognised(typed: str, meant: str) -> None:
    with pytest.raises(FormulaError) as found:
        qll.parse(f"outputs 1\nforall x in {typed}: y[0] <= 1")
    assert f"did you mean '{meant}'?" in found.value.fix


@pytest.mark.parametrize("text", ["", "a,b\n"])
def test_a_table_without_rows_says_what_a_table_is(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(QllError) as found:
        qll.data.load(str(tmp_path / "t.csv"), target="b")
    assert "a line for each example" in found.value.fix


def test_lines_for_a_file_are_not_broken() -> None:
    from rich.console import Console

    from qll.training.progress import PlainLines

    told = io.StringIO()
    lines = PlainLines(Console(file=told, width=40))
    for tell in (lines.note, lambda text: lines.start(text, 1, 1, 0)):
        tell("word " * 30)
    assert len(told.getvalue().splitlines()) == 2


def test_a_run_is_called_by_its_rule_not_by_a_folder() -> None:
    from qll.training.config import TrainConfig
    from qll.training.loop import title

    config = TrainConfig(property="/tmp/xyz/fair.qll", data="rows.csv")
    assert title(config).startswith("fair.qll on rows.csv (")


def test_a_library_says_nothing_of_its_fonts(monkeypatch: pytest.MonkeyPatch) -> None:
    from qll.cli.main import run

    fonts = logging.getLogger("matplotlib.font_manager")
    monkeypatch.setattr(fonts, "level", logging.NOTSET)
    monkeypatch.setattr(sys, "argv", ["qll", "show"])
    with pytest.raises(SystemExit):
        run()
    assert not fonts.isEnabledFor(logging.WARNING)


def test_the_demo_ends_as_the_readme_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shares of its last measured run, in the demo's own table."""
    from rich.console import Console

    from qll.cli import demo
    from qll.metrics import Share

    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    shown = readme.partition("The demo ends with\n\n```\n")[2].partition("\n```")[0]
    assert "CSat" in shown
    percent = {row[:4]: re.findall(r"([\d.]+) %(?!\))", row) for row in shown.splitlines()}

    def trained(k: int, name: str) -> Any:
        shares = [Share(round(10 * float(percent[word][k])), 1000) for word in _MEASURES]
        told = dict(zip(("pacc", "cacc", "security", "proved"), shares, strict=True))
        margins = torch.tensor([-1.0])
        return SimpleNamespace(
            name=name, seconds=1.0, attacked=SimpleNamespace(margins=margins), **told
        )

    monkeypatch.setattr("qll.metrics.chance_accuracy", lambda *_, **__: Share(533, 1000))
    data: Any = SimpleNamespace(
        task="multi-label", test=SimpleNamespace(labels=torch.zeros(1, 6).numpy())
    )
    told = io.StringIO()
    pair = [trained(0, "baseline"), trained(1, "cycle")]
    demo.show_comparison(Console(file=told, width=80), pair, data)
    printed = [line.rstrip() for line in told.getvalue().splitlines()]
    assert printed[: len(shown.splitlines())] == shown.splitlines()


_MEASURES = ("PAcc", "CAcc", "CSec", "CSat")


def test_a_witness_says_the_value_of_a_category(tmp_path: Path) -> None:
    """Not an input of 0 or 1 for each of its values."""
    rows = "\n".join(f"{30 + k},{('flat', 'house', 'loft')[k % 3]},{k}" for k in range(30))
    (tmp_path / "t.csv").write_text(f"size,kind,price\n{rows}\n")
    rule = 'forall x in domain and x["kind=loft"] >= 1: y["price"] >= 1000\n'
    (tmp_path / "rule.qll").write_text(rule)
    export_onnx(nn.Linear(4, 1).eval(), tmp_path / "net.onnx", input_shape=(4,))
    words = ["verify", str(tmp_path / "rule.qll"), "--network", str(tmp_path / "net.onnx")]
    words += ["--data", str(tmp_path / "t.csv"), "--target", "price"]
    found = CliRunner().invoke(build_app(), [*words, "--json", str(tmp_path / "v.json")])
    assert found.exit_code == 10 and "  kind = loft\n" in found.output
    shown = CliRunner().invoke(build_app(), ["explain", str(tmp_path / "v.json")]).output
    assert "kind = loft" in shown and "kind=flat = " not in shown


@pytest.mark.parametrize("x", [torch.full((2, 3), float("nan")), torch.zeros(2, 3).numpy()])
def test_what_is_no_input_does_not_reach_the_network(x: Any) -> None:
    """Averages of a normalisation would keep a NaN for good."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    rule = qll.parse("outputs 2\nforall x in ball(x0, 0.1): y[0] >= y[1]")
    with pytest.raises(QllError, match="x is not"):
        qll.PropertyLoss(rule)(model, x, torch.tensor([0, 1]))
    assert all(torch.isfinite(value).all() for value in model.state_dict().values())


def test_every_backend_is_prepared_for_a_query(tmp_path: Path) -> None:
    """As the command does before it starts the clock."""
    export_onnx(nn.Linear(2, 1).eval(), tmp_path / "net.onnx", input_shape=(2,))
    (tmp_path / "rule.qll").write_text("inputs a, b\nforall x in box(0, 1): y[0] <= 100\n")
    words = ["verify", str(tmp_path / "rule.qll"), "--network", str(tmp_path / "net.onnx")]
    found = CliRunner().invoke(build_app(), [*words, "--backend", "highs"])
    assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
    assert found.exit_code in (0, 11)


PIPES = 'id,age (a),"size [mm]",material,state\n' + "".join(
    f"P{i},{i % 7},{i % 5},{('steel', 'PVC', 'PVC', '')[i % 4]},{('leak', 'tight')[i % 2]}\n"
    for i in range(120)
)


def _data(tmp_path: Path, *words: str) -> Result:
    (tmp_path / "pipes.csv").write_text(PIPES)
    words = ("data", str(tmp_path / "pipes.csv"), "--target", "state", *words)
    return CliRunner().invoke(build_app(), list(words))


def test_the_columns_without_one_that_names_its_rows_can_be_copied(tmp_path: Path) -> None:
    refused = _data(tmp_path)
    assert "leave it out: --features 'age (a),size [mm],material'" in str(refused.exception)
    taken = _data(tmp_path, "--features", "age (a),size [mm],material", "--missing", "mean")
    assert taken.exit_code == 0, taken.output


def test_a_category_has_no_mean(tmp_path: Path) -> None:
    found = _data(
        tmp_path, "--features", "age (a),material", "--missing", "mean", "--write"
    )  # fmt: skip
    assert "30 missing: commonest" in found.output and "missing: mean" not in found.output
    written = (tmp_path / "pipes.toml").read_text()
    assert 'values = ["PVC", "steel"]\nmissing = "commonest"' in written


def test_a_table_is_not_broken_for_a_pipe(tmp_path: Path) -> None:
    found = _data(tmp_path, "--features", "age (a),material", "--missing", "commonest")
    (line,) = (line for line in found.output.splitlines() if line.startswith("material"))
    assert line.rstrip().endswith("30 missing: commonest")


def test_the_next_command_can_be_copied(tmp_path: Path) -> None:
    """Folders and columns with spaces; the columns that were chosen are asked for again."""
    table, rule = tmp_path / "my pipes.csv", tmp_path / "my rule.qll"
    table.write_text(PIPES)
    rule.write_text('forall x in domain:\n  y["leak"] - y["tight"] <= 1000\n')
    words = ["train", str(rule), "--data", str(table), "--target", "state", "--epochs", "1"]
    words += ["--features", "age (a),size [mm]", "--network", "mlp:2", "--out"]
    done = CliRunner().invoke(build_app(), [*words, str(tmp_path / "a run")])
    assert done.exit_code == 0, done.output
    (said,) = (line for line in done.output.splitlines() if line.startswith("next: qll "))
    proved = CliRunner().invoke(build_app(), shlex.split(said.removeprefix("next: qll ")))
    assert proved.exit_code == 0, proved.output
    assert "verified" in proved.output


SLIPS = {
    "a logic without its colon": (
        ["train", "not-both", "--data", "dice-rendered", "--logic", "qll5"],
        "Fix: write qll:5.",
    ),
    "a network's name": (
        ["train", "not-both", "--data", "dice-rendered", "--network", "mlpp:3"],
        "did you mean 'mlp'?",
    ),
    "a format": (["export", "not-both", "--to", "vnnlip"], "did you mean 'vnnlib'?"),
    "a file that is not there": (["show", "rules/fair"], "No such file or directory"),
}


@pytest.mark.parametrize("what", SLIPS)
def test_a_slip_is_told_with_what_was_meant(what: str) -> None:
    words, said = SLIPS[what]
    with pytest.raises(QllError) as error:
        CliRunner().invoke(build_app(), words, catch_exceptions=False)
    assert said in str(error.value)


@pytest.mark.parametrize("seconds", ["-5", "0", "nan"])
def test_a_time_out_is_positive(tmp_path: Path, seconds: str) -> None:
    export_onnx(nn.Linear(2, 1).eval(), tmp_path / "net.onnx", input_shape=(2,))
    (tmp_path / "rule.qll").write_text("forall x in box(0, 1):\n  y[0] <= 100\n")
    words = ["verify", str(tmp_path / "rule.qll"), "--network", str(tmp_path / "net.onnx")]
    with pytest.raises(QllError, match="time-out is not positive"):
        CliRunner().invoke(build_app(), [*words, "--timeout", seconds], catch_exceptions=False)


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("qll train clas", {"classification-robustness"}),
        ("qll show s", {"standard-robustness", "strong-classification-robustness"}),
        ("qll verify not-both --data di", {"dice", "dice-rendered"}),
        ("qll train rules/mi", set()),  # a file: the shell's own
    ],
)
def test_the_shell_completes_rules_and_data(typed: str, offered: set[str]) -> None:
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
    environment = {**words, "_QLL_COMPLETE": "complete_bash"}
    done = CliRunner().invoke(build_app(), [], prog_name="qll", env=environment)
    assert set(done.output.split()) == offered


def test_what_the_shell_completes_is_what_there_is() -> None:
    from qll.cli.completion import complete_data, complete_rule
    from qll.data import data_sets
    from qll.properties import names

    assert complete_rule("") == sorted(names())
    assert sorted(complete_data("")) == sorted(data_sets)
