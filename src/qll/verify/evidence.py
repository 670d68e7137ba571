"""What the independent checker can confirm of a network, asked before any work is done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qll import limits
from qll.audit.network import NotConfirmed, read_network
from qll.audit.pace import paced
from qll.networks.matrices import entries

# Up to so many entries of the folded matrices (without zeros, and with them) the checker is asked
# without being told to: it reads such a network in a second, and holds it in half a gigabyte.
MOST_CHECKED, MOST_CHECKED_DENSE = 500_000, 1 << 25


def beyond(network: Any) -> str | None:
    """Why the checker is not asked of its own accord: the network is large."""
    form = network.relu_form
    blocks = [matrix for layer in form.layers for _, matrix in layer.terms]
    stored = sum(int(np.count_nonzero(entries(matrix))) for matrix in blocks)
    dense = sum(matrix.shape[0] * matrix.shape[1] for matrix in blocks)
    if stored <= MOST_CHECKED and dense <= MOST_CHECKED_DENSE:
        return None
    return (
        f"the network is large ({stored:,} weights in its matrices, more than {MOST_CHECKED:,}, or "
        "many zeros between them): the checker is asked only with --certified or --certificate"
    )


def obstacle(network: Any, arithmetic: str | None = None) -> str | None:
    """Why the checker does not read ``network``, with the layer's name; None if it does."""
    mean, std = (None, None) if network.normalisation is None else network.normalisation
    scales = (None if v is None else tuple(float(x) for x in v) for v in (mean, std))
    try:
        with paced(lambda: limits.left() <= 0):
            _ = read_network(network.source, *scales, arithmetic == "float32").floats
    except NotConfirmed as error:
        layer = _layer(network.source)
        return str(error) if layer is None else f"{error} ({layer})"
    return None


def obstacles(networks: Sequence[Any], arithmetic: str | None) -> list[str]:
    """Those of each network."""
    return [said for each in networks if (said := obstacle(each, arithmetic)) is not None]


def unasked(networks: Sequence[Any], arithmetic: str | None) -> str | None:
    """Why the checker is not asked of its own accord about these networks."""
    large = [said for each in networks if (said := beyond(each)) is not None]
    return next(iter(large or obstacles(networks, arithmetic)), None)


def _layer(source: bytes) -> str | None:
    """The first operator of the file that is not among those that the checker knows."""
    import onnx

    from qll.audit.onnx_file import OPERATORS

    for node in onnx.ModelProto.FromString(source).graph.node:
        if node.op_type not in OPERATORS:
            return f"layer '{node.name or node.output[0]}', a {node.op_type}"
    return None
