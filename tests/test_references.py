"""What docstrings and comments point to is there: modules, names in them, files."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import qll

ROOT = Path(qll.__file__).parent
REPOSITORY = Path(__file__).parent.parent
DOTTED = re.compile(r"`(qll(?:\.\w+)+)(?:\(\))?`")
FILE = re.compile(r"`((?:[\w-]+/)*[\w-]+\.(?:py|md))`")


def texts(path: Path) -> Iterator[str]:
    """Docstrings and comments, line breaks taken out."""
    source = path.read_text(encoding="utf-8")
    if not (DOTTED.search(source) or FILE.search(source)):
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found = ast.get_docstring(node)
            if found:
                yield re.sub(r"\s+", " ", found)
    yield from re.findall(r"#.*`.*", source)  # comments


@cache
def names(module: Path) -> set[str]:
    """What a module defines or imports at its top, and what its classes define."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.alias):
            found.add(node.asname or node.name.rpartition(".")[2])
    return found


def is_there(dotted: str) -> bool:
    """A module, or a name in the last module on its way; `qll` itself lists its names."""
    here, rest = ROOT, dotted.split(".")[1:]
    while rest and (here / rest[0]).is_dir():
        here = here / rest.pop(0)
    if rest and (here / f"{rest[0]}.py").is_file():
        module = here / f"{rest.pop(0)}.py"
    else:
        module = here / "__init__.py"
    if here == ROOT and module.name == "__init__.py" and rest:
        return rest[0] in dir(qll) or rest[0] in names(module)
    return not rest or rest[0] in names(module)


@cache
def files() -> set[str]:
    """Every file by every end of its path."""
    paths = [
        p for part in ("src", "tests", "bench", "docs") for p in (REPOSITORY / part).rglob("*")
    ]
    parts = [p.relative_to(REPOSITORY).parts for p in (*paths, *REPOSITORY.glob("*"))]
    return {"/".join(part[start:]) for part in parts for start in range(len(part))}


def test_references_point_to_something() -> None:
    lost = []
    for path in sorted(ROOT.rglob("*.py")):
        for text in texts(path):
            for dotted in DOTTED.findall(text):
                if not is_there(dotted):
                    lost.append(f"{path.relative_to(ROOT)}: {dotted}")
            for file in FILE.findall(text):
                if file not in files():
                    lost.append(f"{path.relative_to(ROOT)}: {file}")
    assert not lost


def test_what_is_not_there_is_seen() -> None:
    assert is_there("qll.kernels.chunk") and is_there("qll.kernels.chunk.attack_group")
    assert not is_there("qll.kernels.reference") and not is_there("qll.kernels.chunk.nothing")
    assert "kernels/chunk.py" in files() and "kernels/reference.py" not in files()
