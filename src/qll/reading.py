"""A plan evaluated in torch: formulas as a few gathers and reductions.

Tensors here are ``(..., batch)``: the batch is the last, contiguous axis, operands of connectives
lead. ``pick`` is the label pattern of each sample, ``(batch,)``; None where there is one pattern.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from qll.formula.hard import Affine, Slot
from qll.formula.rewrite import Atom
from qll.formula.template import Imply, Leaf, Plan, Reduce, Template
from qll.logics.base import Logic


class Reading:
    """One plan, one logic, one device and type; called with a batch."""

    def __init__(
        self,
        plan: Plan,
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
            result = values[0].expand(z.shape[1])
        else:
            chosen = self._choice[pick] if pick is not None else self._choice.expand(z.shape[1])
            result = values[0].expand(z.shape[1])
            for k, value in enumerate(values[1:], start=1):
                result = torch.where(chosen == k, value, result)
        if self._constant is None:
            return result, None
        constant = self._constant[pick] if pick is not None else self._constant.expand(z.shape[1])
        fixed = ~torch.isnan(constant)
        return torch.where(fixed, constant, result), fixed


class _Node:
    def __call__(self, z: Tensor, pick: Tensor | None) -> Tensor:
        raise NotImplementedError  # pragma: no cover


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
        self._parts = parts
        self._logic = logic
        self._kind = template.kind
        self._hardness = template.hardness
        self._counts = [group.count for group in template.groups]
        self._present: Tensor | None = None
        if any(group.present is not None for group in template.groups):
            masks = [
                torch.tensor(group.present, device=device).reshape(group.count, *template.shape)
                if group.present is not None
                else torch.ones(group.count, *template.shape, dtype=torch.bool, device=device)
                for group in template.groups
            ]
            self._present = torch.cat(masks)

    def __call__(self, z: Tensor, pick: Tensor | None) -> Tensor:
        values = [part(z, pick) for part in self._parts]
        if len(values) == 1:
            xs = values[0]
            if xs.shape[0] != self._counts[0]:  # every operand is the same quantity
                xs = xs.expand(self._counts[0], *xs.shape[1:])
        else:
            lead = torch.broadcast_shapes(*(v.shape[1:] for v in values))
            xs = torch.cat([v.expand(c, *lead) for v, c in zip(values, self._counts, strict=True)])
        where = self._present
        if where is not None and pick is not None:
            where = where.index_select(-1, pick)
        match self._kind:
            case "and":
                return self._logic.conj(xs, hardness=self._hardness, where=where)
            case "or":
                return self._logic.disj(xs, hardness=self._hardness, where=where)
            case "tensor":
                return self._logic.tensor(xs, where=where)
            case _:
                return self._logic.par(xs, where=where)


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
        if value.shape[0] == 1 and self._shape:
            return value.reshape(*(1 for _ in self._shape), -1)
        return value.reshape(*self._shape, -1)


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
        self._constant = torch.tensor(
            [[side.constant for side in row] for row in table], device=device, dtype=dtype
        )
        self._has_constant = bool((self._constant != 0).any()) or width == 0
        self._terms: list[tuple[Tensor, Tensor | None, bool]] = []
        for t in range(width):
            index = [[rows[s.terms[t][0]] if t < len(s.terms) else 0 for s in row] for row in table]
            weight = [[s.terms[t][1] if t < len(s.terms) else 0.0 for s in row] for row in table]
            plain = all(w == 1.0 for row in weight for w in row)
            own = index == [list(range(patterns))] and self._per_label
            self._terms.append(
                (
                    torch.tensor(index, device=device),
                    None if plain else torch.tensor(weight, device=device, dtype=dtype),
                    own,
                )
            )

    def __call__(self, z: Tensor, pick: Tensor | None) -> Tensor:
        total: Tensor | None = None
        for index, weight, own in self._terms:
            if not self._per_label or pick is None:
                value = z.index_select(0, index[:, 0])
                factor = weight
            else:
                # `own`: the row is the label itself, so no table has to be looked up
                at = pick.unsqueeze(0) if own else index.index_select(1, pick)
                value = z.gather(0, at)
                factor = None if weight is None else weight.index_select(1, pick)
            if factor is not None:
                value = value * factor
            total = value if total is None else total + value
        if not self._has_constant and total is not None:
            return total
        constant = self._constant
        if self._per_label and pick is not None:
            constant = constant.index_select(1, pick)
        return constant if total is None else total + constant


def slots_of(atoms: Sequence[Atom]) -> list[Slot]:
    """Every variable that the atoms speak of, in order."""
    found = {slot for atom in atoms for side in (atom.left, atom.right) for slot, _ in side.terms}
    return sorted(found)
