"""Bounds over a small box around an attacked point inside the region (SABR, Mueller et al. 2023).

Far tighter than the bound over the whole region, and still sound for what it covers: the dial
between an attack (size 0) and the whole bound (size 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from qll.attacks.base import attack as read_attack
from qll.errors import InputError
from qll.regions import Region
from qll.training.loss import PropertyTerm
from qll.training.methods.base import METHODS, Method, Setup, Step
from qll.training.methods.bound import PairBoxes, bounded_term, relates_two_points


def centres(region: Region, radius: Tensor) -> Region:
    """Where the centre of a box of this radius may lie."""
    lower = region.lower + radius
    return replace(region, lower=lower, upper=torch.maximum(region.upper - radius, lower))


def box_around(region: Region, centre: Tensor, radius: Tensor) -> Region:
    """The box, cut to the region: rounding must not let it out."""
    lower = torch.maximum(centre - radius, region.lower)
    return replace(region, lower=lower, upper=torch.minimum(centre + radius, region.upper))


@METHODS.register("small-box")
class SmallBoxMethod(Method):
    """``size`` is the share of the region's width that the box has; ``attack`` (``apgd``, or
    ``secant`` where the first layer saturates) places it, in ``steps``."""

    options: ClassVar[Mapping[str, bool | int | float | str]] = {
        "size": 0.3,
        "attack": "apgd",
        "steps": 8,
    }

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        size = self.chosen["size"]
        if not isinstance(size, float | int) or not 0 < size <= 1:
            raise InputError(
                "the size of small boxes is out of range",
                expected="a share in (0, 1] of the region's width",
                found=f"{size}",
                fix="pass --set options.size=0.3",
            )
        self.size = float(size)
        steps = int(self.chosen["steps"])
        self.attack = read_attack(f"{self.chosen['attack']}:steps={steps},restarts=0")
        self.pairs = PairBoxes(setup)

    def term(self, step: Step) -> PropertyTerm:
        if relates_two_points(step.prop):
            return self.pairs.term(step, self.size)
        region = Region.of(step.prop, step.x)
        radius = (region.upper - region.lower) * (self.size / 2)
        points = self.attack.find(
            self.setup.model,
            step.prop,
            step.x,
            step.labels,
            logic=step.logic,
            region=centres(region, radius),
            seed=step.seed,
            engine=self.setup.config.engine,
        )
        box = box_around(region, points["x"].detach(), radius)
        return bounded_term(self.setup, step, box, "interval")
