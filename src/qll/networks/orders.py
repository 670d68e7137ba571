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
from qll.networks.program import Activate, Affine, Program

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


SEVERAL = (Order(), Order("backward", fused=True, bias_first=True), Order("pairwise"))


def replay(program: Program, x: Array, order: Order) -> Single:
    """The outputs (outputs,) at the float32 point ``x`` (inputs,)."""
    values: list[Single] = [np.asarray(x, dtype=np.float32)]
    rng = np.random.default_rng(order.seed)
    with np.errstate(all="ignore"):
        for step in program.steps:
            if isinstance(step, Activate):
                values.append(np.asarray(step.function.value(values[step.source]), np.float32))
            else:
                values.append(_affine(step, values, order, rng))
    return values[-1]


def _affine(step: Affine, values: list[Single], order: Order, rng: Any) -> Single:
    factors, operands = _terms(step, values, order, rng)
    bias = step.bias.astype(np.float32)
    if order.sequence == "pairwise":
        total: Single = np.add(_pairwise(factors * operands), bias)
    else:
        total = bias if order.bias_first else np.zeros(bias.shape, dtype=np.float32)
        for k in range(factors.shape[1]):
            if order.fused:
                total = fused(factors[:, k], operands[:, k], total)
            else:
                total = np.add(total, factors[:, k] * operands[:, k])
        total = total if order.bias_first else np.add(total, bias)
    if step.divisor is not None:
        total = np.divide(total, step.divisor.astype(np.float32))
    return np.asarray(total, dtype=np.float32)


def _terms(step: Affine, values: list[Single], order: Order, rng: Any) -> tuple[Single, Single]:
    """Factors and what they multiply, (rows, terms) with zeros for padding, in the order asked."""
    rows = [list[tuple[float, Any]]() for _ in range(step.width)]
    for source, matrix in step.terms:
        for i in range(step.width):
            if is_sparse(matrix):
                span = slice(matrix.indptr[i], matrix.indptr[i + 1])
                found = zip(matrix.data[span], values[source][matrix.indices[span]], strict=True)
            else:
                found = zip(matrix[i], values[source], strict=True)
            rows[i] += [(w, v) for w, v in found if w != 0]
    longest = max(map(len, rows), default=0)
    table = np.zeros((2, step.width, longest), dtype=np.float32)
    for i, row in enumerate(rows):
        if order.sequence == "backward":
            row = row[::-1]
        elif order.sequence == "random":
            row = [row[k] for k in rng.permutation(len(row))]
        if row:
            table[:, i, : len(row)] = np.array(row, dtype=np.float32).T
    return table[0], table[1]


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
