"""The paper's method: the property's loss at the worst point that an attack finds. Where the rule
relates two points that may be one, pairs near each other are looked at too."""

from __future__ import annotations

from qll.training.loss import PropertyTerm, joined, property_term
from qll.training.methods.base import METHODS, Method, Setup, Step
from qll.training.pairs import may_meet, near_term


@METHODS.register("attack")
class AttackMethod(Method):
    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.attack = setup.config.make_attack()

    def term(self, step: Step) -> PropertyTerm:
        points = self.attack.find(
            self.setup.model,
            step.prop,
            step.x,
            step.labels,
            logic=step.logic,
            seed=step.seed,
            engine=self.setup.config.engine,
        )
        term = property_term(
            self.setup.model,
            step.prop,
            points,
            x0=step.x,
            labels=step.labels,
            logic=step.logic,
        )
        if not may_meet(step.prop, step.x):
            return term
        # Where both points are one there is no margin to be had.
        attacked = PropertyTerm(term.losses.clamp(min=0.0), term.margins, term.points)
        near = near_term(self.setup.model, step.prop, step.x, logic=step.logic, seed=step.seed)
        return joined(attacked, near)
