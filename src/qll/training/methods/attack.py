"""The paper's method: the property's loss at the worst point that an attack finds."""

from __future__ import annotations

from qll.training.loss import PropertyTerm, property_term
from qll.training.methods.base import METHODS, Method, Setup, Step


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
        return property_term(
            self.setup.model,
            step.prop,
            points,
            x0=step.x,
            labels=step.labels,
            logic=step.logic,
        )
