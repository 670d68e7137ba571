"""Compact records: what a report needs of a run in a few kB, and the ones in the repository."""

from __future__ import annotations

import importlib
import json
import lzma
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import write_grid, write_run
from typer.testing import CliRunner

from qll.cli.main import build_app
from qll.errors import RunError
from qll.reports.compact import SUFFIX, compacted, read_compact
from qll.reports.paper import read_paper
from qll.reports.recording import differences, record_runs
from qll.reports.records import Answer, Verification, read_run, read_runs
from qll.reports.table_text import csv_text, markdown
from qll.reports.tables import build_table

ROOT = Path(__file__).parents[1]
SHARES = ("pacc", "cacc", "csec_self", "csec_qll", "chance")
MOST_BYTES = 10 * 2**20  # of everything below results/


def _record(runs: Path, out: Path) -> list[str]:
    return [item.state for item in record_runs([runs], out, replace=False)]


def test_tables_from_records_are_those_from_the_folders(tmp_path: Path) -> None:
    write_grid(tmp_path / "runs", seeds=2, epochs=3, pairs=2)
    states = _record(tmp_path / "runs", tmp_path / "records")
    assert set(states) <= {"new", "unfinished"} and "new" in states
    whole = read_runs([tmp_path / "runs"])
    finished = [run for run in whole.runs if run.state == "finished"]
    packed = read_runs([tmp_path / "records"])
    assert sorted(run.name for run in packed.runs) == sorted(run.name for run in finished)
    of_folders = build_table(type(whole)(tuple(finished), ()), None)
    of_records = build_table(packed, None)
    assert markdown(of_folders, "long") == markdown(of_records, "long")
    assert csv_text(of_folders) == csv_text(of_records)


def test_a_record_is_small_and_the_same_bytes_again(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "not-both", "dice", "qll:5", 0)
    _record(tmp_path / "run", tmp_path / "a")
    _record(tmp_path / "run", tmp_path / "b")
    (one,) = (tmp_path / "a").iterdir()
    (two,) = (tmp_path / "b").iterdir()
    assert one.read_bytes() == two.read_bytes()
    assert one.stat().st_size < 20_000


def test_times_stages_and_reasons_survive(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "not-both", "dice", "qll:5", 0)
    path = tmp_path / "run/verdicts-full.json"
    values = json.loads(path.read_text())
    values["verdicts"][3].update(status="unknown", stage="search", reason="out of time", nodes=7)
    values["verdicts"][4].update(status="verified", stage="trivial", vacuous=True)
    path.write_text(json.dumps(values))
    _record(tmp_path / "run", tmp_path / "records")
    held = read_compact(tmp_path / f"records/run{SUFFIX}")
    row = held.verdicts["verdicts-full.json"]["verdicts"][3]
    assert (row["status"], row["stage"], row["reason"], row["nodes"]) == (
        "unknown",
        "search",
        "out of time",
        7,
    )
    assert held.verdicts["verdicts-full.json"]["verdicts"][4]["vacuous"] is True
    assert held.config.get("data_dir") is None


def test_what_a_verdict_rests_on_survives(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "not-both", "dice", "qll:5", 0)
    path = tmp_path / "run/verdicts-full.json"
    values = json.loads(path.read_text())
    said = ["confirmed by the checker", "the prover's word", None]
    for row in values["verdicts"]:
        row["evidence"] = said[row["point"] % 3]
    path.write_text(json.dumps(values))
    _record(tmp_path / "run", tmp_path / "records")
    held = tmp_path / f"records/run{SUFFIX}"
    whole, packed = read_run(tmp_path / "run"), read_run(held)
    found = {v.epsilon: [a.evidence for a in v.answers] for v in packed.verifications}
    assert found == {v.epsilon: [a.evidence for a in v.answers] for v in whole.verifications}
    assert [said[k % 3] for k in range(100)] in found.values()
    assert [None] * 100 in found.values()  # of the other file, which says nothing of it
    assert compacted(read_compact(held)) == held.read_bytes()
    # a record from before it was kept has no such column, and is the same bytes still
    columns = json.loads(lzma.decompress(held.read_bytes()))["verdicts"]
    assert "evidence" in columns["verdicts-full.json"]
    assert "evidence" not in columns["verdicts-half.json"]


def test_a_run_that_was_made_again_is_compared(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "not-both", "dice", "qll:5", 0)
    assert _record(tmp_path / "run", tmp_path / "records") == ["new"]
    assert _record(tmp_path / "run", tmp_path / "records") == ["same"]
    path = tmp_path / "run/verdicts-full.json"
    values = json.loads(path.read_text())
    first = values["verdicts"][0]
    first["status"] = "unknown" if first["status"] != "unknown" else "verified"
    path.write_text(json.dumps(values))
    held = tmp_path / f"records/run{SUFFIX}"
    before = held.read_bytes()
    found = " ".join(differences(read_run(held), read_run(tmp_path / "run")))
    assert "CSat" in found or "unknown:" in found
    assert "region 0" in found
    command = ["record", str(tmp_path / "run"), "--out", str(tmp_path / "records")]
    result = CliRunner().invoke(build_app(), command)
    assert result.exit_code == 1 and "1 differs" in result.output
    assert held.read_bytes() == before
    result = CliRunner().invoke(build_app(), [*command, "--replace"])
    assert result.exit_code == 0 and "1 replaced" in result.output
    assert held.read_bytes() != before


