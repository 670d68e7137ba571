"""Property-driven training: ``PropertyLoss`` for your own loop, ``train`` for ours."""

from qll.training.balance import Balance
from qll.training.loss import PropertyLoss

__all__ = ["Balance", "PropertyLoss"]
