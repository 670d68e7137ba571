"""The zoo: what its networks' cards say is checked here, and no damage goes unnoticed."""

from __future__ import annotations

import io
import lzma
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import qll
from qll.cli.main import build_app
from qll.errors import InputError
from qll.zoo.card import card_text, read_card
from qll.zoo.check import SUFFIX, check, read_hashes
from qll.zoo.shelf import ProvedNetwork, names, zoo

ROOT = Path(__file__).parents[1]
SMALL = "dice-exactly-one"
KEPT = 9
MOST_BYTES = 25 * 2**20


def test_every_card_is_read_and_says_what_its_files_say() -> None:
    assert names()
    for name in names():
        entry = qll.zoo(name)
        assert entry.card.name == name
        assert read_card(entry.path) == entry.card
        assert entry.network.output_size in (6, 10)
        assert len(read_hashes(entry)) == (
            entry.card.proved.verified + entry.card.proved.falsified + entry.card.proved.unknown
        )
    total = sum(path.stat().st_size for path in (ROOT / "zoo").rglob("*") if path.is_file())
    assert total < MOST_BYTES


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

    _with_files(place, keep)
    change(place)
    return zoo(SMALL, folder=tmp_path)


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
    assert found.confirmed == {} and "NOT CONFIRMED" in found.failures[0]


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


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("hashes.xz", b"no xz"),
        ("hashes.xz", lzma.compress(b"0 verified\n0 verified\n")),
        ("certificates.zip", b"no zip"),
        ("card.toml", b"name = 1"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, file: str, content: bytes) -> None:
    with pytest.raises(InputError, match=r"zoo is damaged|card of a network") as caught:
        check(_copied(tmp_path, lambda place: (place / file).write_bytes(content) and None))
    assert file in caught.value.where


def test_an_archive_cannot_write_elsewhere(tmp_path: Path) -> None:
    def escape(files: dict[str, bytes]) -> None:
        files["../outside"] = b""

    with pytest.raises(InputError, match="zoo is damaged"):
        check(_copied(tmp_path, lambda place: _with_files(place, escape)))
    assert not (tmp_path / "outside").exists()


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
