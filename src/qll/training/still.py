"""A rule whose soft value cannot move: said, instead of being trained for ever."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from qll.errors import LogicError

# Epochs over which the loss is watched, and the part of its softness that it must move by.
_EPOCHS = 5
_LEAST = 0.01


class Still:
    """Looks at the epochs of a run. A soft value is within some slack of the hard one; where what
    the rule compares is small against that slack, the loss stays at it, whatever is violated."""

    def __init__(self) -> None:
        self._seen: list[float] = []
        self._said = False

    def see(self, row: Mapping[str, Any], slack: Callable[[int], float]) -> str | None:
        """What has to be said after this epoch; once in a run."""
        loss, satisfied = row.get("property_loss"), row.get("train_csec")
        if self._said or loss is None or satisfied is None:
            return None
        self._seen.append(float(loss))
        losses = self._seen[-_EPOCHS:]
        if len(losses) < _EPOCHS or satisfied >= 1.0:
            return None
        try:
            room = slack(int(row["epoch"]) - 1)
        except LogicError:  # only some logics know how far their soft value is from the hard one
            return None
        moved = max(losses) - min(losses)
        stuck = 0 < room < math.inf and moved < _LEAST * room and abs(losses[-1]) <= 1.5 * room
        if not stuck:
            return None
        self._said = True
        return (
            f"the rule's loss does not move: {losses[-1]:.4g} in {_EPOCHS} epochs, while "
            f"{100 * (1 - satisfied):.0f} % of the attacked points violate it. What it compares is "
            f"small against the softness of its logic ({room:.3g}): give the quantity a scale "
            "(scale = ... in the schema, [outputs.NAME]), or choose a harder logic (--logic qll:50)"
        )
