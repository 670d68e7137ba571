"""Networks: ONNX files and torch modules read into one graph of affine layers and activations.

Knows nothing of formulas. :func:`load` gives the handle that attacks, bounds and proofs share.
"""

from qll.networks.network import Network, load
from qll.networks.relu_form import FormLayer, ReluForm

__all__ = ["FormLayer", "Network", "ReluForm", "load"]
