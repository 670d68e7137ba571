"""Modules that are imported when something of them is first used.

torch takes more than a second to import; most queries to a network from an ONNX file are decided
by compiled kernels and numpy alone. Code that needs torch only on other paths says::

    if TYPE_CHECKING:
        import torch
    else:
        torch = late("torch")
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any


class _Late(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what is asked of every module, by tools that look at all
            raise AttributeError(name)
        return getattr(import_module(self.__name__), name)


def late(name: str) -> ModuleType:
    """A stand-in for the module ``name``, which is imported at the first look at an attribute."""
    return _Late(name)
