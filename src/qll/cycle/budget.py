"""Time: what was granted, what is spent, and proofs that fit into the rest."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qll.errors import InputError
from qll.metrics import tally
from qll.verify.api import Problem, decide_all
from qll.verify.journal import Journal

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
# Regions of one worker between two looks at the clock.
_SLAB = 16
_LEAST_TIMEOUT = 0.05


def seconds_of(text: str) -> float:
    """A length of time.

    >>> seconds_of("30m"), seconds_of("90")
    (1800.0, 90.0)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*", text)
    if match is None or float(match[1]) <= 0:
        raise InputError(
            "the budget is not a length of time",
            expected="a number with s, m or h",
            found=f"'{text}'",
            fix="write --budget 30m",
        )
    return float(match[1]) * _UNITS[match[2]]


@dataclass
class Budget:
    """Seconds of a cycle over all its sessions; ``spent`` are those of earlier ones."""

    seconds: float
    spent: float = 0.0
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._begun = self.clock()

    @property
    def used(self) -> float:
        return self.spent + self.clock() - self._begun

    @property
    def left(self) -> float:
        return self.seconds - self.used

    def until(self, reserve: float) -> float:
        """The moment (of ``time.monotonic``) at which ``reserve`` seconds are left."""
        return self.clock() + self.left - reserve


def decide_within(
    problem: Problem,
    out: Path,
    budget: Budget,
    *,
    jobs: int,
    on_slab: Callable[[], None] = lambda: None,
) -> Mapping[int, Mapping[str, Any]]:
    """Verdicts for every region, into a journal at ``out``; a region that the budget does not reach
    is ``unknown``. A second call goes on where a killed one stopped."""
    journal = Journal(out, problem)
    if out.is_file():
        return journal.finished()
    with journal:
        left = [i for i in range(len(problem)) if i not in journal.known]
        slab = _SLAB * max(jobs, 1)
        for first in range(0, len(left), slab):
            indices: Sequence[int] = left[first : first + slab]
            if budget.left <= 0:
                break
            # The slab's worst case fits into what is left.
            most = max(budget.left / _SLAB, _LEAST_TIMEOUT)
            hurried = replace(problem, timeout=min(problem.timeout, most))
            for index, verdict in decide_all(hurried, indices, jobs=jobs):
                journal.add(index, verdict)
            on_slab()
    if len(journal.known) == len(problem) or budget.left <= 0:
        for index in range(len(problem)):
            journal.known.setdefault(
                index, {"point": index, "status": "unknown", "reason": "out of budget"}
            )
        journal.finish(tally(journal.known.values()))
    return dict(journal.known)


def share(part: int, whole: int) -> float:
    return part / whole if whole else math.nan
