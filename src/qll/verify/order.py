"""Rules that only compare outputs, of networks whose last layer keeps their order.

``softmax(z)_i > softmax(z)_j`` iff ``z_i > z_j``, exactly: such a rule is decided on logits. The
checker sees it in the same way (`qll.audit.claim`).
"""

from __future__ import annotations

from qll.formula.hard import HardForm, compares_outputs
from qll.networks import Network


def seen_through(network: Network, form: HardForm, arithmetic: str | None) -> Network:
    """The network that the rule is decided on. In float32 two shares may be equal though their
    logits are not."""
    if arithmetic == "float32" or network.logits is None or not compares_outputs(form):
        return network
    return network.logits
