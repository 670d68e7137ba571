"""What of a property can hold by construction does; the rest comes as near to it as it can.

Exactly-one asks that the sum of two opposite outputs be below 0 (not both) and above it (at least
one). The first conditions that can hold together are projected onto as ``projected`` does, and hold
for every input. Those that exclude them are projected onto just short of the contradiction, which
leaves the two outputs nearly opposite: then the rest of the property holds wherever neither changes
its sign, and that is what training on the labels is for.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from qll.errors import InputError
from qll.training.methods.base import METHODS
from qll.training.methods.projected import GAP, ProjectedMethod

_ROUNDS = 500


@METHODS.register("partly-projected")
class PartlyProjectedMethod(ProjectedMethod):
    remark: ClassVar[str | None] = (
        "part of the property holds by construction (the last layer is projected), the rest is "
        "trained"
    )

    def _chosen(self, rows: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        kept: list[int] = []
        for k in range(len(rows)):
            if _can_hold(rows[[*kept, k]], offsets[[*kept, k]]):
                kept.append(k)
        if not kept:
            raise InputError(
                "no part of this property can be had by construction",
                expected="a condition on the last layer that can hold",
                found="none",
                fix="use --method attack, bound or small-box",
            )
        rest = [k for k in range(len(rows)) if k not in kept]
        self.near = rows[rest], offsets[rest]
        return rows[kept], offsets[kept]

    @torch.no_grad()
    def after_step(self) -> None:
        # The mean of such a condition is one of those that hold, negated: it cannot be below GAP.
        for row, offset in zip(*self.near, strict=True):
            self._project(row, offset, gap=-GAP, hair=0.0)
        super().after_step()


def _can_hold(rows: Tensor, offsets: Tensor) -> bool:
    """Whether some bias satisfies all conditions with their gap (zero weights always do)."""
    bias = torch.zeros(rows.shape[1], dtype=torch.float64)
    rows, offsets = rows.double().cpu(), offsets.double().cpu()
    for _ in range(_ROUNDS):
        if bool((rows @ bias + offsets + GAP / 2 <= 0).all()):
            return True
        for row, offset in zip(rows, offsets, strict=True):
            bias -= row * torch.relu(row @ bias + offset + GAP) / (row @ row)
    return False
