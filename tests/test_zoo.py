"""The zoo: what its networks' cards say is checked here, and no damage goes unnoticed."""

from __future__ import annotations

import json
import lzma
import shlex
import shutil
import zipfile
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner
from zoo_copies import (
    CLOSED,
    KEPT,
    MOST_BYTES,
    ROOT,
    SMALL,
    copied,
    edit_card,
    failures_of_closed,
    keep_points,
    list_regions,
    with_files,
)

import qll
from qll.audit import read_claim
from qll.cli.main import build_app
from qll.errors import InputError
from qll.networks.onnx_writer import onnx_bytes
from qll.training.config import resolve
from qll.zoo.archive import SUFFIX, read_hashes
from qll.zoo.card import card_text, read_card
from qll.zoo.check import check, regions_with_a_claim
from qll.zoo.recipe import recipe_of
from qll.zoo.shelf import names, zoo


def test_every_card_is_read_and_says_what_its_files_say() -> None:
    assert names()
    for name in names():
        entry = qll.zoo(name)
        assert entry.card.name == name
        assert read_card(entry.path) == entry.card
        assert entry.property.is_closed == entry.card.closed
        assert entry.property.specification.outputs in (None, entry.network.output_size)
        assert len(read_hashes(entry)) == (
            entry.card.proved.verified + entry.card.proved.falsified + entry.card.proved.unknown
        )
    total = sum(path.stat().st_size for path in (ROOT / "zoo").rglob("*") if path.is_file())
    assert total < MOST_BYTES


def test_the_page_says_what_the_cards_say() -> None:
    text = (ROOT / "docs" / "zoo.md").read_text(encoding="utf-8").replace(" %", "%")
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| `")]
    found = {row[0].strip("| `"): row[-2:] for row in rows}
    assert set(names()) <= set(found)  # beside them the files of a folder
    for name in names():
        card = zoo(name).card
        share = f"{card.proved.share:.1%} of {card.proved.meant:,}"
        assert found[name][0].startswith(card.figure), name
        assert found[name][1] == f"{card.proved.status if card.closed else share} |", name


def test_a_network_is_checked_here(tmp_path: Path) -> None:
    found = check(copied(tmp_path), sample=2, seed=0)
    assert found.failures == []
    assert found.confirmed == {"verified": KEPT}
    assert found.proved == {"verified": 2}


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_all_networks_are_checked(name: str) -> None:
    found = check(zoo(name), sample=5, seed=0)
    assert found.failures == []
    assert sum(found.confirmed.values()) > 0


def test_a_rule_without_points_is_checked_here() -> None:
    entry = qll.zoo(CLOSED)
    assert "R2 0.869, verified on the whole domain" in repr(entry)
    found = check(entry)
    assert (found.failures, found.confirmed, found.proved) == ([], {"verified": 1}, {"verified": 1})


def test_whoever_swaps_files_of_a_rule_without_points_is_noticed(tmp_path: Path) -> None:
    def network(place: Path) -> None:
        """Another network, which the card names."""
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))
        data = onnx_bytes(model.eval(), input_shape=(2,))
        (place / "network.onnx").write_bytes(data)
        edit_card(place, network_sha256=sha256(data).hexdigest())

    def rule(place: Path) -> None:
        """A stronger one, with the parameters that the card says."""
        text = (place / "rule.qll").read_text(encoding="utf-8").replace("<= 0.3)", "<= 0.1)")
        (place / "rule.qll").write_text(text, encoding="utf-8")

    def parameter(place: Path) -> None:
        edit_card(place, parameters={"sine": 0.0023, "strength": 1.0})

    def evidence(place: Path) -> None:
        with zipfile.ZipFile(ROOT / "zoo" / SMALL / "certificates.zip") as archive:
            other = archive.read("00000.qllcert")
        with_files(place, lambda files: files.update({"00000.qllcert": other}))

    def none(place: Path) -> None:
        with_files(place, dict.clear)

    def twice(place: Path) -> None:
        with_files(place, lambda files: files.update({"00001.qllcert": files["00000.qllcert"]}))

    def many(place: Path) -> None:
        """As if more had been proved."""
        line = lzma.decompress((place / "hashes.xz").read_bytes()).decode()
        rows = [line.replace("0 ", f"{k} ", 1) for k in range(10)]
        (place / "hashes.xz").write_bytes(lzma.compress("".join(rows).encode()))
        proved = read_card(place).proved.model_copy(update={"verified": 10})
        edit_card(place, proved=proved)

    def points(place: Path) -> None:
        edit_card(place, closed=False)

    for change, said in {
        network: "00000.qllcert: NOT CONFIRMED",
        rule: "NOT CONFIRMED: not what the claim says: line",
        parameter: "the card's parameters",
        evidence: "00000.qllcert: NOT CONFIRMED",
        none: "region 0: its certificate is missing",
        twice: "a second certificate of region 0",
        many: "has one region, hashes.xz lists 10",
        points: "the card says a rule of data points",
    }.items():
        failures = failures_of_closed(tmp_path / change.__name__, change)
        assert any(said in line for line in failures), (change.__name__, failures)


