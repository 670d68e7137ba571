"""A caller's clock: whoever checks at length asks now and then whether it may go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from qll.audit.onnx_file import NotConfirmed

_stop: ContextVar[Callable[[], bool] | None] = ContextVar("stop", default=None)


class Beyond(NotConfirmed):
    """Not confirmed for want of time, room or precision; it says nothing against the proof."""


@contextmanager
def paced(stop: Callable[[], bool] | None) -> Iterator[None]:
    """Within: what is still being checked when ``stop`` says so is `Beyond`."""
    token = _stop.set(stop)
    try:
        yield
    finally:
        _stop.reset(token)


def breathe() -> None:
    stop = _stop.get()
    if stop is not None and stop():
        raise Beyond("there was no time left to check it")


def room(enough: object, reason: str) -> None:
    if not enough:
        raise Beyond(reason)
