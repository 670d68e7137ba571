"""A Dask cluster: its scheduler gives what a dead worker held to another one."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

from qll.errors import InputError, MissingExtra, RunError
from qll.workers.base import Answer, Call, Workers, answer

_CONNECT = 10.0  # seconds until a scheduler that does not answer is not there
_SILENCE = 10.0  # seconds without a connection until the scheduler is given up
_LONELY = 300.0  # seconds without any worker until the cluster is given up
_POLL = 0.5
_ASK = 10.0  # seconds between questions for the workers
_RESUME = "start it again and give the same command: what is finished is kept, the rest goes on"
_START = "'dask worker ADDRESS --nworkers auto --nthreads 1'"


def answers(calls: Sequence[Call], workers: Workers) -> Iterator[Answer]:
    client = _connect(workers.scheduler)
    try:
        yield from _watched(calls, client)
    finally:
        client.close(timeout=2)


def _watched(calls: Sequence[Call], client: Any) -> Iterator[Answer]:
    """joblib waits for ever for a call that Dask gave up, and when the scheduler is gone: so it
    waits in a thread of its own, while this one looks after the cluster."""
    found: queue.SimpleQueue[Answer | BaseException] = queue.SimpleQueue()
    threading.Thread(
        target=_collect, args=(calls, client, found), name="qll-dask", daemon=True
    ).start()
    cluster = _Cluster(client)
    left = len(calls)
    while left:
        try:
            item = found.get(timeout=_POLL)
        except queue.Empty:
            cluster.check()
            continue
        if isinstance(item, BaseException):
            raise cluster.explain(item) from item
        left -= 1
        yield item


def _collect(
    calls: Sequence[Call], client: Any, found: queue.SimpleQueue[Answer | BaseException]
) -> None:
    import joblib

    try:
        with joblib.parallel_config(backend="dask", client=client) as chosen:
            backend = chosen["backend"]
            hand_over = backend.submit

            def submit(batch: Any, callback: Any = None) -> Future[Any]:
                """joblib calls back for answers; here for calls that Dask gave up."""
                number = batch.items[0][1][0].number
                future: Future[Any] = hand_over(batch, callback)
                future.add_done_callback(lambda done: _given_up(number, done, found))
                return future

            backend.submit = submit
            parallel = joblib.Parallel(
                return_as="generator_unordered", batch_size=1, pre_dispatch="all"
            )
            for item in parallel(joblib.delayed(answer)(call) for call in calls):
                found.put(item)
    except BaseException as error:  # said by whoever reads the answers
        found.put(error)


def _given_up(
    number: int, future: Future[Any], found: queue.SimpleQueue[Answer | BaseException]
) -> None:
    from distributed import KilledWorker

    error = None if future.cancelled() else future.exception()
    if isinstance(error, KilledWorker):
        found.put(Answer(number, lost=True))
    elif error is not None:
        found.put(error)


class _Cluster:
    """Whether scheduler and workers are still there."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.address = str(client.scheduler.address)
        self._silent: float | None = None
        self._lonely: float | None = None
        self._asked = time.monotonic()

    def check(self) -> None:
        now = time.monotonic()
        if self.client.status != "running":
            self._silent = self._silent or now
            if now - self._silent > _SILENCE:
                raise self._gone(f"no connection ({self.client.status})")
            return
        self._silent = None
        if now < self._asked + _ASK:
            return
        self._asked = now
        try:
            workers = self.client.nthreads()
        except OSError:  # the status will tell
            return
        self._lonely = None if workers else self._lonely or now
        if self._lonely is not None and now - self._lonely > _LONELY:
            raise self._no_workers()

    def explain(self, error: BaseException) -> BaseException:
        if self.client.status != "running":
            return self._gone(type(error).__name__)
        if isinstance(error, TimeoutError):
            return self._no_workers()
        return RunError(
            "the cluster cannot do the work",
            where=self.address,
            expected="workers that have the same qll and Python as here",
            found=f"{type(error).__name__}: {error}",
            fix="install the same environment on every machine",
        )

    def _gone(self, found: str) -> RunError:
        return RunError(
            "the scheduler is gone",
            where=self.address,
            expected="a Dask scheduler that answers",
            found=found,
            fix=_RESUME,
        )

    def _no_workers(self) -> RunError:
        return RunError(
            "the cluster has no workers",
            where=self.address,
            expected="at least one worker",
            found="none",
            fix=f"start some with {_START} and give the same command",
        )


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
            fix=f"start one with 'dask scheduler', workers with {_START}, and pass "
            "--scheduler tcp://HOST:8786",
        )
    # What goes wrong with the connection is said once, by our error.
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
    try:
        client: Any = Client(address, timeout=_CONNECT, set_as_default=False)  # type: ignore[no-untyped-call, unused-ignore]
    except (OSError, ValueError, TimeoutError) as error:
        raise RunError(
            "the scheduler does not answer",
            where=address,
            expected="a Dask scheduler at this address",
            found=str(error).splitlines()[0] if str(error) else type(error).__name__,
            fix=f"check the address, or {_RESUME}",
        ) from error
    threads = client.nthreads()
    broad = next(((worker, count) for worker, count in threads.items() if count > 1), None)
    if broad is not None:
        client.close(timeout=2)
        raise InputError(
            "the cluster's workers have several threads",
            where=address,
            expected="processes of one thread each, since a run uses the process for itself",
            found=f"{broad[1]} threads in worker {broad[0]}",
            fix=f"start them with {_START}",
        )
    return client
