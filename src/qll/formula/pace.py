"""A caller's clock: what unfolds a formula at length asks now and then whether it may go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_ask: ContextVar[Callable[[], None] | None] = ContextVar("ask", default=None)


@contextmanager
def paced(ask: Callable[[], None]) -> Iterator[None]:
    """Within: ``ask`` is called now and then, and raises if the time is over."""
    token = _ask.set(ask)
    try:
        yield
    finally:
        _ask.reset(token)


def breathe() -> None:
    ask = _ask.get()
    if ask is not None:
        ask()
