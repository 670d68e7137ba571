"""AutoPGD (Croce and Hein 2020): the step halves when progress stalls, from the best point on."""

from __future__ import annotations

from dataclasses import dataclass

from qll.attacks.base import ATTACKS
from qll.attacks.signed import SignedAttack
from qll.kernels.schedule import Schedule, autopgd


@ATTACKS.register("apgd")
@dataclass(frozen=True)
class AutoPGD(SignedAttack):
    """``as_published`` repeats the attack of the paper's runs, whose step is halved at most once
    (``qll.kernels.schedule`` says why); the default is Algorithm 1 of Croce and Hein."""

    as_published: bool = False

    def schedule(self) -> Schedule:
        return autopgd(self.steps, as_published=self.as_published)
