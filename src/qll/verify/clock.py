"""The clock of budgets: wall time, or CPU time of this process on a busy machine.

It stands still while a kernel is compiled or loaded, once on a machine or in a process: that is no
query's time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from qll import limits
from qll.formula.pace import paced
from qll.kernels.announce import seconds_spent

_CLOCKS: dict[str, Callable[[], float]] = {"wall": time.monotonic, "cpu": time.process_time}
_chosen = "wall"


def use(name: str) -> None:
    """Choose the clock of this process: ``wall`` or ``cpu``."""
    global _chosen
    if name not in _CLOCKS:
        raise ValueError(f"no clock '{name}': use one of {', '.join(_CLOCKS)}")
    _chosen = name


def chosen() -> str:
    return _chosen


@contextmanager
def counting(name: str) -> Iterator[None]:
    """By another clock for a while."""
    before = chosen()
    use(name)
    try:
        yield
    finally:
        use(before)


def now() -> float:
    return _CLOCKS[_chosen]() - seconds_spent(_chosen)


@contextmanager
def within(deadline: float, memory: float | None = None) -> Iterator[None]:
    """Limits of this clock, which the unfolding of a formula heeds too."""
    with limits.limited(deadline=deadline, now=now, memory=memory), paced(limits.check):
        yield
