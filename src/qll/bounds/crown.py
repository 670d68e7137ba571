"""CROWN: bounds of every pre-activation by linear relaxation, for any graph, batched over boxes.

Backward from the rows of a layer, each activation is replaced by its chord (where its coefficient
is negative) or by a line through the origin (Zhang et al. 2018, with the slopes of
`qll.bounds.dual.DualBound.start`); what reaches the input is minimised over the box. Intersected
with interval arithmetic, which is sometimes tighter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from qll.bounds.dual import DualBound
from qll.bounds.groups import Array
from qll.networks.relu_form import ReluForm

# Entries of the largest temporary tensor; batches are cut to stay below it (8 bytes an entry).
MOST_ENTRIES = 1 << 24
# Layers up to this width are followed densely by the compiled reading.
DENSE_WIDTH = 512


@dataclass(frozen=True, eq=False)
class Boxes:
    """B boxes with bounds on every hidden pre-activation (B, n_k)."""

    lower: Tensor  # (B, inputs)
    upper: Tensor
    low: list[Tensor]
    high: list[Tensor]

    @property
    def empty(self) -> Tensor:
        """(B,) a pre-activation has no value left: the domain holds no point."""
        flags = [(low > high).any(dim=1) for low, high in zip(self.low, self.high, strict=True)]
        return torch.stack(flags).any(dim=0) if flags else torch.zeros(len(self.lower)).bool()


@dataclass(frozen=True, eq=False)
class Rows:
    """Lower bounds of rows over boxes, and the coefficients with which the input enters them."""

    value: Tensor  # (B, r)
    inputs: Tensor  # (B, r, inputs)
    coefficients: list[Tensor]  # per hidden layer (B, r, n_k), empty unless asked for


class Crown(DualBound):
    def interval(self, lower: Tensor, upper: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Pre-activation bounds of every layer, the output last, by interval arithmetic."""
        sides = [((lower + upper) / 2, (upper - lower) / 2)]
        result = []
        for bias, terms in zip(self.biases, self.terms, strict=True):
            mid: Tensor = bias.expand(len(lower), -1)
            rad: Tensor = torch.zeros_like(mid)
            for source, matrix in terms:
                mid = mid + self.push(sides[source][0], matrix)
                rad = rad + self.push(sides[source][1], _absolute(matrix))
            low, high = mid - rad, mid + rad
            result.append((low, high))
            low, high = low.clamp(min=0), high.clamp(min=0)
            sides.append(((low + high) / 2, (high - low) / 2))
        return result

    @staticmethod
    def push(rows: Tensor, matrix: Tensor) -> Tensor:
        """``rows @ W.T`` over the last axis."""
        if matrix.layout == torch.strided:
            return rows @ matrix.T
        transposed = matrix.transpose(0, 1).to_sparse_csr()
        return (transposed @ rows.T).T

    def pre_activations(
        self, lower: Tensor, upper: Tensor, sign: list[Tensor] | None = None
    ) -> Boxes:
        """Bounds of all hidden layers, from the first to the last, splits included."""
        boxes = Boxes(lower, upper, [], [])
        known = self.interval(lower, upper)
        sources_only_input = [all(s == 0 for s, _ in terms) for terms in self.terms]
        for k in range(1, len(self.biases)):
            low, high = known[k - 1]
            if not sources_only_input[k - 1]:
                width = low.shape[1]
                unstable = ((low < 0) & (high > 0)).any(dim=0).nonzero()[:, 0]
                if unstable.numel():
                    eye = torch.eye(width, dtype=self.dtype, device=self.device)[unstable]
                    both = torch.cat([eye, -eye])
                    value = self.rows(boxes, k, both[None]).value
                    count = unstable.numel()
                    low, high = low.clone(), high.clone()
                    low[:, unstable] = torch.maximum(low[:, unstable], value[:, :count])
                    high[:, unstable] = torch.minimum(high[:, unstable], -value[:, count:])
            if sign is not None:
                zero = torch.zeros_like(low)
                low = torch.where(sign[k - 1] > 0, torch.maximum(low, zero), low)
                high = torch.where(sign[k - 1] < 0, torch.minimum(high, zero), high)
            boxes.low.append(low)
            boxes.high.append(high)
        return boxes

    def rows(
        self,
        boxes: Boxes,
        layer: int,
        rows: Tensor,
        constant: Tensor | None = None,
        inputs: Tensor | None = None,
        *,
        keep: bool = False,
    ) -> Rows:
        """Lower bounds of ``rows . z_layer + inputs . x + constant``; rows (1 or B, r, n_layer)."""
        batch, count = len(boxes.lower), rows.shape[1]
        widest = max(max((t.shape[1] for t in boxes.low), default=1), boxes.lower.shape[1])
        step = max(1, MOST_ENTRIES // max(count * widest, 1))
        parts = [
            self._rows(boxes, layer, rows, constant, inputs, slice(at, at + step), keep)
            for at in range(0, batch, step)
        ]
        if len(parts) == 1:
            return parts[0]
        return Rows(
            torch.cat([p.value for p in parts]),
            torch.cat([p.inputs for p in parts]),
            [torch.cat(t) for t in zip(*(p.coefficients for p in parts), strict=True)],
        )

    def _rows(
        self,
        boxes: Boxes,
        layer: int,
        rows: Tensor,
        constant: Tensor | None,
        inputs: Tensor | None,
        part: slice,
        keep: bool,
    ) -> Rows:
        lower, upper = boxes.lower[part], boxes.upper[part]
        batch, count = len(lower), rows.shape[1]

        def mine(t: Tensor) -> Tensor:
            return t[part] if len(t) != 1 else t

        value = torch.zeros(batch, count, dtype=self.dtype, device=self.device)
        if constant is not None:
            value = value + mine(constant)
        pixel = torch.zeros(1, 1, lower.shape[1], dtype=self.dtype, device=self.device)
        if inputs is not None:
            pixel = pixel + mine(inputs)
        flowing: dict[int, Tensor] = {}
        kept: list[Tensor] = []
        back = mine(rows)
        for k in range(layer, 0, -1):
            if k < layer:
                if k not in flowing:
                    if keep:
                        kept.append(torch.zeros(batch, count, boxes.low[k - 1].shape[1]))
                    continue
                coefficient = flowing.pop(k)
                if keep:
                    kept.append(coefficient.expand(batch, -1, -1))
                low, high = boxes.low[k - 1][part], boxes.high[k - 1][part]
                off = high <= 0
                on = (low >= 0) & ~off
                wide = torch.where(off | on, torch.ones_like(low), high - low)
                chord = torch.where(off, 0.0, torch.where(on, 1.0, high / wide))
                rise = torch.where(off | on, 0.0, -chord * low)
                slope = torch.where(off, 0.0, torch.where(on | (high > -low), 1.0, 0.0))
                negative = coefficient.clamp(max=0)
                value = value + (negative @ rise[:, :, None])[..., 0]
                back = coefficient * slope[:, None] + negative * (chord - slope)[:, None]
            value = value + back @ self.biases[k - 1]
            for source, matrix in self.terms[k - 1]:
                moved = self.pull(back, matrix)
                if source == 0:
                    pixel = pixel + moved
                else:
                    flowing[source] = flowing[source] + moved if source in flowing else moved
        mid, rad = (lower + upper) / 2, (upper - lower) / 2
        pixel = pixel.expand(batch, count, -1)
        value = value + (pixel @ mid[:, :, None])[..., 0] - (pixel.abs() @ rad[:, :, None])[..., 0]
        return Rows(value, pixel, kept[::-1])


class DenseChain:
    """The compiled reading of `Crown` for a chain of small layers."""

    def __init__(self, form: ReluForm) -> None:
        blocks = [layer.terms[0][1] for layer in form.layers]
        dense = [b if isinstance(b, np.ndarray) else b.toarray() for b in blocks]
        self.weights = tuple(np.ascontiguousarray(b, dtype=np.float64) for b in dense)
        self.biases = tuple(np.ascontiguousarray(layer.bias) for layer in form.layers)
        self.scratch = tuple(tuple(np.zeros_like(b) for b in self.biases) for _ in range(5))

    @staticmethod
    def fits(form: ReluForm) -> bool:
        return form.is_chain and max(form.widths) <= DENSE_WIDTH

    def rows(self, lower: Array, upper: Array, rows: Array, constant: Array) -> tuple[Array, Array]:
        """Lower bounds (N, m) of ``rows . z_L + constant`` and their input coefficients."""
        from qll.kernels.dual_boxes import crown_boxes

        values = np.empty((len(lower), len(rows)))
        inputs = np.empty((len(lower), len(rows), lower.shape[1]))
        crown_boxes(
            self.weights, self.biases, *self.scratch,
            np.ascontiguousarray(lower), np.ascontiguousarray(upper),
            np.ascontiguousarray(rows), np.ascontiguousarray(constant), values, inputs,
        )  # fmt: skip
        return values, inputs

    def hidden_bounds(self, lower: Array, upper: Array) -> tuple[list[Array], list[Array]]:
        """Pre-activation bounds of the hidden layers on one box."""
        width = len(self.biases[-1])
        self.rows(lower[None], upper[None], np.zeros((1, width)), np.zeros(1))
        return tuple([b.copy() for b in part[:-1]] for part in self.scratch[:2])  # type: ignore[return-value]


def _absolute(matrix: Tensor) -> Tensor:
    if matrix.layout == torch.strided:
        return matrix.abs()
    return torch.sparse_csr_tensor(
        matrix.crow_indices(), matrix.col_indices(), matrix.values().abs(), size=matrix.shape
    )
