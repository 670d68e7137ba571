"""Projected gradient ascent with a fixed step (Madry and others 2018)."""

from __future__ import annotations

from dataclasses import dataclass

from qll.attacks.base import ATTACKS
from qll.attacks.signed import SignedAttack
from qll.kernels.schedule import Schedule, pgd


@ATTACKS.register("pgd")
@dataclass(frozen=True)
class PGD(SignedAttack):
    """``step`` is a fraction of the region's width; 0 takes 1.25 / steps: 2.5 radii in all."""

    step: float = 0.0

    def schedule(self) -> Schedule:
        return pgd(self.steps, self.step or 1.25 / max(self.steps, 1))
