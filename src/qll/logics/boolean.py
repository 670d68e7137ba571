"""The Boolean reading: the hard value, judged by its sign. Every satisfaction figure uses it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from qll.formula.nodes import Formula
from qll.logics.base import LOGICS, Direction, Law, Logic
from qll.logics.qll import QLL

_HARD = QLL(math.inf)


@LOGICS.register("boolean")
@dataclass(frozen=True)
class Boolean(Logic):
    """Degrees are kept to the root, because ``-o`` and tensor compare them; a hardness written in
    the formula is infinite here. By the paper's Soundness theorem ``value <= 0`` is satisfaction.

    >>> import torch
    >>> Boolean().loss(Boolean().conj(torch.tensor([-1.0, 0.0])))
    tensor(0.)
    """

    name: ClassVar[str] = "boolean"
    direction: ClassVar[Direction] = Direction.LOWER_IS_TRUER
    domain: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    top: ClassVar[float] = -math.inf
    bottom: ClassVar[float] = math.inf
    unit: ClassVar[float] = 0.0
    top_is_unit: ClassVar[bool] = False
    counts_in_units: ClassVar[bool] = False  # its margins are in those of the formula
    laws: ClassVar[frozenset[Law]] = frozenset(
        {
            Law.ASSOCIATIVE,
            Law.COMMUTATIVE,
            Law.MONOTONE,
            Law.UNITS,
            Law.IDEMPOTENT,
            Law.INVOLUTIVE,
            Law.DE_MORGAN,
            Law.RESIDUATED,
            Law.SOUND,
        }
    )

    def leq(self, a: Tensor, b: Tensor) -> Tensor:
        return a - b

    def conj(
        self, xs: Tensor, *, hardness: float | None = None, where: Tensor | None = None
    ) -> Tensor:
        return _HARD.conj(xs, where=where)

    def disj(
        self, xs: Tensor, *, hardness: float | None = None, where: Tensor | None = None
    ) -> Tensor:
        return _HARD.disj(xs, where=where)

    def tensor(self, xs: Tensor, *, where: Tensor | None = None) -> Tensor:
        return _HARD.tensor(xs, where=where)

    def par(self, xs: Tensor, *, where: Tensor | None = None) -> Tensor:
        return _HARD.par(xs, where=where)

    def implies(self, a: Tensor, b: Tensor) -> Tensor:
        return _HARD.implies(a, b)

    def negate(self, a: Tensor) -> Tensor:
        return -a

    def loss(self, value: Tensor) -> Tensor:
        """0 where satisfied, 1 where violated: a count, with no gradient."""
        return (value > 0).to(value.dtype)

    def holds(self, value: Tensor) -> Tensor:
        return value <= 0

    def slack(self, root: Formula) -> tuple[float, float]:
        return (0.0, 0.0)
