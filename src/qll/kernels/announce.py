"""Compilation on first use is announced: a minute without a word looks like a hang."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from qll.kernels import available

MESSAGE = "compiling kernels for this machine: once, up to a minute or two"


@contextmanager
def announced(tell: Callable[[str], None]) -> Iterator[None]:
    """``tell`` is called once, when the first kernel has to be compiled; never if all are kept."""
    if not available():
        yield
        return
    from numba.core import event

    class Listener(event.Listener):  # type: ignore[misc, unused-ignore]
        said = False

        def on_start(self, event: Any) -> None:
            if not self.said:
                self.said = True
                tell(MESSAGE)

        def on_end(self, event: Any) -> None: ...

    with event.install_listener("numba:compile", Listener()):
        yield
