"""Downloads against a server of our own that breaks off, lies or is not there."""

from __future__ import annotations

import errno
import hashlib
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from qll.data import dice, download, load, mnist
from qll.data.download import fetch
from qll.data.idx import check_digest, write_idx
from qll.errors import DataError

CONTENT = bytes(range(256)) * 2000


class Server:
    """Serves ``files``; what it does wrong is set by the test."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.requests: list[tuple[str, str | None]] = []  # path and Range
        self.break_after: list[int] = []  # bytes after which each coming answer breaks off
        self.knows_range = True
        self.says_length = True
        self.delay = 0.0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.answer(self)

            def log_message(self, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        span = request.headers.get("Range")
        self.requests.append((request.path, span))
        time.sleep(self.delay)
        content = self.files.get(request.path.lstrip("/"))
        if content is None:
            request.send_error(404)
            return
        start = 0
        if span and self.knows_range:
            start = int(re.fullmatch(r"bytes=(\d+)-", span)[1])  # type: ignore[index]
            if start >= len(content):
                request.send_error(416)
                return
            request.send_response(206)
            request.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            request.send_response(200)
        body = content[start:]
        if self.says_length:
            request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        if self.break_after:
            body = body[: self.break_after.pop(0)]
        request.wfile.write(body)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.http.shutdown()
    thread.join()
    server.http.server_close()


def is_content(path: Path) -> None:
    digest = hashlib.sha256(CONTENT).hexdigest()
    check_digest(hashlib.sha256(path.read_bytes()).hexdigest(), digest, str(path))


def get(server: Server, target: Path, **options: object) -> Path:
    arguments = {"check": is_content, "most": 1 << 20, **options}
    return fetch([f"{server.url}/a"], target, **arguments)  # type: ignore[arg-type]


def test_plain(server: Server, tmp_path: Path) -> None:
    server.files["a"] = CONTENT
    seen: list[tuple[str, int, int | None]] = []
    target = tmp_path / "deep" / "a.gz"
    get(server, target, progress=lambda *state: seen.append(state))
    assert target.read_bytes() == CONTENT
    assert seen[-1] == ("a.gz", len(CONTENT), len(CONTENT))
    assert [s[1] for s in seen] == sorted(s[1] for s in seen)
    assert not target.with_name("a.gz.part").exists()


def test_resumes_within_a_run(server: Server, tmp_path: Path) -> None:
    server.files["a"], server.break_after = CONTENT, [1000, 200_000]
    get(server, tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert [span for _, span in server.requests] == [None, "bytes=1000-", "bytes=201000-"]


def test_resumes_in_a_later_run(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.part").write_bytes(CONTENT[:300_000])
    server.files["a"] = CONTENT
    get(server, tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert server.requests == [("/a", "bytes=300000-")]


def test_server_without_range(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.part").write_bytes(CONTENT[:300_000])
    server.files["a"], server.knows_range = CONTENT, False
    get(server, tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == CONTENT


@pytest.mark.parametrize("part", [b"other bytes", CONTENT, CONTENT + b"more"])
def test_useless_part_is_thrown_away(server: Server, tmp_path: Path, part: bytes) -> None:
    """Bytes of another file, or more than there are (the server answers 416)."""
    (tmp_path / "a.part").write_bytes(part)
    server.files["a"] = CONTENT
    get(server, tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert len(server.requests) == 2


def assert_refused(server: Server, target: Path, *parts: str) -> None:
    with pytest.raises(DataError) as caught:
        get(server, target)
    for part in ("\nExpected ", "\nFix: ", "--data-dir", *parts):
        assert part in str(caught.value)
    assert not target.exists()


def test_wrong_checksum(server: Server, tmp_path: Path) -> None:
    server.files["a"] = CONTENT[:-1] + b"x"
    assert_refused(server, tmp_path / "a", "not the published one", f"{server.url}/a")
    assert not (tmp_path / "a.part").exists()
    assert len(server.requests) == 1  # asking again for the same wrong file is of no use


def test_always_broken(server: Server, tmp_path: Path) -> None:
    server.files["a"], server.break_after = CONTENT, [10] * 100
    assert_refused(server, tmp_path / "a", "broke off", "is continued")
    assert (tmp_path / "a.part").read_bytes() == CONTENT[: 10 * download._ATTEMPTS]


def test_missing_on_the_server(server: Server, tmp_path: Path) -> None:
    assert_refused(server, tmp_path / "a", "HTTP 404")


def test_too_large(server: Server, tmp_path: Path) -> None:
    server.files["a"] = CONTENT * 3
    assert_refused(server, tmp_path / "a", "at most 1048576 expected")
    server.says_length = False
    assert_refused(server, tmp_path / "a", "more than the expected 1048576 bytes")
    assert (tmp_path / "a.part").stat().st_size == 0


def test_no_server(tmp_path: Path) -> None:
    server = Server()
    server.http.server_close()
    assert_refused(server, tmp_path / "a", "refused")


def test_next_mirror(server: Server, tmp_path: Path) -> None:
    server.files |= {"bad/a": b"not it", "good/a": CONTENT}
    urls = [f"{server.url}/{mirror}/a" for mirror in ("none", "bad", "good")]
    fetch(urls, tmp_path / "a", check=is_content, most=1 << 20)
    assert (tmp_path / "a").read_bytes() == CONTENT


def test_disk_full(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    server.files["a"] = CONTENT
    monkeypatch.setattr(download, "_receive", full)
    with pytest.raises(DataError, match="No space left") as caught:
        get(server, tmp_path / "a")
    assert "QLL_DATA_DIR" in str(caught.value)


def test_two_at_once(server: Server, tmp_path: Path) -> None:
    server.files["a"], server.delay = CONTENT, 0.2
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(lambda _: get(server, tmp_path / "a"), range(4)))
    assert {path.read_bytes() for path in paths} == {CONTENT}
    assert len(server.requests) == 1


@pytest.fixture
def small_mnist(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A publisher of four small files, and an empty cache."""
    digests = {}
    for stem, count in (("train", 7), ("t10k", 3)):
        for kind, shape in (("images-idx3", (count, 28, 28)), ("labels-idx1", (count,))):
            path = tmp_path / f"{stem}-{kind}-ubyte"
            write_idx(path, np.full(shape, count, np.uint8))
            digests[f"{stem}-{kind}"] = hashlib.sha256(path.read_bytes()).hexdigest()
            zipped = path.with_name(path.name + ".gz")
            write_idx(zipped, np.full(shape, count, np.uint8))
            server.files[f"m/{zipped.name}"] = zipped.read_bytes()
    published = replace(
        mnist.MNIST,
        mirrors=(f"{server.url}/m",),
        train_images=digests["train-images-idx3"],
        train_labels=digests["train-labels-idx1"],
        test_images=digests["t10k-images-idx3"],
        test_labels=digests["t10k-labels-idx1"],
    )
    monkeypatch.setattr(mnist, "MNIST", published)
    monkeypatch.setenv("QLL_DATA_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_load_downloads_once(server: Server, small_mnist: Path) -> None:
    data = load("mnist")
    assert (len(data.train), len(data.test)) == (7, 3)
    assert len(server.requests) == 4
    np.testing.assert_array_equal(load("mnist").train.stored, data.train.stored)
    assert len(server.requests) == 4
    assert not list(small_mnist.rglob("*.part"))


def test_load_refuses_a_wrong_file(server: Server, small_mnist: Path) -> None:
    server.files["m/t10k-labels-idx1-ubyte.gz"] = server.files["m/train-labels-idx1-ubyte.gz"]
    with pytest.raises(DataError, match="cannot download t10k-labels"):
        load("mnist")
    assert not list(small_mnist.rglob("t10k-labels*"))


def test_load_without_network(server: Server, small_mnist: Path) -> None:
    server.files.clear()
    with pytest.raises(DataError) as caught:
        load("mnist")
    message = str(caught.value)
    assert "cannot download train-images-idx3-ubyte.gz" in message
    assert "\nFix: check the network" in message and "--data-dir" in message


def test_dice_fetches_what_is_missing(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table, then its pictures; a picture that breaks off stops it, the next run goes on."""
    pictures = {}
    for number in range(5):
        content = BytesIO()
        Image.new("RGB", (28, 28), (number * 40, 7, 200)).save(content, format="PNG")
        pictures[f"{number}.png"] = content.getvalue()
    rows = "".join(f"{name},1,0,0,1,1,0\n" for name in pictures)
    table = f"filename,f1,f2,f3,f4,f5,f6\n{rows}".encode()
    every = b"".join(pictures.values())
    monkeypatch.setattr(dice, "_MIRRORS", (f"{server.url}/d",))
    monkeypatch.setattr(dice, "_LABELS_SHA256", hashlib.sha256(table).hexdigest())
    monkeypatch.setattr(dice, "_PICTURES_SHA256", hashlib.sha256(every).hexdigest())
    monkeypatch.setenv("QLL_DATA_DIR", str(tmp_path))
    server.files = {"d/labels.csv": table} | {f"d/{n}": c for n, c in pictures.items()}
    missing = server.files.pop("d/3.png")
    with pytest.raises(DataError, match=r"cannot download 3\.png"):
        load("dice")
    server.files["d/3.png"] = missing
    server.requests.clear()
    seen: list[tuple[str, int, int | None]] = []
    data = load("dice", progress=lambda *state: seen.append(state))
    assert [path for path, _ in server.requests] == ["/d/3.png", "/d/4.png"]
    assert seen == [("dice pictures", 1, 2), ("dice pictures", 2, 2)]
    assert (len(data.train), len(data.test)) == (4, 1)
    (tmp_path / "dice" / "2.png").write_bytes(pictures["1.png"])
    with pytest.raises(DataError, match="not the published one"):
        load("dice")
