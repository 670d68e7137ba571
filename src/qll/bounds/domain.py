"""One domain of a dual bound: splits, objectives, multipliers, what an ascent found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from qll.bounds.groups import Array
from qll.bounds.splits import NeuronSplit

Single: TypeAlias = NDArray[np.float32]


@dataclass(eq=False)
class Subdomain:
    """The part of a box that splits of neurons leave, objectives of which the greatest is bounded
    from below there, and multipliers (`qll.bounds.dual`). Flat arrays are those of a `Layout`."""

    low: Array  # (neurons,) splits included
    high: Array
    sign: NDArray[np.int8]  # of the splits: +1 above, -1 below, 0 where there is none
    objective: Array  # (M, what the bounder's objectives speak of)
    offset: Array  # (M,)
    size: Array  # (M,) of the objectives: what their rounding is measured in
    alpha: Single  # (neurons,)
    beta: Single
    weight: Single  # (M,)
    delta: Single  # (copies,)
    point: Array | None = None  # (neurons,) where they are split; None for 0, ReLU's kink
    # Units of beta and delta, measured once on the root of a tree: measured again on a domain whose
    # betas have grown they would grow with them, without end.
    scales: tuple[float, float] = (0.0, 0.0)
    # Found by an ascent.
    bound: float = -np.inf
    minimiser: Single | None = None  # (inputs,) of the relaxed problem
    scores: Single | None = None  # (neurons,) branching scores: what each relaxation loses there
    pull: Single | None = None  # (neurons,) coefficients of the activations, for these multipliers

    @property
    def is_empty(self) -> bool:
        return bool((self.low > self.high).any())

    @property
    def is_fresh(self) -> bool:
        """Whether its multipliers were never ascended, nor inherited."""
        return self.scales == (0.0, 0.0)

    @property
    def is_split(self) -> bool:
        return bool(self.sign.any())

    def side(self, split: NeuronSplit, *, above: bool) -> Subdomain:
        """One part of the split domain, with the multipliers of the whole. Where a lower line of a
        ReLU counts (a coefficient A > 0) that of the split gives the same bound to begin with:
        ``A alpha z`` is ``A z - A (1 - alpha) z``, or ``0 + A alpha z``."""
        at, neuron = split.at, split.neuron
        low, high, sign, point = self.low, self.high, self.sign.copy(), self.point
        sign[neuron] = 1 if above else -1
        if point is not None:
            point = point.copy()
            point[neuron] = at
        if above:
            low = low.copy()
            low[neuron] = max(low[neuron], at)
        else:
            high = high.copy()
            high[neuron] = min(high[neuron], at)
        beta = self.beta
        if self.pull is not None and self.point is None:
            alpha = min(max(float(self.alpha[neuron]), 0.0), 1.0)
            beta = beta.copy()
            beta[neuron] = max(float(self.pull[neuron]), 0.0) * (1.0 - alpha if above else alpha)
        return replace(self, low=low, high=high, sign=sign, point=point, beta=beta)


@contextmanager
def never_worse(domains: Sequence[Subdomain]) -> Iterator[None]:
    """Adam is not monotone: a domain that an ascent leaves below where it began keeps its
    multipliers."""
    before = [(d.bound, d.alpha, d.beta, d.weight, d.delta, d.pull) for d in domains]
    yield
    for domain, old in zip(domains, before, strict=True):
        if domain.bound < old[0]:
            domain.bound, domain.alpha, domain.beta, domain.weight, domain.delta, domain.pull = old
