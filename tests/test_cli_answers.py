"""Every command answers in one way: in words, as JSON alone, into a file, or by its exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from exchange_cases import BOX2, HEAD2, layered
from typer.main import get_command
from typer.testing import CliRunner

from qll.cli.answers import quiet_first
from qll.cli.main import build_app, run
from qll.cycle.accuracy import Accuracy
from qll.cycle.records import CycleResult, Round
from qll.errors import NetworkError, RunError
from qll.exchange.files import parse
from qll.exchange.models import attach
from qll.tuning import Point
from qll.zoo.check import Checked

RULE = "outputs no, yes\ninputs u, v\nforall x in box(0, 1): y[0] + y[1] <= 9\n"
ROWS = [f"{k / 40},{(7 * k) % 40 / 40},{'yes' if k % 3 else 'no'}" for k in range(40)]
ROUND = Round(
    number=1, epochs=1, pacc=0.9, csat=1.0, limit=1.0, verified=2, falsified=0, unknown=0,
    open_training=0, witnesses=0, seconds=1.0,
)  # fmt: skip
QUERY = HEAD2.replace("Y real [1]", "Y real [2]") + BOX2 + "(assert (>= Y[0] 1.5))"
PROOF = "verify rule.qll --network net.onnx --fast"
# What each command is called with here, and what its JSON must hold.
CALLS = {
    "demo": ("demo tabular", "name"),
    "train": ("train rule.qll --data t.csv --target c --network mlp:2 --epochs 0 --out new", "run"),
    "cycle": ("cycle rule.qll --data t.csv --predict c --out cycle", "ending"),
    "repair": ("repair rule.qll --network net.onnx --out mended --jobs 1", "status"),
    "tune": ("tune rule.qll --data t.csv --target c --out front", "trials"),
    "show": ("show not-both", "parameters"),
    "data": ("data t.csv --target c", "features"),
    "check": ("check rule.qll --network net.onnx", "findings"),
    "doctor": ("doctor --no-self-test", "findings"),
    "lab": ("lab --static lab.html", "file"),
    "attack": ("attack rule.qll --network net.onnx --attack apgd:2,restarts=0", "falsified"),
    "verify": (PROOF, "verdicts"),
    "evaluate": ("evaluate runs/one --prove 0", "pacc"),
    "explain": ("explain verdicts.json", "points"),
    "audit": ("audit proofs", "certificates"),
    "zoo": ("zoo", "name"),
    "zoo check": ("zoo check dice-exactly-one", "confirmed"),
    "zoo add": ("zoo add x --run runs/one --verdicts v.json --certificates proofs", "folder"),
    "export": ("export rule.qll --network net.onnx --to vnnlib", "texts"),
    "supports": ("supports --onnx-operators", "onnx-operators"),
    "reproduce": ("reproduce --list --rows dice --seeds 0", "runs"),
    "record": ("record runs --out records", "counts"),
    "report": ("report runs --out report", "files"),
    "figures": ("figures hardness --format svg --out drawn", "files"),
    "laws": ("laws", "features"),
}  # fmt: skip


def leaves(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Commands that do something, by the words that call them."""
    below = getattr(command, "commands", {})
    if name and (not below or command.invoke_without_command):
        yield name, command
    for word, child in below.items():
        yield from leaves(child, f"{name} {word}".strip())


def invoke(text: str, *more: str) -> Any:
    return CliRunner().invoke(build_app(), quiet_first([*text.split(), *more]))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A rule, a network, a table, a run, a proof: what commands are called with."""
    folder = tmp_path_factory.mktemp("world")
    (folder / "rule.qll").write_text(RULE)
    (folder / "t.csv").write_text("u,v,c\n" + "\n".join(ROWS) + "\n")
    layered(folder / "net.onnx", ([[1.0, 1.0], [1.0, -1.0]], [0.0, 0.0]))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        made = invoke(CALLS["train"][0].replace("--out new", "--out runs/one"))
        assert made.exit_code == 0, made.output
        words = f"{PROOF.removesuffix(' --fast')} --certificate proofs --json verdicts.json"
        assert invoke(words).exit_code == 0
    return folder


@pytest.fixture
def at_work(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In that folder; what takes minutes is answered at once."""
    monkeypatch.chdir(world)
    result = CycleResult(
        ending="met", rounds=(ROUND,), best=1, accuracy=Accuracy(least=0.5, chance=0.5), seconds=1.0
    )
    point = Point(trial=0, pacc=0.9, csat=0.8, settings={"method": "attack"}, on_front=True)
    checked = Checked(listed=1, seen=1, confirmed={"verified": 1})
    for place, answer in {
        "qll.cli.demo_table.demo_table": [{"name": "baseline"}],
        "qll.cycle.loop.cycle": result,
        "qll.tuning.tune": [point],
        "qll.zoo.check.check": checked,
        "qll.zoo.adding.add": None,
        "qll.reports.lab_page.write_static": Path("lab.html"),
        "qll.reports.figures.draw_figures": [Path("drawn/hardness.svg")],
    }.items():
        monkeypatch.setattr(place, lambda *_, answer=answer, **__: answer)


