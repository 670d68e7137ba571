"""A card of the zoo against the data, and against a card that would be believed."""

from __future__ import annotations

import dataclasses
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner
from zoo_copies import (
    CLOSED,
    DICE,
    KEPT,
    ROOT,
    SMALL,
    copied,
    edit_card,
    list_regions,
    whole,
    with_points,
)

from qll.audit import read_claim
from qll.cli.main import build_app
from qll.data import load as load_data
from qll.errors import InputError
from qll.verify.verdict import Verdict
from qll.zoo.against import compare_data, load_named
from qll.zoo.archive import read_hashes
from qll.zoo.card import read_card
from qll.zoo.check import check
from qll.zoo.shelf import zoo


def test_with_the_data_more_is_seen(tmp_path: Path, shared: Path) -> None:
    """Accuracy, points, labels and the number of regions against the test set; and the sample is of
    all regions, so that a verdict without evidence is found out."""
    data = load_data("dice", str(shared / "data"))
    assert len(data.test) == DICE
    assert check(whole(tmp_path / "as it is"), data=data, sample=3, seed=0).failures == []

    def failures(name: str, change: Callable[[Path], None]) -> list[str]:
        return check(whole(tmp_path / name, change), data=data, sample=DICE, seed=0).failures

    (said,) = failures("accuracy", lambda place: edit_card(place, accuracy=0.99))
    assert said.startswith("the card says an accuracy of 99.00%, on this test set it is 94.6")

    def moved(points: np.ndarray) -> None:
        points[3, 7] += 1 / 255

    said_of_points = failures("points", lambda place: with_points(place, moved))
    assert "points of the archive are not the test set's: 3" in said_of_points

    def forged(lines: list[str]) -> list[str]:  # of regions that are verified
        return [f"{k} falsified {'ab' * 32}" if k == 5 else line for k, line in enumerate(lines)]

    said_of_verdict = failures(
        "verdict", lambda place: list_regions(place, forged, verified=DICE - 1, falsified=1)
    )
    assert "region 5: listed as falsified, now verified" in said_of_verdict

    short = check(copied(tmp_path / "short"), data=data, sample=0).failures
    assert f"the zoo lists {KEPT} regions, the test set has {DICE} images" in short


def test_a_label_that_is_not_the_data_s_is_noticed(tmp_path: Path, shared: Path) -> None:
    entry = zoo("mnist-robust")
    with zipfile.ZipFile(entry.certificates) as archive:
        for name in ("claim.toml", "points.npy"):
            archive.extract(name, tmp_path)
    claim = read_claim(tmp_path / "claim.toml")
    assert claim.labels is not None
    data = load_data("mnist", str(shared / "data"))
    assert compare_data(entry, claim, len(data.test), data) == []
    other = list(claim.labels)
    other[2] = ((other[2][0] + 1) % 10,)
    forged = dataclasses.replace(claim, labels=tuple(other))
    assert compare_data(entry, forged, len(data.test), data) == [
        "labels of the archive are not the test set's: 2"
    ]


def test_a_card_cannot_bring_its_own_data(tmp_path: Path, shared: Path) -> None:
    """Neither a file, with which it would agree, nor code, which would run here."""
    code = tmp_path / "brought.py"
    code.write_text("raise SystemExit(0)\n")
    for said in ("brought:factory", "os:abort", str(tmp_path / "own.npz"), "no-such-set"):
        place = tmp_path / str(abs(hash(said)))
        entry = whole(place, lambda folder, said=said: edit_card(folder, data=said))
        with pytest.raises(InputError, match="are not published ones"):
            load_named(entry, shared / "data")
    with pytest.raises(InputError, match="no such folder"):
        load_named(zoo(SMALL), tmp_path / "nowhere")


def test_a_card_cannot_forbid_the_proof(tmp_path: Path) -> None:
    def hurried(place: Path) -> None:
        edit_card(place, timeout=1e-9)

    assert check(copied(tmp_path / "hurried", hurried), sample=2, seed=0).proved == {"verified": 2}
    for timeout in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="card of a network"):
            copied(tmp_path / str(timeout), lambda p, t=timeout: edit_card(p, timeout=t))


def test_what_cannot_be_decided_again_is_not_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: object, **__: object) -> list[Verdict]:
        return [Verdict("unknown", "bounds", reason="timeout")] * 2

    monkeypatch.setattr("qll.verify.api.verify", unknown)
    found = check(copied(tmp_path), sample=2, seed=0)
    assert found.proved == {"unknown": 2}
    assert len(found.failures) == 2 and "a larger --timeout" in found.failures[0]


def test_a_violation_beyond_the_archive_cannot_pass_for_silence(
    tmp_path: Path, shared: Path
) -> None:
    """Of 9,900 regions there is no point in the archive; the data have them."""
    name = "mnist-robust"
    shutil.copytree(ROOT / "zoo" / name, tmp_path / name)
    hidden = read_card(tmp_path / name).proved
    listed = read_hashes(zoo(name))
    turned = [row for row, held in listed.items() if row >= 100 and held[0] == "falsified"]

    def silent(lines: list[str]) -> list[str]:
        return [f"{k} verified" if k in set(turned) else line for k, line in enumerate(lines)]

    list_regions(tmp_path / name, silent, verified=hidden.verified + len(turned),
          falsified=hidden.falsified - len(turned), vacuous=len(turned))  # fmt: skip
    entry = zoo(name, folder=tmp_path)
    unseen = check(entry, sample=0)
    assert unseen.failures == [] and unseen.vacuous == len(turned)
    data = load_named(entry, shared / "data")
    found = check(entry, data=data, sample=0)
    assert found.vacuous == 0 and len(found.failures) == len(turned)
    assert found.failures[0].startswith(f"region {turned[0]}: listed as verified without")


def test_the_name_of_a_shipped_rule_is_not_given_to_another(tmp_path: Path) -> None:
    found = check(copied(tmp_path, lambda place: edit_card(place, rule="not-both")), sample=0)
    assert found.failures == ["the card says 'not-both', rule.qll is another rule"]


def test_r2_is_not_said_of_classes(tmp_path: Path, shared: Path) -> None:
    data = load_named(zoo(SMALL), shared / "data")
    entry = whole(tmp_path, lambda place: edit_card(place, accuracy=None, r2=0.999))
    assert check(entry, data=data, sample=0).failures == [
        "the card says R2 0.999, of a prediction of classes"
    ]


def test_a_rule_without_points_has_nothing_to_compare(tmp_path: Path) -> None:
    shown = CliRunner().invoke(build_app(), ["zoo", "check", CLOSED, "--data-dir", str(tmp_path)])
    assert isinstance(shown.exception, InputError)
    assert "depends on no data point" in shown.exception.what
