"""One query on several processes: the verdict of one process, whoever is faster."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from verify_cases import chain, random_network

from qll.formula.hard import affine
from qll.verify import parallel
from qll.verify.backend import BACKENDS, Budget
from qll.verify.query import Query
from qll.verify.verdict import Reason, Status, Verdict
from qll.workers import Workers


def a_query(seed: int, above: float) -> Query:
    network = random_network(np.random.default_rng(seed))
    size = network.relu_form.input_size
    return Query(network, -np.ones(size), np.ones(size), affine([(("y", 0), 1.0)], -above))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Everything in this process; the numbers of parts of each round."""
    rounds: list[int] = []

    def run(self: Workers, function: object, items: list[parallel.Part]) -> object:
        rounds.append(len(items))
        for number, item in enumerate(items):
            yield number, parallel._decide(item)

    monkeypatch.setattr(Workers, "run", run)
    return rounds


@pytest.mark.parametrize("seed", range(6))
def test_the_verdict_is_that_of_one_process(seed: int, here: list[int]) -> None:
    for above in (-1.0, 0.5, 5.0):
        query = a_query(seed, above)
        alone = BACKENDS["bab"]().decide([query], Budget(20.0))[0]
        shared = parallel.decide(query, Budget(20.0), jobs=2)
        assert shared.status is alone.status is not Status.UNKNOWN
        if shared.witness is not None:
            assert query.contains(shared.witness)
    assert here


def test_parts_cover_the_box_and_halve_what_is_widest() -> None:
    network = chain((np.ones((1, 2)), np.zeros(1)), (np.ones((1, 1)), np.zeros(1)))
    query = Query(network, np.zeros(2), np.array([1.0, 4.0]), affine([(("y", 0), 1.0)], -9.0))
    whole = query.upper - query.lower
    left, right = parallel.halves(query, whole)
    assert left.upper.tolist() == [0.5, 4.0]
    assert right.lower.tolist() == [0.5, 0.0]
    below, above = parallel.halves(left, whole)
    assert (below.upper[1], above.lower[1]) == (2.0, 2.0)
    thin = Query(network, np.ones(2), np.nextafter(np.ones(2), 2.0), query.condition)
    assert not parallel._splittable(thin)


def test_what_needs_more_time_is_split_and_asked_again(
    here: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts wider than a quarter of the box take too long."""
    query = a_query(0, 50.0)

    def decide(part: parallel.Part) -> Verdict:
        wide = (part.query.upper - part.query.lower).max() > 0.5
        reason = Reason.TIME if wide else None
        status = Status.UNKNOWN if wide else Status.VERIFIED
        return Verdict(status, "boxes", reason=reason, bound=1.0, nodes=1)

    monkeypatch.setattr(parallel, "_decide", decide)
    monkeypatch.setattr(parallel, "PARTS", 1)
    found = parallel.decide(query, Budget(20.0), jobs=2)
    assert found.status is Status.VERIFIED
    assert found.bound == 1.0
    assert len(here) > 1
    assert found.nodes == sum(here)


def test_the_time_ends_for_all(here: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    late = Verdict(Status.UNKNOWN, "boxes", reason=Reason.TIME)
    monkeypatch.setattr(parallel, "_decide", lambda part: late)
    found = parallel.decide(a_query(0, 50.0), Budget(0.2), jobs=2)
    assert (found.status, found.reason) == (Status.UNKNOWN, Reason.TIME)


def test_a_violation_counts_more_than_what_stays_open(
    here: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever part answers first."""
    lost = Verdict(Status.UNKNOWN, "boxes", reason=Reason.MEMORY)
    monkeypatch.setattr(parallel, "_decide", lambda part: lost)
    query = a_query(0, 50.0)
    assert parallel.decide(query, Budget(20.0), jobs=2).reason is Reason.MEMORY

    def last_one(part: parallel.Part) -> Verdict:
        at_end = (part.query.upper == query.upper).all()
        return Verdict(Status.FALSIFIED, "attack", witness=query.upper) if at_end else lost

    monkeypatch.setattr(parallel, "_decide", last_one)
    assert parallel.decide(query, Budget(20.0), jobs=2).status is Status.FALSIFIED


def test_on_two_processes() -> None:
    found = parallel.decide(a_query(1, 1e6), Budget(120.0), jobs=2)
    assert found.status is Status.VERIFIED
    assert found.nodes >= parallel.PARTS


def test_enough_is_no_reason_to_warn() -> None:
    """One violation ends the run while other parts are still being worked on."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        answers = Workers(jobs=2).run(abs, list(range(64)))
        assert next(answers)[1] in range(64)
        answers.close()  # type: ignore[attr-defined]
    assert not said
