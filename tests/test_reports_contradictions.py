"""Records that cannot be: they are left out with their reason, and the others are read."""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import write_run
from typer.testing import CliRunner

from qll.cli.main import build_app
from qll.errors import InputError, RunError
from qll.metrics import Evaluation, Share
from qll.reports.compact import SUFFIX, read_compact
from qll.reports.page import write_report
from qll.reports.recording import differences, record_runs, remarks
from qll.reports.records import Run, read_run, read_runs
from qll.reports.tables import build_table

PAPER = Path(__file__).parents[1] / "results/paper"
ROBUST = f"classification-robustness-mnist-dl2-0{SUFFIX}"
STRONG = f"strong-classification-robustness-mnist-qll5-0{SUFFIX}"
Values = dict[str, Any]


def forged(path: Path, change: Callable[[Values], object], *, name: str = ROBUST) -> Path:
    """A record of the repository in which something was changed by hand."""
    values = json.loads(lzma.decompress((PAPER / name).read_bytes()))
    change(values)
    path.write_bytes(lzma.compress(json.dumps(values).encode(), preset=0))
    return path


def verdicts(values: Values) -> Values:
    held: Values = values["verdicts"]["verdicts.json"]
    return held


def share(good: float, total: int) -> Values:
    return {"good": good, "total": total, "share": good / total}


def cut(values: Values) -> None:
    """The first three regions alone; the count is what it was."""
    held = verdicts(values)
    held.update(status=held["status"][:3], points=3, vacuous=[], stage={}, reason={})
    held.update(nodes=held["nodes"][:3], seconds=held["seconds"][:3])


def all_verified(values: Values) -> None:
    held = verdicts(values)
    held["status"] = "v" * len(held["status"])


def falsified_as_vacuous(values: Values) -> None:
    held = verdicts(values)
    held["vacuous"] = [k for k, letter in enumerate(held["status"]) if letter == "f"]
    assert held["vacuous"]


def other_epsilon(values: Values) -> None:
    """In the text alone: the parameters still say what the run is judged at."""
    verdicts(values)["text"] = verdicts(values)["text"].replace("= 0.2", "= 0.002")


IMPOSSIBLE: dict[str, tuple[Callable[[Values], object], str]] = {
    "falsified and vacuous": (falsified_as_vacuous, "falsified and vacuous"),
    "vacuous, beyond the last": (lambda v: verdicts(v).update(vacuous=[100]), "compact record"),
    "vacuous, before the first": (lambda v: verdicts(v).update(vacuous=[-1]), "compact record"),
    "verdicts that the evaluation denies": (all_verified, "proved"),
    "csat that the verdicts deny": (
        lambda v: v["evaluation"].update(csat={"0.2": share(99, 100)}),
        "proved",
    ),
    "csat of fewer regions": (
        lambda v: v["evaluation"].update(csat={"0.2": share(3, 3)}),
        "proved",
    ),
    "more good than there are": (
        lambda v: v["evaluation"].update(pacc=share(20000, 10000)),
        "pacc",
    ),
    "fewer than none": (lambda v: v["evaluation"].update(cacc=share(-1, 100)), "cacc"),
    "a part of one": (lambda v: v["evaluation"].update(cacc=share(0.5, 100)), "cacc"),
    "vacuous below none": (lambda v: v["evaluation"]["csec_qll"].update(vacuous=-5), "csec_qll"),
    "another share than its counts": (
        lambda v: v["evaluation"]["pacc"].update(share=0.999),
        "pacc",
    ),
    "a share of nothing": (lambda v: v["evaluation"]["pacc"].update(share=None), "pacc"),
    "more vacuous images than there are": (
        lambda v: v["evaluation"]["cacc"].update(vacuous=90000),
        "different images",
    ),
    "R2 above 1": (lambda v: v["evaluation"].update(r2=1.5), "r2"),
    "R2 that is a word": (lambda v: v["evaluation"].update(r2="x"), "r2"),
    "RMSE below 0": (lambda v: v["evaluation"].update(rmse=-1.0), "rmse"),
    "one epsilon twice": (
        lambda v: v["evaluation"].update(csat={"0.3": share(1, 2), "0.30": share(2, 2)}),
        "twice",
    ),
    "no network named": (lambda v: v.update(network=None), "of which network"),
    "a network that is none": (lambda v: v.update(network=5), "compact record"),
    "verdicts of no network": (lambda v: verdicts(v).pop("network_sha256"), "another network"),
    "the text of another rule": (
        lambda v: verdicts(v).update(text="forall x in ball(x0, 0): true"),
        "another rule",
    ),
    "a text that is none": (lambda v: verdicts(v).update(text="forall forall"), "another rule"),
    "no text": (lambda v: verdicts(v).pop("text"), "what was asked"),
    "the text at another epsilon": (other_epsilon, "another rule"),
    "a parameter that the rule has not": (
        lambda v: verdicts(v)["parameters"].update(delta=0.5),
        "another rule",
    ),
    "fewer verdicts than claimed": (cut, "3 verdicts"),
    "no count": (lambda v: verdicts(v).pop("count"), "what was asked"),
    "3 of 100 epochs": (
        lambda v: v.update(epochs={k: x[:3] for k, x in v["epochs"].items()}),
        "3 epochs",
    ),
    "no epochs": (lambda v: v.update(epochs={}), "0 epochs"),
    "not evaluated": (lambda v: v.update(evaluation=None), "finished"),
}
DAMAGED: dict[str, tuple[Callable[[Values], object], str]] = {
    "seconds of a word": (lambda v: v["epochs"].update(seconds=["x"] * 100), "epoch 1"),
    "seconds below 0": (lambda v: v["epochs"].update(seconds=[-1.0] * 100), "epoch 1"),
    "seconds without end": (lambda v: v["epochs"].update(seconds=[1e999] * 100), "epoch 1"),
    "seconds beyond floats": (lambda v: v["epochs"].update(seconds=[10**400] * 100), "epoch 1"),
    "a table in an epoch": (lambda v: v["epochs"].update(pacc=[{}] * 100), "epoch 1"),
    "a method that is not there": (lambda v: v["config"].update(method="x"), "method 'x'"),
    "parameters without end": (
        lambda v: v["config"]["parameters"].update(epsilon=1e999),
        "parameters",
    ),
    "no packages": (lambda v: v["environment"].update(packages=None), "environment"),
    "an environment of words": (lambda v: v.update(environment="here"), "compact record"),
    "points without number": (lambda v: verdicts(v).update(points=10**12), "compact record"),
    "points of words": (lambda v: verdicts(v).update(points=["x"] * 100), "verdicts of a"),
    "a point beyond floats": (
        lambda v: verdicts(v).update(points=[1e999, *range(1, 100)]),
        "verdicts of a",
    ),
    "times beyond floats": (
        lambda v: verdicts(v).update(seconds=[10**400] * 100),
        "verdicts of a",
    ),
    "an epsilon of a word": (
        lambda v: verdicts(v)["parameters"].update(epsilon="x"),
        "verdicts of a",
    ),
    "evidence of a region beyond the last": (
        lambda v: verdicts(v).update(evidence={"the prover's word": [100]}),
        "compact record",
    ),
    "evidence that is no table": (lambda v: verdicts(v).update(evidence=["x"]), "compact record"),
    "a failure of numbers": (lambda v: v.update(failure=5), "compact record"),
    "a task of numbers": (lambda v: v.update(task=5), "compact record"),
}


