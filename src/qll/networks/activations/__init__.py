"""The functions between affine maps: one record in one file for each."""

from qll.networks.activations.base import ACTIVATIONS, Activation
from qll.networks.activations.relu import RELU

__all__ = ["ACTIVATIONS", "RELU", "Activation"]
