"""Ray: every call is a task of its own, which Ray itself does not repeat."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Any

from qll.errors import MissingExtra, RunError
from qll.workers.base import DEATHS, Answer, Call, Workers, answer

# A process that has answered finds its next call already there; what waits costs only its room.
_AHEAD = 2


def answers(calls: Sequence[Call], workers: Workers) -> Iterator[Answer]:
    try:
        import ray as imported
    except ImportError as error:
        raise MissingExtra.of("ray", "ray", "the Ray engine") from error
    ray: Any = imported
    if not ray.is_initialized():
        _start(ray, workers)
    task = ray.remote(num_cpus=1, max_retries=0)(answer)
    waiting, deaths = deque(calls), Counter[int]()
    held: dict[Any, Call] = {}
    try:
        while waiting or held:
            while waiting and len(held) < _AHEAD * max(
                1, int(ray.cluster_resources().get("CPU", 1))
            ):
                call = waiting.popleft()
                held[task.remote(call)] = call
            for done in ray.wait(list(held), num_returns=1)[0]:
                call = held.pop(done)
                try:
                    yield ray.get(done)
                except ray.exceptions.RayTaskError as error:
                    raise _unfit(error) from error
                except ray.exceptions.RayError:  # its process died, or the machine
                    deaths[call.number] += 1
                    if deaths[call.number] >= DEATHS:
                        yield Answer(call.number, lost=True)
                    else:
                        waiting.appendleft(call)
    finally:
        for future in held:
            ray.cancel(future, force=True)


def _unfit(error: Exception) -> RunError:
    """Errors of the call come as answers: these are of its way there and back."""
    return RunError(
        "Ray cannot do the work",
        expected="workers that have the same qll and Python as here",
        found=str(error).strip().splitlines()[-1],
        fix="install the same environment on every machine",
    )


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
