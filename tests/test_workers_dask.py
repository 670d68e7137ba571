"""Which deaths are counted for which call, by a scheduler that does as it is told.

Real clusters are in test_grid_engines.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from qll.errors import RunError
from qll.workers import dask
from qll.workers.base import Answer, Call, answer


@dataclass
class Future:
    key: str
    client: Client
    outcome: Any = None
    cancelled: bool = False

    def add_done_callback(self, call: Callable[[Future], None]) -> None:
        self.client.settle(self, call)

    def result(self) -> Any:
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome

    def cancel(self) -> None:
        self.cancelled = True


@dataclass
class Client:
    """Whatever is submitted meets the next of ``fates``; after the last, all is answered."""

    fates: list[str]
    workers: list[str] = field(default_factory=lambda: ["a", "b"])
    status: str = "running"
    given: list[tuple[int, str]] = field(default_factory=list)  # call, worker

    def __post_init__(self) -> None:
        self.scheduler = SimpleNamespace(address="tcp://nowhere:1")
        self._calls: dict[str, tuple[Call, str]] = {}

    def nthreads(self) -> dict[str, int]:
        return dict.fromkeys(self.workers, 1)

    def subscribe_topic(self, topic: str, handler: Callable[[Any], None]) -> None:
        assert topic == "all"
        self.tell = lambda message: handler((0.0, message))

    def submit(
        self, function: Any, call: Call, *, key: str, workers: list[str], **_: Any
    ) -> Future:
        assert function is answer
        self.given.append((call.number, workers[0]))
        self._calls[key] = call, workers[0]
        return Future(key, self)

    def settle(self, future: Future, done: Callable[[Future], None]) -> None:
        call, worker = self._calls[future.key]
        fate = self.fates.pop(0) if self.fates else "answer"
        event = {"action": "remove-worker", "worker": worker, "processing-tasks": {future.key}}
        if fate == "answer":
            future.outcome = answer(call)
            done(future)
        elif fate == "silence":  # nobody says that the worker is gone
            self.workers.remove(worker)
        elif fate == "same address":
            from distributed import KilledWorker

            future.outcome = KilledWorker(future.key, SimpleNamespace(address=worker), 3)
            done(future)
        elif fate == "cancelled":
            from distributed import CancelledError

            future.outcome = CancelledError()
            done(future)
        elif fate == "no import":
            future.outcome = ModuleNotFoundError("No module named 'qll'")
            done(future)
        elif fate == "gone":
            self.status = "connecting"
        else:
            if fate == "dead before":  # the call had not reached it
                event["processing-tasks"] = set()
            event["expected"] = fate == "retired"
            self.tell(event)
            self.tell({"action": "add-worker", "worker": f"{worker}+"})


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    for name, value in (("_POLL", 0.005), ("_ASK", 0.01), ("_SILENCE", 0.05), ("_LONELY", 0.05)):
        monkeypatch.setattr(dask, name, value)


def double(item: int) -> int:
    return 2 * item


def ask(client: Client, count: int = 2) -> Iterator[Answer]:
    return dask._Dispatch(client, [Call(k, double, k) for k in range(count)]).answers()


def results(client: Client, count: int = 2) -> dict[int, Any]:
    found = list(ask(client, count))
    assert len(found) == count
    return {a.number: "lost" if a.lost else a.result for a in found}


def test_a_worker_has_one_call_at_a_time() -> None:
    client = Client(["silence"], workers=["a"])
    with pytest.raises(RunError, match="no workers"):
        list(ask(client, 5))
    assert client.given == [(0, "a")]
    client = Client([], workers=["a", "b", "c"])
    assert results(client, 7) == {k: 2 * k for k in range(7)}


@pytest.mark.parametrize(
    ("fates", "lost"),
    [
        (["dies"], False),
        (["dies", "answer", "dies"], True),
        (["retired", "answer", "retired", "retired"], False),
        (["dead before", "answer", "dead before", "dies"], False),
        (["dies", "answer", "retired"], False),
        (["dies", "answer", "retired", "dies"], True),
        (["same address"], True),
    ],
)
def test_what_counts_as_a_death(fates: list[str], lost: bool) -> None:
    """Of the first call; the second is answered at once."""
    assert results(Client(list(fates))) == {0: "lost" if lost else 0, 1: 2}


def test_a_death_that_nobody_tells_of_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert results(Client(["silence"], workers=["a", "b", "c"])) == {0: 0, 1: 2}
    monkeypatch.setattr(dask, "_LONELY", 5.0)
    assert results(Client(["silence", "answer", "silence"], workers=["a", "b", "c"])) == {
        0: "lost",
        1: 2,
    }


def test_news_of_a_call_that_was_given_to_another_is_old() -> None:
    """The dead worker's future is cancelled, and its end is not taken for an answer."""
    client = Client(["dies"])
    seen: list[Future] = []
    submit = client.submit
    client.submit = lambda *a, **k: seen.append(submit(*a, **k)) or seen[-1]  # type: ignore[method-assign]
    assert results(client) == {0: 0, 1: 2}
    assert [future.cancelled for future in seen] == [True, False, False]


@pytest.mark.parametrize(
    ("fate", "message"),
    [
        ("gone", "the scheduler is gone"),
        ("cancelled", "the scheduler is gone"),
        ("no import", "the cluster cannot do the work"),
    ],
)
def test_what_ends_the_command(fate: str, message: str) -> None:
    with pytest.raises(RunError, match=message) as caught:
        list(ask(Client([fate], workers=["a"])))
    assert "Fix:" in str(caught.value) and "tcp://nowhere:1" in str(caught.value)
