"""Dual bounds of a chain of ReLU layers by the compiled kernel: packing, lanes, float64 check.

`DualLanes` ascends in float32, which is fast and need not be trusted; `evaluate` recomputes the
bound of given multipliers in float64, less what rounding may have added to it
(`qll.bounds.rounding`), and only that number is used as a bound.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qll import limits
from qll.bounds.dual import Rates
from qll.bounds.groups import Groups, group_neurons
from qll.bounds.rounding import Sizes, proved
from qll.networks.relu_form import ReluForm

# Multiplications of an ascent between two looks at the clock, some hundredths of a second, and the
# fewest steps: each piece computes one bound more than it takes steps.
PIECE_PRODUCTS = 200_000_000
LEAST_PIECE = 4
# Of an entry of a dense matrix: itself, and with its transpose in both precisions.
KEPT_BYTES = 8 + 2 * 4 + 2 * 8

Array: TypeAlias = NDArray[np.float64]
Single: TypeAlias = NDArray[np.float32]


@dataclass(eq=False)
class Node:
    """One domain: splits, pre-activation bounds, objectives and multipliers, all flat over the
    padded hidden neurons of a `Chain`."""

    low: Array  # (neurons,) splits included
    high: Array
    sign: NDArray[np.int8]
    objective: Array  # (M, width of the last hidden layer)
    offset: Array  # (M,)
    alpha: Single  # (neurons,)
    beta: Single
    weight: Single  # (M,)
    delta: Single  # (copies,)
    size: Array  # (M,) of the objectives: what their rounding is measured in
    point: Array | None = None  # (neurons,) where they are split; None for 0, ReLU's kink
    bound: float = -np.inf
    minimiser: Single | None = None
    gap: Single | None = None
    depth: int = 0
    label: int = 0  # which obligation it belongs to
    trail: Any = None  # how it came about (`qll.verify.proof.Trail`)
    # Units of beta and delta, measured once on the root of a tree: measured again on a node whose
    # betas have grown they would grow with them, without end.
    scales: tuple[float, float] = (0.0, 0.0)

    @property
    def is_empty(self) -> bool:
        return bool((self.low > self.high).any())


@dataclass(frozen=True, eq=False)
class Chain:
    """The first ``layers`` hidden layers of a chain, first-layer neurons reordered by group."""

    form: ReluForm
    layers: int
    tile: int  # widths are padded to a multiple
    groups: Groups  # of the first layer
    whole: Chain | None = None  # of all layers, whose matrices this one begins with

    @classmethod
    def prefixes(cls, form: ReluForm, tile: int) -> list[Chain]:
        """The chains of the first 1, 2, ... hidden layers."""
        groups = group_neurons(form.layers[0].terms[0][1], form.input_size)
        count = len(form.layers) - 1
        whole = cls(form, count, tile, groups)
        return [*(cls(form, k, tile, groups, whole) for k in range(1, count)), whole]

    @staticmethod
    def dense_entries(form: ReluForm) -> int:
        """Of the matrices above the first layer, which the kernels read densely."""
        return sum(a * b for a, b in itertools.pairwise(form.widths[1:-1]))

    @cached_property
    def widths(self) -> NDArray[np.int64]:
        real = [layer.width for layer in self.form.layers[: self.layers]]
        return np.array([-(-w // self.tile) * self.tile for w in real], dtype=np.int64)

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum(self.widths)]).astype(np.int64)

    @property
    def neurons(self) -> int:
        return int(self.starts[-1])

    def spread(self, layer: int, values: Any, fill: float = 0.0) -> Array:
        """Values of hidden layer ``layer`` (from 0), padded, in the order of the chain."""
        values = np.asarray(values, dtype=np.float64)
        out = np.full((*values.shape[:-1], int(self.widths[layer])), fill)
        real = values[..., self.groups.order] if layer == 0 else values
        out[..., : values.shape[-1]] = real
        return out

    def gather(self, layer: int, flat: Array) -> Array:
        """The values of hidden layer ``layer`` (from 0) in the network's own order."""
        width = self.form.layers[layer].width
        held = flat[self.part(layer)][:width]
        if layer:
            return held
        out = np.empty(width)
        out[self.groups.order] = held
        return out

    def part(self, layer: int) -> slice:
        return slice(int(self.starts[layer]), int(self.starts[layer + 1]))

    @cached_property
    def bias(self) -> Array:
        return np.concatenate(
            [self.spread(k, self.form.layers[k].bias) for k in range(self.layers)]
        )

    @cached_property
    def real(self) -> NDArray[np.bool_]:
        """Which entries of the flat arrays are neurons and not padding."""
        ones = [self.spread(k, np.ones(self.form.layers[k].width)) for k in range(self.layers)]
        return np.concatenate(ones) > 0

    @cached_property
    def upper(self) -> list[Array]:
        """Padded dense weights of hidden layers 1.. (0 is the grouped first layer)."""
        if self.whole is not None:
            return self.whole.upper[: self.layers - 1]
        limits.need(KEPT_BYTES * self.dense_entries(self.form), "the matrices of a proof")
        result = []
        for k in range(1, self.layers):
            limits.check()
            weight = _dense(self.form.layers[k].terms[0][1])
            padded = np.zeros((int(self.widths[k]), int(self.widths[k - 1])))
            padded[: weight.shape[0]] = self.spread(k - 1, weight)
            result.append(padded)
        return result

    @cached_property
    def packed64(self) -> tuple[Any, ...]:
        return self._packed(np.float64)

    @cached_property
    def packed32(self) -> tuple[Any, ...]:
        return self._packed(np.float32)

    def _packed(self, dtype: Any) -> tuple[Any, ...]:
        g = self.groups
        sizes = [w.size for w in self.upper]
        at = [0, *np.concatenate([[0], np.cumsum(sizes)]).tolist()][: max(self.layers, 1)]
        flat, flat_transposed = self._flat(np.dtype(dtype))
        block_at = np.concatenate([[0], np.cumsum([b.size for b in g.blocks])])[:-1]
        is_home = g.copy_home == np.arange(g.copies)
        return (
            self.layers,
            self.widths,
            self.starts,
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

    def interval(self, sizes: Sizes) -> tuple[Array, Array]:
        """Pre-activation bounds of every layer by interval arithmetic, flat and padded."""
        found = sizes.interval()[: self.layers]
        low, high = (
            np.concatenate([self.spread(k, pair[side], -1.0) for k, pair in enumerate(found)])
            for side in (0, 1)
        )
        return low, high

    def sizes(self, sizes: Sizes) -> Array:
        """Of every hidden neuron, flat; padding has none."""
        return np.concatenate([self.spread(k, sizes.layer(k + 1)) for k in range(self.layers)])

    def node(
        self,
        low: Array,
        high: Array,
        objective: Array,
        offset: Array,
        size: Array,
        label: int = 0,
    ) -> Node:
        """A domain without splits, with CROWN's own slopes."""
        return Node(
            low=low,
            high=high,
            sign=np.zeros(self.neurons, dtype=np.int8),
            objective=objective,
            offset=offset,
            alpha=(high > -low).astype(np.float32),
            beta=np.zeros(self.neurons, dtype=np.float32),
            weight=np.ones(len(offset), dtype=np.float32),
            delta=np.zeros(self.groups.copies, dtype=np.float32),
            size=size,
            label=label,
        )

    def order(self, layer: int) -> NDArray[np.int64]:
        """The network's own numbers of the neurons of a hidden layer, as they stand here."""
        if layer == 0:
            return np.asarray(self.groups.order)
        return np.arange(self.form.layers[layer].width)

    def splittable(self, node: Node) -> NDArray[np.bool_]:
        """Neurons of which a split gives two better relaxations."""
        return np.asarray((node.low < 0) & (node.high > 0) & (node.sign == 0))

    def split_point(self, node: Node, neuron: int) -> float:
        return 0.0

    def told_point(self, node: Node, neuron: int) -> float | None:
        """What a certificate says of it: nothing of a ReLU, which is split at 0."""
        return None


def _dense(weight: Any) -> Array:
    return weight if isinstance(weight, np.ndarray) else np.asarray(weight.toarray())


class DualLanes:
    """Buffers for one lane-full of domains of a chain, and calls of the kernel."""

    def __init__(self, chain: Chain, objectives: int) -> None:
        from qll.kernels.simd import LANES, aligned_floats

        self.chain = chain
        self.lanes = LANES
        self.objectives = objectives
        n, g = chain.neurons, chain.groups
        copies, inputs = max(g.copies, 1), chain.form.input_size
        width = int(chain.widths[-1])
        most_copies = int(np.diff(g.copy_starts).max(initial=1))
        most_neurons = int(np.diff(g.neuron_starts).max(initial=1))

        copied = 20 * n + objectives * (width + 4) + 6 * copies + 2 * inputs
        limits.need(4 * LANES * copied, "the multipliers of a proof")

        def floats(entries: int) -> Single:
            return aligned_floats(max(entries, 1) * LANES)

        sizes = (n, n, objectives, copies)
        self.low, self.high, self.sign = floats(n), floats(n), floats(n)
        self.objective, self.offset = floats(objectives * width), floats(objectives)
        self.variables = tuple(floats(s) for s in sizes)
        self.first = tuple(floats(s) for s in sizes)
        self.second = tuple(floats(s) for s in sizes)
        self.scratch = (
            *(floats(n) for _ in range(7)),
            floats(copies),
            floats(inputs),
            floats(copies),
            floats(most_copies),
            floats(most_neurons),
            floats(n),
            np.zeros(n, dtype=np.bool_),
            floats(objectives),
        )
        # Steps between two looks at the clock.
        read = copies * most_neurons + sum(w.size for w in chain.upper)
        self.piece = max(LEAST_PIECE, PIECE_PRODUCTS // (2 * LANES * read))
        self.scales = floats(2)
        self.bound, self.minimiser, self.gap = floats(1), floats(inputs), floats(n)

    def _put(self, buffer: Single, columns: Sequence[Any]) -> None:
        view = buffer.reshape(-1, self.lanes)
        stacked = np.stack(columns, axis=1)
        view[: stacked.shape[0], : len(columns)] = stacked
        view[: stacked.shape[0], len(columns) :] = stacked[:, :1]

    def run(
        self,
        nodes: Sequence[Node],
        box: tuple[Single, Single],
        steps: int,
        *,
        rates: Rates,
        hull: bool,
        target: float,
        stop: Callable[[], bool] | None = None,
    ) -> int:
        """Ascend up to ``LANES`` nodes in place: multipliers, float32 bound, minimiser and gap.
        Spare lanes repeat the first node. Returns the steps that were taken: fewer than ``steps``
        if every lane reached ``target`` or ``stop``, asked now and then, said so."""
        from qll.kernels.dual import ascend

        for buffer, name in ((self.low, "low"), (self.high, "high"), (self.sign, "sign")):
            self._put(buffer, [getattr(node, name) for node in nodes])
        self._put(self.objective, [_padded(node.objective, self.objectives) for node in nodes])
        self._put(self.offset, [_padded(node.offset, self.objectives) for node in nodes])
        for buffer, name in zip(self.variables, ("alpha", "beta", "weight", "delta"), strict=True):
            if name == "weight":
                self._put(buffer, [_padded(node.weight, self.objectives) for node in nodes])
            elif buffer.size and getattr(nodes[0], name).size:
                self._put(buffer, [getattr(node, name) for node in nodes])
        self._put(self.scales, [np.array(node.scales, dtype=np.float32) for node in nodes])
        for buffer in (*self.first, *self.second):
            buffer.fill(0)
        taken = 0
        while True:
            piece = min(steps - taken, self.piece)
            done = ascend(
                piece, taken, hull, target,
                (rates.alpha, rates.beta, rates.weight, rates.delta, rates.decay),
                self.chain.packed32, box,
                (self.low, self.high, self.sign, self.objective, self.offset, self.objectives),
                self.variables, self.first, self.second, self.scratch, self.scales,
                self.bound, self.minimiser, self.gap,
            )  # fmt: skip
            taken += int(done)
            if done < piece or taken >= steps or (stop is not None and stop()):
                break
        values = [v.reshape(-1, self.lanes) for v in self.variables]
        minimiser = self.minimiser.reshape(-1, self.lanes)
        gap = self.gap.reshape(-1, self.lanes)
        count = len(nodes)
        alphas, betas, deltas = (
            np.ascontiguousarray(v[:, :count].T) for v in (values[0], values[1], values[3])
        )
        points, gaps = (
            np.ascontiguousarray(minimiser[:, :count].T),
            np.ascontiguousarray(gap[:, :count].T),
        )
        for lane, node in enumerate(nodes):
            node.alpha, node.beta = alphas[lane], betas[lane]
            node.weight = values[2][: len(node.offset), lane].copy()
            node.delta = deltas[lane][: node.delta.size]
            node.bound = float(self.bound[lane])
            node.scales = (float(self.scales[lane]), float(self.scales[self.lanes + lane]))
            node.minimiser, node.gap = points[lane], gaps[lane]
        return taken


def _padded(values: Any, objectives: int) -> Any:
    """The same problem with its first objective repeated up to a common number."""
    values = np.asarray(values)
    missing = objectives - len(values)
    if missing:
        values = np.concatenate([values, np.repeat(values[:1], missing, axis=0)])
    return values.reshape(-1)


def evaluate(
    chain: Chain,
    nodes: Sequence[Node],
    sizes: Sizes,
    neurons: Array | None = None,
    *,
    hull: bool = True,
    stop: Callable[[], bool] | None = None,
) -> Array:
    """Rigorous bounds by the nodes' multipliers over the box of ``sizes``; ``neurons`` is what
    `Chain.sizes` gives, where that is at hand. Nodes that ``stop`` leaves no time for have none."""
    from qll.kernels.dual_check import bound_of

    lower, upper = sizes.lower, sizes.upper
    mid, rad = (lower + upper) / 2, (upper - lower) / 2
    held = chain.sizes(sizes) if neurons is None else neurons[: chain.neurons]
    found = np.full(len(nodes), -np.inf)
    for i, node in enumerate(nodes):
        if stop is not None and stop():
            break
        found[i] = bound_of(
            chain.packed64, mid, rad, node.low, node.high, node.sign, node.objective,
            node.offset, node.alpha, node.beta, node.weight, node.delta, hull,
            held, sizes.inputs, node.size, sizes.unit,
        )  # fmt: skip
    return proved(found)