@pytest.mark.parametrize("case", [*IMPOSSIBLE, *DAMAGED])
def test_a_record_that_cannot_be_is_left_out_and_stops_no_other(tmp_path: Path, case: str) -> None:
    change, reason = {**IMPOSSIBLE, **DAMAGED}[case]
    bad = forged(tmp_path / f"bad{SUFFIX}", change)
    forged(tmp_path / f"good{SUFFIX}", lambda v: None, name=STRONG)
    found = read_runs([tmp_path])
    assert [run.name for run in found.runs] == ["good"]
    (left,) = found.left_out
    assert left.path == bad and reason in left.reason
    write_report(found, tmp_path / "out")


def test_a_record_that_was_only_copied_is_read(tmp_path: Path) -> None:
    forged(tmp_path / f"same{SUFFIX}", lambda v: None)
    assert [run.name for run in read_runs([tmp_path]).runs] == ["same"]


def test_verdicts_at_other_parameters_than_the_judged_ones(tmp_path: Path) -> None:
    """At another epsilon they are another figure; at another delta they are of another rule."""

    def at(delta: float) -> Callable[[Values], object]:
        def change(values: Values) -> None:
            for held in values["verdicts"].values():
                held["parameters"]["delta"] = delta
                held["text"] = held["text"].replace("= 0.7", f"= {delta}")

        return change

    read_run(forged(tmp_path / f"same{SUFFIX}", at(0.7), name=STRONG))
    with pytest.raises(RunError, match=r"other parameters(.|\n)*delta = 0.7(.|\n)*0.1"):
        read_run(forged(tmp_path / f"other{SUFFIX}", at(0.1), name=STRONG))


# --- folders of runs ---


