"""A Dask cluster: its scheduler gives what a dead worker held to another one."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from qll.errors import InputError, MissingExtra, RunError
from qll.workers.base import Answer, Call, Died, Workers, answer

_CONNECT = 10.0  # seconds until a scheduler that does not answer is not there
_SILENCE = 10.0  # seconds without a connection until the scheduler is given up
_POLL = 0.5
_RESUME = "start it again and give the same command: what is finished is kept, the rest goes on"


def answers(calls: Sequence[Call], workers: Workers) -> Iterator[Answer]:
    client = _connect(workers.scheduler)
    try:
        yield from _watched(calls, client)
    finally:
        client.close(timeout=2)


def _watched(calls: Sequence[Call], client: Any) -> Iterator[Answer]:
    """joblib waits for ever for a call that Dask gave up, or when the scheduler is gone: so it
    waits in a thread of its own, while this one looks after the cluster."""
    import joblib

    found: queue.SimpleQueue[Answer | BaseException | None] = queue.SimpleQueue()

    def collect() -> None:
        try:
            with joblib.parallel_config(backend="dask", client=client):
                parallel = joblib.Parallel(
                    return_as="generator_unordered", batch_size=1, pre_dispatch="all"
                )
                for item in parallel(joblib.delayed(answer)(call) for call in calls):
                    found.put(item)
            found.put(None)
        except BaseException as error:
            found.put(error)

    threading.Thread(target=collect, name="qll-dask", daemon=True).start()
    silent_since: float | None = None
    while True:
        try:
            item = found.get(timeout=_POLL)
        except queue.Empty:
            item = None
            if client.status == "running":
                silent_since = None
                if any(state.status == "error" for state in list(client.futures.values())):
                    raise Died from None
            else:
                silent_since = silent_since or time.monotonic()
                if time.monotonic() - silent_since > _SILENCE:
                    raise _gone(client, f"no connection ({client.status})") from None
            continue
        if item is None:
            return
        if isinstance(item, BaseException):
            if client.status != "running":
                raise _gone(client, type(item).__name__) from item
            raise _no_workers(client) if isinstance(item, TimeoutError) else item
        yield item


def _connect(address: str | None) -> Any:
    try:
        from distributed import Client
    except ImportError as error:
        raise MissingExtra.of("distributed", "dask", "the Dask engine") from error
    if address is None:
        raise InputError(
            "the Dask engine needs a scheduler",
            expected="--scheduler ADDRESS",
            found="none",
            fix="start one with 'dask scheduler', workers with 'dask worker ADDRESS --nworkers "
            "auto --nthreads 1', and pass --scheduler tcp://HOST:8786",
        )
    try:
        client = Client(address, timeout=_CONNECT, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise RunError(
            "the scheduler does not answer",
            where=address,
            expected="a Dask scheduler at this address",
            found=str(error).splitlines()[0] if str(error) else type(error).__name__,
            fix=f"check the address, or {_RESUME}",
        ) from error
    threads = {w["name"]: w["nthreads"] for w in client.scheduler_info(-1)["workers"].values()}
    if any(count > 1 for count in threads.values()):
        client.close(timeout=2)
        name, count = next((n, c) for n, c in threads.items() if c > 1)
        raise InputError(
            "the cluster's workers have several threads",
            where=address,
            expected="processes of one thread each, since a run uses the process for itself",
            found=f"{count} threads in worker {name}",
            fix="start them with 'dask worker ADDRESS --nworkers auto --nthreads 1'",
        )
    return client


def _gone(client: Any, found: str) -> RunError:
    return RunError(
        "the scheduler is gone",
        where=str(client.scheduler.address if client.scheduler else "Dask"),
        expected="a Dask scheduler that answers",
        found=found,
        fix=_RESUME,
    )


def _no_workers(client: Any) -> RunError:
    return RunError(
        "the cluster has no workers",
        where=str(client.scheduler.address if client.scheduler else "Dask"),
        expected="at least one worker",
        found="none",
        fix="start some with 'dask worker ADDRESS --nworkers auto --nthreads 1'",
    )
