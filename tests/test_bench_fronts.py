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
    whole = asked(10_000, half)
    assert fronts.published_csat(whole, "mnist", False) == pytest.approx(50.0)
    turned = Verification(whole.epsilon, whole.answers[::-1])
    assert fronts.published_csat(turned, "mnist", False) == pytest.approx(50.0)
    others = set(range(10_000)) - set(rows.tolist())
    assert fronts.published_csat(asked(10_000, others), "fashion", False) == 0.0
    empty = frozenset(rows[50:75].tolist())  # of which the rule says nothing
    found = fronts.published_csat(asked(10_000, half, empty), "fashion", False)
    assert found == pytest.approx(100 * 50 / 75)


def test_other_images_are_not_the_papers(fronts: ModuleType) -> None:
    """However many there are: the first 100 test images are no more so than the first 1,000."""
    assert fronts.published_csat(asked(1_000, set(range(1_000))), "mnist", False) is None
    assert fronts.published_csat(asked(100, set(range(30))), "mnist", False) is None
    assert fronts.published_csat(asked(100, set(range(30))), "mnist", True) == pytest.approx(30.0)
    assert fronts.published_csat(asked(68, set(range(17))), "dice", False) == pytest.approx(25.0)


def test_points_are_means_and_compared_by_the_same_regions(fronts: ModuleType) -> None:
    qll = fronts.Trained(("t", "mnist"), "QLL 5", "alpha 0.5", 0, 90.0, 50.0, 100, 50.0, 0.1)
    made = fronts.Trained(("t", "mnist"), "certified", "bound", 0, 92.0, 70.0, 10_000, 70.0, 0.1)
    lucky, other = replace(made, seed=1, pacc=95.0), replace(made, seed=1, pacc=85.0)
    first = replace(other, regions=1_000, published=None)
    alone = fronts.Point((qll,))
    assert fronts.Point((made,)).beats(alone) and not alone.beats(fronts.Point((made,)))
    assert fronts.Point((made, lucky)).beats(alone)
    assert not fronts.Point((made, other)).beats(alone)  # 88.5 on the mean, whatever one seed has
    assert fronts.Point((made, first)).beats(alone)  # by the seed that can be compared
    assert not fronts.Point((first,)).beats(alone) and not alone.beats(fronts.Point((first,)))
    head, _, *lines = fronts.table([fronts.Point((made, first)), alone]).splitlines()
    assert head.endswith("| CSat, all that were asked | on the front | certified is better |")
    ends = [line.split(" | ")[4:] for line in lines]
    assert ends == [
        ["88.5 ± 4.9", "70.0 (seed 0)", "70.0 % of 1,000; 70.0 % of 10,000", "yes", " |"],
        ["90.0", "50.0", "50.0 % of 100", "", "yes |"],
    ]
