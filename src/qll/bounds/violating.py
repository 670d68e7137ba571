"""Bounds of neurons where the objectives of a domain are not positive.

A domain is to be refuted: no point of it may have objectives g_m that are all at most 0. So only
such points matter, and for multipliers mu >= 0 a neuron's z is, at these,

    z >= z + sum_m mu_m g_m >= C,

where C is a bound over the whole domain. With weights w_0 of ``scale z`` and w_m of ``g_m / unit``
that is an ordinary bound of several objectives, divided by w_0 scale. Kotha et al. 2023 (*Provably
bounding neural network preimages*) bound hidden neurons so from what is known of outputs. A better
bound of one neuron makes those of others better, and that of the objectives themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from qll.bounds.blocks import Blocks
from qll.bounds.bounder import Bounder, Stop
from qll.bounds.domain import Subdomain
from qll.bounds.groups import Array
from qll.bounds.rounding import Sizes
from qll.bounds.rows import Rows
from qll.bounds.sparse_graph import SparseGraphBounder

# What the objectives' weights begin with, beside 1 for the neuron's.
FIRST_WEIGHT = 0.25
# Against the rounding of the neuron's share of fewer than 2^10 weights.
ROOM = 2.0**-40


class ViolatingBounder(SparseGraphBounder):
    """Of neurons of the network of ``whole``, at the points of ``domain`` at which none of its
    objectives is positive. An objective here is a neuron's number, a sign and a scale."""

    def __init__(self, whole: SparseGraphBounder, domain: Subdomain, unit: float) -> None:
        """``unit`` is the size of an objective; it matters to the length of steps alone."""
        self.form, self.crown, self.layout = whole.form, whole.crown, whole.layout
        self._whole, self._domain, self._unit = whole, domain, power_of_two(unit)
        self._hulls = whole._hulls

    @cached_property
    def rows(self) -> Rows:
        return self._whole.rows

    @cached_property
    def blocks(self) -> Blocks:
        return self._whole.blocks

    def packed(self, kind: type) -> tuple[Any, ...]:
        return self._whole.packed(kind)

    def target(self, neuron: int, sign: int, size: float, held: Subdomain | None) -> Subdomain:
        """``sign`` times the neuron, less what is known of it; with the multipliers of ``held``,
        which was asked before, or of the domain."""
        whole = self._domain
        known = whole.low[neuron] if sign > 0 else -whole.high[neuron]
        scale = 1.0 / power_of_two(float(whole.high[neuron] - whole.low[neuron]))
        count = len(whole.offset)
        offset = np.zeros(1 + count)
        offset[0] = -scale * known
        weight = np.full(1 + count, FIRST_WEIGHT / count, dtype=np.float32)
        weight[0] = 1.0
        return replace(
            whole if held is None else held,
            low=whole.low, high=whole.high, sign=whole.sign, scales=whole.scales,
            objective=np.array([[neuron, sign, scale]]), offset=offset,
            size=np.concatenate([[scale * size], whole.size / self._unit]),
            weight=weight if held is None else held.weight,
            bound=-np.inf, minimiser=None, scores=None, pull=None,
        )  # fmt: skip

    def _objectives(self, domain: Subdomain) -> tuple[Any, Array, Array]:
        neuron, sign, scale = domain.objective[0]
        whole, row = self._whole.rows, int(neuron)
        part = slice(*whole.matrix.indptr[row : row + 2])
        own = whole.matrix.indices[part].astype(np.int64)
        read, coefficients, constant = self._whole._objectives(self._domain)
        top = np.union1d(own, read)
        rows = np.zeros((1 + len(constant), len(top)))
        rows[0, np.searchsorted(top, own)] = sign * scale * whole.matrix.data[part]
        rows[1:, np.searchsorted(top, read)] = coefficients / self._unit
        offset = domain.offset.copy()
        offset[0] += sign * scale * whole.bias[row]
        offset[1:] += constant / self._unit
        return top, rows, offset

    def evaluate(self, domains: Sequence[Subdomain], sizes: Sizes, *, stop: Stop) -> Array:
        """Rigorous lower bounds of ``sign`` times the neurons; -inf where there was no time."""
        plain = [replace(d, offset=np.zeros_like(d.offset)) for d in domains]
        found = super().evaluate(plain, sizes, stop=stop)
        # As `qll.kernels.dual_graph.bound_of` has them.
        weights = [np.maximum(d.weight.astype(np.float64), 1e-4) for d in domains]
        share = np.array([w[0] / w.sum() for w in weights])
        scale = np.array([d.objective[0, 2] for d in domains])
        divisor = share * scale * np.where(found > 0, 1.0 + ROOM, 1.0 - ROOM)
        return np.asarray(np.nextafter(found / divisor, -np.inf))


def violating(bounder: Bounder, domain: Subdomain, unit: float) -> ViolatingBounder | None:
    """Of bounds by non-zeros; None of others, which have no such bounds yet."""
    if not isinstance(bounder, SparseGraphBounder):
        return None
    return ViolatingBounder(bounder, domain, unit)


def power_of_two(size: float) -> float:
    """The nearest one: a scale that rounds nothing."""
    return float(2.0 ** np.clip(np.round(np.log2(max(size, 1e-30))), -60, 60))
