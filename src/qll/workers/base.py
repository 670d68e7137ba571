"""Who does the work, and what happens when one of them dies."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from qll.errors import InputError
from qll.registry import suggest

A = TypeVar("A")
B = TypeVar("B")

ENGINES = ("local", "dask", "ray")
"""Each is a module of this package with ``answers(calls, workers)``."""


class Died(Exception):
    """A worker died, and took calls with it that nobody answers."""


@dataclass(frozen=True)
class Lost:
    """In place of a result: whoever worked on it died, and died again when alone with it."""

    reason: str = "the worker process died, most likely for lack of memory"


@dataclass(frozen=True)
class Workers:
    """``jobs`` processes, 0 for one on each core; on a cluster, all that its ``scheduler`` has."""

    engine: str = "local"
    jobs: int = 0
    scheduler: str | None = None

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise InputError(
                f"unknown engine '{self.engine}'",
                expected=" or ".join(ENGINES),
                found=f"'{self.engine}'",
                fix=suggest(self.engine, list(ENGINES)),
            )
        if self.scheduler is not None and self.engine == "local":
            raise InputError(
                "local processes have no scheduler",
                expected="--engine dask or --engine ray beside --scheduler",
                found="--engine local",
                fix="add --engine dask, or leave out --scheduler",
            )

    @property
    def is_local(self) -> bool:
        return self.engine == "local"

    @property
    def count(self) -> int:
        """Processes on this machine."""
        return self.jobs if self.jobs > 0 else os.cpu_count() or 1

    def run(self, function: Callable[[A], B], items: Sequence[A]) -> Iterator[tuple[int, B | Lost]]:
        """``function`` of every item, with the item's number, in the order of the answers. Its
        errors are raised here. It must be a function of a module, and may be called again for an
        item whose worker died."""
        if self.is_local and (self.count == 1 or len(items) < 2):
            for number, item in enumerate(items):
                yield number, function(item)
            return
        answers = importlib.import_module(f"qll.workers.{self.engine}").answers
        yield from _persistent(lambda calls: answers(calls, self), function, items, self.count)


@dataclass(frozen=True)
class Call:
    """What is sent to a worker."""

    number: int
    function: Callable[[Any], Any]
    item: Any


@dataclass(frozen=True)
class Answer:
    """What comes back."""

    number: int
    result: Any = None
    error: Exception | None = None
    lost: bool = False  # nobody answers, and nobody would


# Runs use the random streams of the process: one at a time, also where a worker has threads.
_ALONE = threading.Lock()


def answer(call: Call) -> Answer:
    with _ALONE:
        try:
            return Answer(call.number, call.function(call.item))
        except Exception as error:  # raised again where the answers are read
            return Answer(call.number, error=error)


def _persistent(
    ask: Callable[[list[Call]], Iterator[Answer]],
    function: Callable[[A], B],
    items: Sequence[A],
    jobs: int,
) -> Iterator[tuple[int, B | Lost]]:
    """What a dead worker left is asked again. What was under way at two deaths is asked alone, and
    given up if that kills another worker."""
    left = {number: Call(number, function, item) for number, item in enumerate(items)}
    deaths: dict[int, int] = {}
    while left:
        suspects = [number for number in left if deaths.get(number, 0) > 1][:1]
        try:
            for found in ask([left[number] for number in suspects or left]):
                if left.pop(found.number, None) is None:
                    continue  # answered before
                if found.error is not None:
                    raise found.error
                yield found.number, Lost() if found.lost else found.result
        except Died:
            if suspects:
                left.pop(suspects[0], None)
                yield suspects[0], Lost()
            # Calls are handed out in order: those under way are the first that are left.
            for number in list(left)[:jobs]:
                deaths[number] = deaths.get(number, 0) + 1
