"""The zoo: what its networks' cards say is checked here, and no damage goes unnoticed."""

from __future__ import annotations

import dataclasses
import io
import json
import lzma
import shlex
import shutil
import zipfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import qll
from qll.audit import read_claim
from qll.cli.main import build_app
from qll.data import load as load_data
from qll.errors import InputError
from qll.networks.onnx_writer import onnx_bytes
from qll.training.config import resolve
from qll.verify.verdict import Verdict
from qll.zoo.against import compare_data, load_named
from qll.zoo.archive import SUFFIX, read_hashes
from qll.zoo.card import card_text, read_card
from qll.zoo.check import check, regions_with_a_claim
from qll.zoo.recipe import recipe_of
from qll.zoo.shelf import ProvedNetwork, names, zoo

ROOT = Path(__file__).parents[1]
SMALL = "dice-exactly-one"
CLOSED = "pendulum"  # a rule without data points
KEPT = 9
DICE = 68  # test images
MOST_BYTES = 25 * 2**20


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
    found = check(_copied(tmp_path), sample=2, seed=0)
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


def _of_closed(tmp_path: Path, change: Callable[[Path], None]) -> list[str]:
    place = tmp_path / CLOSED
    shutil.copytree(ROOT / "zoo" / CLOSED, place)
    change(place)
    return check(zoo(CLOSED, folder=tmp_path), sample=0).failures


def _edit_card(place: Path, **update: object) -> None:
    card = read_card(place).model_copy(update=update)
    (place / "card.toml").write_text(card_text(card), encoding="utf-8")


def test_whoever_swaps_files_of_a_rule_without_points_is_noticed(tmp_path: Path) -> None:
    def network(place: Path) -> None:
        """Another network, which the card names."""
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))
        data = onnx_bytes(model.eval(), input_shape=(2,))
        (place / "network.onnx").write_bytes(data)
        _edit_card(place, network_sha256=sha256(data).hexdigest())

    def rule(place: Path) -> None:
        """A stronger one, with the parameters that the card says."""
        text = (place / "rule.qll").read_text(encoding="utf-8").replace("<= 0.3)", "<= 0.1)")
        (place / "rule.qll").write_text(text, encoding="utf-8")

    def parameter(place: Path) -> None:
        _edit_card(place, parameters={"sine": 0.0023, "strength": 1.0})

    def evidence(place: Path) -> None:
        with zipfile.ZipFile(ROOT / "zoo" / SMALL / "certificates.zip") as archive:
            other = archive.read("00000.qllcert")
        _with_files(place, lambda files: files.update({"00000.qllcert": other}))

    def none(place: Path) -> None:
        _with_files(place, dict.clear)

    def twice(place: Path) -> None:
        _with_files(place, lambda files: files.update({"00001.qllcert": files["00000.qllcert"]}))

    def many(place: Path) -> None:
        """As if more had been proved."""
        line = lzma.decompress((place / "hashes.xz").read_bytes()).decode()
        rows = [line.replace("0 ", f"{k} ", 1) for k in range(10)]
        (place / "hashes.xz").write_bytes(lzma.compress("".join(rows).encode()))
        proved = read_card(place).proved.model_copy(update={"verified": 10})
        _edit_card(place, proved=proved)

    def points(place: Path) -> None:
        _edit_card(place, closed=False)

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
        failures = _of_closed(tmp_path / change.__name__, change)
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


def _copied(tmp_path: Path, change: Callable[[Path], None] = lambda place: None) -> ProvedNetwork:
    """The first few regions of one network of the zoo, changed: all of them take a minute."""
    place = tmp_path / SMALL
    shutil.copytree(ROOT / "zoo" / SMALL, place)
    card = read_card(place)
    few = card.proved.model_copy(update={"verified": KEPT})
    (place / "card.toml").write_text(
        card_text(card.model_copy(update={"proved": few})), encoding="utf-8"
    )
    lines = lzma.decompress((place / "hashes.xz").read_bytes()).splitlines(keepends=True)
    (place / "hashes.xz").write_bytes(lzma.compress(b"".join(lines[:KEPT])))

    def keep(files: dict[str, bytes]) -> None:
        for name in [name for name in files if name.endswith(SUFFIX)]:
            if int(name.removesuffix(SUFFIX)) >= KEPT:
                del files[name]
        _keep_points(files, KEPT)

    _with_files(place, keep)
    change(place)
    return zoo(SMALL, folder=tmp_path)