def test_every_command_is_called_here_and_takes_json() -> None:
    found = dict(leaves(get_command(build_app())))
    assert set(found) == set(CALLS)
    for name, command in found.items():
        (option,) = [param for param in command.params if "--json" in param.opts]
        assert "- prints" in option.help and "alone" in option.help, name


@pytest.mark.parametrize("name", CALLS)
def test_json_alone(name: str, at_work: None) -> None:
    text, key = CALLS[name]
    found = invoke(text, "--json", "-")
    assert found.exit_code == 0, found.output
    value = json.loads(found.stdout, parse_constant=pytest.fail)  # no Infinity, no NaN
    assert key in (value[0] if isinstance(value, list) else value)


QUICK = ("show", "export", "supports", "data", "verify", "explain", "audit")


@pytest.mark.parametrize("name", QUICK)
def test_a_file_beside_the_words_and_nothing_at_all(
    name: str, at_work: None, tmp_path: Path
) -> None:
    text, key = CALLS[name]
    path = tmp_path / "deep" / "answer.json"
    spoken = invoke(text, "--json", str(path))
    assert spoken.exit_code == 0 and spoken.stdout
    assert key in json.loads(path.read_text())
    silent = invoke(text, "--quiet")
    assert silent.exit_code == 0 and silent.output == ""
    both = invoke(text, "--json", "-", "--quiet")
    assert key in json.loads(both.output)


def test_a_place_that_cannot_be_written_is_named_before_any_work(
    at_work: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def worked(*_: object, **__: object) -> None:
        raise AssertionError("began to work")

    monkeypatch.setattr("qll.cycle.loop.cycle", worked)
    for place in ("t.csv/answer.json", "runs"):
        found = invoke(CALLS["cycle"][0], "--json", place)
        assert isinstance(found.exception, RunError) and "cannot be written" in str(found.exception)


def test_an_answer_is_said_although_its_file_is_lost(
    at_work: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A disk that is full in the end: the words are there, and the error."""

    def full(*_: object) -> None:
        raise RunError("no space", expected="room", found="none", fix="make room")

    monkeypatch.setattr("qll.files.write_json", full)
    for name in ("cycle", "show", "attack", "audit", "zoo check"):
        bare, found = invoke(CALLS[name][0]), invoke(CALLS[name][0], "--json", str(tmp_path / "a"))
        assert isinstance(found.exception, RunError)
        assert found.stdout == bare.stdout, name


def test_quiet_says_errors_and_what_is_not_confirmed(at_work: None, tmp_path: Path) -> None:
    assert "No such option" in invoke("show --quiet --nothing").output
    unknown = invoke("show nothing --quiet")
    assert unknown.exit_code and "unknown property" in str(unknown.exception)
    assert "not-both" in invoke("show").output  # speaks again
    for path in Path("proofs").iterdir():
        content = path.read_bytes()
        (tmp_path / path.name).write_bytes(content[:-9] if path.suffix == ".qllcert" else content)
    damaged = invoke(f"audit {tmp_path} --quiet")
    assert damaged.exit_code == 12 and damaged.stdout == ""
    assert "NOT CONFIRMED" in damaged.stderr and damaged.stderr.count("\n") == 1


def solve(monkeypatch: pytest.MonkeyPatch, words: str) -> int:
    """The exit code of a query, asked as a program is."""
    Path("q.vnnlib").write_text(QUERY)
    monkeypatch.setattr(sys, "argv", ["qll", *words.split()])
    with pytest.raises(SystemExit) as ended:
        run()
    return ended.value.code  # type: ignore[return-value]


@pytest.mark.parametrize("words", ["--quiet verify {} --json -", "{} --json - --quiet"])
def test_a_query_answers_in_the_same_way(
    words: str, at_work: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert solve(monkeypatch, words.format("q.vnnlib --network f=net.onnx")) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["answer"] == "sat" and found["outputs"][0] == pytest.approx(sum(found["inputs"]))


def test_a_query_is_answered_although_its_assignment_is_lost(
    at_work: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    words = "verify q.vnnlib --network f=net.onnx --serialise-assignments"
    assert solve(monkeypatch, f"{words} t.csv/deep") == 2
    assert capsys.readouterr().out == ""  # named before any work
    assert solve(monkeypatch, "verify q.vnnlib --network f=net.onnx --certificate proofs") == 2
    assert "qll export q.vnnlib --to qll" in capsys.readouterr().err

    def full(*_: object) -> None:
        raise RunError("no space", expected="room", found="none", fix="make room")

    monkeypatch.setattr("qll.exchange.assignment.serialise", full)
    assert solve(monkeypatch, f"{words} {tmp_path / 'deep'}") == 2
    said = capsys.readouterr()
    assert said.out.startswith("sat\nX real [1,2]\n") and "no space" in said.err


def test_the_damaged_one_of_several_files_is_named(at_work: None, tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(Path("net.onnx").read_bytes()[:40])
    with pytest.raises(NetworkError, match=r"bad\.onnx: the"):
        attach(parse(QUERY), {"f": tmp_path / "bad.onnx"})
