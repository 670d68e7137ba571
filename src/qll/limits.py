"""Limits of time and memory that hold for all that is done within them.

Whoever works at length asks now and then whether it may go on (`check`), and whoever takes much
memory asks before it does (`need`): cooperatively, because no timer can interrupt a call into C and
leave sound data behind. Without limits both cost next to nothing.

>>> with limited(deadline=0.0):
...     check()
Traceback (most recent call last):
...
qll.limits.OutOfTime: out of time
>>> with limited(memory=1 << 30):
...     need(3 << 30, "a table")
Traceback (most recent call last):
...
qll.limits.OutOfMemory: a table needs about 3.2 GB, limit 1.1 GB
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path

# Of the memory that is free; the rest is for the system and for what estimates leave out.
SHARE = 0.5
# Smaller requests are not worth a look at what the process holds.
LARGE = 1 << 24


class OutOfTime(Exception):
    """The deadline of the limits is over."""


class OutOfMemory(MemoryError):
    """What comes next does not fit into the limits; nothing was taken yet."""


@dataclass(frozen=True)
class Limits:
    """``deadline`` by the clock ``now``; ``memory`` in bytes, beyond the ``held`` ones that the
    process had when the limit was set."""

    deadline: float = math.inf
    now: Callable[[], float] = time.monotonic
    memory: float = math.inf
    held: int = 0


_NONE = Limits()
_limits: ContextVar[Limits] = ContextVar("limits", default=_NONE)


@contextmanager
def limited(
    *,
    deadline: float = math.inf,
    now: Callable[[], float] | None = None,
    memory: float | None = None,
) -> Iterator[None]:
    """Within: the earlier of this deadline and the one around it. The memory of the limits around
    stays what it is, so that nothing is counted twice."""
    outer = _limits.get()
    inner = replace(outer, deadline=min(outer.deadline, deadline), now=now or outer.now)
    if memory is not None and outer.memory == math.inf:
        inner = replace(inner, memory=memory, held=resident())
    token = _limits.set(inner)
    try:
        yield
    finally:
        _limits.reset(token)


def left() -> float:
    """Seconds to the deadline."""
    limits = _limits.get()
    return limits.deadline - limits.now() if limits.deadline < math.inf else math.inf


def check() -> None:
    """Ends what is too late, with `OutOfTime`."""
    if left() <= 0:
        raise OutOfTime("out of time")


def need(size: float, what: str) -> None:
    """Asks for ``size`` bytes before they are taken."""
    limits = _limits.get()
    if limits.memory == math.inf or size < min(LARGE, limits.memory):
        return
    total = size + max(0, resident() - limits.held)
    if total > limits.memory:
        raise OutOfMemory(f"{what} needs about {_gb(total)}, limit {_gb(limits.memory)}")


def memory_limit() -> float:
    """Bytes that may be taken, from now on."""
    limits = _limits.get()
    if limits.memory == math.inf:
        return math.inf
    return max(0.0, limits.memory - max(0, resident() - limits.held))


def _gb(size: float) -> str:
    return f"{size / 1e9:.2g} GB" if size >= 1e7 else f"{size / 1e9:.4f} GB"


def resident() -> int:
    """Bytes of memory that this process holds; 0 where that cannot be asked."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def free() -> float:
    """Bytes of memory that could still be taken on this machine, or within its control group."""
    found = [math.inf]
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(1024.0 * int(line.split()[1]))
    except (OSError, ValueError):
        with suppress(AttributeError, ValueError, OSError):
            found.append(float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")) / 2)
    with suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        most = (group / "memory.max").read_text().strip()
        if most != "max":
            found.append(float(most) - float((group / "memory.current").read_text()))
    return max(0.0, min(found))


def default_memory(processes: int = 1) -> float:
    """What each of several processes may take if nobody says otherwise."""
    return SHARE * free() / max(1, processes)