def _keep_points(files: dict[str, bytes], count: int) -> None:
    content = io.BytesIO()
    np.save(content, np.load(io.BytesIO(files["points.npy"]))[:count])
    files["points.npy"] = content.getvalue()
    lines = files["claim.toml"].decode().splitlines()
    marked = [k for k, line in enumerate(lines) if line.startswith("labels = ")]
    for k in marked:
        lines[k] = f"labels = {json.loads(lines[k].removeprefix('labels = '))[:count]}"
    files["claim.toml"] = "\n".join(lines).encode()


def _list(place: Path, change: Callable[[list[str]], list[str]], **counts: int) -> None:
    """``hashes.xz`` with other lines, and the counts on the card to go with them."""
    lines = lzma.decompress((place / "hashes.xz").read_bytes()).decode().splitlines()
    text = "".join(f"{line}\n" for line in change(lines))
    (place / "hashes.xz").write_bytes(lzma.compress(text.encode()))
    _edit_card(place, proved=read_card(place).proved.model_copy(update=counts))


def _with_files(place: Path, change: Callable[[dict[str, bytes]], None]) -> None:
    path = place / "certificates.zip"
    with zipfile.ZipFile(path) as archive:
        files = {item: archive.read(item) for item in archive.namelist()}
    change(files)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    path.write_bytes(content.getvalue())


def test_another_network_is_noticed(tmp_path: Path) -> None:
    def change(place: Path) -> None:
        path = place / "network.onnx"
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(bytes(data))

    found = check(_copied(tmp_path, change), sample=0)
    assert any("not the network" in line for line in found.failures)


def test_another_rule_is_noticed(tmp_path: Path) -> None:
    def change(place: Path) -> None:
        path = place / "rule.qll"
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace("0.01568627450980392", "0.5"), encoding="utf-8")

    found = check(_copied(tmp_path, change), sample=0)
    assert found.confirmed == {} and "the card's parameters" in found.failures[0]
    assert all("NOT CONFIRMED" in line for line in found.failures[1 : KEPT + 1])


def test_another_missing_or_doubled_certificate_is_noticed(tmp_path: Path) -> None:
    def swap(files: dict[str, bytes]) -> None:
        del files["00007.qllcert"]
        files["00003.qllcert"] = files["00004.qllcert"]

    found = check(_copied(tmp_path, lambda place: _with_files(place, swap)), sample=0)
    assert "region 7: its certificate is missing" in found.failures
    assert "region 3: its certificate is missing" in found.failures


def test_a_card_that_says_more_is_noticed(tmp_path: Path) -> None:
    def change(place: Path) -> None:
        card = read_card(place)
        more = card.proved.model_copy(update={"verified": card.proved.verified + 1})
        text = card_text(card.model_copy(update={"proved": more}))
        (place / "card.toml").write_text(text, encoding="utf-8")

    found = check(_copied(tmp_path, change), sample=0)
    assert any(f"the card says {KEPT + 1} verified" in line for line in found.failures)


def test_a_violation_cannot_pass_for_a_region_of_which_nothing_is_said(tmp_path: Path) -> None:
    def change(place: Path) -> None:
        _with_files(place, lambda files: files.pop("00002.qllcert") and None)
        _list(place, lambda lines: [*lines[:2], "2 verified", *lines[3:]], vacuous=1)

    found = check(_copied(tmp_path, change), sample=0)
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
        _with_files(place, dict.clear)
        _list(place, lambda lines: ["0 verified"], vacuous=1)

    assert _of_closed(tmp_path / "closed", closed) == [
        "no certificate is confirmed: nothing is proved here"
    ]

    def few(place: Path) -> None:
        def keep(files: dict[str, bytes]) -> None:
            for name in [name for name in files if name.endswith(SUFFIX)][1:]:
                del files[name]
            _keep_points(files, 1)

        _with_files(place, keep)

    found = check(_copied(tmp_path, few), sample=0)
    assert any(f"the archive has 1 of {KEPT} regions" in line for line in found.failures)


