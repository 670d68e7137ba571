"""Attacks: search a region for the point that violates a property most.

``attack("apgd:20,restarts=2")(model, prop, x, labels)`` gives points, margins and which regions are
falsified. The searcher is never believed: a final base step projects and re-judges.
"""

from qll.attacks.base import ATTACKS, Attack, AttackResult, attack

__all__ = ["ATTACKS", "Attack", "AttackResult", "attack"]
