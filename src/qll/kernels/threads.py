"""One pool of threads for all kernels. They release the interpreter lock, so threads suffice; a
fork of the process after OpenMP has run would not survive."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache

import torch

# Below this many samples a part is not worth a thread.
_FEWEST = 64


def thread_count() -> int:
    return torch.get_num_threads()


@cache
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="qll-kernel")


def submit(threads: int, work: Callable[[int], None]) -> None:
    """``work(0) .. work(threads - 1)`` at once; the first error is raised when all have ended."""
    # A forked child has the parent's pool object but none of its threads.
    pool = _pool(os.getpid(), threads)
    jobs: list[Future[None]] = [pool.submit(work, thread) for thread in range(1, threads)]
    work(0)
    for job in jobs:
        job.result()


def in_parts(samples: int, work: Callable[[int, int], None]) -> None:
    """``work(first, last)`` for equal parts of the samples, one a thread."""
    threads = max(1, min(thread_count(), samples // _FEWEST))
    size = -(-samples // threads)

    def part(thread: int) -> None:
        work(min(thread * size, samples), min((thread + 1) * size, samples))

    submit(threads, part)
