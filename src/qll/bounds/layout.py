"""Where the hidden neurons of a network stand in flat arrays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from qll.bounds.groups import Array, Indices
from qll.bounds.rounding import Sizes
from qll.networks.relu_form import ReluForm


@dataclass(frozen=True, eq=False)
class Layout:
    """Hidden layer after hidden layer (numbered from 0), each padded to a multiple of ``tile``; the
    neurons of the first one stand in the order ``first``, if there is one."""

    counts: tuple[int, ...]  # neurons of each hidden layer
    tile: int = 1
    first: Indices | None = None

    @classmethod
    def of(cls, form: ReluForm, layers: int | None = None, **how: Any) -> Layout:
        """The first ``layers`` hidden layers of a form, or all of them."""
        hidden = form.layers[:-1] if layers is None else form.layers[:layers]
        return cls(tuple(layer.width for layer in hidden), **how)

    @property
    def layers(self) -> int:
        return len(self.counts)

    @cached_property
    def widths(self) -> Indices:
        padded = [-(-count // self.tile) * self.tile for count in self.counts]
        return np.array(padded, dtype=np.int64)

    @cached_property
    def starts(self) -> Indices:
        return np.concatenate([[0], np.cumsum(self.widths)]).astype(np.int64)

    @cached_property
    def neurons(self) -> int:
        """Entries of a flat array, padding included."""
        return int(self.starts[-1])

    def part(self, layer: int) -> slice:
        return slice(int(self.starts[layer]), int(self.starts[layer + 1]))

    def layer_of(self, neuron: int) -> int:
        return int(np.searchsorted(self.starts, neuron, side="right")) - 1

    def spread(self, layer: int, values: Any, fill: float = 0.0) -> Array:
        """Values of a hidden layer (over the last axis) as they stand here; padding is ``fill``."""
        own: Array = np.asarray(values, dtype=np.float64)
        if self.first is None and self.tile == 1:
            return own
        if layer == 0 and self.first is not None:
            own = own[..., self.first]
        out = np.full((*own.shape[:-1], int(self.widths[layer])), fill)
        out[..., : own.shape[-1]] = own
        return out

    def gather(self, layer: int, flat: Array) -> Array:
        """The values of a hidden layer in the network's own order."""
        held = flat[self.part(layer)][: self.counts[layer]]
        if layer or self.first is None:
            return held
        out = np.empty(self.counts[layer])
        out[self.first] = held
        return out

    def sizes(self, sizes: Sizes) -> Array:
        """Of every hidden neuron (`qll.bounds.rounding`), flat; padding has none."""
        parts = [self.spread(k, sizes.layer(k + 1)) for k in range(self.layers)]
        return np.concatenate([*parts, np.zeros(0)])

    @cached_property
    def numbers(self) -> Indices:
        """(neurons,) the network's own number of each hidden neuron; -1 for padding."""
        found = np.full(self.neurons, -1)
        start = 0
        for k, count in enumerate(self.counts):
            order = np.arange(count) if k or self.first is None else self.first
            found[self.part(k)][:count] = order + start
            start += count
        return found
