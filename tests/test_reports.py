"""Records to tables: statistics, layouts, comparison with published figures, damaged records."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import statistics
import time
from pathlib import Path

import numpy as np
import pytest
from synthetic_runs import write_grid, write_run
from typer.testing import CliRunner

from qll.cli.main import build_app
from qll.errors import InputError, RunError
from qll.properties import load
from qll.reports.comparison import agreements, rankings
from qll.reports.page import embed, write_report
from qll.reports.paper import Paper, Published, read_paper
from qll.reports.records import read_run, read_runs
from qll.reports.table_latex import escape, latex
from qll.reports.table_text import comparison_markdown, csv_text, epsilon_text, markdown
from qll.reports.tables import Stat, build_table
from qll.reports.witnesses import _text, broken_atoms, read_witnesses


def _set_share(path: Path, name: str, good: int, total: int) -> None:
    file = path / "evaluation.json"
    values = json.loads(file.read_text())
    values[name] = {"good": good, "total": total, "share": good / total}
    file.write_text(json.dumps(values))


@pytest.fixture
def three_seeds(tmp_path: Path) -> Path:
    """QLL 5 and a baseline on not-both, three seeds each, with known accuracies."""
    for logic, accuracies in (("qll:5", (80, 85, 93)), ("baseline", (90, 90, 90))):
        for seed, good in enumerate(accuracies):
            path = tmp_path / f"{logic[:3]}-{seed}"
            write_run(path, "not-both", "dice", logic, seed, verified=0.5 if seed else 0.6)
            _set_share(path, "pacc", 10 * good, 1000)
    return tmp_path


def test_mean_and_sample_deviation(three_seeds: Path) -> None:
    table = build_table(read_runs([three_seeds]))
    baseline, ours = table.rows
    assert (baseline.name, ours.name) == ("Baseline", "QLL 5")
    found = ours.stat("PAcc")
    assert found is not None and found.deviation is not None
    assert found.mean == pytest.approx(86.0)
    assert found.deviation == pytest.approx(statistics.stdev([80, 85, 93]))
    assert str(found) == "86.0 ± 6.6"
    assert baseline.stat("CSec_self") is None


def test_one_seed_has_no_deviation() -> None:
    assert str(Stat.of([97.25])) == "97.2"
    assert Stat.of([]) is None


def test_csat_is_counted_from_the_verdicts_at_the_judged_epsilon(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "not-both", "dice", "qll:5", 0)
    run = read_run(tmp_path / "run")
    held = json.loads((tmp_path / "run/verdicts-full.json").read_text())
    counted = held["verdicts"]
    statuses = [verdict["status"] for verdict in counted]
    assert run.figures["CSat"] == pytest.approx(statuses.count("verified"))
    assert run.figures["unknown"] == pytest.approx(statuses.count("unknown"))
    # Verdicts at another epsilon are not CSat.
    for name in ("full", "half"):
        path = tmp_path / f"run/verdicts-{name}.json"
        text = load("not-both", epsilon=0.5).show()
        path.write_text(json.dumps({**held, "parameters": {"epsilon": 0.5}, "text": text}))
    assert read_run(tmp_path / "run").figures["CSat"] is None


def test_verdicts_of_another_network_or_property_do_not_count(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "not-both", "dice", "qll:5", 0)
    path = tmp_path / "run/verdicts-full.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps({**values, "property": "exactly-one"}))
    with pytest.raises(RunError, match="another property"):
        read_run(tmp_path / "run")
    (tmp_path / "run/model.onnx").write_bytes(b"weights")
    path.write_text(json.dumps({**values, "network_sha256": "0" * 64}))
    with pytest.raises(RunError, match="another network"):
        read_run(tmp_path / "run")
    good = {"network_sha256": hashlib.sha256(b"weights").hexdigest()}
    for name in ("full", "half"):
        file = tmp_path / f"run/verdicts-{name}.json"
        file.write_text(
            json.dumps({**json.loads(file.read_text()), "property": "not-both", **good})
        )
    assert read_run(tmp_path / "run").figures["CSat"] is not None


def test_verdicts_as_the_command_writes_them(tmp_path: Path) -> None:
    """A real network, verified for real: the writer and the reader agree on the record."""
    from qll.training.config import resolve
    from qll.training.loop import train

    options = {"logic": "baseline", "epochs": 0}
    small = ["data_options.count_train=8", "data_options.count_test=6"]
    config = resolve("not-both", "dice-rendered", options=options, settings=small)
    train(config, tmp_path / "run")
    command = ["verify", "not-both", "--network", str(tmp_path / "run/model.onnx")]
    command += ["--data", "dice-rendered", "--count", "3", "--timeout", "2", "--jobs", "1"]
    command += ["--json", str(tmp_path / "run/verdicts.json")]
    result = CliRunner().invoke(build_app(), command)
    assert result.exit_code in (0, 10, 11), result.output
    run = read_run(tmp_path / "run")
    assert len(run.verifications[0].answers) == 3
    assert f"CSat {run.figures['CSat']:.1f} %" in result.output


def test_best_row_has_the_largest_product(tmp_path: Path) -> None:
    for logic, good, verified in (("dl2", 99, 0.30), ("qll:5", 80, 0.60), ("stl:5", 60, 0.61)):
        path = tmp_path / logic.replace(":", "")
        write_run(path, "not-both", "dice", logic, 0, verified=verified)
        _set_share(path, "pacc", 10 * good, 1000)
    table = build_table(read_runs([tmp_path]))
    assert [row.name for row in table.best()] == ["QLL 5"]
    assert "**QLL 5**" in markdown(table, "short")
    assert "**DL2**" not in markdown(table, "short")


def test_departure_is_marked_outside_of_the_published_deviation(three_seeds: Path) -> None:
    key = ("not-both", "dice", "qll", 5.0)
    rows = {key: {"PAcc": Published(80.0, 2.0), "CSat": Published(50.0, 30.0)}}
    table = build_table(read_runs([three_seeds]), Paper(rows))
    text = markdown(table, "long")
    assert "86.0 ± 6.6** (80.0 ± 2.0 ▲6.0)" in text or "86.0 ± 6.6 (80.0 ± 2.0 ▲6.0)" in text
    assert "(50.0 ± 30.0)" in text  # within: no mark
    assert r"86.0+-6.6\QllAbove" in latex(table, "long")
    found = {a.metric: a for a in agreements(table)}
    short = table.rows[0].is_short
    shown = "| 0 of 1 |" if not short else "|  | 0 of 1 |"
    assert f"| PAcc {shown}" in comparison_markdown(table)
    assert found["PAcc"].largest is not None and found["PAcc"].largest[0] == pytest.approx(6.0)
    assert found["CSat"].largest is None
    assert found["CSat"].within + found["CSat"].short_within == 1


def test_another_epsilon_is_not_compared(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "not-both", "dice", "qll:5", 0)
    config = json.loads((tmp_path / "run/config.json").read_text())
    config["parameters"]["epsilon"] = 0.05
    (tmp_path / "run/config.json").write_text(json.dumps(config))
    rows = {("not-both", "dice", "qll", 5.0): {"PAcc": Published(80.0, 2.0)}}
    table = build_table(read_runs([tmp_path]), Paper(rows))
    assert table.published(table.rows[0], "PAcc") is None
    assert any("epsilon 0.05" in note for note in table.notes())


def test_short_runs_say_so_in_every_table(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "not-both", "dice", "qll:5", 0, epochs=20)
    table = build_table(read_runs([tmp_path]))
    texts = [markdown(table, "short"), markdown(table, "long"), csv_text(table)]
    texts += [latex(table, "short"), latex(table, "long")]
    for text in texts:
        assert "short run: 20 epochs instead of 100" in text


def test_csv_holds_what_the_rows_hold(three_seeds: Path) -> None:
    table = build_table(read_runs([three_seeds]))
    lines = list(csv.DictReader(io.StringIO(csv_text(table))))
    assert [line["logic"] for line in lines] == ["baseline", "qll"]
    assert float(lines[1]["PAcc_mean"]) == pytest.approx(86.0)
    assert lines[1]["seeds"] == "0 1 2"
    assert lines[1]["hardness"] == "5.0"


def test_short_layout_keeps_one_hardness(tmp_path: Path) -> None:
    write_grid(tmp_path, seeds=1, epochs=2, pairs=1)
    table = build_table(read_runs([tmp_path]))
    assert [row.name for row in table.rows if row.logic == "qll"] == [
        "QLL 1",
        "QLL 2",
        "QLL 5",
        "QLL 10",
    ]
    assert [row.name for row in table.short().rows if row.logic == "qll"] == ["QLL 5"]


def test_damaged_unfinished_and_doubled_runs_are_named(tmp_path: Path) -> None:
    write_run(tmp_path / "good", "not-both", "dice", "qll:5", 0)
    write_run(tmp_path / "again", "not-both", "dice", "qll:5", 0, finished=False)
    write_run(tmp_path / "open", "not-both", "dice", "qll:5", 1, finished=False)
    write_run(tmp_path / "torn", "not-both", "dice", "qll:5", 2)
    (tmp_path / "torn/evaluation.json").write_text('{"pacc": ')
    write_run(tmp_path / "wrong", "not-both", "dice", "qll:5", 3)
    (tmp_path / "wrong/verdicts-full.json").write_text(
        '{"property": "not-both", "parameters": {"epsilon": 1}, "verdicts": [{}]}'
    )
    records = read_runs([tmp_path])
    assert {item.path.name for item in records.left_out} == {"again", "torn", "wrong"}
    assert {run.name: run.state for run in records.runs} == {
        "good": "finished",
        "open": "unfinished",
    }
    assert len(build_table(records).rows) == 1
    assert len(build_table(records).rows[0].runs) == 1


def test_nothing_to_report(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="there is no run to report"):
        read_runs([tmp_path])
    with pytest.raises(RunError, match="there is no such folder"):
        read_runs([tmp_path / "absent"])


@pytest.mark.parametrize("content", ["", "[{}]", '{"a": 1}', '[{"constraint": 1}]'])
def test_bad_published_results(tmp_path: Path, content: str) -> None:
    path = tmp_path / "results.json"
    path.write_text(content)
    with pytest.raises(InputError, match="published results cannot be read"):
        read_paper(path)


def test_published_results_of_the_paper(shared: Path) -> None:
    paper = read_paper(shared / "paper" / "results.json")
    assert len(paper.rows) == 52
    found = paper.get(("not-both", "dice", "yager", 2.0), "CSat")
    assert found == Published(11.8, 11.3)


def test_ranking_names_both_orders(tmp_path: Path) -> None:
    published = {}
    for logic, verified, theirs in (("dl2", 0.9, 10.0), ("qll:5", 0.2, 90.0)):
        path = tmp_path / logic[:3]
        write_run(path, "not-both", "dice", logic, 0, verified=verified)
        _set_share(path, "pacc", 900, 1000)
        name, _, hardness = logic.partition(":")
        key = ("not-both", "dice", name, float(hardness) if hardness else None)
        published[key] = {"PAcc": Published(90, 1), "CSat": Published(theirs, 1)}
    (ranking,) = rankings(build_table(read_runs([tmp_path]), Paper(published)))
    assert (ranking.ours, ranking.theirs) == (("DL2", "QLL 5"), ("QLL 5", "DL2"))
    assert ranking.tau == -1.0 and not ranking.same_best
    assert (ranking.kept, ranking.clear) == (0, 1)


def test_runs_of_other_lengths_are_ranked_apart(tmp_path: Path) -> None:
    """A short run beside a full one says nothing about their logics."""
    published = {}
    for logic, verified, epochs in (("dl2", 0.1, 100), ("qll:5", 0.9, 100), ("stl:5", 0.5, 3)):
        path = tmp_path / logic[:3]
        write_run(path, "not-both", "dice", logic, 0, verified=verified, epochs=epochs)
        name, _, hardness = logic.partition(":")
        key = ("not-both", "dice", name, float(hardness) if hardness else None)
        published[key] = {"PAcc": Published(80, 99), "CSat": Published(100 * verified, 1)}
    table = build_table(read_runs([tmp_path]), Paper(published))
    (ranking,) = rankings(table)
    assert ranking.ours == ranking.theirs == ("QLL 5", "DL2")
    assert ranking.experiment.endswith("100 epochs") and (ranking.kept, ranking.clear) == (1, 1)
    pacc = next(a for a in agreements(table) if a.metric == "PAcc")
    assert (pacc.total, pacc.short_total) == (2, 1)


def test_text_cannot_break_out_of_the_page_or_the_table(tmp_path: Path) -> None:
    assert "</script>" not in embed({"name": "</script><script>alert(1)"})
    assert escape("a_b & 5 % #1 {x}") == r"a\_b \& 5 \% \#1 \{x\}"
    path = tmp_path / "<img src=x onerror=alert(1)>"
    write_run(path, "not-both", "dice", "qll:5", 0)
    (path / "failure.json").write_text(json.dumps({"reason": "<script>alert(2)</script>"}))
    write_run(tmp_path / "other", "not-both", "dice", "dl2", 0)
    write_report(read_runs([tmp_path]), tmp_path / "out", title="<b>synthetic</b>")
    page = (tmp_path / "out/index.html").read_text()
    assert "<img src=x" not in page and "<script>alert" not in page and "<b>synthetic" not in page


def test_witnesses_are_read_with_outputs_before_and_after(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "not-both", "dice", "qll:5", 0)
    shown, total = read_witnesses(read_run(tmp_path / "run"), most=2)
    assert (len(shown), total) == (2, 3)
    assert shown[0].labels == (0, 1, 2) and len(shown[0].after) == 6
    assert shown[0].before is not None and shown[0].largest == pytest.approx(0.1, abs=1e-6)
    (tmp_path / "run/counterexamples.npz").write_bytes(b"PK\x03\x04 damaged")
    with pytest.raises(RunError, match="witnesses of a run cannot be read"):
        read_witnesses(read_run(tmp_path / "run"), most=2)
    write_report(read_runs([tmp_path]), tmp_path / "out")  # and the report is made all the same
    assert "witnesses of a run cannot be read" in (tmp_path / "out/index.html").read_text()


def test_epsilon_is_written_as_it_is_meant() -> None:
    assert [epsilon_text(e) for e in (4 / 255, 0.1, 2 / 255, None)] == [
        "4/255",
        "0.1",
        "2/255",
        "none",
    ]


def test_command_writes_everything(three_seeds: Path, tmp_path: Path) -> None:
    out = tmp_path / "report"
    result = CliRunner().invoke(build_app(), ["report", str(three_seeds), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert {path.name for path in out.iterdir()} == {
        "index.html",
        "table-short.md",
        "table-long.md",
        "table-short.tex",
        "table-long.tex",
        "table.csv",
    }


@pytest.mark.slow
def test_the_whole_grid_in_twenty_seconds(tmp_path: Path) -> None:
    """260 synthetic runs of 100 epochs with 52,000 verdicts, in CPU time: the machine is shared."""
    assert write_grid(tmp_path / "runs") == 260
    begun = time.process_time()
    write_report(read_runs([tmp_path / "runs"]), tmp_path / "out", title="synthetic records")
    assert time.process_time() - begun < 20


def test_only_rows_that_can_be_compared_compete_for_bold(tmp_path: Path) -> None:
    """A short run and another epsilon are other questions."""
    for logic, verified, epochs in (("dl2", 0.1, 100), ("qll:5", 0.3, 100), ("stl:5", 0.9, 2)):
        path = tmp_path / logic[:3]
        write_run(path, "not-both", "dice", logic, 0, verified=verified, epochs=epochs)
    table = build_table(read_runs([tmp_path]))
    assert [row.logic for row in table.best()] == ["qll"]
    assert len({row.group for row in table.rows}) == 2


def test_the_short_layout_shows_the_hardness_that_was_published(tmp_path: Path) -> None:
    for name, logic in (("a", "yager:2"), ("b", "yager:5")):
        write_run(tmp_path / name, "not-both", "dice", logic, 0)
    records = read_runs([tmp_path])
    paper = Paper({("not-both", "dice", "yager", 2.0): {"PAcc": Published(90, 1)}})
    assert [row.hardness for row in build_table(records, paper).short().rows] == [2.0]
    assert [row.hardness for row in build_table(records).short().rows] == [5.0]


# --- what says nothing, and what a guess is worth ---


def test_vacuous_regions_are_left_out_and_compared_as_published(tmp_path: Path) -> None:
    """The published baseline of clothing/footwear has 19 %: all of it trousers and bags."""
    for name, verified in (("baseline", 0.0), ("dl2", 0.5)):
        write_run(
            tmp_path / "runs" / name, "clothing-footwear", "fashion", name, 0,
            verified=verified, vacuous=19, chance=0.1,
        )  # fmt: skip
    records = read_runs([tmp_path / "runs"])
    key = ("clothing-footwear", "fashion", "baseline", None)
    paper = Paper({key: {"CSat": Published(19.0, 0.0), "PAcc": Published(97.0, 9.0)}})
    table = build_table(records, paper)
    plain = next(row for row in table.rows if row.logic == "baseline")
    assert plain.stat("CSat").mean == 0.0  # type: ignore[union-attr]
    assert plain.counted_as_published("CSat").mean == 19.0  # type: ignore[union-attr]
    unknown = plain.runs[0]
    assert unknown.figures["unknown"] / unknown.published["unknown"] == pytest.approx(100 / 81)  # type: ignore[operator]
    text = markdown(table, "long")
    line = next(line for line in text.splitlines() if "Baseline" in line)
    assert "| 0.0 (19.0 ± 0.0) |" in line, "the same as published, so no mark"
    assert "19 of 100 regions hold whatever the network computes" in text
    lines = list(csv.DictReader(io.StringIO(csv_text(table))))
    assert {line["vacuous"] for line in lines} == {"19"}
    assert lines[0]["CSat_departure"] == "0.0" and lines[0]["CSat_mean"] == "0.0"
    assert "left out" in latex(table, "short")


def test_old_verdicts_name_the_stage(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "clothing-footwear", "fashion", "dl2", 0, verified=0.0, vacuous=9)
    for path in tmp_path.glob("run/verdicts*.json"):
        held = json.loads(path.read_text())
        for row in held["verdicts"]:
            if row.pop("vacuous", False):
                row["stage"] = "trivial"
        path.write_text(json.dumps(held))
    share = read_runs([tmp_path]).runs[0].shares["CSat"]
    assert share is not None and (share.good, share.vacuous, share.total) == (0, 9, 91)


def test_a_row_near_chance_is_not_the_best(tmp_path: Path) -> None:
    """PAcc 58.5 where chance is 50, all proved, beats PAcc 90 with 60 % proved by its product."""
    for logic, pacc, verified in (("dl2", 0.9, 0.6), ("stl:5", 0.585, 1.0), ("qll:5", 0.8, 0.6)):
        write_run(
            tmp_path / "runs" / logic.replace(":", ""), "not-both", "dice", logic, 0,
            pacc=pacc, verified=verified, chance=0.5,
        )  # fmt: skip
    table = build_table(read_runs([tmp_path / "runs"]))
    assert [row.name for row in table.near_chance()] == ["STL 5"]
    assert [row.name for row in table.best()] == ["DL2"]
    text = markdown(table, "short")
    assert "STL 5 (near chance)" in text and "**DL2**" in text
    assert "50.0 % (Dice)" in text and "50.0 % (Dice)" in latex(table, "short").replace("\\%", "%")
    lines = {line["logic"]: line for line in csv.DictReader(io.StringIO(csv_text(table)))}
    assert (lines["stl"]["near_chance"], lines["stl"]["chance"]) == ("1", "50.0")
    for path in tmp_path.glob(
        "runs/*/evaluation.json"
    ):  # records without chance are ranked as before
        held = json.loads(path.read_text())
        del held["chance"]
        path.write_text(json.dumps(held))
    assert [r.name for r in build_table(read_runs([tmp_path / "runs"])).best()] == ["STL 5"]


def test_witnesses_name_what_broke_the_rule(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "not-both", "dice", "dl2", 1)
    write_run(tmp_path / "b", "classification-robustness", "mnist", "dl2", 1)
    dice, mnist = (read_runs([tmp_path / name]).runs[0] for name in "ab")
    points = {"x": np.zeros((3, 28, 28)), "x0": np.zeros((3, 28, 28))}
    y = np.array([0.5, 2.0, -1.0, 0.4, 0.7, 0.1])
    said = [_text(atom) for atom in broken_atoms(dice, (0,), {"y": y, **points})]
    assert said == ["y[1] <= 0", "y[4] <= 0"], "faces 2 and 5, by 0.7; faces 1 and 6 only by 0.1"
    y = np.array([0.0, 3.0, 5.0, 4.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    (atom,) = broken_atoms(mnist, (1,), {"y": y, **points})
    assert _text(atom) == "y[2] <= y[1]"
    assert broken_atoms(mnist, (2,), {"y": y, **points}) == []  # satisfied: nothing broke it


def test_a_regression_has_columns_of_its_own(tmp_path: Path) -> None:
    """R2 and RMSE in place of PAcc; a rule without epsilon, of names that only its table has."""
    for seed, (r2, rmse) in enumerate(((0.875, 0.01234), (0.885, 0.01254))):
        path = tmp_path / "runs" / str(seed)
        write_run(path, "not-both", "dice", "qll:5", seed, epochs=2, witnesses=False)
        held = json.loads((path / "evaluation.json").read_text())
        held |= {"pacc": None, "chance": None, "r2": r2, "rmse": rmse}
        (path / "evaluation.json").write_text(json.dumps(held))
        config = json.loads((path / "config.json").read_text())
        rule = tmp_path / "rule.qll"
        rule.write_text('forall x in domain: y["mpg"] <= 9\n')
        config |= {"property": str(rule), "parameters": {}, "judged": None}
        (path / "config.json").write_text(json.dumps(config))
        for verdicts in path.glob("verdicts*.json"):
            verdicts.unlink()
        (path / "model.onnx").unlink()
        asked = {"point": 0, "status": "verified", "seconds": 0.1, "stage": "boxes"}
        answer = {"property": "rule.qll", "parameters": {}, "verdicts": [asked]}
        (path / "verdicts.json").write_text(json.dumps(answer))
    files = write_report(read_runs([tmp_path / "runs"]), tmp_path / "out")
    texts = {path.name: path.read_text(encoding="utf-8") for path in files}
    long = texts["table-long.md"]
    assert "PAcc (%)" not in long and "| R² (%) | RMSE |" in long
    assert "| 88.0 ± 0.7 | 0.0124 ± 0.00014 |" in long and "| 100.0 ± 0.0 |" in long
    assert "R2_mean" in texts["table.csv"] and "R$^2$" in texts["table-long.tex"]
    assert "R²" in texts["index.html"] and "y[&#34;mpg&#34;] &lt;= 9" in texts["index.html"]


def test_csat_of_an_evaluation_alone_is_found_by_its_six_digits(tmp_path: Path) -> None:
    """'qll evaluate' writes 0.0156863 for 4/255."""
    write_run(tmp_path / "run", "not-both", "dice", "qll:5", 0)
    for verdicts in (tmp_path / "run").glob("verdicts-*"):
        verdicts.unlink()
    share = {"good": 96, "total": 100, "share": 0.96}
    file = tmp_path / "run/evaluation.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"csat": {f"{4 / 255:g}": share}}))
    assert read_run(tmp_path / "run").figures["CSat"] == pytest.approx(96)


def test_rounds_of_a_cycle_are_no_unfinished_runs(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "not-both", "dice", "qll:5", 0)
    write_run(tmp_path / "cycle/round-01", "not-both", "dice", "qll:2", 0, finished=False)
    (tmp_path / "cycle/cycle.json").write_text("{}")
    found = read_runs([tmp_path])
    assert [run.name for run in found.runs] == ["run"]
    assert [item.path.name for item in found.left_out] == ["round-01"]
    assert "a round of qll cycle" in found.left_out[0].reason
