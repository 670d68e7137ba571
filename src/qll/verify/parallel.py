"""One hard query on several processes: its box in parts, which are split again as time goes by.

In rounds. Every part that is open is decided by some process, within a slice of the time; a part
that its slice does not suffice for is halved, and the next round's slices are longer. ``verified``
needs all parts, ``falsified`` one of them, so that which process was faster changes no verdict.
The time ends for all of them at once, and the memory that one process might take is shared.

Only for boxes of few inputs: half of the box of an image is as hard as the whole.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from qll.limits import default_memory
from qll.verify.backend import BACKENDS, Budget
from qll.verify.condition import Array
from qll.verify.query import Query
from qll.verify.verdict import Reason, Status, Verdict
from qll.workers import Lost, Workers

# Parts of the first round for each process, so that none waits long for the last one.
PARTS = 4
# Seconds for a part of the first round, and how much more in each round that follows. What is spent
# on a part that is then halved is lost, so that slices are long against what starts a process.
FIRST_SLICE, GROWTH = 10.0, 2.0
# Inputs up to which a box is halved.
FEW_INPUTS = 10


@dataclass(frozen=True, eq=False)
class Part:
    """What a process is given: some of the box, and until when (by the clock that all share)."""

    query: Query
    backend: str
    budget: Budget
    end: float


def fits(query: Query) -> bool:
    """Whether halves of the box are easier than the whole."""
    moves = query.upper > query.lower
    return int(moves.sum()) <= FEW_INPUTS and query.integers is None


def decide(query: Query, budget: Budget, *, jobs: int, backend: str = "bab") -> Verdict:
    """The verdict within the seconds of the budget, without a proof to be checked."""
    start = time.monotonic()
    end = start + budget.seconds
    each = (default_memory() if budget.memory is None else budget.memory) / jobs
    given = replace(budget, proofs=False, memory=each)
    workers = Workers(jobs=jobs)
    whole = query.upper - query.lower
    open_ = [query]
    while len(open_) < PARTS * jobs and all(_splittable(part) for part in open_):
        open_ = [half for part in open_ for half in halves(part, whole)]
    nodes, bound, notes = 0, np.inf, dict[str, None]()
    slice_ = FIRST_SLICE
    unsettled: Verdict | None = None
    while open_:
        left = end - time.monotonic()
        if left <= 0:
            return Verdict(
                Status.UNKNOWN, "parallel", reason=Reason.TIME, nodes=nodes, backend=backend,
                seconds=time.monotonic() - start,
            )  # fmt: skip
        parts = [Part(part, backend, replace(given, seconds=min(slice_, left)), end)
                 for part in open_]  # fmt: skip
        waiting: list[Query] = []
        for number, found in workers.run(_decide, parts):
            if isinstance(found, Lost):
                found = Verdict(Status.UNKNOWN, "worker", reason=Reason.MEMORY, detail=found.reason)
            nodes += found.nodes
            notes.update(dict.fromkeys(found.notes))
            if found.status is Status.VERIFIED:
                bound = min(bound, np.inf if found.bound is None else found.bound)
            elif found.reason is Reason.TIME and _splittable(open_[number]):
                waiting += halves(open_[number], whole)
            elif found.status is Status.FALSIFIED:
                return replace(found, nodes=nodes, seconds=time.monotonic() - start)
            else:  # more time would not change it, but another part may hold a violation
                unsettled = unsettled or found
        open_ = waiting
        slice_ *= GROWTH
    if unsettled is not None:
        return replace(unsettled, nodes=nodes, seconds=time.monotonic() - start)
    return Verdict(
        Status.VERIFIED, "parallel", bound=float(bound), nodes=nodes, notes=tuple(notes),
        seconds=time.monotonic() - start, backend=backend,
    )  # fmt: skip


def _decide(part: Part) -> Verdict:
    """In a process of its own."""
    seconds = min(part.budget.seconds, part.end - time.monotonic())
    if seconds <= 0:
        return Verdict(Status.UNKNOWN, "parallel", reason=Reason.TIME, backend=part.backend)
    budget = replace(part.budget, seconds=seconds)
    return replace(BACKENDS[part.backend]().decide([part.query], budget)[0], proof=None)


def _splittable(query: Query) -> bool:
    return bool((_middle(query.lower, query.upper) > query.lower).any())


def _middle(lower: Array, upper: Array) -> Array:
    """Strictly between the ends, or the lower one."""
    middle = lower + (upper - lower) / 2
    return np.where((lower < middle) & (middle < upper), middle, lower)


def halves(query: Query, whole: Array) -> Sequence[Query]:
    """Both halves along the input that is widest, measured by its width in the whole box."""
    middle = _middle(query.lower, query.upper)
    width = np.where(middle > query.lower, query.upper - query.lower, 0.0)
    at = int((width / np.where(whole > 0, whole, 1.0)).argmax())
    upper, lower = query.upper.copy(), query.lower.copy()
    upper[at] = lower[at] = middle[at]
    return replace(query, upper=upper), replace(query, lower=lower)
