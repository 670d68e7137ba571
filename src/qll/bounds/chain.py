"""A chain of ReLU layers packed for the compiled kernels: groups, padded matrices."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from qll import limits
from qll.bounds.groups import Array, Groups, group_neurons
from qll.bounds.layout import Layout
from qll.networks.relu_form import ReluForm

# Of an entry of a dense matrix: itself, and with its transpose in both precisions.
KEPT_BYTES = 8 + 2 * 4 + 2 * 8


@dataclass(frozen=True, eq=False)
class Chain:
    """The first ``layers`` hidden layers of a chain, first-layer neurons reordered by group."""

    form: ReluForm
    layers: int
    tile: int  # widths are padded to a multiple
    groups: Groups  # of the first layer
    whole: Chain | None = None  # of all layers, whose matrices this one begins with

    @classmethod
    def of(cls, form: ReluForm, tile: int) -> Chain:
        """All hidden layers."""
        groups = group_neurons(form.layers[0].terms[0][1], form.input_size)
        return cls(form, len(form.layers) - 1, tile, groups)

    def below(self, layer: int) -> Chain:
        """The hidden layers before ``layer`` (from 0)."""
        return Chain(self.form, layer, self.tile, self.groups, self.whole or self)

    @staticmethod
    def dense_entries(form: ReluForm) -> int:
        """Of the matrices above the first layer, which the kernels read densely."""
        return sum(a * b for a, b in itertools.pairwise(form.widths[1:-1]))

    @cached_property
    def layout(self) -> Layout:
        return Layout.of(self.form, self.layers, tile=self.tile, first=self.groups.order)

    @cached_property
    def bias(self) -> Array:
        return np.concatenate(
            [self.layout.spread(k, self.form.layers[k].bias) for k in range(self.layers)]
        )

    @cached_property
    def upper(self) -> list[Array]:
        """Padded dense weights of hidden layers 1.. (0 is the grouped first layer)."""
        if self.whole is not None:
            return self.whole.upper[: self.layers - 1]
        limits.need(KEPT_BYTES * self.dense_entries(self.form), "the matrices of a proof")
        result, widths = [], self.layout.widths
        for k in range(1, self.layers):
            limits.check()
            weight = _dense(self.form.layers[k].terms[0][1])
            padded = np.zeros((int(widths[k]), int(widths[k - 1])))
            padded[: weight.shape[0]] = self.layout.spread(k - 1, weight)
            result.append(padded)
        return result

    def output(self, index: int) -> tuple[Array, float]:
        """Weights and bias of a pre-activation of the next layer, hidden or not."""
        if self.whole is not None:
            bias = self.whole.bias[self.whole.layout.part(self.layers)]
            return self.whole.upper[self.layers - 1][index], float(bias[index])
        last = self.form.layers[-1]
        row = last.terms[0][1][[index]]
        return self.layout.spread(self.layers - 1, _dense(row)[0]), float(last.bias[index])

    @cached_property
    def packed64(self) -> Any:
        return self._packed(np.float64)

    @cached_property
    def packed32(self) -> Any:
        return self._packed(np.float32)

    def _packed(self, dtype: Any) -> Any:
        from qll.kernels.dual_types import Packed

        g = self.groups
        sizes = [w.size for w in self.upper]
        at = [0, *np.concatenate([[0], np.cumsum(sizes)]).tolist()][: max(self.layers, 1)]
        flat, flat_transposed = self._flat(np.dtype(dtype))
        block_at = np.concatenate([[0], np.cumsum([b.size for b in g.blocks])])[:-1]
        is_home = g.copy_home == np.arange(g.copies)
        return Packed(
            self.layers,
            self.layout.widths,
            self.layout.starts,
            self.bias.astype(dtype),
            flat,
            flat_transposed,
            np.array(at, dtype=np.int64),
            g.neuron_starts,
            g.copy_starts,
            block_at.astype(np.int64),
            g.hull,
            np.concatenate([b.ravel() for b in g.blocks]).astype(dtype),
            g.copy_input,
            g.copy_home,
            is_home,
            g.share.astype(dtype),
        )

    def _flat(self, dtype: np.dtype[Any]) -> tuple[Any, Any]:
        """All of `upper` one after the other, and transposed; the whole chain keeps them."""
        count = sum(w.size for w in self.upper)
        if self.whole is not None:
            kept = self.whole._flat(dtype)
            return kept[0][:count], kept[1][:count]
        if dtype not in self._kept:
            plain, transposed = np.empty(count, dtype), np.empty(count, dtype)
            at = 0
            for weight in self.upper:
                limits.check()
                here = slice(at, at + weight.size)
                plain[here].reshape(weight.shape)[:] = weight
                transposed[here].reshape(weight.T.shape)[:] = weight.T
                at += weight.size
            self._kept[dtype] = plain, transposed
        return self._kept[dtype]

    @cached_property
    def _kept(self) -> dict[np.dtype[Any], tuple[Any, Any]]:
        return {}


def _dense(weight: Any) -> Array:
    return weight if isinstance(weight, np.ndarray) else np.asarray(weight.toarray())
