"""Processes on this machine: joblib's loky, which are kept for the next call."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool

from qll.workers.base import DEATHS, Answer, Call, Workers, answer


def answers(calls: Sequence[Call], workers: Workers) -> Iterator[Answer]:
    """A dead process breaks the whole pool, and nobody says which call it was. So what was under
    way at two deaths is asked again alone, and given up if that kills another process."""
    left = {call.number: call for call in calls}
    deaths: dict[int, int] = {}
    while left:
        suspects = [number for number in left if deaths.get(number, 0) >= DEATHS][:1]
        try:
            for found in _pool([left[number] for number in suspects or left], workers):
                if left.pop(found.number, None) is not None:  # else answered before
                    yield found
        except BrokenProcessPool:
            if suspects:
                left.pop(suspects[0], None)
                yield Answer(suspects[0], lost=True)
            # Calls are handed out in order: those under way are the first that are left.
            for number in list(left)[: workers.count]:
                deaths[number] = deaths.get(number, 0) + 1


def _pool(calls: Sequence[Call], workers: Workers) -> Iterator[Answer]:
    import joblib

    # joblib makes a call of its own for a pool of one: a death would then be ours.
    jobs = max(workers.count, 2)
    with joblib.parallel_config(backend="loky", inner_max_num_threads=1):
        parallel = joblib.Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1)
        found = parallel(joblib.delayed(answer)(call) for call in calls)
    with warnings.catch_warnings():
        # A worker that has grown is replaced between two calls; nothing is lost by it.
        warnings.filterwarnings("ignore", "A worker stopped while some jobs", UserWarning)
        # Whoever has seen enough asks for no more: the rest is given up on purpose.
        warnings.filterwarnings("ignore", ".*tasks which were still being processed", UserWarning)
        yield from found
