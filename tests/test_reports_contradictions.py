"""Records that cannot be: they are left out with their reason, and the others are read."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from record_cases import DICE, STRONG, Values, edit, forged, share, verdicts
from synthetic_runs import write_run
from typer.testing import CliRunner

from qll.cli.main import build_app
from qll.errors import InputError, RunError
from qll.metrics import Share
from qll.reports.compact import SUFFIX
from qll.reports.page import write_report
from qll.reports.recording import record_runs
from qll.reports.records import read_run, read_runs
from qll.reports.tables import build_table


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
    "pacc of other images": (
        lambda v: v["evaluation"].update(pacc=share(999, 1000)),
        "pacc and csec_qll are of different images",
    ),
    "pacc of more images": (
        lambda v: v["evaluation"].update(pacc=share(19000, 20000)),
        "pacc and csec_qll are of different images",
    ),
    "pacc of no image": (
        lambda v: v["evaluation"].update(pacc={"good": 0, "total": 0, "share": None}),
        "pacc and csec_qll are of different images",
    ),
    "pacc that holds vacuously": (
        lambda v: v["evaluation"].update(pacc={**share(9000, 9900), "vacuous": 100}),
        "pacc and csec_qll are of different images",
    ),
    "chance of other images": (
        lambda v: v["evaluation"].update(chance=share(1, 10)),
        "chance and csec_qll are of different images",
    ),
    "chance without pacc": (
        lambda v: v["evaluation"].update(pacc=None, chance=share(1135, 10000)),
        "chance and pacc",
    ),
    "missed of more regions than there are": (
        lambda v: v["evaluation"].update(missed=share(1, 10001)),
        "missed and csec_qll are of different images",
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


def test_every_label_of_an_image_counts_or_the_image_itself(tmp_path: Path) -> None:
    """68 photographs with six labels each: a prediction is right or wrong 68 or 408 times."""
    path = tmp_path / f"dice{SUFFIX}"
    for good, total, fits in ((60, 68, True), (400, 408, True), (400, 136, False), (60, 69, False)):
        figures = {name: share(min(good, total), total) for name in ("pacc", "chance")}
        forged(path, lambda v, new=figures: v["evaluation"].update(new), name=DICE)
        if fits:
            assert read_run(path).shares["PAcc"] == Share(good, total)
        else:
            with pytest.raises(RunError, match=r"pacc(.|\n)*68 images, or(.|\n)*408"):
                read_run(path)


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
