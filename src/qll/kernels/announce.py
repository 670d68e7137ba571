"""What takes long is said once: compiling kernels, and a network that they do not take."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from qll.kernels import available

MESSAGE = "compiling kernels for this machine: once, up to a minute"
_EVERY = 15.0  # seconds between two lines of progress
_tell: ContextVar[Callable[[str], None] | None] = ContextVar("tell", default=None)
_said: set[str] = set()


_CLOCKS = {"wall": time.monotonic, "cpu": time.process_time}
_spent = dict.fromkeys(_CLOCKS, 0.0)


@contextmanager
def counted() -> Iterator[None]:
    """What happens within is the compiling or loading of a kernel; one at a time."""
    begun = {name: clock() for name, clock in _CLOCKS.items()}
    try:
        yield
    finally:
        for name, clock in _CLOCKS.items():
            _spent[name] += clock() - begun[name]


def seconds_spent(clock: str) -> float:
    """How long this process has compiled and loaded kernels, by the clock ``wall`` or ``cpu``."""
    return _spent[clock]


class SlowPath(UserWarning):
    """A network is attacked by torch, several times slower than by the kernels."""


def slow_path(reason: str) -> None:
    """Say once which part of a network keeps it off the compiled attack."""
    text = f"attacking by torch, not in compiled code: {reason}"
    tell = _tell.get()
    if tell is None:
        if text not in _said:
            _said.add(text)
            warnings.warn(text, SlowPath, stacklevel=2)
        return
    tell(text)


@contextmanager
def announced(tell: Callable[[str], None]) -> Iterator[None]:
    """``tell`` is called once for each thing: when the first kernel has to be compiled (never if
    all are kept), and when a network cannot be attacked by kernels."""
    said: set[str] = set()

    def once(text: str) -> None:
        if text not in said:
            said.add(text)
            tell(text)

    token = _tell.set(once)
    try:
        with _listening(once):
            yield
    finally:
        _tell.reset(token)


@contextmanager
def _listening(tell: Callable[[str], None]) -> Iterator[None]:
    if not available():
        yield
        return
    from numba.core import event

    class Listener(event.Listener):  # type: ignore[misc, unused-ignore]
        said = begun = spent = 0.0
        count = depth = 0  # one function may have another compiled

        def on_start(self, event: Any) -> None:
            now = time.monotonic()
            if not self.said:
                self.said = now
                tell(MESSAGE)
            if not self.depth:
                self.begun = now
            self.depth += 1

        def on_end(self, event: Any) -> None:
            now = time.monotonic()
            self.count, self.depth = self.count + 1, self.depth - 1
            if not self.depth:
                self.spent += now - self.begun  # what runs between two of them does not count
            if now - self.said >= _EVERY and not self.depth:
                self.said = now
                tell(f"compiling kernels: {self.count} functions in {self.spent:.0f} s")

    with event.install_listener("numba:compile", Listener()):
        yield
