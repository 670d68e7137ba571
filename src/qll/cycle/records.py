"""What a cycle keeps: its rounds, how it ended, the time it has used."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel
from torch import nn

from qll.cycle.accuracy import Accuracy
from qll.training.progress import Reporter

Ending = Literal["met", "out of budget", "stalled", "rounds"]


class Round(BaseModel):
    """One finished round. ``csat`` is the proved share of the regions of which the property says
    something; ``vacuous`` more hold whatever the network computes. ``limit`` is the share that the
    network satisfies at the data point itself: CSat cannot be more."""

    number: int
    epochs: int
    pacc: float
    csat: float
    limit: float
    verified: int
    falsified: int
    unknown: int
    vacuous: int = 0
    open_training: int
    witnesses: int
    agreement: float | None = None  # with the decisions of the network it began from
    constant: str | None = None  # what the network always answers on the test data, if it does
    seconds: float

    def describe(self, measure: str = "PAcc") -> str:
        """One round in a line.

        >>> print(Round(number=1, epochs=3, pacc=0.9, csat=0.5, limit=0.9, verified=5, falsified=4,
        ...     unknown=1, vacuous=2, open_training=2, witnesses=2, seconds=10))
        round 1: PAcc 90.0 %, proved 50.0 % (5 verified, 4 falsified, 1 unknown; 2 vacuous), 10 s
        """
        counts = f"{self.verified} verified, {self.falsified} falsified, {self.unknown} unknown"
        if self.vacuous:
            counts += f"; {self.vacuous} vacuous"
        return (
            f"round {self.number}: {measure} {100 * self.pacc:.1f} %, "
            f"proved {100 * self.csat:.1f} % ({counts}), {self.seconds:.0f} s"
        )

    def __str__(self) -> str:
        return self.describe()


class CycleResult(BaseModel):
    ending: Ending
    rounds: tuple[Round, ...]
    best: int  # the number of the round whose network was kept
    accuracy: Accuracy
    seconds: float

    @property
    def chosen(self) -> Round:
        return next(r for r in self.rounds if r.number == self.best)


def is_enough(found: Round, accuracy: Accuracy) -> bool:
    """Whether it predicts well enough: a network that always answers the same does not, unless
    nothing at all is asked of it."""
    return found.pacc >= accuracy.least and (found.constant is None or accuracy.least <= 0)


def best_round(rounds: Sequence[Round], accuracy: Accuracy) -> Round:
    """Of those that are accurate enough and decide something, the one with the largest proved
    share; where none is, the one with the largest product of both."""

    def merit(found: Round) -> tuple[bool, float, float, int]:
        good = is_enough(found, accuracy)
        return good, found.csat if good else found.csat * found.pacc, found.pacc, -found.number

    return max(rounds, key=merit)


def summary(result: CycleResult, *, target: float, patience: int) -> str:
    """How a cycle ended, in a sentence or two."""
    kept = result.chosen
    words = {
        "met": f"target met: {100 * kept.csat:.1f} % of the regions asked are proved",
        "out of budget": "the budget is spent",
        "stalled": f"no better round in the last {patience}",
        "rounds": "the last round allowed is done",
    }
    text = words[result.ending]
    if kept.constant is not None:
        text += f"; the network decides nothing: {kept.constant}, whatever the input"
    if result.ending == "met":
        return text
    proved = [r for r in result.rounds if r.csat >= target]
    if proved:
        nearest = max(proved, key=lambda r: r.pacc)
        text += (
            f"; round {nearest.number} proved {100 * nearest.csat:.1f} %, but "
            + (
                f"predicts {100 * nearest.pacc:.1f} % right"
                if result.accuracy.measure == "PAcc"
                else f"has {result.accuracy.measure} {100 * nearest.pacc:.1f} %"
            )
            + f" and not {100 * result.accuracy.least:.1f} % (--accuracy sets what is enough)"
        )
    if not math.isnan(kept.limit) and kept.limit < target:
        text += (
            f"; the network violates the property at {100 * (1 - kept.limit):.1f} % of the data "
            "points themselves, where nothing can be proved"
        )
    return text


class Saving:
    """Passes on to another reporter, and keeps the record of the time spent up to date: a killed
    cycle has used what it has used."""

    def __init__(self, inner: Reporter, save: Callable[[], None]) -> None:
        self.inner, self.save = inner, save
        self.start, self.step, self.note = inner.start, inner.step, inner.note

    def epoch(self, row: Mapping[str, Any]) -> None:
        self.save()
        self.inner.epoch(row)


def digest(model: nn.Module) -> str:
    total = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        total.update(name.encode())
        total.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return total.hexdigest()