def test_a_run_is_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed rule with a probability in it: certificates quote it as such, not as a logit."""
    monkeypatch.chdir(tmp_path)
    rule = "parameter p: probability = 0.6\nforall x in box(0, 1): y[0] >= p\n"
    Path("likely.qll").write_text(rule)
    run = tmp_path / "run"
    run.mkdir()
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    nn.init.constant_(model[2].weight, 0.5)
    nn.init.constant_(model[2].bias, 1.0)
    (run / "model.onnx").write_bytes(onnx_bytes(model.eval(), input_shape=(2,)))
    config = resolve("likely.qll", "own.toml", options={"epochs": 3}, settings=["p=0.7"])
    (run / "config.json").write_text(config.model_dump_json())
    (run / "evaluation.json").write_text(json.dumps({"pacc": None, "r2": 0.5}))
    command = "verify likely.qll --network run/model.onnx --set p=0.7 --json v.json --certificate c"
    assert CliRunner().invoke(build_app(), command.split()).exit_code == 0
    command = "zoo --folder shelf add mine --run run --verdicts v.json --certificates c"
    Path("shelf").mkdir()
    added = CliRunner().invoke(build_app(), command.split(), catch_exceptions=False)
    assert added.exit_code == 0
    entry = zoo("mine", folder="shelf")
    assert entry.card.closed and entry.card.r2 == 0.5 and entry.card.data == "own"
    assert entry.card.parameters == {"p": 0.7}
    assert entry.card.recipe == (
        "qll train likely.qll --data own.toml --method attack --epochs 3 --seed 0 --set p=0.7"
    )
    with zipfile.ZipFile(entry.certificates) as archive:
        assert archive.namelist() == ["00000.qllcert"]
    found = check(entry)
    assert (found.failures, found.confirmed) == ([], {"verified": 1})
    # the same network as one of a cycle, which does not know its own recipe
    cycle = tmp_path / "cycle"
    shutil.copytree(run, cycle / "round-01")
    shutil.copy(run / "model.onnx", cycle)
    (cycle / "round-01" / "environment.json").write_text("{}")
    held = {"asked": {"train": json.loads(config.model_dump_json())}, "ending": "met",
            "accuracy": {"measure": "PAcc"}, "rounds": [{"number": 1, "pacc": 0.9}]}  # fmt: skip
    (cycle / "cycle.json").write_text(json.dumps(held))
    by_cycle = command.replace("--run run", "--run cycle").replace("mine", "cycled").split()
    with pytest.raises(InputError, match="how this cycle was run"):
        CliRunner().invoke(build_app(), by_cycle, catch_exceptions=False)
    steps = ["--recipe", "qll train a", "--recipe", "qll cycle b"]
    CliRunner().invoke(build_app(), [*by_cycle, *steps], catch_exceptions=False)
    card = zoo("cycled", folder="shelf").card
    assert (card.accuracy, card.r2, card.recipe) == (0.9, None, "qll train a\nqll cycle b")
    # evidence of another rule, and a verdict without any
    rewritten = Path("c/claim.toml").read_text()
    Path("c/claim.toml").write_text(rewritten.replace("0.7", "0.6"))
    with pytest.raises(InputError, match="about another rule"):
        CliRunner().invoke(build_app(), command.split(), catch_exceptions=False)
    Path("c/claim.toml").write_text(rewritten)
    Path("c/00000.qllcert").unlink()
    with pytest.raises(InputError, match="nothing is proved here"):
        CliRunner().invoke(build_app(), command.split(), catch_exceptions=False)
    assert check(zoo("mine", folder="shelf"), sample=0).failures == []  # the one before
    with pytest.raises(InputError, match="cannot be called that"):
        CliRunner().invoke(
            build_app(), command.replace("mine", "../mine").split(), catch_exceptions=False
        )


def test_a_recipe_says_all_that_was_set() -> None:
    settings = ["stages=[{share = 0.5, logic = 'baseline'}, {}]", "options.size=0.5", "weight=2"]
    config = resolve("not-both", "dice", options={"method": "small-box"}, settings=settings)
    words = shlex.split(recipe_of(config))
    again = [words[k + 1] for k, word in enumerate(words) if word == "--set"]
    assert resolve("not-both", "dice", options={"method": "small-box"}, settings=again) == config
    unset = resolve("not-both", "own.toml").model_copy(update={"enough": None})
    with pytest.raises(InputError, match="one command does not say"):
        recipe_of(unset)


def test_another_network_is_noticed(tmp_path: Path) -> None:
    def change(place: Path) -> None:
        path = place / "network.onnx"
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(bytes(data))

    found = check(copied(tmp_path, change), sample=0)
    assert any("not the network" in line for line in found.failures)


def test_another_rule_is_noticed(tmp_path: Path) -> None:
    def change(place: Path) -> None:
        path = place / "rule.qll"
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace("0.01568627450980392", "0.5"), encoding="utf-8")

    found = check(copied(tmp_path, change), sample=0)
    assert found.confirmed == {} and "the card's parameters" in found.failures[0]
    assert all("NOT CONFIRMED" in line for line in found.failures[1 : KEPT + 1])


def test_another_missing_or_doubled_certificate_is_noticed(tmp_path: Path) -> None:
    def swap(files: dict[str, bytes]) -> None:
        del files["00007.qllcert"]
        files["00003.qllcert"] = files["00004.qllcert"]

    found = check(copied(tmp_path, lambda place: with_files(place, swap)), sample=0)
    assert "region 7: its certificate is missing" in found.failures
    assert "region 3: its certificate is missing" in found.failures


def test_a_card_that_says_more_is_noticed(tmp_path: Path) -> None:
    def change(place: Path) -> None:
        card = read_card(place)
        more = card.proved.model_copy(update={"verified": card.proved.verified + 1})
        text = card_text(card.model_copy(update={"proved": more}))
        (place / "card.toml").write_text(text, encoding="utf-8")

    found = check(copied(tmp_path, change), sample=0)
    assert any(f"the card says {KEPT + 1} verified" in line for line in found.failures)


def test_a_violation_cannot_pass_for_a_region_of_which_nothing_is_said(tmp_path: Path) -> None:
    def change(place: Path) -> None:
        with_files(place, lambda files: files.pop("00002.qllcert") and None)
        list_regions(place, lambda lines: [*lines[:2], "2 verified", *lines[3:]], vacuous=1)

    found = check(copied(tmp_path, change), sample=0)
    assert any("region 2: listed as verified without" in line for line in found.failures)


def test_regions_of_which_nothing_is_said_need_no_certificate(tmp_path: Path) -> None:
    """Trousers and bags: the rule is about the other classes."""
    shutil.copytree(ROOT / "zoo" / "fashion-clothing", tmp_path / "fashion-clothing")
    entry = zoo("fashion-clothing", folder=tmp_path)
    listed = read_hashes(entry)
    bare = [row for row in range(100) if listed[row] == ("verified", "")]
    meant = [row for row in range(100) if row not in bare]
    with zipfile.ZipFile(entry.certificates) as archive:
        archive.extractall(tmp_path / "held", members=["claim.toml", "points.npy"])
    held = read_claim(tmp_path / "held" / "claim.toml")
    classes = held.labels or ()
    assert len(bare) == 25

    def said(rows: list[int]) -> list[int]:
        x = held.points[rows].reshape(-1, 1, 28, 28)
        labels = np.array([classes[row][0] for row in rows])
        return regions_with_a_claim(entry, (x, labels), rows)

    assert said(bare) == [] and said(meant) == meant


def test_an_empty_shelf_proves_nothing(tmp_path: Path) -> None:
    """A network that nobody proved anything of, by a card that calls its one region vacuous."""

    def closed(place: Path) -> None:
        with_files(place, dict.clear)
        list_regions(place, lambda lines: ["0 verified"], vacuous=1)

    assert failures_of_closed(tmp_path / "closed", closed) == [
        "no certificate is confirmed: nothing is proved here"
    ]

    def few(place: Path) -> None:
        def keep(files: dict[str, bytes]) -> None:
            for name in [name for name in files if name.endswith(SUFFIX)][1:]:
                del files[name]
            keep_points(files, 1)

        with_files(place, keep)

    found = check(copied(tmp_path, few), sample=0)
    assert any(f"the archive has 1 of {KEPT} regions" in line for line in found.failures)


def test_what_is_not_seen_is_said(tmp_path: Path) -> None:
    def more(place: Path) -> None:
        made_up = [f"{row} verified {'ab' * 32}" for row in range(KEPT, 200)]
        list_regions(place, lambda lines: lines + made_up, verified=200)

    found = check(copied(tmp_path / "short", more), sample=0)
    assert any(f"the archive has {KEPT} of 200 regions" in line for line in found.failures)
    shown = CliRunner().invoke(
        build_app(), ["zoo", "check", "mnist-robust", "--sample", "0"], catch_exceptions=False
    )
    assert shown.exit_code == 0
    assert "of 9,900 of 10,000 regions the zoo has a verdict and the hash" in shown.output


def test_a_card_of_another_network_is_noticed(tmp_path: Path) -> None:
    found = check(copied(tmp_path, lambda place: edit_card(place, name="other")), sample=0)
    assert found.failures == ["the card is of 'other'"]


def test_points_cannot_be_left_out(tmp_path: Path) -> None:
    """A claim without points would take a certificate of any."""

    def closed(files: dict[str, bytes]) -> None:
        text = "property = '''forall x in box(0, 1): y[0] >= 0'''"
        files["claim.toml"] = f"{text}\nnetwork = 'sha256:{'0' * 64}'\n".encode()

    with pytest.raises(InputError, match="zoo is damaged"):
        check(copied(tmp_path, lambda place: with_files(place, closed)), sample=0)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("hashes.xz", b"no xz"),
        ("hashes.xz", lzma.compress(b"0 verified\n0 verified\n")),
        ("hashes.xz", lzma.compress(b"0 verified\n2 verified\n")),
        ("hashes.xz", lzma.compress(b"0 falsified\n")),
        ("hashes.xz", lzma.compress(b"0 proved\n")),
        ("hashes.xz", lzma.compress(b"0 verified some\n")),
        ("hashes.xz", lzma.compress(b"+0 verified\n")),
        ("certificates.zip", b"no zip"),
        ("card.toml", b"name = 1"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, file: str, content: bytes) -> None:
    with pytest.raises(InputError, match=r"zoo is damaged|card of a network") as caught:
        check(copied(tmp_path, lambda place: (place / file).write_bytes(content) and None))
    assert file in caught.value.where


def test_a_missing_network_and_a_torn_archive_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="zoo is damaged"):
        check(copied(tmp_path / "none", lambda place: (place / "network.onnx").unlink()))

    def torn(place: Path) -> None:
        path = place / "certificates.zip"
        shutil.copy(ROOT / "zoo" / SMALL / path.name, path)  # compressed, as copied's is not
        data = path.read_bytes()
        with zipfile.ZipFile(path) as archive:
            item = archive.infolist()[0]
        begin = item.header_offset + 30 + len(item.filename)
        path.write_bytes(data[:begin] + b"\xff" * 8 + data[begin + 8 :])

    with pytest.raises(InputError, match="zoo is damaged"):
        check(copied(tmp_path / "torn", torn))


def test_an_archive_cannot_write_elsewhere(tmp_path: Path) -> None:
    def escape(files: dict[str, bytes]) -> None:
        files["../outside"] = b""

    with pytest.raises(InputError, match="zoo is damaged"):
        check(copied(tmp_path, lambda place: with_files(place, escape)))
    assert not (tmp_path / "outside").exists()


def test_one_bad_card_does_not_hide_the_others(tmp_path: Path) -> None:
    copied(tmp_path)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "card.toml").write_text("name = 1")
    shown = CliRunner().invoke(build_app(), ["zoo", "--folder", str(tmp_path)])
    assert SMALL in shown.output and "card of a network cannot be read" in shown.output
    assert shown.exit_code == 12
    (tmp_path / "empty").mkdir()
    none = CliRunner().invoke(build_app(), ["zoo", "--folder", str(tmp_path / "empty")])
    assert isinstance(none.exception, InputError)
    for name in (None, 3, Path("pendulum")):
        with pytest.raises(InputError, match="there is no network"):
            qll.zoo(name)  # type: ignore[arg-type]


def test_the_command_lists_and_checks(tmp_path: Path) -> None:
    listed = CliRunner().invoke(build_app(), ["zoo"])
    assert listed.exit_code == 0 and SMALL in listed.output
    wrong = CliRunner().invoke(build_app(), ["zoo", "check", "dice-exactly"])
    assert wrong.exit_code != 0
    assert isinstance(wrong.exception, InputError) and SMALL in wrong.exception.fix
    empty = CliRunner().invoke(build_app(), ["zoo", "--folder", str(tmp_path / "none")])
    assert isinstance(empty.exception, InputError) and "QLL_ZOO" in empty.exception.fix


def test_an_installed_package_finds_the_zoo_of_a_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import qll.zoo.shelf

    place = tmp_path / "lib" / "python3" / "site-packages" / "qll" / "zoo" / "shelf.py"
    monkeypatch.setattr(qll.zoo.shelf, "__file__", str(place))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="not here"):
        names()
    monkeypatch.chdir(ROOT)
    assert SMALL in names()
