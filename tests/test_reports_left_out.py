"""What was given to 'qll report' and is in no table: named, once, and with its reason."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from record_cases import STRONG, Values, edit, forged, share
from synthetic_runs import write_run
from typer.testing import CliRunner

from qll.cli.main import build_app
from qll.errors import RunError
from qll.reports.compact import SUFFIX
from qll.reports.page import write_report
from qll.reports.recording import record_runs
from qll.reports.records import read_runs

HALF = "a\ud800b"
ESCAPED = "a\\ud800b"


def reported(*given: Path, out: Path) -> Any:
    command = ["report", *map(str, given), "--out", str(out)]
    result = CliRunner().invoke(build_app(), command)
    assert result.exit_code == 0, result.output
    return result


# --- half characters ---

HALVES: dict[str, Callable[[Values], object]] = {
    "failure": lambda v: v.update(failure=HALF),
    "started": lambda v: v["environment"].update(started=HALF),
    "package": lambda v: v["environment"]["packages"].update({HALF: "1"}),
    "version": lambda v: v["environment"]["packages"].update(qll=HALF),
    "epoch": lambda v: v["epochs"].update(note=[HALF] * 100),
    "task": lambda v: v.update(task={"count": HALF}),
    "verdicts": lambda v: v["verdicts"]["verdicts.json"].update(property=HALF),
    "a file's name": lambda v: v["verdicts"].update({HALF: v["verdicts"]["verdicts.json"]}),
    **{
        name: lambda v, name=name: v["config"].update({name: HALF})
        for name in ("data", "formula", "network", "oracle", "surrogate", "logic", "method")
    },
}


@pytest.mark.parametrize("case", HALVES)
def test_half_a_character_is_refused_and_the_others_get_their_page(
    tmp_path: Path, case: str
) -> None:
    forged(tmp_path / f"bad{SUFFIX}", HALVES[case])
    forged(tmp_path / f"good{SUFFIX}", lambda v: None, name=STRONG)
    result = reported(tmp_path, out=tmp_path / "out")
    assert f"bad{SUFFIX}: a text has half a character" in result.output
    page = (tmp_path / "out/index.html").read_text(encoding="utf-8")
    assert "half a character" in page and ESCAPED in page


def test_a_folder_with_half_a_character(tmp_path: Path) -> None:
    for name in ("bad", "good"):
        write_run(tmp_path / name, "not-both", "dice", "qll:5", len(name), epochs=4)
    edit(tmp_path / "bad/environment.json", started=HALF)
    found = read_runs([tmp_path])
    assert [run.name for run in found.runs] == ["good"]
    assert found.left_out[0].reason.startswith("environment.json: a text has half a character")
    (state,) = {r.state for r in record_runs([tmp_path / "bad"], tmp_path / "x", replace=False)}
    assert state == "refused"


def test_where_the_data_lay_need_not_be_utf8(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "not-both", "dice", "qll:5", 0, epochs=4)
    edit(tmp_path / "run/config.json", data_dir="/data/\udcff")
    write_report(read_runs([tmp_path]), tmp_path / "out")


def test_a_report_of_a_folder_whose_name_is_not_utf8(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "not-both", "dice", "qll:5", 0, epochs=4)
    name = os.fsdecode(b"run-\xff")
    try:
        shutil.copytree(tmp_path / "a", tmp_path / "runs" / name)
    except OSError:
        pytest.skip("names are UTF-8 here")
    reported(tmp_path / "runs", out=tmp_path / "out")
    assert "run-\\udcff" in (tmp_path / "out/index.html").read_text(encoding="utf-8")


# --- runs that are there twice ---


@pytest.fixture
def twice(tmp_path: Path) -> tuple[Path, Path]:
    """One run in two folders."""
    write_run(tmp_path / "runs/b", "not-both", "dice", "qll:5", 0, epochs=4)
    shutil.copytree(tmp_path / "runs/b", tmp_path / "runs/a")
    return tmp_path / "runs/a", tmp_path / "runs/b"


def test_a_copy_counts_once(twice: tuple[Path, Path]) -> None:
    first, second = twice
    found = read_runs([first.parent])
    assert [run.path for run in found.runs] == [first]
    (left,) = found.left_out
    assert left.path == second
    assert f"start as {first}, and the same figures" in left.reason
    assert "newer" not in left.reason


def test_a_run_and_its_record_count_once(twice: tuple[Path, Path], tmp_path: Path) -> None:
    list(record_runs([twice[0]], tmp_path / "records", replace=False))
    found = read_runs([twice[0], tmp_path / "records"])
    assert [run.path for run in found.runs] == [twice[0]]
    assert "the same figures: it counts once" in found.left_out[0].reason


def test_neither_counts_of_two_that_say_different_things(
    twice: tuple[Path, Path], tmp_path: Path
) -> None:
    """Which of them is right, a name does not tell."""
    first, second = twice
    write_run(first.parent / "c", "not-both", "dice", "qll:5", 1, epochs=4)
    old = json.loads((second / "evaluation.json").read_text())["pacc"]["good"]
    edit(second / "evaluation.json", pacc=share(999, 1000))
    for given in ([first, second], [second, first]):
        found = read_runs([*given, first.parent / "c"])
        assert [run.name for run in found.runs] == ["c"]
        assert {item.path for item in found.left_out} == {first, second}
        counts = {first: old, second: 999}
        detail, short = found.left_out
        assert detail.path == given[1] and short.path == given[0]
        assert "neither counts" in detail.reason and "neither counts" in short.reason
        before, after = (counts[path] for path in given)
        assert f"PAcc: {before} of 1000 recorded, {after} of 1000 now" in detail.reason
        assert str(given[0]) in detail.reason and str(given[1]) in short.reason
    with pytest.raises(RunError, match="neither counts"):
        read_runs([first, second])


def test_a_verdict_that_differs_is_a_difference_too(twice: tuple[Path, Path]) -> None:
    path = twice[1] / "verdicts-full.json"
    values = json.loads(path.read_text())
    one, other = (
        next(row for row in values["verdicts"] if row["status"] == status)
        for status in ("verified", "unknown")
    )
    one["status"], other["status"] = other["status"], one["status"]  # the share is what it was
    path.write_text(json.dumps(values))
    write_run(twice[0].parent / "c", "not-both", "dice", "qll:5", 1, epochs=4)
    found = read_runs([twice[0].parent])
    assert [run.name for run in found.runs] == ["c"] and len(found.left_out) == 2


def test_the_newer_one_counts_whatever_it_says(twice: tuple[Path, Path]) -> None:
    first, second = twice
    edit(second / "environment.json", started="2001-01-01T00:00:00+00:00")
    edit(second / "evaluation.json", pacc=share(999, 1000))
    for given in ([first, second], [second, first]):
        found = read_runs(given)
        assert [run.path for run in found.runs] == [second]
        (left,) = found.left_out
        assert left.path == first and f"as {second}, which is newer" in left.reason


# --- where it is said ---


def test_what_is_left_out_is_on_the_page_and_under_the_tables(tmp_path: Path) -> None:
    bad = forged(tmp_path / f"bad{SUFFIX}", lambda v: v.update(format="<script>|x</script>"))
    forged(tmp_path / f"good{SUFFIX}", lambda v: None, name=STRONG)
    result = reported(tmp_path, out=tmp_path / "out")
    (line,) = [line for line in result.output.splitlines() if line.startswith("left out:")]
    assert line.startswith(f"left out: {bad}: this is not the compact record of a run.")
    assert line.count(str(bad)) == 1 and ".." not in line
    page = (tmp_path / "out/index.html").read_text(encoding="utf-8")
    assert f"<code>{bad}</code>: this is not the compact record" in page
    assert "&lt;script&gt;|x" in page and "<script>|x" not in page
    for layout in ("short", "long"):
        text = (tmp_path / f"out/table-{layout}.md").read_text(encoding="utf-8")
        assert "Left out (1):" in text and "\\<script\\>\\|x" in text


def test_nothing_is_said_where_nothing_is_left_out(tmp_path: Path) -> None:
    forged(tmp_path / f"good{SUFFIX}", lambda v: None, name=STRONG)
    reported(tmp_path, out=tmp_path / "out")
    for name in ("index.html", "table-short.md", "table-long.md"):
        assert "Left out" not in (tmp_path / "out" / name).read_text(encoding="utf-8")


def test_reasons_of_several_are_told_apart(tmp_path: Path) -> None:
    paths = [forged(tmp_path / f"{n}{SUFFIX}", lambda v: v.update(format="x")) for n in "ab"]
    with pytest.raises(RunError, match="no run to report") as caught:
        read_runs([tmp_path])
    said = str(caught.value)
    assert ".." not in said and [said.count(str(path)) for path in paths] == [1, 1]
