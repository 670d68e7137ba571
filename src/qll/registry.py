"""Names to things. A package registers its own files; the command line, the docs and the tests
read the registry, so nothing is listed twice."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

from qll.errors import InputError

T = TypeVar("T")


def suggest(name: str, known: list[str]) -> str:
    """``did you mean 'x'`` when something is near, otherwise the list of what there is."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if near:
        return f"did you mean '{near[0]}'? Known: {', '.join(known)}"
    return f"use one of: {', '.join(known)}"


def _again(old: object, new: object) -> bool:
    """A cell of a notebook that is run twice defines the same thing anew."""
    places = {(getattr(x, "__module__", ""), getattr(x, "__qualname__", None)) for x in (old, new)}
    return len(places) == 1 and places.pop()[0] == "__main__"


class Registry(Mapping[str, T], Generic[T]):
    """A mapping that refuses duplicates and, when a name is unknown, suggests a near one.

    ``package`` names the package whose modules register themselves; they are imported on the
    first look-up and must not import an optional dependency at module level.
    """

    def __init__(self, kind: str, package: str | None = None) -> None:
        self.kind = kind
        self._package = package
        self._items: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        def add(item: T) -> T:
            if name in self._items and not _again(self._items[name], item):
                raise InputError(
                    f"{self.kind} '{name}' is registered twice",
                    expected="a new name",
                    found=f"'{name}', which is taken",
                    fix="choose another name",
                )
            self._items[name] = item
            return item

        return add

    def _discover(self) -> None:
        if self._package is None:
            return
        package, self._package = self._package, None
        paths = importlib.import_module(package).__path__
        for module in pkgutil.iter_modules(paths):
            if not module.name.startswith("_"):
                importlib.import_module(f"{package}.{module.name}")

    def __getitem__(self, name: str) -> T:
        self._discover()
        if name not in self._items:
            raise InputError(
                f"unknown {self.kind} '{name}'",
                expected=f"a registered {self.kind}",
                found=f"'{name}'",
                fix=suggest(name, sorted(self._items)),
            )
        return self._items[name]

    def __contains__(self, name: object) -> bool:
        self._discover()
        return name in self._items

    def __iter__(self) -> Iterator[str]:
        self._discover()
        return iter(sorted(self._items))

    def __len__(self) -> int:
        self._discover()
        return len(self._items)