def test_what_is_not_seen_is_said(tmp_path: Path) -> None:
    def more(place: Path) -> None:
        made_up = [f"{row} verified {'ab' * 32}" for row in range(KEPT, 200)]
        _list(place, lambda lines: lines + made_up, verified=200)

    found = check(_copied(tmp_path / "short", more), sample=0)
    assert any(f"the archive has {KEPT} of 200 regions" in line for line in found.failures)
    shown = CliRunner().invoke(
        build_app(), ["zoo", "check", "mnist-robust", "--sample", "0"], catch_exceptions=False
    )
    assert shown.exit_code == 0
    assert "of 9,900 of 10,000 regions the zoo has a verdict and the hash" in shown.output


def _with_points(place: Path, change: Callable[[np.ndarray], None]) -> None:
    def edit(files: dict[str, bytes]) -> None:
        points, content = np.load(io.BytesIO(files["points.npy"])), io.BytesIO()
        change(points)
        np.save(content, points)
        files["points.npy"] = content.getvalue()

    _with_files(place, edit)


def test_with_the_data_more_is_seen(tmp_path: Path, shared: Path) -> None:
    """Accuracy, points, labels and the number of regions against the test set; and the sample is of
    all regions, so that a verdict without evidence is found out."""
    data = load_data("dice", str(shared / "data"))
    assert len(data.test) == DICE
    assert check(_whole(tmp_path / "as it is"), data=data, sample=3, seed=0).failures == []

    def failures(name: str, change: Callable[[Path], None]) -> list[str]:
        return check(_whole(tmp_path / name, change), data=data, sample=DICE, seed=0).failures

    (said,) = failures("accuracy", lambda place: _edit_card(place, accuracy=0.99))
    assert said.startswith("the card says an accuracy of 99.00%, on this test set it is 94.6")

    def moved(points: np.ndarray) -> None:
        points[3, 7] += 1 / 255

    said_of_points = failures("points", lambda place: _with_points(place, moved))
    assert "points of the archive are not the test set's: 3" in said_of_points

    def forged(lines: list[str]) -> list[str]:  # of regions that are verified
        return [f"{k} falsified {'ab' * 32}" if k == 5 else line for k, line in enumerate(lines)]

    said_of_verdict = failures(
        "verdict", lambda place: _list(place, forged, verified=DICE - 1, falsified=1)
    )
    assert "region 5: listed as falsified, now verified" in said_of_verdict

    short = check(_copied(tmp_path / "short"), data=data, sample=0).failures
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
        entry = _whole(place, lambda folder, said=said: _edit_card(folder, data=said))
        with pytest.raises(InputError, match="are not published ones"):
            load_named(entry, shared / "data")
    with pytest.raises(InputError, match="no such folder"):
        load_named(zoo(SMALL), tmp_path / "nowhere")


def test_a_card_cannot_forbid_the_proof(tmp_path: Path) -> None:
    def hurried(place: Path) -> None:
        _edit_card(place, timeout=1e-9)

    assert check(_copied(tmp_path / "hurried", hurried), sample=2, seed=0).proved == {"verified": 2}
    for timeout in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="card of a network"):
            _copied(tmp_path / str(timeout), lambda p, t=timeout: _edit_card(p, timeout=t))
    undecided = check(_copied(tmp_path / "asked"), sample=2, seed=0, timeout=1e-9)
    if undecided.proved != {"verified": 2}:  # some are decided before the clock is looked at
        assert any("now unknown after 1e-09 s" in line for line in undecided.failures)


