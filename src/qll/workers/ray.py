"""Ray: its own pool under joblib, which answers a round at a time."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from qll.errors import MissingExtra, RunError
from qll.workers.base import Answer, Call, Died, Workers, answer

# joblib's Ray answers when all calls are done. In rounds of a few calls for each process, little
# waits at the end of a round, and little is done again when the driver is killed.
_ROUND = 4


def answers(calls: Sequence[Call], workers: Workers) -> Iterator[Answer]:
    try:
        import ray
        from ray.util.joblib import register_ray
    except ImportError as error:
        raise MissingExtra.of("ray", "ray", "the Ray engine") from error
    import joblib

    if not ray.is_initialized():
        _start(ray, workers)
    register_ray()
    jobs = workers.count if workers.scheduler is None else int(ray.cluster_resources()["CPU"])
    size = _ROUND * jobs
    for first in range(0, len(calls), size):
        part = calls[first : first + size]
        with joblib.parallel_config(backend="ray", n_jobs=jobs):
            try:
                found = joblib.Parallel(batch_size=1)(joblib.delayed(answer)(call) for call in part)
            except ray.exceptions.RayError as error:
                raise Died from error
        yield from found


def _start(ray: Any, workers: Workers) -> None:
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if workers.scheduler is None:
            ray.init(num_cpus=workers.count, include_dashboard=False, **quiet)
        else:
            ray.init(address=workers.scheduler, **quiet)
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        raise RunError(
            "Ray does not answer",
            where=workers.scheduler or "this machine",
            expected="a Ray cluster at this address" if workers.scheduler else "Ray to start",
            found=str(error).splitlines()[0] if str(error) else type(error).__name__,
            fix="start it with 'ray start --head' and pass --scheduler auto or its address",
        ) from error
