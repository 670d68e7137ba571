"""A rule whose soft value cannot move: said, instead of being trained for ever."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from qll.errors import LogicError

# Epochs over which the loss is watched, and the part of its softness that it must move by.
_EPOCHS = 5
_LEAST = 0.01
# Steps of a loop that knows no epochs, of which the mean is looked at as if they were one.
_STEPS = 20


class Still:
    """Looks at the epochs of a run. A soft value is within some slack of the hard one; where what
    the rule compares is small against that slack, the loss stays at it, whatever is violated."""

    def __init__(
        self,
        over: str = f"{_EPOCHS} epochs",
        fix: str = "scale = ... in the schema, [outputs.NAME]",
    ) -> None:
        self._over, self._fix = over, fix
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
            f"the rule's loss does not move: {losses[-1]:.4g} in {self._over}, while "
            f"{100 * (1 - satisfied):.0f} % of the attacked points violate it. What it compares is "
            f"small against the softness of its logic ({room:.3g}): give the quantity a scale "
            f"({self._fix}), or choose a harder logic (qll:50)"
        )


class StillSteps:
    """The same for a loop of one's own, step by step."""

    def __init__(self) -> None:
        over = f"{_EPOCHS * _STEPS} steps"
        self._still = Still(over, "prop.with_scales(y=[...]), with the spread of each output")
        self._losses: list[float] = []
        self._shares: list[float] = []
        self._done = 0

    def see(self, loss: float, satisfied: float, slack: Callable[[], float]) -> str | None:
        """What has to be said after this step; once in a run."""
        self._losses.append(loss)
        self._shares.append(satisfied)
        if len(self._losses) < _STEPS:
            return None
        self._done += 1
        row = {
            "epoch": self._done,
            "property_loss": sum(self._losses) / _STEPS,
            "train_csec": sum(self._shares) / _STEPS,
        }
        self._losses, self._shares = [], []
        return self._still.see(row, lambda _: slack())
