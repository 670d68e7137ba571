"""How a formula is read: one record in one file for each logic."""

from qll.logics.base import LOGICS, Direction, Law, Logic, Negation, logic

__all__ = ["LOGICS", "Direction", "Law", "Logic", "Negation", "logic"]
