"""Train on a sound bound of the property over the whole region, instead of an attacked point: with
intervals IBP (Gowal et al. 2018), with linear bounds CROWN-IBP's idea (Zhang et al. 2020)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, cast

import torch

from qll.bounds.modules import BoundKind, module_bounds
from qll.enclosure import OutputBounds
from qll.logics.base import choice
from qll.property import Property
from qll.regions import Region
from qll.training.loss import PropertyTerm
from qll.training.methods.base import METHODS, Method, Setup, Step
from qll.training.pairs import boxed_term, may_meet, moved_bounds


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
        self.pairs = PairBoxes(setup)

    def term(self, step: Step) -> PropertyTerm:
        if relates_two_points(step.prop):
            return self.pairs.term(step, 1.0)
        return bounded_term(self.setup, step, Region.of(step.prop, step.x), self.kind)


class PairBoxes:
    """Rules over two points: bounds over boxes in which a pair is moved about."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.attack = setup.config.make_attack()

    def term(self, step: Step, size: float) -> PropertyTerm:
        found = None
        if not may_meet(step.prop, step.x):  # the attack sees where the rule is broken
            found = self.attack.find(
                self.setup.model, step.prop, step.x, step.labels, logic=step.logic,
                seed=step.seed, engine=self.setup.config.engine,
            )  # fmt: skip
        return boxed_term(
            self.setup.model, step.prop, step.x, logic=step.logic, seed=step.seed, size=size,
            found=found,
        )  # fmt: skip


def relates_two_points(prop: Property) -> bool:
    return len(prop.binders) > 1


def bounded_term(setup: Setup, step: Step, region: Region, kind: BoundKind) -> PropertyTerm:
    """The upper bound of the property's loss over a box; its margins are what the bound proves."""
    bounds: OutputBounds
    if step.prop.sources <= {"y"}:
        bounds = module_bounds(setup.model, region.lower, region.upper, kind=kind)
    else:  # inputs too: the second point, which it does not speak of, is the first
        bounds = moved_bounds(setup.model, step.prop, region.lower, region.upper)
    labels = step.labels if step.prop.uses_labels else None
    losses = step.prop.upper(bounds, labels=labels, logic=step.logic)
    with torch.no_grad():
        margins = -step.prop.enclose(bounds, labels=labels, logic="boolean")[1]
    return PropertyTerm(losses, margins, {"x": step.x})