def edit(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_run(tmp_path / "run", "not-both", "dice", "qll:5", 0, epochs=4, verified=0.5)
    return tmp_path / "run"


def test_a_folder_that_contradicts_itself(folder: Path) -> None:
    file = folder / "verdicts-full.json"
    before = file.read_text()
    values = json.loads(before)
    rows = values["verdicts"]
    changes: list[tuple[Values, str]] = [
        ({"verdicts": [{**row, "vacuous": row["status"] == "unknown"} for row in rows]}, "vacuous"),
        ({"verdicts": rows[:3]}, "3 verdicts"),
        ({"text": "outputs 6\ny[0] >= 0"}, "another rule"),
        ({"parameters": {"epsilon": 0.5}}, "another rule"),
    ]
    for change, reason in changes:
        file.write_text(json.dumps({**values, **change}))
        with pytest.raises(RunError, match=reason):
            read_run(folder)
    file.write_text(before)
    edit(folder / "evaluation.json", pacc=share(7, 5))
    with pytest.raises(RunError, match=r"evaluation\.json.*pacc"):
        read_run(folder)


def test_what_evaluate_and_verify_counted_of_as_many_regions_is_the_same(folder: Path) -> None:
    run = read_run(folder)
    proved = run.shares["CSat"]
    assert proved is not None and run.epsilon is not None and proved.total == 100
    for good, total, fits in (
        (proved.good, 100, True),
        (proved.good + 1, 100, False),
        (1, 10, True),  # 'qll evaluate --prove 10': other regions, and no contradiction
    ):
        csat = {f"{run.epsilon:g}": share(good, total)}
        edit(folder / "evaluation.json", csat=csat)
        if fits:
            assert read_run(folder).shares["CSat"] == proved
        else:
            with pytest.raises(RunError, match="--prove 0"):
                read_run(folder)


def test_a_rule_that_has_moved_is_believed_by_its_text(folder: Path, tmp_path: Path) -> None:
    rule = tmp_path / "own.qll"
    edit(folder / "config.json", property=str(rule))
    for file in folder.glob("verdicts-*.json"):
        edit(file, property="own.qll")
    assert read_run(folder).figures["CSat"] is not None
    rule.write_text("outputs 6\nparameter epsilon: input = 0.1\n"
                    "forall x in ball(x0, epsilon):\n  y[0] >= 0\n")  # fmt: skip
    with pytest.raises(RunError, match="another rule"):
        read_run(folder)


def test_a_run_with_epochs_to_go_is_unfinished_and_one_with_too_many_damaged(folder: Path) -> None:
    """'qll evaluate' writes figures of a run that was interrupted."""
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:3]))
    run = read_run(folder)
    assert run.evaluation is not None and run.state == "unfinished"
    assert not build_table(read_runs([folder])).rows
    (folder / "metrics.jsonl").write_text("".join([*lines, lines[-1]]))
    with pytest.raises(RunError, match="5 epochs"):
        read_run(folder)


def test_only_what_can_be_read_again_is_recorded(folder: Path, tmp_path: Path) -> None:
    assert read_run(folder).epsilon is not None
    edit(folder / "evaluation.json", csat={f"{read_run(folder).epsilon:g}": share(1, 10)})
    assert "--prove 0" in refused(folder, tmp_path / "records")
    edit(folder / "evaluation.json", csat={})
    (folder / "model.onnx").unlink()
    assert "of which network" in refused(folder, tmp_path / "records")
    assert not (tmp_path / "records").exists()


def refused(folder: Path, out: Path) -> str:
    (found,) = record_runs([folder], out, replace=False)
    assert found.state == "refused"
    return "\n".join(found.differences)


def first_verdict(folder: Path, **values: Any) -> None:
    path = folder / "verdicts-full.json"
    held = json.loads(path.read_text())
    held["verdicts"][0] |= values
    path.write_text(json.dumps(held))


def second_line(folder: Path, line: str) -> None:
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], line, *lines[2:]]) + "\n")


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGE: dict[str, Callable[[Path], object]] = {
    "torn": lambda f: (f / "evaluation.json").write_text("{"),
    "stage": lambda f: first_verdict(f, stage=["branch"]),
    "reason": lambda f: first_verdict(f, reason=3),
    "evidence": lambda f: first_verdict(f, evidence=True),
    "nodes": lambda f: first_verdict(f, nodes="x"),
    "no epoch": lambda f: second_line(f, "{}"),
    "another epoch": lambda f: second_line(f, '{"epoch": 7}'),
    "a folder for a file": lambda f: a_folder(f / "metrics.jsonl"),
    "a long name": lambda f: f.rename(f.with_name("a" * 250)),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_folder_stops_no_other(folder: Path, tmp_path: Path, case: str) -> None:
    runs, out = tmp_path / "runs", tmp_path / "records"
    shutil.copytree(folder, runs / "b")
    shutil.copytree(folder, runs / "a")
    DAMAGE[case](runs / "a")
    said = CliRunner().invoke(build_app(), ["record", str(runs), "--out", str(out)])
    assert said.exit_code == 2, said.output
    assert ": refused" in said.output and "1 new, 1 refused" in said.output
    assert [path.name for path in out.iterdir()] == [f"b{SUFFIX}"]


def test_a_name_that_is_not_utf8(folder: Path, tmp_path: Path) -> None:
    name = os.fsdecode(b"run-\xff")
    try:
        shutil.copytree(folder, tmp_path / "runs" / name)
    except OSError:
        pytest.skip("names are UTF-8 here")
    out = tmp_path / "records"
    said = CliRunner().invoke(
        build_app(), ["record", str(tmp_path / "runs"), "--out", str(out), "--json", "-"]
    )
    assert said.exit_code in (0, 2) and "run-" in said.output


def test_records_need_a_folder(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="need a folder"):
        list(record_runs([folder], tmp_path / "file", replace=False))


# --- a run that was made again ---


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
