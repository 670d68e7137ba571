"""Where compiled kernels are kept between runs.

numba notices when the file of a cached function changes, but not when a function that it calls in
another file does: it then runs stale machine code. So the folder's name holds a hash of every
source that a kernel may call: the kernels and the logics.
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


def source_hash() -> str:
    """A hash of all sources whose code may be inside a kernel."""
    package = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for folder in ("kernels", "logics"):
        for source in sorted((package / folder).glob("*.py")):
            digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


@cache
def kernel_folder() -> Path | None:
    """The folder for these sources, or None where nothing can be written."""
    try:
        folder = user_cache() / f"kernels-{source_hash()}"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: no home folder
        return None
    return folder if os.access(folder, os.W_OK) else None


@contextmanager
def cached_in() -> Iterator[bool]:
    """numba functions decorated inside keep their code in our folder; False if there is none.

    numba asks for the folder when a function is decorated, and only a global setting tells it, so
    the setting is changed for that moment alone.
    """
    from numba import config

    folder = kernel_folder()
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
