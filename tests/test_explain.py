"""``qll explain`` and `Verdict.explain`: verdicts, certificates and witnesses in words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import qll
from qll.cli.main import build_app
from qll.cli.solver import build_solver
from qll.errors import InputError
from qll.networks.onnx_writer import export_onnx
from qll.reports.explain import explain
from qll.verify.api import Problem
from qll.verify.explanation import ADVICE, EVIDENCE, input_names
from qll.verify.journal import Journal
from qll.verify.verdict import Evidence, Reason, Status, Verdict

RULE = """outputs dark, bright
forall x in ball(x0, 0.25) and range(0, 1): y["dark"] >= y["bright"]
"""


def picture_network(path: Path) -> Path:
    """dark is 1, bright the pixel [0, 1, 2] of a 3 x 3 picture, doubled."""
    last = nn.Linear(9, 2)
    with torch.no_grad():
        last.weight.zero_()
        last.weight[1, 5] = 2.0
        last.bias.copy_(torch.tensor([1.0, 0.0]))
    export_onnx(nn.Sequential(nn.Flatten(), last).eval(), path, input_shape=(1, 3, 3))
    return path


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Point 0 is far from the boundary, point 1 is a step of 0.1 from it."""
    folder = tmp_path_factory.mktemp("explained")
    network = picture_network(folder / "net.onnx")
    points = np.zeros((2, 1, 3, 3))
    points[1, 0, 1, 2] = 0.4
    problem = Problem.of(
        qll.parse(RULE, name="keep-dark"), network, points, timeout=20.0, certified=True,
        fast=False, certificates=folder / "proofs",
    )  # fmt: skip
    problem.write_claim()
    with Journal(folder / "verdicts.json", problem) as journal:
        for index, verdict in enumerate(problem.decide([0, 1])):
            journal.add(index, verdict)
        partial = (folder / "verdicts.json.partial").read_bytes()
    journal.finish({"verified": 1, "falsified": 1, "unknown": 0})
    (folder / "cut.json.partial").write_bytes(b"\n".join(partial.split(b"\n")[:2]) + b"\n")
    yield folder


def said_by(*words: str | Path) -> str:
    result = CliRunner().invoke(build_app(), ["explain", *map(str, words)])
    assert result.exit_code == 0, result.output
    return result.output


def test_every_reason_and_every_evidence_has_its_words() -> None:
    assert set(ADVICE) == {str(reason) for reason in Reason}
    assert set(EVIDENCE) == {str(evidence) for evidence in Evidence}


def test_verdicts_of_a_file(asked: Path) -> None:
    text = said_by(asked / "verdicts.json", "--json", asked / "said.json")
    assert 'y["dark"] >= y["bright"]' in text and "real numbers" in text
    assert "1 verified: no point of the region breaks the rule" in text
    assert "1 (points 0): the independent checker" in text
    assert 'broken: y["bright"] exceeds y["dark"] by' in text
    # the one pixel that counts is the one that moved far enough
    assert "x[0, 1, 2]: 0.4 -> " in text
    content = json.loads((asked / "said.json").read_text())
    assert content["count"] == 2 and [p["status"] for p in content["points"]] == [
        "verified", "falsified",
    ]  # fmt: skip
    moved = {move["name"]: move["after"] - move["before"] for move in content["points"][1]["moved"]}
    assert 0.1 < moved["x[0, 1, 2]"] <= 0.25 + 1e-12


def test_one_point_its_outputs_and_its_picture(asked: Path) -> None:
    pytest.importorskip("PIL")
    picture = asked / "moved.png"
    options = ["--point", "1", "--network", asked / "net.onnx", "--picture", picture]
    text = said_by(asked / "verdicts.json", *options)
    assert "point 0" not in text
    assert "outputs at the data point: dark 1, bright 0.8" in text
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_file_that_is_not_finished(asked: Path) -> None:
    text = said_by(asked / "cut.json.partial")
    assert "not finished: 1 of 2" in text and "falsified" not in text


def test_a_file_that_is_not_finished_is_found_by_its_name(asked: Path) -> None:
    assert "not finished" in said_by(asked / "cut.json")


