"""CROWN over boxes of a small ReLU graph, compiled; `qll.bounds.crown` is the reference.

Matrices are read densely, zeros and all, so that layers must be narrow.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from qll.bounds.crown import BoxBounds
from qll.bounds.groups import Array
from qll.bounds.rounding import Sizes, proved
from qll.networks.relu_form import ReluForm

# Layers up to this width are followed densely.
DENSE_WIDTH = 512
# Of the matrices that one call works with: all layers' and their live parts.
MOST_ENTRIES = 1 << 24


class DenseGraph:
    """The compiled reading of `Crown` for ReLU graphs of narrow layers."""

    def __init__(self, form: ReluForm) -> None:
        blocks = [weight for layer in form.layers for _, weight in layer.terms]
        dense = [b if isinstance(b, np.ndarray) else b.toarray() for b in blocks]
        self.widths = np.array(form.widths, dtype=np.int64)
        counts = [len(layer.terms) for layer in form.layers]
        self.term_starts = np.cumsum([0, *counts], dtype=np.int64)
        self.sources = np.array([j for layer in form.layers for j, _ in layer.terms], np.int64)
        self.weights = np.concatenate([b.ravel() for b in dense]).astype(np.float64)
        self.biases = np.concatenate([layer.bias for layer in form.layers])
        self.starts = np.cumsum([0, *form.widths[1:-1]])

    @staticmethod
    def fits(form: ReluForm) -> bool:
        widest, terms = max(form.widths), sum(len(layer.terms) for layer in form.layers)
        narrow = widest <= DENSE_WIDTH and terms * widest * widest <= MOST_ENTRIES
        return form.is_relu and narrow

    @property
    def neurons(self) -> int:
        """Hidden ones."""
        return int(self.starts[-1])

    def bound(
        self,
        lower: Array,
        upper: Array,
        rows: Array,
        constant: Array,
        conjunctions: Sequence[Sequence[int]] = (),
        *,
        sizes: Sizes,
        inputs: Array | None = None,
        known: tuple[Array, Array] | None = None,
        margin: float = 0.0,
    ) -> BoxBounds:
        """Lower bounds of ``rows . z_L + inputs . x + constant`` and of mixtures of each
        conjunction's rows (with more work where they are not above ``margin``), over N boxes within
        that of ``sizes``; bounds of the hidden neurons are intersected with the ``known`` ones."""
        from qll.kernels.dual_boxes import crown_boxes

        count, size = lower.shape
        shape = (count, self.neurons)
        low, high = known or (np.full(shape, -np.inf), np.full(shape, np.inf))
        low, high = np.array(low, order="C"), np.array(high, order="C")
        starts = np.cumsum([0, *(len(c) for c in conjunctions)], dtype=np.int64)
        leaves = np.array([m for c in conjunctions for m in c], dtype=np.int64)
        values = np.empty((count, len(rows)))
        linear = np.empty((count, len(rows), size))
        mixed, mixtures = np.empty((count, len(conjunctions))), np.empty((count, len(leaves)))
        mixed_linear, blame = np.empty((2, count, len(conjunctions), size))
        direct = np.zeros((len(rows), size)) if inputs is None else inputs
        crown_boxes(
            self.widths, self.term_starts, self.sources, self.weights, self.biases,
            np.ascontiguousarray(lower), np.ascontiguousarray(upper),
            np.ascontiguousarray(rows), np.ascontiguousarray(constant),
            np.ascontiguousarray(direct), leaves, starts, margin,
            np.concatenate([*sizes.hidden(), np.zeros(0)]), sizes.inputs,
            sizes.objectives(rows, constant, inputs), sizes.unit,
            low, high, values, linear, mixed, mixtures, mixed_linear, blame,
        )  # fmt: skip
        weights = np.split(mixtures, starts[1:-1], axis=1) if len(conjunctions) else []
        return BoxBounds(
            proved(values), linear, proved(mixed), weights, mixed_linear, blame, low, high
        )

    def by_layer(self, flat: Array) -> list[Array]:
        """Values of the hidden neurons (neurons,), layer by layer."""
        return [flat[a:b] for a, b in itertools.pairwise(self.starts)]
