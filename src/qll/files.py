"""Files that are wholly there or not at all, whatever happens while they are written.

The only place of the library that writes results: new content goes to a hidden file beside the
target, reaches the disk, and takes the target's name in one step. One writer at a time, by a lock.
"""

from __future__ import annotations

import errno
import io
import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from qll.errors import RunError

MOST_BYTES = 1 << 30  # of a text that is read whole


class Locked(RunError):
    """Another process holds what this one wants to write."""


def write_atomically(path: Path, data: bytes) -> None:
    """The new content or the old one: a kill, a crash or a full disk never leaves half a file."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise write_error(path, error) from error
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, (json.dumps(value, indent=1, allow_nan=True) + "\n").encode())


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Numpy arrays by name, compressed (``.npz``)."""
    import numpy as np

    content = io.BytesIO()
    np.savez_compressed(content, allow_pickle=False, **arrays)
    write_atomically(path, content.getvalue())


def append_line(path: Path, value: Mapping[str, Any]) -> None:
    """One more JSON line; a reader takes whole lines only."""
    line = (json.dumps(value) + "\n").encode()
    try:
        with path.open("ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise write_error(path, error) from error


def parse_json(content: str | bytes) -> Any:
    """ValueError for whatever is not JSON, also where the parser gives up on its depth."""
    try:
        return json.loads(content)
    except RecursionError as error:
        raise ValueError("values nested too deeply") from error


def parse_toml(text: str) -> dict[str, Any]:
    """ValueError for whatever is not TOML, also where the parser gives up on its depth."""
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("values nested too deeply") from error


def read_lines(path: Path, *, to_damage: bool = False) -> list[dict[str, Any]]:
    """The whole lines of a JSON-lines file. The last may be torn, by a kill; one before it is
    damage, and what follows it is not given up for that, unless it can be had again
    (``to_damage``: the lines before it)."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    lines = content.split(b"\n")[:-1]
    rows = [_record(line) for line in lines]
    if rows and rows[-1] is None:
        rows.pop()
    if None in rows and to_damage:
        del rows[rows.index(None) :]
    if None in rows:
        raise RunError(
            "a line of the record is damaged",
            where=f"{path}:{rows.index(None) + 1}",
            expected="a JSON object, as qll writes it",
            found=lines[rows.index(None)][:60].decode(errors="replace"),
            fix="remove that line, or the file: only its figures by epoch are lost",
        )
    return [row for row in rows if row is not None]


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        row = parse_json(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def read_json(
    path: Path, what: str, *, fix: str = "give the folder of a run, or train again into a new one"
) -> dict[str, Any]:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"{path.stat().st_size:,} bytes, of at most {MOST_BYTES:,}")
        value = parse_json(path.read_bytes())
        if isinstance(value, dict):
            return value
        problem = type(value).__name__
    except OSError as error:
        problem = error.strerror or str(error)
    except ValueError as error:
        problem = str(error)
    raise RunError(
        f"the {what} of a run cannot be read",
        where=str(path),
        expected="a JSON object, as qll writes it",
        found=problem,
        fix=fix,
    )


def write_error(path: Path, error: OSError) -> RunError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return RunError(
        f"{path.name} cannot be written: {'no space on the disk' if full else 'it is refused'}",
        where=str(path),
        expected="a writable folder with room",
        found=error.strerror or str(error),
        fix="make room and run the command again (training goes on with --resume): what was "
        "finished is there"
        if full
        else "check the folder and its permissions, or choose another",
    )


@contextmanager
def owned(folder: Path, lock: str = "lock") -> Iterator[None]:
    """Hold all of a folder. What a killed holder left half written goes."""
    with exclusive(folder / lock):
        for part in folder.rglob(".*.part"):
            part.unlink(missing_ok=True)
        yield


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold a lock file; the operating system lets go of it when the process ends, however."""
    from filelock import FileLock, Timeout

    lock = FileLock(path, blocking=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise Locked(
            "another process is writing here",
            where=str(path.parent),
            expected="one writer",
            found=f"process {_holder(path)}",
            fix="wait for it, or choose another place for the results",
        ) from error
    except OSError as error:
        raise write_error(path, error) from error
    try:
        with suppress(OSError):  # Windows lets nobody write to a locked file
            path.write_text(str(os.getpid()))
        yield
    finally:
        lock.release()


def _holder(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip() or "unknown"
    except OSError:
        return "unknown"


def _sync_folder(folder: Path) -> None:
    """The rename itself reaches the disk; not every system lets a folder be opened."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)
