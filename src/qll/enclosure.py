"""A plan evaluated on bounds: the range of a formula's value over a whole region.

Quantities come as sound bounds of affine functions of the outputs (see ``OutputBounds``); they are
pushed through the formula's own connectives, lower and upper ends together, because negation and
premises are antitone. The upper end of the loss is then sound for every point of the region and
differentiable in the network's weights. A logic whose connectives are not monotone is refused.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from qll.connectives import present, reduced
from qll.errors import LogicError
from qll.formula.ground import difference
from qll.formula.hard import Affine, Slot
from qll.formula.template import Imply, Leaf, Patterns, Reduce, Template
from qll.logics.base import Law, Logic

Ends = tuple[Tensor, Tensor]  # lower, upper; (..., batch)


class OutputBounds(Protocol):
    """Sound bounds of affine functions of the quantities over each sample's region."""

    @property
    def outputs(self) -> int: ...

    @property
    def sources(self) -> tuple[str, ...]:
        """What is bounded: the outputs, or also the second point and its outputs."""

    @property
    def input_shape(self) -> tuple[int, ...] | None:
        """None where the inputs themselves are not bounded."""

    @property
    def zeros(self) -> Tensor:
        """``(batch,)`` of the device and type of the bounds."""

    def affine(self, rows: Tensor, constant: Tensor, pick: Tensor | None) -> Ends:
        """Bounds ``(n, batch)`` of ``rows @ z + constant``.

        ``rows`` is ``(patterns, n, slots)`` and ``constant`` ``(patterns, n)``; ``pick`` says which
        pattern each sample has (None: the only one).
        """


class Enclosure:
    """One plan, one logic; called with bounds."""

    def __init__(
        self,
        plan: Patterns,
        logic: Logic,
        rows: Mapping[Slot, int],
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        if Law.MONOTONE not in logic.laws:
            raise LogicError(
                f"{logic.name} cannot bound a formula over a region",
                expected="a logic whose connectives are monotone: " + _monotone_names(),
                found=f"{logic.name}, whose conjunction may fall as an operand grows truer",
                fix="choose one of them, or train against attacks",
            )
        self._logic = logic
        self._plan = plan
        self._compiled = [_compile(v.template, logic, rows, device, dtype) for v in plan.variants]

    def __call__(self, bounds: OutputBounds, pick: Tensor | None) -> Ends:
        """Lower and upper ends ``(batch,)`` of the value in the logic's domain."""
        like = bounds.zeros
        ends = [node(bounds, pick) for node in self._compiled]
        index = pick if pick is not None else torch.zeros_like(like, dtype=torch.long)
        choice = torch.zeros(self._plan.patterns, dtype=torch.long, device=like.device)
        for k, variant in enumerate(self._plan.variants):
            choice[list(variant.patterns)] = k
        result: list[Tensor] = []
        for side in (0, 1):
            value = torch.zeros_like(like)
            for k, pair in enumerate(ends):
                value = torch.where(choice[index] == k, pair[side], value)
            for pattern, is_top in self._plan.constants.items():
                fixed = self._logic.top if is_top else self._logic.bottom
                value = torch.where(index == pattern, fixed, value)
            result.append(value)
        return result[0], result[1]


class _Node(ABC):
    @abstractmethod
    def __call__(self, bounds: OutputBounds, pick: Tensor | None) -> Ends: ...


def _compile(
    template: Template,
    logic: Logic,
    rows: Mapping[Slot, int],
    device: torch.device,
    dtype: torch.dtype,
) -> _Node:
    match template:
        case Leaf():
            return _Atoms(template, logic, rows, device, dtype)
        case Imply(left, right):
            premise, conclusion = (
                _compile(side, logic, rows, device, dtype) for side in (left, right)
            )
            return _Implication(premise, conclusion, logic)
        case Reduce(groups=groups):
            parts = [_compile(g.template, logic, rows, device, dtype) for g in groups]
            return _Reduction(template, parts, logic, device)


class _Implication(_Node):
    def __init__(self, left: _Node, right: _Node, logic: Logic) -> None:
        self._left, self._right, self._logic = left, right, logic

    def __call__(self, bounds: OutputBounds, pick: Tensor | None) -> Ends:
        (left_low, left_high), (right_low, right_high) = (
            self._left(bounds, pick),
            self._right(bounds, pick),
        )
        # grows with its conclusion and falls with its premise, in every logic's own numbers
        implies = self._logic.implies
        return implies(left_high, right_low), implies(left_low, right_high)


class _Reduction(_Node):
    def __init__(
        self, template: Reduce, parts: list[_Node], logic: Logic, device: torch.device
    ) -> None:
        self._parts, self._logic, self._template = parts, logic, template
        self._present = present(template, device)

    def __call__(self, bounds: OutputBounds, pick: Tensor | None) -> Ends:
        ends = [part(bounds, pick) for part in self._parts]
        where = self._present
        if where is not None and pick is not None:
            where = where.index_select(-1, pick)
        low, high = (
            reduced(self._logic, self._template, torch.cat([e[k] for e in ends]), where)
            for k in (0, 1)
        )
        return low, high


class _Atoms(_Node):
    """Comparisons. A logic that reads them by the difference gets bounds of the difference, which
    are tighter than the difference of bounds; another one gets bounds of the two sides."""

    def __init__(
        self,
        leaf: Leaf,
        logic: Logic,
        rows: Mapping[Slot, int],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._logic = logic
        self._shape = leaf.shape[:-1]

        def table(sides: Sequence[Affine]) -> tuple[Tensor, Tensor]:
            patterns = leaf.shape[-1]
            dense = torch.zeros(len(sides), max(rows.values()) + 1, device=device, dtype=dtype)
            for k, side in enumerate(sides):
                for slot, coefficient in side.floats[0]:
                    dense[k, rows[slot]] = coefficient
            constant = torch.tensor([s.floats[1] for s in sides], device=device, dtype=dtype)
            # row-major over (n, patterns) becomes (patterns, n, ...)
            return (
                dense.reshape(-1, patterns, dense.shape[1]).transpose(0, 1).contiguous(),
                constant.reshape(-1, patterns).t().contiguous(),
            )

        if logic.reads_differences:
            self._tables = [table([difference(a.left, a.right) for a in leaf.atoms])]
        else:
            self._tables = [
                table([a.left for a in leaf.atoms]),
                table([a.right for a in leaf.atoms]),
            ]

    def __call__(self, bounds: OutputBounds, pick: Tensor | None) -> Ends:
        sides = [bounds.affine(rows, constant, pick) for rows, constant in self._tables]
        leq = self._logic.leq
        if len(sides) == 1:
            (low, high), zero = sides[0], torch.zeros_like(sides[0][0])
            ends = [leq(low, zero), leq(high, zero)]
            if self._logic.direction.value > 0:
                ends.reverse()
        else:
            (left_low, left_high), (right_low, right_high) = sides
            ends = [leq(left_high, right_low), leq(left_low, right_high)]
        return tuple(end.reshape(*self._shape, -1) for end in ends)  # type: ignore[return-value]


def _monotone_names() -> str:
    from qll.logics.base import LOGICS

    return ", ".join(name for name in LOGICS if Law.MONOTONE in LOGICS[name].laws)
