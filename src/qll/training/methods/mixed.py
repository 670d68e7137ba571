"""Attack and bound interpolated (MTL-IBP, De Palma et al. 2024)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from qll.errors import InputError
from qll.regions import Region
from qll.training.loss import PropertyTerm
from qll.training.methods.attack import AttackMethod
from qll.training.methods.base import METHODS, Setup, Step
from qll.training.methods.bound import PairBoxes, bounded_term, relates_two_points


@METHODS.register("mixed")
class MixedMethod(AttackMethod):
    """``share`` of the bound's loss, the rest of the attacked one's."""

    options: ClassVar[Mapping[str, bool | int | float | str]] = {"share": 0.1}

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        share = self.chosen["share"]
        if not isinstance(share, float | int) or not 0 <= share <= 1:
            raise InputError(
                "the bound's share is out of range",
                expected="a number in [0, 1]",
                found=f"{share}",
                fix="pass --set options.share=0.1",
            )
        self.share = float(share)
        self.pairs = PairBoxes(setup)

    def term(self, step: Step) -> PropertyTerm:
        attacked = super().term(step)
        if relates_two_points(step.prop):
            # Other pairs than the attacked ones: their mean counts for each of these.
            bounded = self.pairs.term(step, 1.0)
            losses = self.share * bounded.losses.mean() + (1.0 - self.share) * attacked.losses
            return PropertyTerm(losses, attacked.margins, attacked.points)
        bounded = bounded_term(self.setup, step, Region.of(step.prop, step.x), "interval")
        losses = self.share * bounded.losses + (1.0 - self.share) * attacked.losses
        return PropertyTerm(losses, attacked.margins, attacked.points)