def test_certificates_are_checked_and_told(asked: Path) -> None:
    text = said_by(asked / "proofs")
    assert "verified: confirmed" in text and "the proof: a tree of" in text
    assert "falsified: confirmed" in text and "x[0, 1, 2]: 0.4 -> " in text
    assert 'broken: y["bright"] exceeds y["dark"] by' in text
    (file,) = (asked / "proofs").glob("*1.qllcert")
    assert "point 1: " in said_by(file) and "tree" not in said_by(file)


def test_a_damaged_certificate_claims_nothing(asked: Path, tmp_path: Path) -> None:
    (file,) = (asked / "proofs").glob("*1.qllcert")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    (tmp_path / "00001.qllcert").write_bytes(bytes(data))
    found = explain(tmp_path / "00001.qllcert")
    assert [item.status for item in found.items] == ["unknown"]
    assert "damaged" in found.items[0].lines[0]


def test_counterexamples_of_an_attack(tmp_path: Path) -> None:
    from qll.files import write_arrays

    clean, moved = np.zeros((1, 1, 2, 2)), np.zeros((1, 1, 2, 2))
    moved[0, 0, 1, 0] = 0.5
    arrays = {
        "index": np.array([7]), "clean": clean, "attacked_x": moved, "labels": np.array([0]),
        "outputs": np.array([[1.0, 2.0]]), "margin": np.array([-1.0]),
    }  # fmt: skip
    write_arrays(tmp_path / "counterexamples.npz", arrays)
    text = said_by(tmp_path)
    assert "point 7" in text and "1 of 4 inputs moved" in text and "x[0, 1, 0]: 0 -> 0.5" in text
    assert "are not proved by that" in text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "holds no verdicts"),
        ('{"text": "y[0] >= 0", "verdicts": 3}', "holds no verdicts"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "other.json").write_text(content)
    with pytest.raises(InputError, match=message):
        explain(tmp_path / "other.json")
    with pytest.raises(InputError, match="nothing to explain"):
        explain(tmp_path / "none.json")


def test_another_network_and_another_point_are_refused(asked: Path, tmp_path: Path) -> None:
    export_onnx(nn.Linear(9, 2).eval(), tmp_path / "net.onnx", input_shape=(9,))
    with pytest.raises(InputError, match="about another network"):
        explain(asked / "verdicts.json", network=tmp_path / "net.onnx")
    result = CliRunner().invoke(
        build_app(), ["explain", str(asked / "verdicts.json"), "--point", "9"]
    )
    assert isinstance(result.exception, InputError)


def test_a_table_is_told_in_its_own_words(tmp_path: Path) -> None:
    rows = "\n".join(f"{age},{0.1 * age:.1f},{int(age > 40)}" for age in range(20, 60))
    table = tmp_path / "people.csv"
    table.write_text(f"age,income,answer\n{rows}\n")
    data = qll.data.load(str(table), target="answer")
    model = nn.Linear(2, data.outputs)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 0.0]]).repeat(data.outputs, 1))
        model.bias.fill_(-40.0)
    export_onnx(model.eval(), tmp_path / "net.onnx", input_shape=(2,))
    rule = tmp_path / "rule.qll"
    rule.write_text("forall x in ball(x0, 3): y[0] >= y0[0]\n")
    words = ["verify", str(rule), "--network", str(tmp_path / "net.onnx"), "--data", str(table),
             "--target", "answer", "--count", "2", "--json", str(tmp_path / "v.json")]  # fmt: skip
    CliRunner().invoke(build_app(), words)
    text = said_by(tmp_path / "v.json", "--data", table, "--target", "answer")
    assert "moved: age " in text and "2 falsified" in text


def test_a_verdict_explains_itself() -> None:
    x = torch.zeros(1, 1, 2, 2)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 1)).eval()
    with torch.no_grad():
        model[1].weight.fill_(1.0)  # type: ignore[union-attr,operator]
        model[1].bias.zero_()  # type: ignore[union-attr,operator]
    (verdict,) = qll.verify(qll.parse("forall x in ball(x0, 0.1): y[0] <= 0.2"), model, x)
    assert verdict.witness is not None and verdict.witness.shape == (1, 2, 2)
    said = verdict.explain(x[0])
    assert "4 of 4 inputs moved" in said or "3 of 4 inputs moved" in said
    assert "x[0, " in said and "broken: y[0] exceeds 0.2 by" in said


