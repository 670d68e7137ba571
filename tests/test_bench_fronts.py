"""Points of a front are compared by the same regions, and by nothing else."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from qll.data.digits import verified_rows
from qll.reports.verdicts import Answer, Verification

ROOT = Path(__file__).parents[1]


@pytest.fixture
def fronts(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "bench")
    return importlib.import_module("fronts")


def asked(count: int, proved: set[int], vacuous: frozenset[int] = frozenset()) -> Verification:
    status = {True: "verified", False: "falsified"}
    return Verification(
        0.1,
        tuple(Answer(i, status[i in proved | vacuous], 0.0, i in vacuous) for i in range(count)),
    )


def test_of_all_images_the_papers_count(fronts: ModuleType) -> None:
    rows = verified_rows(10_000)
    assert len(set(rows.tolist())) == 100
    half = set(rows[:50].tolist())
    assert fronts.published_csat(asked(10_000, half)) == pytest.approx(50.0)
    others = set(range(10_000)) - set(rows.tolist())
    assert fronts.published_csat(asked(10_000, others)) == 0.0
    empty = frozenset(rows[50:75].tolist())  # of which the rule says nothing
    assert fronts.published_csat(asked(10_000, half, empty)) == pytest.approx(100 * 50 / 75)


def test_first_images_are_not_the_papers(fronts: ModuleType) -> None:
    assert fronts.published_csat(asked(1_000, set(range(1_000)))) is None


def test_as_many_as_the_paper_asked_are_the_papers(fronts: ModuleType) -> None:
    assert fronts.published_csat(asked(100, set(range(30)))) == pytest.approx(30.0)
    assert fronts.published_csat(asked(68, set(range(17)))) == pytest.approx(25.0)


def test_a_point_that_was_asked_about_other_regions_is_not_compared(fronts: ModuleType) -> None:
    worse = fronts.Point("t", "QLL 5", "alpha 0.5", 0, 90.0, 50.0, 100, 50.0)
    better = fronts.Point("t", "certified", "small-box", 0, 91.0, 60.0, 10_000, 55.0)
    other = replace(better, published=None, regions=1_000)
    assert better.beats(worse) and not worse.beats(better)
    assert not other.beats(worse) and not worse.beats(other) and not better.beats(other)
    head, _, *lines = fronts.table([worse, better]).splitlines()
    assert head.endswith("| on the front | certified is better |")
    assert [line.split(" | ")[-2:] for line in lines] == [["", "yes |"], ["yes", " |"]]
    (line,) = fronts.table([other]).splitlines()[2:]
    assert line.split(" | ")[-2:] == ["", " |"]
