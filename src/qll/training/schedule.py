"""Numbers that change over the epochs: hardness, epsilon, learning rate."""

from __future__ import annotations

import math
from dataclasses import dataclass

from qll.errors import InputError


@dataclass(frozen=True)
class Ramp:
    """From ``start`` to ``end`` over ``epochs``, after ``delay`` epochs; constant before and after.

    ``geometric`` moves by equal factors, as suits a hardness.

    >>> [Ramp(0.0, 0.2, epochs=4).at(epoch) for epoch in (0, 2, 4, 9)]
    [0.0, 0.1, 0.2, 0.2]
    """

    start: float
    end: float
    epochs: int
    delay: int = 0
    geometric: bool = False

    def __post_init__(self) -> None:
        good = self.epochs >= 0 and self.delay >= 0
        good = good and math.isfinite(self.start) and math.isfinite(self.end)
        if not good or (self.geometric and min(self.start, self.end) <= 0):
            raise InputError(
                "a schedule is out of range",
                expected="finite ends (above 0 if geometric), epochs and delay of 0 or more",
                found=repr(self),
                fix="write start, end and epochs, for example 1, 10 and 50",
            )

    def at(self, epoch: float) -> float:
        """The value at the start of ``epoch``, counted from 0."""
        passed = epoch - self.delay
        if passed <= 0 and self.epochs > 0:
            return self.start
        if passed >= self.epochs:
            return self.end
        share = passed / self.epochs
        if self.geometric:
            return float(self.start * (self.end / self.start) ** share)
        return self.start + share * (self.end - self.start)


def cosine(epoch: float, epochs: int) -> float:
    """The factor of a learning rate that falls to 0 along half a cosine."""
    return 0.5 * (1 + math.cos(math.pi * min(epoch / max(epochs, 1), 1.0)))


def rise(epoch: float, epochs: float) -> float:
    """The factor of a learning rate that rises from nearly 0 to 1 over its first epochs.

    >>> [round(rise(epoch, 2.0), 3) for epoch in (0, 1, 2, 5)]
    [0.005, 0.505, 1.0, 1.0]
    """
    return 1.0 if epochs <= 0 else min(1.0, (epoch + 0.01) / epochs)