def test_a_rule_without_epsilon_is_compared(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "not-both", "dice", "qll:5", 0)
    run = read_run(tmp_path / "run")
    held, made = (
        replace(run, verifications=(Verification(None, (Answer(0, status, 0.1),)),))
        for status in ("verified", "falsified")
    )
    assert "region 0 verified, now falsified" in list(differences(held, made))


def test_a_record_of_another_experiment_is_not_replaced(tmp_path: Path) -> None:
    write_run(tmp_path / "a/run", "not-both", "dice", "qll:5", 0)
    write_run(tmp_path / "b/run", "not-both", "dice", "qll:2", 0)
    _record(tmp_path / "a", tmp_path / "records")
    before = next((tmp_path / "records").iterdir()).read_bytes()
    (found,) = record_runs([tmp_path / "b"], tmp_path / "records", replace=True)
    assert found.state == "refused" and "another experiment" in " ".join(found.differences)
    assert next((tmp_path / "records").iterdir()).read_bytes() == before


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not xz",
        lzma.compress(b"{}"),
        lzma.compress(b'{"format": "qll run 9"}'),
        lzma.compress(b"{}") + b"more",
        lzma.compress(b"x" * 4096)[:-20],
    ],
)
def test_damaged_records_are_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / f"x{SUFFIX}"
    path.write_bytes(content)
    with pytest.raises(RunError, match="compact record"):
        read_compact(path)


def bench(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "bench")
    return importlib.import_module(name)


def test_the_records_of_the_repository_are_what_its_pages_say(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid_page, findings = bench("grid_page", monkeypatch), bench("findings", monkeypatch)
    published = shared / "paper/results.json"
    page = (ROOT / "docs/grid.md").read_text(encoding="utf-8")
    part = grid_page.page_part(ROOT / "results/paper", read_paper(published))
    assert page == grid_page.replaced(page, part), "run bench/grid_page.py --write docs/grid.md"
    page = (ROOT / "docs/findings.md").read_text(encoding="utf-8")
    made = findings.parts(ROOT / "results", published, shared / "corpus/verdicts.json")
    assert page == findings.filled(page, made), "run bench/findings.py --write docs/findings.md"
    fronts = bench("fronts", monkeypatch)
    page = (ROOT / "docs/fronts.md").read_text(encoding="utf-8")
    text = fronts.part(fronts.points_of([ROOT / name for name in fronts.RECORDS]))
    assert page == fronts.replaced(page, text), "run bench/fronts.py --write docs/fronts.md"


def test_records_do_not_contradict_themselves() -> None:
    """Whoever changes one figure by hand has to change the others that say the same."""
    for path in sorted((ROOT / "results").rglob(f"*{SUFFIX}")):
        held, run = read_compact(path), read_run(path)
        assert held.evaluation is not None and len(held.epochs) == run.config.epochs, path.name
        csat = held.evaluation["csat"] or {}
        for said in (*(held.evaluation[name] for name in SHARES), *csat.values()):
            if said is not None:
                assert 0 <= said["good"] <= said["total"], path.name
                assert said["share"] == pytest.approx(said["good"] / said["total"]), path.name
        if not run.config.validation:  # else the epochs' figures are of the images held out
            last = held.epochs[-1]["pacc"]
            assert last == pytest.approx(held.evaluation["pacc"]["share"], abs=1e-5), path.name
        for verification in run.verifications:
            assert verification.epsilon is not None
            for text, said in csat.items():
                if float(text) == pytest.approx(verification.epsilon, rel=1e-4):
                    proved = verification.share("verified")
                    own = said["good"], said["total"], said.get("vacuous", 0)
                    assert own == (proved.good, proved.total, proved.vacuous), path.name


def test_points_of_which_the_rule_says_nothing_are_left_out_of_every_share() -> None:
    """Or left in everywhere: a row that counts otherwise than its neighbours misleads."""
    counts: dict[str, set[int]] = {}
    for path in sorted((ROOT / "results/paper").glob(f"*{SUFFIX}")):
        run = read_run(path)
        assert run.evaluation is not None
        shares = (run.evaluation.cacc, run.evaluation.csec_self, run.evaluation.csec_qll)
        pair = f"{run.config.property}, {run.config.data}"
        counts.setdefault(pair, set()).update(s.vacuous for s in shares if s is not None)
    assert {pair for pair, found in counts.items() if len(found) != 1} == set()


def test_records_stay_small() -> None:
    files = [path for path in (ROOT / "results").rglob("*") if path.is_file()]
    assert any(path.name.endswith(SUFFIX) for path in files)
    assert sum(path.stat().st_size for path in files) < MOST_BYTES
