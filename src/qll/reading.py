"""A plan evaluated in torch: formulas as a few gathers and reductions.

Tensors here are ``(..., batch)``: the batch is the last, contiguous axis, operands of connectives
lead. ``pick`` is the label pattern of each sample, ``(batch,)``; None where there is one pattern.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from qll.connectives import present, reduced
from qll.formula.hard import Affine, Slot
from qll.formula.template import Imply, Leaf, Patterns, Reduce, Template
from qll.logics.base import Logic


class Reading:
    """One plan, one logic, one device and type; called with a batch."""

    def __init__(
        self,
        plan: Patterns,
        logic: Logic,
        rows: Mapping[Slot, int],
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._logic = logic
        self._variants = [
            _compile(variant.template, logic, rows, device, dtype) for variant in plan.variants
        ]
        self._choice: Tensor | None = None
        if len(plan.variants) > 1:
            choice = torch.zeros(plan.patterns, dtype=torch.long, device=device)
            for k, variant in enumerate(plan.variants):
                choice[list(variant.patterns)] = k
            self._choice = choice
        self._constant: Tensor | None = None
        if plan.constants:
            self._constant = torch.full(
                (plan.patterns,), math.nan, device=device, dtype=dtype
            )  # NaN marks "not constant" in this table only; it never meets a value
            for k, is_top in plan.constants.items():
                self._constant[k] = logic.top if is_top else logic.bottom

    def __call__(self, z: Tensor, pick: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Values ``(batch,)`` of the formula at quantities ``z`` of shape ``(rows, batch)``, and
        the mask of samples whose formula is a constant (their value is set here)."""
        values = [variant(z, pick) for variant in self._variants]
        if not values:
            result = z.new_zeros(z.shape[1])
        elif self._choice is None:
            result = values[0]
            if result.shape != z.shape[1:]:  # the same for every sample
                result = result.expand(z.shape[1])
        else:
            if pick is None:
                chosen = self._choice.expand(z.shape[1])
            else:
                chosen = self._choice.index_select(0, pick)
            result = values[0].expand(z.shape[1])
            for k, value in enumerate(values[1:], start=1):
                result = torch.where(chosen == k, value, result)
        if self._constant is None:
            return result, None
        if pick is None:
            constant = self._constant.expand(z.shape[1])
        else:  # index_select refuses a negative label, which an index would count from the end
            constant = self._constant.index_select(0, pick)
        fixed = ~torch.isnan(constant)
        return torch.where(fixed, constant, result), fixed


class _Node(ABC):
    @abstractmethod
    def __call__(self, z: Tensor, pick: Tensor | None) -> Tensor: ...


def _compile(
    template: Template,
    logic: Logic,
    rows: Mapping[Slot, int],
    device: torch.device,
    dtype: torch.dtype,
) -> _Node:
    match template:
        case Leaf():
            return _Comparison(template, logic, rows, device, dtype)
        case Imply(left, right):
            return _Implication(
                _compile(left, logic, rows, device, dtype),
                _compile(right, logic, rows, device, dtype),
                logic,
            )
        case Reduce(groups=groups):
            parts = [_compile(g.template, logic, rows, device, dtype) for g in groups]
            return _Reduction(template, parts, logic, device)


class _Implication(_Node):
    def __init__(self, left: _Node, right: _Node, logic: Logic) -> None:
        self._left, self._right, self._logic = left, right, logic

    def __call__(self, z: Tensor, pick: Tensor | None) -> Tensor:
        return self._logic.implies(self._left(z, pick), self._right(z, pick))


class _Reduction(_Node):
    def __init__(
        self, template: Reduce, parts: list[_Node], logic: Logic, device: torch.device
    ) -> None:
        self._parts, self._logic, self._template = parts, logic, template
        self._counts = [group.count for group in template.groups]
        mask = present(template, device)
        self._present = None if mask is None else _by_label(mask)

    def __call__(self, z: Tensor, pick: Tensor | None) -> Tensor:
        values = [part(z, pick) for part in self._parts]
        if len(values) == 1:
            xs = values[0]
            if xs.shape[0] != self._counts[0]:  # every operand is the same quantity
                xs = xs.expand(self._counts[0], *xs.shape[1:])
        else:
            lead = [max(sizes) for sizes in zip(*(v.shape[1:] for v in values), strict=True)]
            xs = torch.cat([v.expand(c, *lead) for v, c in zip(values, self._counts, strict=True)])
        where = self._present
        if where is not None:
            where = _of_label(where, pick)
        return reduced(self._logic, self._template, xs, where)


