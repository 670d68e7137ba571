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
"""Each is a module of this package with ``answers(calls, workers)``: one answer to each call, in
any order. It deals with the deaths of its workers, and makes no call in the process that asks."""


DEATHS = 2
"""After so many of its workers have died a call is given up: the first death may be chance."""


@dataclass(frozen=True)
class Lost:
    """In place of a result: whoever worked on it died, and so did the next one."""

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
            for number, item in enumerate(items):  # what one asks of one process, it does itself
                yield number, function(item)
            return
        calls = [Call(number, function, item) for number, item in enumerate(items)]
        engine = importlib.import_module(f"qll.workers.{self.engine}")
        for found in engine.answers(calls, self):
            if found.error is not None:
                raise found.error
            yield found.number, Lost() if found.lost else found.result


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
