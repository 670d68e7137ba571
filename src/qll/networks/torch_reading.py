"""What the torch operators are given: the graph so far, and traced tensors of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from qll.errors import NetworkError
from qll.networks.graph import GraphBuilder
from qll.networks.layers import Constant, Layer, Shape


@dataclass(frozen=True)
class Activation:
    """A traced tensor that depends on the input: its index in the graph."""

    index: int


@dataclass(eq=False)
class TorchReading:
    builder: GraphBuilder
    dtype: torch.dtype
    place: str = ""

    def shape(self, value: Activation) -> Shape:
        return self.builder.shape(value.index)

    def add(self, layer: Layer, *operands: Activation) -> Activation:
        return Activation(self.builder.add(self.place, layer, [o.index for o in operands]))

    def array(self, value: Any) -> np.ndarray:
        """A parameter, buffer or number as the network's arithmetic sees it: a number that meets a
        float32 tensor is rounded to float32, as torch does."""
        tensor = value if isinstance(value, torch.Tensor) else torch.tensor(value)
        stored = tensor.detach().to("cpu", self.dtype).to(torch.float64).numpy()
        if not np.all(np.isfinite(stored)):
            raise NetworkError(
                "the weights are not all numbers",
                expected="finite weights",
                found=f"{int((~np.isfinite(stored)).sum())} NaN or infinite of {stored.size}",
                fix="train again from a state without NaN; the network has no meaning as it is",
            )
        return np.array(stored, dtype=np.float64)

    def activation(self, value: Any) -> Activation:
        if isinstance(value, Activation):
            return value
        index = self.builder.add(self.place, Constant(self.array(value)), ())
        return Activation(index)
