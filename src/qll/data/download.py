"""Fetch a published file: resumed when interrupted, checked before it gets its name.

The bytes are collected in ``NAME.part`` beside the target, which a later run continues (HTTP
Range); only a file that passed its check is renamed, so a file with its proper name is whole."""

from __future__ import annotations

import contextlib
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPException, HTTPResponse
from pathlib import Path

from qll.data.base import Progress
from qll.errors import DataError

_BLOCK = 1 << 16
_ATTEMPTS = 8  # a connection that breaks is continued this many times before the next mirror
_TIMEOUT = 30.0  # seconds without a byte


class _Broken(Exception):
    """This attempt failed; the message says why. ``resumable`` if trying again may help."""

    def __init__(self, why: str, *, resumable: bool) -> None:
        super().__init__(why)
        self.resumable = resumable


def fetch(
    urls: Sequence[str],
    target: Path,
    *,
    check: Callable[[Path], object],
    most: int,
    progress: Progress | None = None,
) -> Path:
    """Download ``target`` from the first of ``urls`` that delivers it. ``check`` gets the complete
    file and raises DataError if it is not the right one; more than ``most`` bytes are refused."""
    part = target.with_name(target.name + ".part")
    failures: list[str] = []
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _alone(target.parent):
            if target.is_file():  # another process fetched it while we waited
                return target
            for url in urls:
                try:
                    _fetch_from(url, part, check=check, most=most, progress=progress)
                except _Broken as broken:
                    failures.append(f"{url}: {broken}")
                    continue
                part.replace(target)
                return target
    except OSError as error:
        raise DataError(
            "cannot write the downloaded file",
            where=str(part),
            expected="a folder that can be written and has room",
            found=error.strerror or str(error),
            fix="free some space, or set QLL_DATA_DIR to another folder",
        ) from error
    raise DataError(
        f"cannot download {target.name}",
        where=str(target),
        expected="one of its publishers to deliver it",
        found="; ".join(failures),
        fix="check the network and run again (a partial download is continued), or fetch the "
        "file by other means and pass its folder with --data-dir or QLL_DATA_DIR",
    )


def _fetch_from(
    url: str,
    part: Path,
    *,
    check: Callable[[Path], object],
    most: int,
    progress: Progress | None,
) -> None:
    last = _Broken("not tried", resumable=True)
    for _ in range(_ATTEMPTS):
        start = part.stat().st_size if part.exists() else 0
        try:
            _continue(url, part, start=start, most=most, progress=progress)
            check(part)
            return
        except DataError as error:
            # Perhaps the two halves came from different mirrors: a resumed file may start afresh.
            part.unlink()
            last = _Broken(f"{error.what} ({error.found})", resumable=start > 0)
        except _Broken as broken:
            last = broken
        if not last.resumable:
            raise last
    raise last


def _continue(url: str, part: Path, *, start: int, most: int, progress: Progress | None) -> None:
    headers = {"User-Agent": "qll", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - from our own tables
    try:
        response = urllib.request.urlopen(request, timeout=_TIMEOUT)  # noqa: S310, TID251
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and start:  # the part is longer than the file: useless
            part.unlink()
            raise _Broken("the partial file did not fit", resumable=True) from error
        raise _Broken(f"HTTP {error.code} {error.reason}", resumable=error.code >= 500) from error
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise _Broken(str(reason) or type(reason).__name__, resumable=False) from error
    with response:
        _receive(response, part, start=start, most=most, progress=progress)


def _receive(
    response: HTTPResponse, part: Path, *, start: int, most: int, progress: Progress | None
) -> None:
    here = start if _resumes_at(response, start) else 0
    length = response.headers.get("Content-Length", "")
    total = here + int(length) if length.isdecimal() else None
    if total is not None and total > most:
        raise _Broken(f"{total} bytes offered, at most {most} expected", resumable=False)
    name = part.name.removesuffix(".part")
    with part.open("ab" if here else "wb") as file:
        while block := _read_block(response):
            file.write(block)
            here += len(block)
            if here > most:
                file.truncate(0)
                raise _Broken(f"more than the expected {most} bytes", resumable=False)
            if progress is not None:
                progress(name, here, total)
    if total is not None and here < total:
        raise _Broken(f"broke off after {here} of {total} bytes", resumable=True)


def _read_block(response: HTTPResponse) -> bytes:
    try:
        return response.read(_BLOCK)
    except (OSError, HTTPException) as error:  # caught here, apart from what writing may raise
        raise _Broken(str(error) or type(error).__name__, resumable=True) from error


def _resumes_at(response: HTTPResponse, start: int) -> bool:
    """Whether the server continues at ``start``; one that ignores Range sends the whole file."""
    span = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return response.status == 206 and span is not None and int(span[1]) == start


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time downloads to a folder; the others wait. Where there are no file locks
    two would spoil each other's partial file, which the check then finds."""
    from filelock import FileLock

    lock = FileLock(folder / ".lock")
    with contextlib.suppress(OSError):
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