def test_an_unknown_says_what_to_do() -> None:
    verdict = Verdict(Status.UNKNOWN, "root", reason=Reason.TIME, bound=-0.5)
    said = verdict.explain()
    assert "why: out of time" in said and "Fix: give it more time" in said and "-0.5" in said


def test_names_of_a_rule_name_its_inputs() -> None:
    rule = qll.parse("inputs speed, way\nforall x in box(0, 1): y[0] <= 1")
    assert input_names((2,), rule) == ["speed", "way"]
    assert input_names((3,), rule) == ["x[0]", "x[1]", "x[2]"]


HEAD = "".join(f"(declare-const {name} Real)\n" for name in ("X_0", "X_1", "Y_0", "Y_1"))
BOX = "".join(f"(assert (>= X_{k} 0.0))\n(assert (<= X_{k} 1.0))\n" for k in range(2))
ASKED = "(assert (or (>= Y_0 5.0) (and (>= Y_1 (+ Y_0 0.5)) (<= Y_1 3.5))))\n(assert (<= X_1 X_0))"


@pytest.mark.parametrize("moved", [False, True])
def test_the_answer_to_a_query(
    tmp_path: Path, moved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Y_0 is X_0 / 2, Y_1 is X_1 / 2 + 1: the second alternative, not the first."""
    linear = nn.Linear(2, 2)
    with torch.no_grad():
        linear.weight.copy_(torch.eye(2) / 2)
        linear.bias.copy_(torch.tensor([0.0, 1.0]))
    monkeypatch.chdir(tmp_path)
    export_onnx(linear.eval(), tmp_path / "net.onnx", input_shape=(2,))
    Path("sat.vnnlib").write_text(HEAD + BOX + ASKED)
    Path("unsat.vnnlib").write_text(HEAD + BOX + "(assert (>= Y_1 2.0))")
    for name in ("sat", "unsat"):
        words = [f"{name}.vnnlib", "--network", "net.onnx", "--json", f"{name}.json"]
        assert CliRunner().invoke(build_solver(), words).exit_code == 0
    if moved:
        Path("sat.vnnlib").write_text(HEAD + BOX)
        assert "is not at sat.vnnlib any more" in said_by("sat.json")
        return
    text = said_by("sat.json", "--json", "said.json")
    assert "query sat.vnnlib, answered sat" in text and "network: net.onnx, sha256" in text
    assert "X_0 in [0, 1]" in text and "- Y_1 >= Y_0 + 0.5 and Y_1 <= 3.5" in text
    assert "meets alternative 2 of 2: Y_1 >= Y_0 + 0.5, by " in text
    assert len(json.loads(Path("said.json").read_text())["meets"]) == 2
    text = said_by("unsat.json")
    assert "there is none: it was proved for every input of the region" in text
    assert "qll export unsat.vnnlib --network net.onnx --to qll" in text


@pytest.mark.parametrize("content", ["{}", '{"inputs": ["a"], "notes": 3, "networks": [1]}'])
def test_an_answer_of_few_fields(tmp_path: Path, content: str) -> None:
    answer = {"query": "q.vnnlib", "answer": "timed-out", **json.loads(content)}
    (tmp_path / "a.json").write_text(json.dumps(answer))
    assert "timed-out: nothing is claimed" in said_by(tmp_path / "a.json")


def test_many_certificates_are_counted_and_what_is_wrong_is_told(
    asked: Path, tmp_path: Path
) -> None:
    for file in (asked / "proofs").glob("*.onnx"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    good = (asked / "proofs" / "00000.qllcert").read_bytes()
    for number in range(14):
        (tmp_path / f"{number:05d}.qllcert").write_bytes(good if number != 12 else good[:-3])
    command = ["audit", str(tmp_path)]
    text = CliRunner().invoke(build_app(), command).output
    assert text.count(": verified: confirmed") == 3
    assert "00012.qllcert" in text and "NOT CONFIRMED" in text
    assert "and 10 more, all confirmed: --all tells each" in text
    text = CliRunner().invoke(build_app(), [*command, "--all"]).output
    assert text.count(": verified: confirmed") == 13 and "more, all confirmed" not in text


def test_the_folder_of_a_repair_is_told_by_its_certificates(asked: Path, tmp_path: Path) -> None:
    (tmp_path / "certificates").symlink_to(asked / "proofs", target_is_directory=True)
    assert "1 verified: no point of the region breaks the rule" in said_by(tmp_path)
