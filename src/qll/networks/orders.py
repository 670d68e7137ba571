"""A network in float32, its sums in any order, with fused multiply-adds or without.

For replaying witnesses and for tests: two evaluations of one network may differ by all that the
order of summation does. Every step is an operation of IEEE float32, rounded to nearest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qll.networks.matrices import Array, is_sparse
from qll.networks.program import Activate, AffineMap, Program

Single: TypeAlias = NDArray[np.float32]
# Operators that the program states by others: a maximum is no difference, in floats.
RESTATED = {"Max", "Min", "MaxPool", "GlobalMaxPool", "PRelu", "LeakyRelu"}


@dataclass(frozen=True)
class Order:
    """``sequence``: "forward", "backward", "pairwise" or "random" (by ``seed``). ``fused``:
    products are added without being rounded first. ``bias_first``: sums begin with the bias."""

    sequence: str = "forward"
    fused: bool = False
    bias_first: bool = False
    seed: int = 0


SEVERAL = (Order(), Order("backward", bias_first=True), Order("pairwise"))


class Replay:
    """One network, its terms in tables: ``Replay(program)(x, order)`` gives the outputs (outputs,)
    at the float32 point ``x`` (inputs,)."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._tables: dict[int, tuple[Single, Any]] = {}

    def __call__(self, x: Array, order: Order) -> Single:
        values: list[Single] = [np.asarray(x, dtype=np.float32)]
        rng = np.random.default_rng(order.seed)
        with np.errstate(all="ignore"):
            for index, step in enumerate(self.program.steps):
                if isinstance(step, Activate):
                    values.append(np.asarray(step.function.value(values[step.source]), np.float32))
                    continue
                if index not in self._tables:
                    self._tables[index] = _table(step, values)
                factors, places = _ordered(*self._tables[index], order, rng)
                sources = [values[source] for source, _ in step.terms]
                operands = np.concatenate([np.zeros(1, np.float32), *sources])[places]
                values.append(_affine(step, factors, operands, order))
        return values[-1]


def replay(program: Program, x: Array, order: Order) -> Single:
    return Replay(program)(x, order)


def _table(step: AffineMap, values: list[Single]) -> tuple[Single, Any]:
    """Factors of each row and the places of what they multiply among all sources, (rows, terms);
    rows are padded by zeros at place 0."""
    rows, columns, data = ([np.zeros(0, np.int64)] for _ in range(3))
    start = 1
    for source, matrix in step.terms:
        if is_sparse(matrix):
            rows.append(np.repeat(np.arange(step.width), np.diff(matrix.indptr)))
            columns.append(matrix.indices + start)
            data.append(matrix.data)
        else:
            at = np.nonzero(matrix)
            rows.append(at[0])
            columns.append(at[1] + start)
            data.append(matrix[at])
        start += values[source].size
    row, column, factor = (np.concatenate(part) for part in (rows, columns, data))
    kept = np.flatnonzero(factor)
    kept = kept[np.argsort(row[kept], kind="stable")]
    row, column, factor = row[kept], column[kept], factor[kept]
    counts = np.bincount(row, minlength=step.width)
    slot = np.arange(row.size) - np.repeat(np.cumsum(counts) - counts, counts)
    shape = step.width, int(counts.max(initial=0))
    factors, places = np.zeros(shape, np.float32), np.zeros(shape, np.int64)
    factors[row, slot], places[row, slot] = factor, column
    return factors, places


def _ordered(factors: Single, places: Any, order: Order, rng: Any) -> tuple[Single, Any]:
    """A zero that is added early changes nothing, so that padding may go anywhere."""
    if order.sequence == "backward":
        return factors[:, ::-1], places[:, ::-1]
    if order.sequence == "random":
        shuffled = np.argsort(rng.random(factors.shape), axis=1)
        return tuple(np.take_along_axis(t, shuffled, axis=1) for t in (factors, places))  # type: ignore[return-value]
    return factors, places


def _affine(step: AffineMap, factors: Single, operands: Single, order: Order) -> Single:
    bias = step.bias.astype(np.float32)
    if order.sequence == "pairwise":
        total: Single = np.add(_pairwise(factors * operands), bias)
    else:
        total = bias if order.bias_first else np.zeros(bias.shape, dtype=np.float32)
        if order.fused:
            for k in range(factors.shape[1]):
                total = fused(factors[:, k], operands[:, k], total)
        else:
            terms = np.concatenate([total[:, None], factors * operands], axis=1)
            total = np.add.accumulate(terms, axis=1)[:, -1]  # one after the other
        total = total if order.bias_first else np.add(total, bias)
    if step.divisor is not None:
        total = np.divide(total, step.divisor.astype(np.float32))
    return np.asarray(total, dtype=np.float32)


def _pairwise(terms: Single) -> Single:
    while terms.shape[1] > 1:
        if terms.shape[1] % 2:
            terms = np.pad(terms, ((0, 0), (0, 1)))
        terms = terms[:, ::2] + terms[:, 1::2]
    return terms[:, 0] if terms.shape[1] else np.zeros(len(terms), dtype=np.float32)


def fused(a: Single, b: Single, c: Single) -> Single:
    """``a b + c``, rounded once. The sum is rounded to odd in float64, whose 53 bits are enough for
    the second rounding to be the right one (Boldo and Melquiond 2008)."""
    product = a.astype(np.float64) * b.astype(np.float64)  # exact
    addend = c.astype(np.float64)
    total = product + addend
    back = total - product
    lost = (product - (total - back)) + (addend - back)
    bits = total.view(np.int64)
    even = (lost != 0) & (bits % 2 == 0)
    # One step towards what was lost makes the last bit odd.
    step = np.where((lost > 0) == (total > 0), 1, -1)
    odd = np.where(even & np.isfinite(total), bits + step, bits).view(np.float64)
    return np.asarray(odd, dtype=np.float32)
