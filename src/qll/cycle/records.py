"""What a cycle keeps: its rounds, how it ended, the time it has used."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Literal

from pydantic import BaseModel
from torch import nn

from qll.training.progress import Reporter

Ending = Literal["met", "out of budget", "stalled", "rounds"]


class Round(BaseModel):
    """One finished round. ``limit`` is the share of asked regions that the network satisfies at the
    data point itself: CSat cannot be more."""

    number: int
    epochs: int
    pacc: float
    csat: float
    limit: float
    verified: int
    falsified: int
    unknown: int
    open_training: int
    witnesses: int
    agreement: float | None = None  # with the decisions of the network it began from
    seconds: float


class CycleResult(BaseModel):
    ending: Ending
    rounds: tuple[Round, ...]
    best: int  # the number of the round whose network was kept
    seconds: float

    @property
    def chosen(self) -> Round:
        return next(r for r in self.rounds if r.number == self.best)


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
