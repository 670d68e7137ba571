"""Ways to train on a property: one file each, found by name.

A method gives the property's term of a batch; the loop balances it against the prediction, steps
and keeps the records. ``after_step`` may change the weights (a projection), ``finish`` the network.
"""

from qll.training.methods.base import METHODS, Method, Setup, Step

__all__ = ["METHODS", "Method", "Setup", "Step"]
