"""A network read from ONNX as a torch module, so that it can be differentiated.

The folded form, rounded to float32: good for searching. What it finds is judged on the network
itself (``qll.networks.Network.runtime``), never here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from qll.networks import Network


class Folded(nn.Module):
    """``z_k = bias_k + sum_j W[k][j] f_j(z_j)``: several sources for a layer, any activation.
    ``graph`` are the layers as they were read, of which compiled attacks make their plan."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.graph = network.raw_graph
        form = network.relu_form
        self._activations = [layer.activation for layer in form.layers]
        self._sources = [[source for source, _ in layer.terms] for layer in form.layers]
        self.blocks = nn.ModuleList(
            nn.ModuleList(
                _linear(weight, layer.bias if k == 0 else np.zeros_like(layer.bias))
                for k, (_, weight) in enumerate(layer.terms)
            )
            for layer in form.layers
        )
        self._constants = [
            torch.from_numpy(layer.bias.astype(np.float32)) if not layer.terms else None
            for layer in form.layers
        ]
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        values = [x.flatten(1)]
        z = values[0]
        for sources, blocks, constant, activation in zip(
            self._sources, self.blocks, self._constants, self._activations, strict=True
        ):
            if constant is not None:
                z = constant.expand(len(x), -1)
            else:
                parts = [
                    block(values[source])
                    for source, block in zip(sources, blocks, strict=True)  # type: ignore[call-overload]
                ]
                z = torch.stack(parts).sum(0)
            values.append(activation.apply(z))
        return z


def _linear(weight: Any, bias: Any) -> nn.Linear:
    dense = weight if isinstance(weight, np.ndarray) else weight.toarray()
    layer = nn.Linear(dense.shape[1], dense.shape[0])
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(np.ascontiguousarray(dense, dtype=np.float32)))
        layer.bias.copy_(torch.from_numpy(np.ascontiguousarray(bias, dtype=np.float32)))
    return layer
