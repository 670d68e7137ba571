"""Copies of networks of the zoo, changed as a forger would."""

from __future__ import annotations

import io
import json
import lzma
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from qll.zoo.archive import SUFFIX
from qll.zoo.card import card_text, read_card
from qll.zoo.check import check
from qll.zoo.shelf import ProvedNetwork, zoo

ROOT = Path(__file__).parents[1]
SMALL = "dice-exactly-one"
CLOSED = "pendulum"  # a rule without data points
KEPT = 9
DICE = 68  # test images
MOST_BYTES = 25 * 2**20


def failures_of_closed(tmp_path: Path, change: Callable[[Path], None]) -> list[str]:
    place = tmp_path / CLOSED
    shutil.copytree(ROOT / "zoo" / CLOSED, place)
    change(place)
    return check(zoo(CLOSED, folder=tmp_path), sample=0).failures


def edit_card(place: Path, **update: object) -> None:
    card = read_card(place).model_copy(update=update)
    (place / "card.toml").write_text(card_text(card), encoding="utf-8")


def copied(tmp_path: Path, change: Callable[[Path], None] = lambda place: None) -> ProvedNetwork:
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
        keep_points(files, KEPT)

    with_files(place, keep)
    change(place)
    return zoo(SMALL, folder=tmp_path)


def keep_points(files: dict[str, bytes], count: int) -> None:
    content = io.BytesIO()
    np.save(content, np.load(io.BytesIO(files["points.npy"]))[:count])
    files["points.npy"] = content.getvalue()
    lines = files["claim.toml"].decode().splitlines()
    marked = [k for k, line in enumerate(lines) if line.startswith("labels = ")]
    for k in marked:
        lines[k] = f"labels = {json.loads(lines[k].removeprefix('labels = '))[:count]}"
    files["claim.toml"] = "\n".join(lines).encode()


def list_regions(place: Path, change: Callable[[list[str]], list[str]], **counts: int) -> None:
    """``hashes.xz`` with other lines, and the counts on the card to go with them."""
    lines = lzma.decompress((place / "hashes.xz").read_bytes()).decode().splitlines()
    text = "".join(f"{line}\n" for line in change(lines))
    (place / "hashes.xz").write_bytes(lzma.compress(text.encode()))
    edit_card(place, proved=read_card(place).proved.model_copy(update=counts))


def with_files(place: Path, change: Callable[[dict[str, bytes]], None]) -> None:
    path = place / "certificates.zip"
    with zipfile.ZipFile(path) as archive:
        files = {item: archive.read(item) for item in archive.namelist()}
    change(files)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    path.write_bytes(content.getvalue())


def with_points(place: Path, change: Callable[[np.ndarray], None]) -> None:
    def edit(files: dict[str, bytes]) -> None:
        points, content = np.load(io.BytesIO(files["points.npy"])), io.BytesIO()
        change(points)
        np.save(content, points)
        files["points.npy"] = content.getvalue()

    with_files(place, edit)


def whole(tmp_path: Path, change: Callable[[Path], None] = lambda place: None) -> ProvedNetwork:
    shutil.copytree(ROOT / "zoo" / SMALL, tmp_path / SMALL)
    change(tmp_path / SMALL)
    return zoo(SMALL, folder=tmp_path)
