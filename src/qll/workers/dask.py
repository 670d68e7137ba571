"""A Dask cluster: every worker is given one call at a time, by name, so that it is known which call
a dead worker took with it. Nothing is ever called in this process."""

from __future__ import annotations

import logging
import queue
import time
import uuid
import warnings
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from qll.errors import InputError, MissingExtra, RunError
from qll.workers.base import DEATHS, Answer, Call, Workers, answer

_CONNECT = 10.0  # seconds until a scheduler that does not answer is not there
_SILENCE = 10.0  # seconds without a connection until the scheduler is given up
_LONELY = 300.0  # seconds without any worker until the cluster is given up
_PATIENCE = 3.0  # seconds without any worker until that is said
_POLL = 0.5
_ASK = 10.0  # seconds between questions for the workers: events tell earlier
_RESUME = "start it again and give the same command: what is finished is kept, the rest goes on"
_START = "'dask worker ADDRESS --nworkers auto --nthreads 1'"

_log = logging.getLogger("qll.workers")


def answers(calls: Sequence[Call], workers: Workers) -> Iterator[Answer]:
    client = _connect(workers.scheduler)
    try:
        yield from _Dispatch(client, calls).answers()
    finally:
        client.close(timeout=2)


@dataclass(frozen=True)
class _Held:
    """What a worker works on."""

    call: Call
    worker: str
    future: Any


@dataclass(frozen=True)
class _Done:
    """A future's end: of a call, or of Dask's attempt to make it."""

    key: str
    result: Any = None
    error: BaseException | None = None


class _Dispatch:
    def __init__(self, client: Any, calls: Sequence[Call]) -> None:
        self._client = client
        self._address = str(client.scheduler.address)
        self._waiting = deque(calls)
        self._held: dict[str, _Held] = {}  # by the future's key
        self._deaths: Counter[int] = Counter()  # by the call's number
        self._news: queue.SimpleQueue[_Done | dict[str, Any]] = queue.SimpleQueue()
        self._workers: set[str] = set()
        self._missing: set[str] = set()  # workers with a call that were not there when we asked
        self._name = f"qll-{uuid.uuid4().hex}"
        self._attempts = 0
        self._asked: float | None = None
        self._silent: float | None = None
        self._lonely: float | None = None
        self._said = False

    def answers(self) -> Iterator[Answer]:
        self._client.subscribe_topic("all", self._listen)
        while self._waiting or self._held:
            self._look_after_the_cluster()
            self._hand_out()
            try:
                news = self._news.get(timeout=_POLL)
            except queue.Empty:
                continue
            if isinstance(news, _Done):
                yield from self._finish(news)
            else:
                yield from self._hear(news)

    # --- calls ---

    def _hand_out(self) -> None:
        idle = self._workers - {held.worker for held in self._held.values()}
        for worker in sorted(idle)[: len(self._waiting)]:
            call = self._waiting.popleft()
            self._attempts += 1
            key = f"{self._name}-{self._attempts}"
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Sending large graph", UserWarning)  # a network
                future = self._client.submit(
                    answer, call, key=key, workers=[worker], allow_other_workers=False, pure=False
                )
            self._held[key] = _Held(call, worker, future)
            future.add_done_callback(self._collect)

    def _collect(self, future: Any) -> None:
        """In a thread of Dask's. A worker that dies between answer and collection is heard of as
        any other, and then this future is cancelled."""
        try:
            self._news.put(_Done(future.key, result=future.result()))
        except BaseException as error:
            self._news.put(_Done(future.key, error=error))

    def _finish(self, done: _Done) -> Iterator[Answer]:
        from distributed import KilledWorker

        held = self._held.pop(done.key, None)
        if held is None:
            return  # given to another one meanwhile
        if isinstance(done.error, KilledWorker):  # many deaths at one address
            yield Answer(held.call.number, lost=True)
        elif done.error is not None:
            raise self._explain(done.error) from done.error
        else:
            yield done.result

    def _lose(self, worker: str, *, killed: set[str], chance: bool) -> Iterator[Answer]:
        """What the worker held is handed out again: first of all, so that what kills is known
        soon. It counts as a death where it was under way (``killed``: all that were)."""
        self._workers.discard(worker)
        for key in [key for key, held in self._held.items() if held.worker == worker]:
            held = self._held.pop(key)
            held.future.cancel()
            number = held.call.number
            if not chance and key in killed:
                self._deaths[number] += 1
            if self._deaths[number] >= DEATHS:
                yield Answer(number, lost=True)
            else:
                self._waiting.appendleft(held.call)

    # --- the cluster ---

    def _listen(self, event: tuple[float, Any]) -> None:
        """In a thread of Dask's."""
        if isinstance(event[1], dict) and event[1].get("action") in ("add-worker", "remove-worker"):
            self._news.put(event[1])

    def _hear(self, event: dict[str, Any]) -> Iterator[Answer]:
        if event["action"] == "add-worker":
            self._workers.add(event["worker"])
        else:
            under_way = {*event.get("processing-tasks", ()), *event.get("lost-computed-tasks", ())}
            chance = bool(event.get("expected"))  # retired, say, by a cluster that shrinks
            yield from self._lose(event["worker"], killed=under_way, chance=chance)

    def _look_after_the_cluster(self) -> None:
        now = time.monotonic()
        if self._client.status != "running":
            self._silent = self._silent or now
            if now - self._silent > _SILENCE:
                raise self._gone(f"no connection ({self._client.status})")
            return
        self._silent = None
        if self._asked is None or now > self._asked + _ASK or not self._workers:
            self._ask(now)
        if self._workers:
            self._lonely, self._said = None, False
            return
        self._lonely = self._lonely or now
        if now - self._lonely > _LONELY:
            raise self._no_workers()
        if not self._said and now - self._lonely >= _PATIENCE:
            self._said = True
            _log.warning(
                "no worker at %s: waiting %.0f s for one; start some with %s",
                self._address, _LONELY, _START,
            )  # fmt: skip

    def _ask(self, now: float) -> None:
        self._asked = now
        try:
            there = set(self._client.nthreads())
        except OSError:  # the status will tell
            return
        self._workers = there
        # Events say who is gone. Should one be missed, a second look does.
        missing = {held.worker for held in self._held.values()} - there
        everything = set(self._held)
        for worker in missing & self._missing:
            self._news.put(
                {"action": "remove-worker", "worker": worker, "processing-tasks": everything}
            )
        self._missing = missing

    def _explain(self, error: BaseException) -> RunError:
        from distributed import CancelledError

        # Dask cancels everything when it loses its scheduler, though it may find it again.
        if self._client.status != "running" or isinstance(error, CancelledError):
            return self._gone(type(error).__name__)
        return RunError(
            "the cluster cannot do the work",
            where=self._address,
            expected="workers that have the same qll and Python as here",
            found=f"{type(error).__name__}: {error}",
            fix="install the same environment on every machine",
        )

    def _gone(self, found: str) -> RunError:
        return RunError(
            "the scheduler is gone",
            where=self._address,
            expected="a Dask scheduler that answers",
            found=found,
            fix=_RESUME,
        )

    def _no_workers(self) -> RunError:
        return RunError(
            "the cluster has no workers",
            where=self._address,
            expected="at least one worker",
            found=f"none in {_LONELY:.0f} s",
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
