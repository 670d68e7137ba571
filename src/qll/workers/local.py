"""Processes on this machine: joblib's loky, which are kept for the next call."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool

from qll.workers.base import Answer, Call, Died, Workers, answer


def answers(calls: Sequence[Call], workers: Workers) -> Iterator[Answer]:
    import joblib

    # joblib makes a call of its own for a pool of one: a death would then be ours.
    jobs = max(workers.count, 2)
    with joblib.parallel_config(backend="loky", inner_max_num_threads=1):
        parallel = joblib.Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1)
        found = parallel(joblib.delayed(answer)(call) for call in calls)
    try:
        with warnings.catch_warnings():
            # A worker that has grown is replaced between two calls; nothing is lost by it.
            warnings.filterwarnings("ignore", "A worker stopped while some jobs", UserWarning)
            yield from found
    except BrokenProcessPool as error:
        raise Died from error