def test_what_cannot_be_decided_again_is_not_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: object, **__: object) -> list[Verdict]:
        return [Verdict("unknown", "bounds", reason="timeout")] * 2

    monkeypatch.setattr("qll.verify.api.verify", unknown)
    found = check(_copied(tmp_path), sample=2, seed=0)
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

    _list(tmp_path / name, silent, verified=hidden.verified + len(turned),
          falsified=hidden.falsified - len(turned), vacuous=len(turned))  # fmt: skip
    entry = zoo(name, folder=tmp_path)
    unseen = check(entry, sample=0)
    assert unseen.failures == [] and unseen.vacuous == len(turned)
    data = load_named(entry, shared / "data")
    found = check(entry, data=data, sample=0)
    assert found.vacuous == 0 and len(found.failures) == len(turned)
    assert found.failures[0].startswith(f"region {turned[0]}: listed as verified without")


def test_the_name_of_a_shipped_rule_is_not_given_to_another(tmp_path: Path) -> None:
    found = check(_copied(tmp_path, lambda place: _edit_card(place, rule="not-both")), sample=0)
    assert found.failures == ["the card says 'not-both', rule.qll is another rule"]


def test_r2_is_not_said_of_classes(tmp_path: Path, shared: Path) -> None:
    data = load_named(zoo(SMALL), shared / "data")
    entry = _whole(tmp_path, lambda place: _edit_card(place, accuracy=None, r2=0.999))
    assert check(entry, data=data, sample=0).failures == [
        "the card says R2 0.999, of a prediction of classes"
    ]


def test_a_rule_without_points_has_nothing_to_compare(tmp_path: Path) -> None:
    shown = CliRunner().invoke(build_app(), ["zoo", "check", CLOSED, "--data-dir", str(tmp_path)])
    assert isinstance(shown.exception, InputError)
    assert "depends on no data point" in shown.exception.what


def _whole(tmp_path: Path, change: Callable[[Path], None] = lambda place: None) -> ProvedNetwork:
    shutil.copytree(ROOT / "zoo" / SMALL, tmp_path / SMALL)
    change(tmp_path / SMALL)
    return zoo(SMALL, folder=tmp_path)


def test_a_card_of_another_network_is_noticed(tmp_path: Path) -> None:
    found = check(_copied(tmp_path, lambda place: _edit_card(place, name="other")), sample=0)
    assert found.failures == ["the card is of 'other'"]


def test_points_cannot_be_left_out(tmp_path: Path) -> None:
    """A claim without points would take a certificate of any."""

    def closed(files: dict[str, bytes]) -> None:
        text = "property = '''forall x in box(0, 1): y[0] >= 0'''"
        files["claim.toml"] = f"{text}\nnetwork = 'sha256:{'0' * 64}'\n".encode()

    with pytest.raises(InputError, match="zoo is damaged"):
        check(_copied(tmp_path, lambda place: _with_files(place, closed)), sample=0)


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
        check(_copied(tmp_path, lambda place: (place / file).write_bytes(content) and None))
    assert file in caught.value.where


def test_a_missing_network_and_a_torn_archive_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="zoo is damaged"):
        check(_copied(tmp_path / "none", lambda place: (place / "network.onnx").unlink()))

    def torn(place: Path) -> None:
        path = place / "certificates.zip"
        shutil.copy(ROOT / "zoo" / SMALL / path.name, path)  # compressed, as _copied's is not
        data = path.read_bytes()
        with zipfile.ZipFile(path) as archive:
            item = archive.infolist()[0]
        begin = item.header_offset + 30 + len(item.filename)
        path.write_bytes(data[:begin] + b"\xff" * 8 + data[begin + 8 :])

    with pytest.raises(InputError, match="zoo is damaged"):
        check(_copied(tmp_path / "torn", torn))


def test_an_archive_cannot_write_elsewhere(tmp_path: Path) -> None:
    def escape(files: dict[str, bytes]) -> None:
        files["../outside"] = b""

    with pytest.raises(InputError, match="zoo is damaged"):
        check(_copied(tmp_path, lambda place: _with_files(place, escape)))
    assert not (tmp_path / "outside").exists()


def test_one_bad_card_does_not_hide_the_others(tmp_path: Path) -> None:
    _copied(tmp_path)
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
