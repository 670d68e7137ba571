"""Archives of the zoo as a forger would make them: refused in three parts, whatever is in them."""

from __future__ import annotations

import io
import json
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner
from zoo_copies import CLOSED, KEPT, ROOT, SMALL, copied, list_regions, with_files

from qll.audit import read_claim
from qll.cli.main import build_app
from qll.errors import InputError, QllError
from qll.zoo.check import check

Files = dict[str, bytes]


def header(shape: str, descr: str = "<f8") -> bytes:
    """Of a .npy file."""
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}"
    text = text.ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def saved(array: object) -> bytes:
    content = io.BytesIO()
    np.save(content, np.asarray(array))
    return content.getvalue()


# --- the zip itself ---


def packed(place: Path, method: int) -> Path:
    path = place / "certificates.zip"
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def overwritten(path: Path, after: int, data: bytes) -> None:
    """From so many bytes on after the header of the first member."""
    with zipfile.ZipFile(path) as archive:
        item = archive.infolist()[0]
    begin = item.header_offset + 30 + len(item.filename) + after
    content = bytearray(path.read_bytes())
    content[begin : begin + len(data)] = data
    path.write_bytes(bytes(content))


def in_both_headers(place: Path, offset: int, value: bytes) -> None:
    """Of every member: at this place of the local header, and at the same field of the other."""
    path = packed(place, zipfile.ZIP_DEFLATED)
    content = path.read_bytes()
    for mark, begin in ((b"PK\x03\x04", offset), (b"PK\x01\x02", offset + 2)):
        at = content.find(mark)
        while at >= 0:
            content = content[: at + begin] + value + content[at + begin + len(value) :]
            at = content.find(mark, at + 4)
    path.write_bytes(content)


