"""CROWN: bounds of every pre-activation by linear relaxation, for any graph, batched over boxes.

Backward from the rows of a layer, each activation is replaced by its chord (where its coefficient
is negative) or by a line through the origin (Zhang et al. 2018, with the slopes of
`qll.bounds.dual.DualBound.start`); what reaches the input is minimised over the box. Intersected
with interval arithmetic, which is sometimes tighter. Given an allowance, every bound is less what
rounding may have added (`qll.bounds.rounding`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from qll.bounds.dual import Allowance, DualBound
from qll.bounds.groups import Array
from qll.bounds.rounding import Sizes, proved
from qll.late import late

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = late("torch")

# Entries of the largest temporary tensor; batches are cut to stay below it (8 bytes an entry).
MOST_ENTRIES = 1 << 24
# Multiplications between two looks at the clock, some tenths of a second; one by a sparse matrix
# takes as long as many by a dense one.
PIECE_WORK, SPARSE_WORK = 2_000_000_000, 16
# From this many inputs on those that cannot move are left out of the products.
MANY_INPUTS = 64


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


@dataclass(frozen=True, eq=False)
class BoxBounds:
    """What CROWN finds on N boxes for m rows in C conjunctions."""

    value: Array  # (N, m)
    linear: Array  # (N, m, inputs): the linear functions that were minimised
    mixed: Array  # (N, C): bounds of a mixture of each conjunction's rows
    weights: list[Array]  # of the mixtures, per conjunction (N, its rows)
    mixed_linear: Array  # (N, C, inputs)
    blame: Array  # (N, C, inputs): what the relaxation may cost, by the inputs it is due to
    low: Array  # (N, neurons)
    high: Array


@dataclass(frozen=True, eq=False)
class _Still:
    """Inputs that cannot move in any box: the others' columns of each layer that reads the input
    (by its number), and what the still ones add to it."""

    stuck: Tensor
    point: Tensor
    free: Tensor
    terms: dict[int, tuple[Tensor, Tensor]]

    def fits(self, stuck: Tensor, point: Tensor) -> bool:
        same = torch.equal(stuck, self.stuck)
        return same and torch.equal(point[stuck], self.point[stuck])


class Crown(DualBound):
    _last_still: _Still | None = None

    @property
    def widest(self) -> int:
        return max(self.form.widths)

    def interval(
        self, lower: Tensor, upper: Tensor, allowance: Allowance | None = None
    ) -> list[tuple[Tensor, Tensor]]:
        """Bounds of every hidden pre-activation by interval arithmetic."""
        sides = [((lower + upper) / 2, (upper - lower) / 2)]
        result: list[tuple[Tensor, Tensor]] = []
        for k, (bias, terms) in enumerate(zip(self.biases[:-1], self.terms[:-1], strict=True)):
            mid: Tensor = bias.expand(len(lower), -1)
            rad: Tensor = torch.zeros_like(mid)
            size: Tensor = mid.abs()
            for source, matrix in terms:
                magnitude = _absolute(matrix)
                mid = mid + self.push(sides[source][0], matrix)
                rad = rad + self.push(sides[source][1], magnitude)
                if allowance is not None:
                    # of the ranges at hand, which may be wider than what is known of the whole box
                    size = size + self.push(sides[source][0].abs() + sides[source][1], magnitude)
            if allowance is not None:
                rad = rad + allowance.unit * (size + allowance.hidden[k])
            low = (mid - rad).nan_to_num(nan=-torch.inf, posinf=-torch.inf, neginf=-torch.inf)
            high = (mid + rad).nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=torch.inf)
            result.append((low, high))
            activation = self.activations[k]
            loss = activation.image_error(low, high) * (allowance.unit if allowance else 0.0)
            low, high = activation.image(low, high)
            sides.append(((low + high) / 2, (high - low) / 2 + loss))
        return result

    @staticmethod
    def push(rows: Tensor, matrix: Tensor) -> Tensor:
        """``rows @ W.T`` over the last axis."""
        if matrix.layout == torch.strided:
            return rows @ matrix.T
        transposed = matrix.transpose(0, 1).to_sparse_csr()
        return (transposed @ rows.T).T

    def pre_activations(
        self,
        lower: Tensor,
        upper: Tensor,
        allowance: Allowance | None = None,
    ) -> Boxes:
        """Bounds of all hidden layers, from the first to the last, over each of the boxes."""
        boxes = Boxes(lower, upper, [], [])
        for k, (low, high) in enumerate(self.interval(lower, upper, allowance), start=1):
            self._bound_layer(boxes, k, low, high, allowance, None)
        return boxes

    def root(self, sizes: Sizes, stop: Callable[[], bool] | None = None) -> Boxes:
        """The same over the one box of ``sizes``, which learn what is found; once ``stop`` says so,
        the rest is left to interval arithmetic."""
        boxes = Boxes(self.tensor(sizes.lower)[None], self.tensor(sizes.upper)[None], [], [])
        for k, (low, high) in enumerate(self.first_layers(sizes), start=1):
            allowance = Allowance(
                [self.tensor(sizes.layer(j)) for j in range(1, k + 1)],
                self.tensor(sizes.inputs),
                sizes.unit,
            )
            self._bound_layer(boxes, k, low, high, allowance, stop)
            sizes.bound(k, *(side[-1][0].cpu().numpy() for side in (boxes.low, boxes.high)))
        return boxes

    def first_layers(self, sizes: Sizes) -> list[tuple[Tensor, Tensor]]:
        """What is known of the hidden layers to begin with, (1, width) each."""
        known = sizes.interval()[:-1]
        return [(self.tensor(low)[None], self.tensor(high)[None]) for low, high in known]

    def _bound_layer(
        self,
        boxes: Boxes,
        k: int,
        low: Tensor,
        high: Tensor,
        allowance: Allowance | None,
        stop: Callable[[], bool] | None,
    ) -> None:
        """Append the bounds of hidden layer ``k``, given those by interval arithmetic."""
        if any(source != 0 for source, _ in self.terms[k - 1]):
            # Where the activation is linear a better bound would change nothing.
            loose = ~self.activations[k - 1].is_linear(low, high)
            unstable = loose.any(dim=0).nonzero()[:, 0]
            low, high = low.clone(), high.clone()
            # In pieces, so that a wide layer neither fills the memory nor holds up the clock.
            work = 2 * sum(map(_work, (m for terms in self.terms[:k] for _, m in terms)))
            piece = max(1, min(MOST_ENTRIES // (8 * self.widest), PIECE_WORK // work))
            for some in torch.split(unstable, piece):
                if stop is not None and stop():
                    break
                size = None
                if allowance is not None:
                    size = allowance.hidden[k - 1][some].repeat(2)[None]
                value = self.rows(boxes, k, some, size=size, allowance=allowance).value
                low[:, some] = torch.maximum(low[:, some], value[:, : len(some)])
                high[:, some] = torch.minimum(high[:, some], -value[:, len(some) :])
        boxes.low.append(low)
        boxes.high.append(high)

    def rows(
        self,
        boxes: Boxes,
        layer: int,
        rows: Tensor,
        constant: Tensor | None = None,
        inputs: Tensor | None = None,
        *,
        size: Tensor | None = None,
        allowance: Allowance | None = None,
    ) -> Rows:
        """Lower bounds of ``rows . z_layer + inputs . x + constant``; rows (1 or B, r, n_layer), or
        a list of neurons, for each of them and then for minus each of them.
        With an ``allowance`` and the ``size`` (1 or B, r) of the rows: rounding included."""
        batch, count = len(boxes.lower), _count(rows)
        widest = max(max((t.shape[1] for t in boxes.low), default=1), boxes.lower.shape[1])
        step = max(1, MOST_ENTRIES // max(count * widest, 1))
        parts = [
            self._rows(boxes, layer, rows, constant, inputs, slice(at, at + step), size, allowance)
            for at in range(0, batch, step)
        ]
        if len(parts) == 1:
            return parts[0]
        return Rows(torch.cat([p.value for p in parts]), torch.cat([p.inputs for p in parts]))

    def _rows(
        self,
        boxes: Boxes,
        layer: int,
        rows: Tensor,
        constant: Tensor | None,
        inputs: Tensor | None,
        part: slice,
        size: Tensor | None,
        allowance: Allowance | None,
    ) -> Rows:
        lower, upper = boxes.lower[part], boxes.upper[part]
        batch, count = len(lower), _count(rows)

        def mine(t: Tensor) -> Tensor:
            return t[part] if len(t) != 1 else t

        value = torch.zeros(batch, count, dtype=self.dtype, device=self.device)
        if constant is not None:
            value = value + mine(constant)
        still = self._still(boxes) if inputs is None else None
        entries = lower.shape[1] if still is None else len(still.free)
        pixel = torch.zeros(1, 1, entries, dtype=self.dtype, device=self.device)
        if inputs is not None:
            pixel = pixel + mine(inputs)
        flowing: dict[int, Tensor] = {}
        units = rows if rows.ndim == 1 else None
        back = mine(rows) if units is None else rows
        measured = None if allowance is None or size is None else mine(size).expand(batch, -1)
        for k in range(layer, 0, -1):
            if k < layer:
                if k not in flowing:
                    continue
                coefficient = flowing.pop(k)
                low, high = boxes.low[k - 1][part], boxes.high[k - 1][part]
                activation = self.activations[k - 1]
                alpha = activation.start(low, high)
                slope, base = activation.lower_line(low, high, alpha)
                chord, rise = activation.upper_line(low, high, alpha)
                negative = coefficient.clamp(max=0)
                value = value + (negative @ (rise - base)[:, :, None])[..., 0]
                if base.any():
                    value = value + (coefficient @ base[:, :, None])[..., 0]
                back = (coefficient - negative) * slope[:, None] + negative * chord[:, None]
                if measured is not None and allowance is not None:
                    measured = measured + back.abs() @ allowance.hidden[k - 1]
                    loss = activation.line_error(low, high)
                    measured = measured + (coefficient.abs() @ loss[:, :, None])[..., 0]
            first = units if k == layer else None
            value = value + _times(back, self.biases[k - 1], first)
            for source, matrix in self.terms[k - 1]:
                if source == 0 and still is not None:
                    moving, shift = still.terms[k - 1]
                    value = value + _times(back, shift, first)
                    pixel = pixel + self._pulled(back, moving, first)
                    continue
                moved = self._pulled(back, matrix, first)
                if source == 0:
                    pixel = pixel + moved
                else:
                    flowing[source] = flowing[source] + moved if source in flowing else moved
        mid, rad = (lower + upper) / 2, (upper - lower) / 2
        if still is not None:
            mid, rad = mid[:, still.free], rad[:, still.free]
        pixel = pixel.expand(batch, count, -1)
        value = value + (pixel @ mid[:, :, None])[..., 0] - (pixel.abs() @ rad[:, :, None])[..., 0]
        if measured is not None and allowance is not None:
            value = value - allowance.unit * measured
            value = torch.where(value.isfinite(), value, -torch.inf)
        if still is not None and units is None:
            whole = torch.zeros(batch, count, lower.shape[1], dtype=self.dtype, device=self.device)
            whole[..., still.free] = pixel
            pixel = whole
        return Rows(value, pixel)

    def _pulled(self, back: Tensor, matrix: Tensor, units: Tensor | None) -> Tensor:
        """``back @ W``; rows of W and minus them, where back is a list of neurons."""
        if units is None:
            return self.pull(back, matrix)
        if matrix.layout != torch.strided:
            eye = torch.zeros(len(units), matrix.shape[1], dtype=self.dtype, device=self.device)
            eye[torch.arange(len(units)), units] = 1.0
            return self.pull(torch.cat([eye, -eye])[None], matrix)
        chosen = matrix[units]
        return torch.cat([chosen, -chosen])[None]

    def _still(self, boxes: Boxes) -> _Still | None:
        """What most inputs add if they cannot move: a constant of every layer that reads them. The
        rounding of that sum is one more of those that `qll.bounds.rounding` leaves room for."""
        lower, upper = boxes.lower, boxes.upper
        stuck = (lower == upper).all(dim=0) & (lower == lower[:1]).all(dim=0)
        if stuck.numel() < MANY_INPUTS or 2 * int(stuck.sum()) < stuck.numel():
            return None
        held = self._last_still
        if held is not None and held.fits(stuck, lower[0]):
            return held
        free = (~stuck).nonzero()[:, 0]
        terms = {}
        for k, layer in enumerate(self.terms):
            for source, matrix in layer:
                if source == 0:
                    if matrix.layout != torch.strided:
                        return None
                    terms[k] = (matrix[:, free], matrix[:, stuck] @ lower[0, stuck])
        self._last_still = _Still(stuck, lower[0], free, terms)
        return self._last_still

    def bound(
        self,
        lower: Array,
        upper: Array,
        rows: Array,
        constant: Array,
        conjunctions: Sequence[Sequence[int]] = (),
        *,
        inputs: Array | None = None,
        sizes: Sizes | None = None,
    ) -> BoxBounds:
        """The reference of `qll.bounds.dense`, for any graph; it blames nobody. Rows may speak of
        the input (``inputs``, one row each)."""
        allowance = None if sizes is None else self.allowance(sizes)
        size = None if sizes is None else self.tensor(sizes.objectives(rows, constant, inputs))
        boxes = self.pre_activations(self.tensor(lower), self.tensor(upper), allowance)
        last = len(self.biases)
        outputs, offset = self.tensor(rows)[None], self.tensor(constant)[None]
        direct = None if inputs is None else self.tensor(inputs)[None]
        each = self.rows(
            boxes, last, outputs, offset, direct,
            size=None if size is None else size[None], allowance=allowance,
        )  # fmt: skip
        most = -self.rows(boxes, last, -outputs, -offset, None if direct is None else -direct).value
        mixtures = torch.zeros(
            len(lower), len(conjunctions), len(rows), dtype=self.dtype, device=self.device
        )
        for index, leaves in enumerate(conjunctions):
            mixtures[:, index, leaves] = _mixture(
                boxes, each.value[:, leaves], each.inputs[:, leaves], most[:, leaves]
            )
        mixed = self.rows(
            boxes, last, mixtures @ outputs, (mixtures @ offset[0, :, None])[..., 0],
            None if direct is None else mixtures @ direct,
            size=None if size is None else mixtures @ size, allowance=allowance,
        )  # fmt: skip
        none = torch.zeros(len(lower), 0)
        hidden = (torch.cat([none, *side], dim=1).cpu() for side in (boxes.low, boxes.high))
        return BoxBounds(
            proved(each.value.cpu().numpy()),
            each.inputs.cpu().numpy(),
            proved(mixed.value.cpu().numpy()),
            [mixtures[:, c, leaves].cpu().numpy() for c, leaves in enumerate(conjunctions)],
            mixed.inputs.cpu().numpy(),
            np.zeros(tuple(mixed.inputs.shape)),
            *(side.numpy() for side in hidden),
        )


def _count(rows: Tensor) -> int:
    return rows.shape[1] if rows.ndim == 3 else 2 * len(rows)


def _work(matrix: Tensor) -> int:
    """Of one row times the matrix."""
    if matrix.layout == torch.strided:
        return max(1, matrix.numel())
    return max(1, SPARSE_WORK * matrix.values().numel())


def _times(back: Tensor, vector: Tensor, units: Tensor | None) -> Tensor:
    """``back @ v``; entries of v and minus them, where back is a list of neurons."""
    if units is None:
        return back @ vector
    return torch.cat([vector[units], -vector[units]])[None]


def _mixture(boxes: Boxes, value: Tensor, linear: Tensor, most: Tensor) -> Tensor:
    """Weights (B, leaves) of a good mixture of the leaves' linear bounds over each box: it is
    concave in the weights, so a few multiplicative steps find one. Leaves that are positive nowhere
    (``most``) are left out: on no part of the box they will help."""
    count = value.shape[1]
    rad = (boxes.upper - boxes.lower) / 2
    centre = value + (linear.abs() @ rad[:, :, None])[..., 0]
    hopeful = most > 0
    best, at = torch.where(hopeful, value, -torch.inf).max(dim=1)
    chosen = torch.nn.functional.one_hot(at, count).to(value.dtype)
    if count == 1:
        return chosen
    trial = (chosen + hopeful / hopeful.sum(dim=1, keepdim=True).clamp(min=1)) / 2
    for step in range(12):
        side = -(trial[:, None] @ linear)[:, 0].sign() * rad
        each = centre + (linear @ side[:, :, None])[..., 0]
        total = (trial * each).sum(dim=1)
        better = (total > best) & hopeful.any(dim=1)
        best = torch.where(better, total, best)
        chosen = torch.where(better[:, None], trial, chosen)
        slope = torch.where(trial > 0, each - total[:, None], 0.0)
        size = slope.abs().amax(dim=1, keepdim=True) + 1e-30
        trial = trial * torch.exp(slope / size * (2.0 * 0.8**step))
        trial = trial / trial.sum(dim=1, keepdim=True)
    return chosen


def _absolute(matrix: Tensor) -> Tensor:
    if matrix.layout == torch.strided:
        return matrix.abs()
    return torch.sparse_csr_tensor(
        matrix.crow_indices(), matrix.col_indices(), matrix.values().abs(), size=matrix.shape
    )