def _by_label(table: Tensor) -> Tensor:
    """Label first: looking up rows is several times faster than looking up columns."""
    return table.movedim(-1, 0).contiguous()


def _of_label(table: Tensor, pick: Tensor | None) -> Tensor:
    """The table of each sample, batch last; a table for one pattern broadcasts."""
    return (table if pick is None else table.index_select(0, pick)).movedim(0, -1)


class _Comparison(_Node):
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
        self._left = _Side([a.left for a in leaf.atoms], leaf.shape, rows, device, dtype)
        self._right = _Side([a.right for a in leaf.atoms], leaf.shape, rows, device, dtype)

    def __call__(self, z: Tensor, pick: Tensor | None) -> Tensor:
        value = self._logic.leq(self._left(z, pick), self._right(z, pick))
        if len(self._shape) == 1:  # already (n, batch)
            return value
        if not self._shape:
            return value.squeeze(0)
        shape = self._shape if value.shape[0] > 1 else [1] * len(self._shape)
        return value.reshape(*shape, -1)


class _Side:
    """One side of a table of atoms: ``constant + sum_t coefficient_t * z[row_t]``, ``(n, batch)``.

    ``n`` is the product of the leading axes, or 1 where all of them agree (the true class on the
    right of a robustness property), which then broadcasts.
    """

    def __init__(
        self,
        sides: Sequence[Affine],
        shape: tuple[int, ...],
        rows: Mapping[Slot, int],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        patterns = shape[-1]
        table = [sides[k : k + patterns] for k in range(0, len(sides), patterns)]
        if all(row == table[0] for row in table):
            table = table[:1]
        self._per_label = any(side != row[0] for row in table for side in row)
        if not self._per_label:
            table = [row[:1] for row in table]
        width = max(len(side.terms) for row in table for side in row)
        constant = torch.tensor(
            [[side.floats[1] for side in row] for row in table], device=device, dtype=dtype
        )
        # A table that is the same for every label is kept as it is used: (n, 1).
        self._constant = _by_label(constant) if self._per_label else constant
        self._has_constant = bool((constant != 0).any()) or width == 0
        # (rows of z or None for all of them, coefficients or None for 1, whether row = label)
        self._terms: list[tuple[Tensor | None, Tensor | None, bool]] = []
        for t in range(width):
            index = [[rows[s.terms[t][0]] if t < len(s.terms) else 0 for s in row] for row in table]
            weight = [
                [s.floats[0][t][1] if t < len(s.terms) else 0.0 for s in row] for row in table
            ]
            plain = all(w == 1.0 for row in weight for w in row)
            own = self._per_label and index == [list(range(patterns))]
            at: Tensor | None = _by_label(torch.tensor(index, device=device))
            if not self._per_label:
                flat = [row[0] for row in index]
                whole = flat == list(range(max(rows.values()) + 1))
                at = None if whole else torch.tensor(flat, device=device)
            factor = None if plain else torch.tensor(weight, device=device, dtype=dtype)
            if factor is not None and self._per_label:
                factor = _by_label(factor)
            self._terms.append((at, factor, own))

    def __call__(self, z: Tensor, pick: Tensor | None) -> Tensor:
        if not self._per_label:
            pick = None
        total: Tensor | None = None
        for index, weight, own in self._terms:
            if pick is None:
                value = z if index is None else z.index_select(0, index)
            else:
                # `own`: the row is the label itself, so no table has to be looked up
                at = pick.unsqueeze(0) if own or index is None else _of_label(index, pick)
                value = z.gather(0, at)
            if weight is not None:
                value = value * (weight if pick is None else _of_label(weight, pick))
            total = value if total is None else total + value
        if not self._has_constant and total is not None:
            return total
        constant = self._constant if pick is None else _of_label(self._constant, pick)
        return constant if total is None else total + constant
