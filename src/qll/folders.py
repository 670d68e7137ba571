"""The one folder in which the library keeps what it can make or fetch again."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_cache_path


def user_cache() -> Path:
    """``QLL_CACHE_DIR`` if it is set, else the platform's folder for caches."""
    chosen = os.environ.get("QLL_CACHE_DIR")
    return Path(chosen).expanduser() if chosen else user_cache_path("qll", appauthor=False)