def twice(place: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile's own, while it is written
        with zipfile.ZipFile(place / "certificates.zip", "a") as archive:
            archive.writestr("claim.toml", "property = 1")


ZIPS: dict[str, Callable[[Path], object]] = {
    "LZMA": lambda p: packed(p, zipfile.ZIP_LZMA),
    "damaged LZMA": lambda p: overwritten(packed(p, zipfile.ZIP_LZMA), 40, b"\xff" * 30),
    "damaged LZMA's properties": lambda p: overwritten(packed(p, zipfile.ZIP_LZMA), 0, b"\xff" * 9),
    "BZ2": lambda p: packed(p, zipfile.ZIP_BZIP2),
    "damaged BZ2": lambda p: overwritten(packed(p, zipfile.ZIP_BZIP2), 4, b"\xff" * 30),
    "damaged": lambda p: overwritten(packed(p, zipfile.ZIP_DEFLATED), 4, b"\xff" * 30),
    "another method": lambda p: in_both_headers(p, 8, b"\x63\x00"),
    "encrypted": lambda p: in_both_headers(p, 6, b"\x01\x00"),
    "smaller than it is": lambda p: in_both_headers(p, 22, b"\x05\x00\x00\x00"),
    "larger than it is": lambda p: in_both_headers(p, 22, b"\x00\x00\x10\x00"),
    "twice": twice,
    "..": lambda p: with_files(p, lambda files: files.update({"..": b"x"})),
}


@pytest.mark.parametrize("case", ZIPS)
def test_an_archive_that_cannot_be_read_is_refused(tmp_path: Path, case: str) -> None:
    entry = copied(tmp_path, lambda place: ZIPS[case](place) and None)
    with pytest.raises(InputError, match="zoo is damaged") as caught:
        check(entry, sample=0)
    assert "certificates.zip" in caught.value.where  # type: ignore[operator]


# --- what is in it ---

CONTENTS: dict[str, tuple[Callable[[Files], object], str]] = {
    "no claim": (lambda f: f.pop("claim.toml"), "claim.toml"),
    "empty claim": (lambda f: f.update({"claim.toml": b""}), "claim.toml"),
    "claim of bytes": (lambda f: f.update({"claim.toml": b"\xff\xfe"}), "claim.toml"),
    "no points": (lambda f: f.pop("points.npy"), "claim.toml"),
    "points without end": (
        lambda f: f.update({"points.npy": header("(10000000000000, 9999)")}),
        "claim.toml",
    ),
    "points of another size": (lambda f: f.update({"points.npy": saved([[1.0]])}), "points.npy"),
}


@pytest.mark.parametrize("case", CONTENTS)
def test_damage_is_named_by_archive_and_member(tmp_path: Path, case: str) -> None:
    """Not by a folder that is gone when it is read."""
    change, member = CONTENTS[case]
    entry = copied(tmp_path, lambda place: with_files(place, lambda f: change(f) and None))
    with pytest.raises(InputError, match="zoo is damaged") as caught:
        check(entry, sample=0)
    assert caught.value.where == f"{entry.certificates}: {member}"


def test_a_claim_that_does_not_parse_is_named_by_line(tmp_path: Path) -> None:
    def broken(files: Files) -> None:
        files["claim.toml"] = files["claim.toml"].replace(b"forall x in", b"forall x on")

    entry = copied(tmp_path, lambda place: with_files(place, broken))
    with pytest.raises(InputError, match="zoo is damaged") as caught:
        check(entry, sample=0)
    assert (caught.value.where or "").startswith(f"{entry.certificates}: claim.toml: property:")


@pytest.mark.parametrize("name", ["/dev/zero", "../../outside.npy", "a/b.npy", "\\u0000"])
@pytest.mark.parametrize("entry", ["points", "labels", "network", "property"])
def test_a_claim_names_no_file_outside_of_its_archive(
    tmp_path: Path, name: str, entry: str
) -> None:
    if entry == "property":
        name = f"{name}.qll"

    def elsewhere(files: Files) -> None:
        lines = files["claim.toml"].decode().splitlines()
        if entry == "property":
            ends = [k for k, line in enumerate(lines) if "'''" in line]
            del lines[ends[0] : ends[1] + 1]
        lines = [line for line in lines if not line.startswith(f"{entry} =")]
        files["claim.toml"] = "\n".join([f'{entry} = "{name}"', *lines]).encode()

    changed = copied(tmp_path, lambda place: with_files(place, elsewhere))
    with pytest.raises(InputError, match="zoo is damaged"):
        check(changed, sample=0)


def test_labels_beyond_the_outputs_are_refused(tmp_path: Path) -> None:
    """Of a region without a certificate, which nothing else is compared with."""

    def change(place: Path) -> None:
        def label(files: Files) -> None:
            del files["00002.qllcert"]
            lines = files["claim.toml"].decode().splitlines()
            lines = [line for line in lines if not line.startswith("labels")]
            labels = [[1, 2] if k != 2 else [1, 99] for k in range(KEPT)]
            text = "\n".join([f"labels = {json.dumps(labels)}", *lines])
            files["claim.toml"] = text.replace("y[i] >= margin", "label(i) and y[i] >= 0").encode()

        with_files(place, label)
        list_regions(place, lambda lines: [*lines[:2], "2 verified", *lines[3:]], vacuous=1)

    with pytest.raises(InputError, match=r"zoo is damaged(.|\n)*the label 99"):
        check(copied(tmp_path, change), sample=0)


# --- claims with points in files, as 'qll audit --claim' reads them ---

RULE = "outputs 2\nforall x in ball(x0, 0.1): label(0) -> y[0] >= 0"


def claim(folder: Path, points: bytes, labels: bytes = saved([0, 1])) -> Path:
    (folder / "points.npy").write_bytes(points)
    (folder / "labels.npy").write_bytes(labels)
    path = folder / "claim.toml"
    path.write_text(
        f"property = '''{RULE}'''\nnetwork = 'sha256:{'0' * 64}'\n"
        "points = 'points.npy'\nlabels = 'labels.npy'\n"
    )
    return path


POINTS = {
    "as many as no machine has": header("(10000000000000, 9999)") + b"\0" * 16,
    "a few more": header("(2, 3)") + b"\0" * 40,
    "below none": header("(-1, 3)") + b"\0" * 48,
    "without size": header("(10000000000000, 3)", "<U0"),
    "objects": header("(2, 3)", "|O") + b"\0" * 48,
    "words": saved(["a", "b"]),
    "complex": saved([[1j], [2j]]),
    "no header": b"\x93NUMPY\x01\x00\x00\x00",
    "a header of brackets": b"\x93NUMPY\x01\x00\x60\xea" + b"[" * 60000,
    "a header that is no text": b"\x93NUMPY\x01\x00\x10\x00" + b"\xff'{\\" * 4,
    "another version": b"\x93NUMPY\x09\x00",
    "empty": b"",
    "an archive": b"PK\x05\x06" + b"\0" * 18,
}


@pytest.mark.parametrize("case", POINTS)
def test_points_that_are_not_there_are_refused(tmp_path: Path, case: str) -> None:
    with pytest.raises(QllError, match="points"):
        read_claim(claim(tmp_path, POINTS[case]))


LABELS = {
    "one number": saved(3),
    "fewer": saved([0]),
    "rows without end": header("(10000000000000, 0)"),
    "three axes": saved(np.zeros((2, 2, 2), int)),
    "parts": saved([0.5, 1.0]),
    "without end": header("(10000000000000,)", "<i8"),
}


@pytest.mark.parametrize("case", LABELS)
def test_labels_that_are_none_are_refused(tmp_path: Path, case: str) -> None:
    with pytest.raises(QllError, match="label"):
        read_claim(claim(tmp_path, saved([[0.0], [1.0]]), LABELS[case]))


def test_a_header_that_lies_allocates_nothing(tmp_path: Path) -> None:
    path = claim(tmp_path, header("(5000000, 10)") + b"\0" * 80)
    tracemalloc.start()
    try:
        with pytest.raises(QllError, match="400000000 bytes, and 80 bytes in the file"):
            read_claim(path)
        assert tracemalloc.get_traced_memory()[1] < 10 * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", ["<f8", ">f8", "<f4", "<i4", "|u1"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_numbers_are_read_as_numpy_does(tmp_path: Path, kind: str, order: str) -> None:
    points = np.arange(6, dtype=kind).reshape(2, 3)
    held = saved(np.array(points, order=order))  # type: ignore[call-overload]
    hot = np.array([[1, 0], [1, 1]])
    found = read_claim(claim(tmp_path, held, saved(hot)))
    assert (found.points == points).all() and found.points.dtype == np.float64
    assert found.labels == ((0,), (0, 1))
    for version in ((1, 0), (2, 0), (3, 0)):
        content = io.BytesIO()
        np.lib.format.write_array(content, points, version=version)
        assert (read_claim(claim(tmp_path, content.getvalue())).points == points).all()


# --- what the command says ---


def run(*words: object) -> str:
    result = CliRunner().invoke(build_app(), ["zoo", *map(str, words)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


UNSEEN = "the accuracy, and that the points are of the test data, are the card's word here"


def test_what_only_the_data_show_is_said_without_them(tmp_path: Path, shared: Path) -> None:
    copied(tmp_path)
    (line,) = [
        line
        for line in run("check", SMALL, "--folder", tmp_path, "--sample", 0).splitlines()
        if line.startswith(UNSEEN)
    ]
    assert "--data-dir" in line and "dice" in line
    whole = run("check", SMALL, "--sample", 0, "--data-dir", shared / "data")
    assert UNSEEN not in whole and "compared with the 68 test images" in whole
    assert UNSEEN not in run("check", CLOSED, "--sample", 0)
    quiet = CliRunner().invoke(
        build_app(), ["--quiet", "zoo", "--folder", str(tmp_path), "check", SMALL, "--sample", "0"]
    )
    assert quiet.exit_code == 0 and quiet.output == ""


def test_the_folder_is_taken_before_and_after_the_word(tmp_path: Path) -> None:
    copied(tmp_path)
    said = f"{KEPT} verified"
    assert said in run("check", SMALL, "--sample", 0, "--folder", tmp_path)
    assert said in run("--folder", tmp_path, "check", SMALL, "--sample", 0)
    assert said in run("--folder", ROOT, "check", SMALL, "--sample", 0, "--folder", tmp_path)


@pytest.mark.parametrize("seconds", ["0", "-1", "nan"])
def test_a_time_that_is_none_is_refused(tmp_path: Path, seconds: str) -> None:
    with pytest.raises(InputError, match="not positive") as caught:
        CliRunner().invoke(
            build_app(), ["zoo", "check", SMALL, "--timeout", seconds], catch_exceptions=False
        )
    assert "--timeout 10" in caught.value.fix
    with pytest.raises(InputError, match="not positive"):
        check(copied(tmp_path), timeout=float(seconds))


def test_the_help_names_all_exit_codes() -> None:
    said = " ".join(run("check", "--help").split())
    assert "Exit code 0:" in said and "12:" in said and "2: a file of it is damaged" in said
