"""The options of a data set are the keyword arguments of its loader."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from qll.errors import InputError
from qll.registry import suggest

_NOT_OPTIONS = {"data_dir", "progress"}


def defaults(loader: Callable[..., Any]) -> dict[str, Any]:
    """The options of a loader with their default values.

    >>> defaults(lambda data_dir, *, progress=None, seed=0: None)
    {'seed': 0}
    """
    parameters = inspect.signature(loader).parameters.values()
    return {p.name: p.default for p in parameters if p.name not in _NOT_OPTIONS}


def accept(name: str, loader: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Refuse options that the loader does not have, or of another type than the default's."""
    known = defaults(loader)
    for key, value in options.items():
        if key not in known:
            raise InputError(
                f"data set '{name}' has no option '{key}'",
                expected=f"one of: {', '.join(known)}" if known else "no options",
                found=f"'{key}'",
                fix=suggest(key, list(known)) if known else "leave it out",
            )
        # bool is a kind of int in Python: seed=True is a mistake, not seed 1.
        if type(value) is not type(known[key]):
            raise InputError(
                f"option '{key}' of data set '{name}' has the wrong type",
                expected=f"{type(known[key]).__name__}, such as {known[key]!r}",
                found=f"{value!r}",
                fix=f"pass {key}={known[key]!r} or another {type(known[key]).__name__}",
            )
