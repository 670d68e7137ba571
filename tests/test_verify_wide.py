"""Attacks from many points beside a proof: within their share of the time, each from others."""

from __future__ import annotations

import numpy as np
import pytest
from verify_cases import chain

from qll.formula.hard import affine
from qll.verify.attack import SearchNetwork
from qll.verify.backends import bab
from qll.verify.backends.bab import BranchAndBound
from qll.verify.query import Query
from qll.verify.verdict import Verdict


def asked() -> Query:
    """A spot around a corner of twelve inputs is violated: no gradient points there."""
    corner = np.where(np.arange(12) % 2, 1.0, -1.0)
    network = chain((corner[None], [-10.0]), ([[1.0]], [-1.0]))
    return Query(network, -np.ones(12), np.ones(12), affine([(("y", 0), 1.0)], 0.0))


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time


def test_they_keep_to_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    query, clock = asked(), Clock()
    monkeypatch.setattr(bab, "clock", clock)
    wide = bab._Wide(SearchNetwork(query.form), query)
    assert wide.next > 0 and not wide.is_due()
    seeds = []

    def attack(network: object, queries: object, plan: bab.Plan, **_: object) -> list[str]:
        seeds.append(plan.seed)
        clock.time += 3.0
        return ["found"]

    monkeypatch.setattr(bab, "attack", attack)
    clock.time = 20.0
    for _ in range(100):
        if wide.is_due():
            assert wide.attack(np.inf) == "found"  # type: ignore[comparison-overlap]
            assert wide.spent <= 3.0 + bab.WIDE_SHARE * clock.time
        clock.time += 1.0
    assert len(seeds) == len(set(seeds)) == 4


def test_what_they_find_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof asks for points: with a wide attack that is always due the spot is found."""
    query = asked()
    points = np.where(np.arange(12) % 2, 1.0, -1.0)

    def verdict(found: bab.Found) -> Verdict:
        monkeypatch.setattr(bab._Wide, "is_due", lambda self: True)
        monkeypatch.setattr(bab._Wide, "attack", lambda self, deadline: found)

        class Asks:
            keeps = False

            @staticmethod
            def prove(query: Query, deadline: float, search: bab.Callable[..., object]) -> object:
                return bab.Outcome(candidate=search(np.zeros((1, 12)), [0], False))

        network = SearchNetwork(query.form)
        return BranchAndBound()._prove(Asks(), network, query, np.inf, None, proofs=False)  # type: ignore[arg-type]

    assert str(verdict(bab.Found(points, 1.0)).status) == "falsified"
    # what the attack says of a point is not believed
    assert str(verdict(bab.Found(np.zeros(12), 1.0)).status) == "unknown"
