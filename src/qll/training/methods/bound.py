"""Train on a sound bound of the property over the whole region, instead of an attacked point."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, cast

import torch

from qll.bounds.modules import BoundKind, module_bounds
from qll.logics.base import choice
from qll.regions import Region
from qll.training.loss import PropertyTerm
from qll.training.methods.base import METHODS, Method, Setup, Step


@METHODS.register("bound")
class BoundMethod(Method):
    """``kind`` is ``interval`` (cheap, about 1.5 times a plain step) or ``crown`` (interval bounds
    below, one backward pass for the property: tighter, and dearer by the number of comparisons)."""

    options: ClassVar[Mapping[str, bool | int | float | str]] = {"kind": "interval"}

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.kind = cast(
            BoundKind, choice(str(self.chosen["kind"]), "bound", "kind", ("interval", "crown"))
        )

    def term(self, step: Step) -> PropertyTerm:
        return bounded_term(self.setup, step, Region.of(step.prop, step.x), self.kind)


def bounded_term(setup: Setup, step: Step, region: Region, kind: BoundKind) -> PropertyTerm:
    """The upper bound of the property's loss over a box; its margins are what the bound proves."""
    bounds = module_bounds(setup.model, region.lower, region.upper, kind=kind)
    labels = step.labels if step.prop.uses_labels else None
    losses = step.prop.upper(bounds, labels=labels, logic=step.logic)
    with torch.no_grad():
        margins = -step.prop.enclose(bounds, labels=labels, logic="boolean")[1]
    return PropertyTerm(losses, margins, {"x": step.x})
