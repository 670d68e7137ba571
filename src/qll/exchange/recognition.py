"""Whether a file is a VNN-LIB query: asked before anything else is imported."""

from __future__ import annotations

import codecs
from pathlib import Path

SUFFIXES = (".vnnlib", ".vnnlib.gz")
_OPENINGS = (b"(vnnlib-version", b"(declare-const", b"(declare-fun", b"(set-logic")


def is_query(argument: str) -> bool:
    """Whether the argument is a query and not a property of ours: by its name, or, since tools name
    their files as they like, by how it begins."""
    if argument.lower().endswith(SUFFIXES):
        return True
    if argument.startswith("-") or argument.endswith(".qll"):
        return False
    try:
        with Path(argument).open("rb") as stream:
            text = stream.read(1 << 16).removeprefix(codecs.BOM_UTF8)
            lines = (line.split(b";")[0].strip() for line in text.splitlines())
            first = next((line for line in lines if line), b"")
    except (OSError, ValueError):
        return False
    return first.startswith(_OPENINGS)
