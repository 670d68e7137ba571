"""What branch and bound splits: a closed set of records.

A neuron is split at ReLU's kink (its sign), or at a point where its activation is curved or bends
elsewhere; an input at a real number, which both parts keep, or between two integers. Each has a
part *below* and a part *above*.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias


@dataclass(frozen=True, slots=True)
class SignSplit:
    """A ReLU is inactive or active; ``neuron`` is its place in the flat arrays of a `Layout`."""

    neuron: int
    at: ClassVar[float] = 0.0


@dataclass(frozen=True, slots=True)
class PointSplit:
    """The pre-activation of any other neuron is at most, or at least, ``at``."""

    neuron: int
    at: float


@dataclass(frozen=True, slots=True)
class RealSplit:
    """An input is at most, or at least, ``at``."""

    input: int
    at: float


@dataclass(frozen=True, slots=True)
class IntegerSplit:
    """An integer input is at most ``below``, or at least one more."""

    input: int
    below: int


NeuronSplit: TypeAlias = SignSplit | PointSplit
InputSplit: TypeAlias = RealSplit | IntegerSplit
Split: TypeAlias = NeuronSplit | InputSplit
