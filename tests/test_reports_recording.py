"""A run that was made again against its record, and what is given to the commands."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from record_cases import PAPER, ROBUST, edit
from synthetic_runs import write_run
from typer.testing import CliRunner

from qll.cli.main import build_app
from qll.errors import InputError, RunError
from qll.metrics import Evaluation, Share
from qll.reports.compact import SUFFIX, read_compact
from qll.reports.recording import differences, record_runs, remarks
from qll.reports.records import Run, read_run, read_runs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_run(tmp_path / "run", "not-both", "dice", "qll:5", 0, epochs=4, verified=0.5)
    return tmp_path / "run"


@pytest.fixture
def held() -> Run:
    return read_run(PAPER / f"not-both-dice-qll5-0{SUFFIX}")


def evaluated(run: Run, **figures: Any) -> Run:
    assert isinstance(run.evaluation, Evaluation)
    return replace(run, evaluation=replace(run.evaluation, **figures))


def test_every_figure_is_compared(held: Run) -> None:
    assert list(differences(held, held)) == [] == list(remarks(held, held))
    old, new = evaluated(held, r2=0.9, rmse=1.0), evaluated(held, r2=0.1, rmse=5.0)
    assert list(differences(old, new)) == [
        "R2: 90 recorded, 10 now",
        "RMSE: 1 recorded, 5 now",
    ]
    assert list(differences(old, evaluated(held, r2=0.9 + 1e-9, rmse=1.0))) == []
    assert list(differences(old, held)) == [
        "R2: 90 recorded, nothing now",
        "RMSE: 1 recorded, nothing now",
    ]
    assert held.evaluation is not None
    csat = dict(held.evaluation.csat)
    more = {**csat, "0.5": Share(1, 2)}
    full = evaluated(held, chance=Share(5, 10), missed=Share(1, 8), csat=more)
    bare = evaluated(held, chance=None, missed=None)
    assert list(differences(full, bare)) == [
        "chance: 5 of 10 recorded, nothing now",
        "missed: 1 of 8 recorded, nothing now",
        "CSat at epsilon 0.5: 1 of 2 recorded, nothing now",
    ]
    shorter = replace(held, epochs=held.epochs[:3])
    assert list(differences(held, shorter)) == ["epochs: 100 recorded, 3 now"]
    # what the verdicts say too is not lost with the evaluation's CSat
    left = evaluated(held, csat={})
    assert list(differences(held, left)) == []
    assert len([line for line in remarks(held, left) if "nothing now" in line]) == len(csat) == 2
    proved = replace(held, verifications=())
    assert [line.split(":")[0] for line in differences(proved, evaluated(proved, csat={}))] == [
        "CSat_half",
        "CSat",
    ]


def test_figures_that_older_records_have_not_are_no_difference(held: Run) -> None:
    old = evaluated(held, chance=None, missed=None)
    new = evaluated(held, chance=Share(5, 10), missed=Share(1, 8))
    assert list(differences(old, new)) == []
    assert list(remarks(old, new)) == [
        "chance: 5 of 10 now, of which the record says nothing",
        "missed: 1 of 8 now, of which the record says nothing",
    ]


def test_every_region_is_compared(held: Run) -> None:
    own = held.verifications[0]
    third = replace(own, epsilon=0.001)
    more = replace(held, verifications=(*held.verifications, third))
    assert list(differences(more, held)) == ["at epsilon 0.001: 68 regions recorded, none now"]
    assert list(differences(held, more)) == ["at epsilon 0.001: no region recorded, 68 now"]

    def of(**changes: Any) -> Run:
        first = replace(own, **changes)
        return replace(held, verifications=(first, *held.verifications[1:]))

    answers = own.answers
    shifted = tuple(replace(a, index=a.index + 66) for a in answers)
    (line,) = differences(held, of(answers=shifted))
    assert f"region 0 {answers[0].status}, now not asked" in line and "more" in line
    line = list(differences(held, of(answers=(*answers, replace(answers[0], index=90)))))[-1]
    assert f"region 90 not asked, now {answers[0].status}" in line
    assert own.epsilon is not None
    other = {"verified": "unknown", "falsified": "unknown", "unknown": "verified"}
    turned = (replace(answers[0], status=other[answers[0].status]), *answers[1:])
    rounded = of(epsilon=own.epsilon * (1 + 1e-9), answers=turned)
    assert any("region 0" in line for line in differences(held, rounded))


def test_another_network_is_said_and_is_no_difference(folder: Path, tmp_path: Path) -> None:
    """The last bits of a training depend on the machine."""
    out = tmp_path / "records"
    assert [item.state for item in record_runs([folder], out, replace=False)] == ["new"]
    again = CliRunner().invoke(build_app(), ["record", str(folder), "--out", str(out)])
    assert again.exit_code == 0 and again.output == "1 same\n"
    (folder / "model.onnx").write_bytes(b"other bits")
    digest = hashlib.sha256(b"other bits").hexdigest()
    for file in folder.glob("verdicts-*.json"):
        edit(file, network_sha256=digest)
    answer = tmp_path / "answer.json"
    again = CliRunner().invoke(
        build_app(), ["record", str(folder), "--out", str(out), "--json", str(answer)]
    )
    assert again.exit_code == 0 and "1 same" in again.output
    assert f"another network: {digest[:12]}" in again.output
    (item,) = json.loads(answer.read_text())["runs"]
    assert item["differences"] == [] and len(item["remarks"]) == 1
    assert read_compact(out / f"run{SUFFIX}").network != digest


def test_other_evidence_is_said_and_is_no_difference(held: Run) -> None:
    """Records from before it was kept have none."""
    (first, *rest) = held.verifications
    answers = tuple(replace(a, evidence="the prover's word") for a in first.answers)
    sure = tuple(replace(a, evidence="confirmed by the checker") for a in first.answers)
    old, new = (
        replace(held, verifications=(replace(first, answers=found), *rest))
        for found in (answers, sure)
    )
    count = len(answers)
    assert list(differences(held, new)) == [] == list(differences(old, new))
    assert list(remarks(held, new)) == [
        f"what verdicts rest on: {count} confirmed by the checker now, of the record not said"
    ]
    assert list(remarks(old, new)) == [
        f"what verdicts rest on: {count} confirmed by the checker now, of the record {count} the "
        "prover's word"
    ]
    assert list(remarks(new, new)) == []


# --- what is given to the commands ---


def test_nothing_to_record_is_an_error(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "empty").mkdir()
    for given, reason in (
        (tmp_path / "empty", "there is no run to record"),
        (PAPER, "records already"),
        (PAPER / ROBUST, "records already"),
    ):
        result = CliRunner().invoke(
            build_app(), ["record", str(given), "--out", str(tmp_path / "x")]
        )
        assert isinstance(result.exception, InputError), result.output
        assert reason in str(result.exception) and str(given) in str(result.exception)
    # records beside runs are passed over
    assert len(list(record_runs([folder, PAPER], tmp_path / "x", replace=False))) == 1


def test_a_report_of_one_record(tmp_path: Path) -> None:
    command = ["report", str(PAPER / ROBUST), "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(build_app(), command)
    assert result.exit_code == 0, result.output
    assert "DL2" in (tmp_path / "out/table-long.md").read_text()
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(RunError, match=rf"a folder.*{SUFFIX}"):
        read_runs([tmp_path / "notes.txt"])
