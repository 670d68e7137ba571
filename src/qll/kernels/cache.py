"""Where compiled kernels are kept between runs.

numba notices when the file of a cached function changes, but not when a function that it calls in
another file does: it then runs stale machine code. So the folder's name holds a hash of every
source that the function may call. A logic's functions are called by address and do not become part
of a kernel: a change there recompiles only them.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

_LOCK = threading.Lock()


def user_cache() -> Path:
    """The user's cache folder by the platform's habit."""
    chosen = os.environ.get("QLL_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    if chosen:
        return Path(chosen) / "qll"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "qll" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "qll"
    return Path.home() / ".cache" / "qll"


def source_hash(*patterns: str) -> str:
    """A hash of the sources of the package that match."""
    package = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for pattern in patterns:
        for source in sorted(package.glob(pattern)):
            digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


# What may be inside a function of each family.
FAMILIES = {
    "kernels": ("kernels/[!d]*.py",),
    "dual": ("kernels/simd.py", "kernels/tile.py", "kernels/d*.py"),
    "logics": ("kernels/simd.py", "kernels/lanes.py", "kernels/pointers.py", "logics/*.py"),
}


@cache
def code_folder(family: str) -> Path | None:
    """The folder for these sources, or None where nothing can be written."""
    try:
        folder = user_cache() / f"{family}-{source_hash(*FAMILIES[family])}"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: no home folder
        return None
    return folder if os.access(folder, os.W_OK) else None


@contextmanager
def cached_in(family: str = "dual") -> Iterator[bool]:
    """numba functions decorated inside keep their code in our folder; False if there is none.

    numba asks for the folder when a function is decorated, and only a global setting tells it, so
    the setting is changed for that moment alone.
    """
    from numba import config

    folder = code_folder(family)
    if folder is None:
        yield False
        return
    with _LOCK:
        saved = config.CACHE_DIR
        config.CACHE_DIR = str(folder)
        try:
            yield True
        finally:
            config.CACHE_DIR = saved
