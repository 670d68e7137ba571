"""The IDX reader: round trip, and only DataError whatever the bytes are."""

from __future__ import annotations

import gzip
import hashlib
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from qll.data.idx import TYPES, read_idx, write_idx
from qll.errors import DataError

arrays = st.sampled_from(sorted(TYPES)).flatmap(
    lambda code: hnp.arrays(
        TYPES[code].newbyteorder("="),
        hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5),
    )
)
one_folder = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200, deadline=None
)


@one_folder
@given(arrays, st.booleans())
def test_round_trip(tmp_path: Path, values: np.ndarray, zipped: bool) -> None:
    path = tmp_path / ("a.idx.gz" if zipped else "a.idx")
    write_idx(path, values)
    back = read_idx(path)
    assert back.dtype == values.dtype and back.dtype.isnative
    np.testing.assert_array_equal(back, values)


def test_known_bytes(tmp_path: Path) -> None:
    """Written by hand from the format's description, so reader and writer cannot err together."""
    path = tmp_path / "a"
    path.write_bytes(bytes([0, 0, 0x0B, 2, 0, 0, 0, 2, 0, 0, 0, 1, 0x01, 0x02, 0xFF, 0xFE]))
    np.testing.assert_array_equal(read_idx(path), np.array([[258], [-2]], np.int16))
    copy = tmp_path / "b"
    write_idx(copy, read_idx(path))
    assert copy.read_bytes() == path.read_bytes()


def assert_refused(path: Path, part: str) -> None:
    with pytest.raises(DataError) as caught:
        read_idx(path)
    message = str(caught.value)
    assert part in message and message.startswith(str(path))
    assert "\nExpected " in message and "\nFix: " in message


HEADER = struct.pack(">BBBBII", 0, 0, 8, 2, 2, 3)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "empty file"),
        (HEADER[:3], "00 00 08"),
        (b"\1" + HEADER[1:] + b"123456", "01 00 08 02"),
        (b"\0\0\x0a\1\0\0\0\0", "00 00 0a 01"),
        (b"\0\0\x08\0", "number of axes"),
        (HEADER[:10], "sizes of 2 axes"),
        (HEADER + b"12345", "5 in the file"),
        (HEADER + b"1234567", "7 in the file"),
        (b"\0\0\x0e\3" + b"\xff" * 12, "no more than"),
        (b"\0\0\x08\xff" + b"\0\0\0\1" * 255 + b"1", "at most 32 axes"),
    ],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_damage(tmp_path: Path, content: bytes, part: str, zipped: bool) -> None:
    path = tmp_path / "a"
    path.write_bytes(gzip.compress(content) if zipped else content)
    if zipped and "in the file" in part:
        part = "more" if len(content) > len(HEADER) + 6 else "found 5"
    assert_refused(path, part)


def test_damaged_gzip(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    write_idx(path, np.arange(1000, dtype=np.int32))
    content = path.read_bytes()
    path.write_bytes(content[:-20])
    assert_refused(path, "cannot read")
    path.write_bytes(content[:-6] + bytes([content[-6] ^ 1]) + content[-5:])
    assert_refused(path, "CRC")


def test_missing_and_folder(tmp_path: Path) -> None:
    assert_refused(tmp_path / "none", "No such file")
    assert_refused(tmp_path, "cannot read")


@pytest.mark.parametrize("zipped", [False, True])
def test_no_memory_for_a_lie(tmp_path: Path, zipped: bool) -> None:
    """A header that promises 3 GB in a small file costs no memory."""
    path = tmp_path / "a"
    content = struct.pack(">BBBBI", 0, 0, 8, 1, 3 << 30) + b"x" * 100
    path.write_bytes(gzip.compress(content) if zipped else content)
    tracemalloc.start()
    assert_refused(path, "3221225472 bytes")
    assert tracemalloc.get_traced_memory()[1] < 5 << 20
    tracemalloc.stop()


def test_checksum_is_of_the_uncompressed_file(tmp_path: Path) -> None:
    values = np.arange(10, dtype=np.uint8)
    write_idx(tmp_path / "a", values)
    write_idx(tmp_path / "a.gz", values)
    digest = hashlib.sha256((tmp_path / "a").read_bytes()).hexdigest()
    for name in ("a", "a.gz"):
        np.testing.assert_array_equal(read_idx(tmp_path / name, sha256=digest), values)
        with pytest.raises(DataError, match="not the published one"):
            read_idx(tmp_path / name, sha256="0" * 64)


def test_writer_refuses(tmp_path: Path) -> None:
    for bad in (np.zeros(3, np.int64), np.zeros(3, bool), np.float32(1) * np.ones(())):
        with pytest.raises(DataError, match="cannot hold"):
            write_idx(tmp_path / "a", bad)


def read_or_refuse(path: Path) -> None:
    try:
        values = read_idx(path)
    except DataError:
        return
    assert values.nbytes <= 1 << 20  # nothing larger can be in so small a file


@one_folder
@given(st.binary(max_size=200), st.booleans())
def test_random_bytes(tmp_path: Path, content: bytes, headed: bool) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"\0\0" + content if headed else content)
    read_or_refuse(path)


@one_folder
@given(arrays, st.booleans(), st.data())
def test_mutations(tmp_path: Path, values: np.ndarray, zipped: bool, data: st.DataObject) -> None:
    path = tmp_path / ("a.gz" if zipped else "a")
    write_idx(path, values)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(0, len(content) - 1)))
        kind = data.draw(st.sampled_from(["flip", "cut", "insert"]))
        if kind == "flip" and content:
            content[at] ^= data.draw(st.integers(1, 255))
        elif kind == "cut":
            del content[at : at + data.draw(st.integers(1, 8))]
        else:
            content[at:at] = data.draw(st.binary(min_size=1, max_size=8))
    path.write_bytes(bytes(content))
    read_or_refuse(path)
