"""Where compiled kernels are kept between runs.

A kernel is compiled again when its source has changed, or that of a function that it calls in
another file. So the folder's name holds a hash of every source that the function can call: its
module and all that this imports from the library, and so on. A logic's functions are called by
address and do not become part of a kernel: a change there recompiles only them.
"""

from __future__ import annotations

import ast
import hashlib
import os
from collections.abc import Callable
from functools import cache
from importlib.util import resolve_name
from pathlib import Path
from typing import Any

from qll.folders import user_cache

_PACKAGE = Path(__file__).resolve().parent.parent


# --- what a module's functions can call ---


def _source(module: str, package: Path) -> Path | None:
    """The file of a module of the library; None for anything else."""
    first, *rest = module.split(".")
    if first != "qll":
        return None
    path = package.joinpath(*rest)
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if rest and file.is_file():
            return file
    return None


@cache
def _imports(module: str, content: bytes, is_package: bool) -> frozenset[str]:
    """Names of what the source imports anywhere: ``from a import b`` may be the module a.b or a
    name in a, so both are named."""
    parent = module if is_package else module.rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), parent)
            found.add(base)
            found.update(f"{base}.{alias.name}" for alias in node.names)
    return frozenset(found)


def _closure(modules: tuple[str, ...], package: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        file = None if module in found else _source(module, package)
        if file is not None:
            found[module] = file.read_bytes()
            waiting += _imports(module, found[module], file.name == "__init__.py")
    return found


def closure(*modules: str, package: Path = _PACKAGE) -> set[str]:
    """The modules, and all of the library that they import, also through each other."""
    return set(_closure(modules, package))


def source_hash(*modules: str, package: Path = _PACKAGE) -> str:
    digest = hashlib.sha256()
    for module, content in sorted(_closure(modules, package).items()):
        digest.update(f"{module}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]


# --- folders ---


@cache
def code_folder(*modules: str) -> Path | None:
    """The folder for these sources; None for sources of others, whose imports are not followed,
    and where nothing can be written."""
    try:
        if any(_source(module, _PACKAGE) is None for module in modules):
            return None
        name = modules[0].removeprefix("qll.")
        folder = user_cache() / f"{name}-{source_hash(*modules)}"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: no home folder
        return None
    return folder if os.access(folder, os.W_OK) else None


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """A decorator: compile without the interpreter lock, and keep the machine code on disk."""

    def decorate(function: Callable[..., Any]) -> Any:
        from qll.kernels.dispatch import Kernel

        options_of = {"nogil": True, "error_model": "numpy", **options}
        return Kernel(function, options_of, code_folder(function.__module__))

    return decorate
