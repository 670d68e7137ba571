"""What the independent checker can confirm of a network, asked before any work is done."""

from __future__ import annotations

from typing import Any

from qll.audit.network import NotConfirmed, read_network


def obstacle(network: Any, arithmetic: str | None = None) -> str | None:
    """Why the checker does not read ``network``, with the layer's name; None if it does."""
    mean, std = (None, None) if network.normalisation is None else network.normalisation
    scales = (None if v is None else tuple(float(x) for x in v) for v in (mean, std))
    try:
        read_network(network.source, *scales, arithmetic == "float32")
    except NotConfirmed as error:
        layer = _layer(network.source)
        return str(error) if layer is None else f"{error} ({layer})"
    return None


def _layer(source: bytes) -> str | None:
    """The first operator of the file that is not among those that the checker knows."""
    import onnx

    from qll.audit.onnx_file import OPERATORS

    for node in onnx.ModelProto.FromString(source).graph.node:
        if node.op_type not in OPERATORS:
            return f"layer '{node.name or node.output[0]}', a {node.op_type}"
    return None
