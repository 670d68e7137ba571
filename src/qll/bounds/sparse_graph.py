"""Dual bounds of any ReLU graph in compiled code, by its non-zeros: many domains in lanes.

For what `qll.bounds.lanes` does not take: residual sums, several branches, convolutions whose dense
matrices would not fit, conditions that speak of the input. `qll.bounds.graph` is its reference.
Joint hulls are those of the neurons that are unstable on the box (`qll.bounds.hulls`), which no
certificate can name: a proof that is kept has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qll import limits
from qll.bounds.blocks import BLOCK, Blocks
from qll.bounds.bounder import Stop
from qll.bounds.domain import Single, Subdomain, never_worse
from qll.bounds.dual import rates_of
from qll.bounds.graph import GraphBounder
from qll.bounds.groups import Array
from qll.bounds.hulls import Hulls
from qll.bounds.layout import Layout
from qll.bounds.rounding import Rounding, Sizes, proved
from qll.bounds.rows import Rows
from qll.bounds.splits import NeuronSplit, SignSplit
from qll.kernels import available
from qll.networks.relu_form import FormLayer, ReluForm

# Multiplications between two looks at the clock: some tenths of a second.
PIECE_PRODUCTS = 2_000_000_000
# Neurons whose bounds are sought together: of so many some share what they reach.
BATCH_BELOW = 256
# Objectives that are kept as rows over the columns.
MOST_READ = 1024


class SparseGraphBounder(GraphBounder):
    """The `Bounder` of ReLU graphs of any shape."""

    def __init__(self, form: ReluForm, *, device: str = "cpu") -> None:
        super().__init__(form, device=device)
        self._below: dict[int, SparseGraphBounder] = {}
        self._read: dict[tuple[int, int], tuple[Any, tuple[Any, Array, Array]]] = {}
        self._hulls: Hulls | None = None

    def below(self, layer: int) -> SparseGraphBounder:
        if layer not in self._below:
            self._below[layer] = _Below(self, layer)
        return self._below[layer]

    @staticmethod
    def fits(form: ReluForm) -> bool:
        return available() and form.is_relu and len(form.layers) > 1

    @property
    def groups(self) -> None:
        return None

    def prepare(self) -> None:
        load_kernels()

    def interval(self, sizes: Sizes, stop: Stop) -> tuple[Array, Array]:
        """By CROWN, as the reference has it, from interval arithmetic that knows what was found of
        the layers below; once ``stop`` says so, the rest is left to that."""
        rows, inputs = self.rows, self.rows.inputs
        middle, radius = np.empty(rows.columns), np.empty(rows.columns)
        middle[:inputs] = (sizes.lower + sizes.upper) / 2
        radius[:inputs] = (sizes.upper - sizes.lower) / 2
        low, high = np.empty(rows.neurons), np.empty(rows.neurons)
        for k, layer in enumerate(self.form.layers[:-1], start=1):
            part = self.layout.part(k - 1)
            before, own = inputs + part.start, slice(inputs + part.start, inputs + part.stop)
            with np.errstate(invalid="ignore", over="ignore"):
                matrix, magnitude = self._layers[k - 1]
                centre = rows.bias[part] + matrix @ middle[:before]
                spread = sizes.unit * sizes.layer(k) + magnitude @ radius[:before]
                least, most = centre - spread, centre + spread
            low[part] = np.where(np.isfinite(least), least, -np.inf)
            high[part] = np.where(np.isfinite(most), most, np.inf)
            if any(source for source, _ in layer.terms):
                self._crown(sizes, k, low, high, stop)
            sizes.bound(k, low[part], high[part])
            least, most = (np.maximum(side[part], 0.0) for side in (low, high))
            with np.errstate(invalid="ignore", over="ignore"):
                middle[own], radius[own] = (least + most) / 2, (most - least) / 2
        return low, high

    def _crown(self, sizes: Sizes, k: int, low: Array, high: Array, stop: Stop) -> None:
        """Better bounds of those neurons of layer ``k`` whose sign is not known, in place."""
        part = self.layout.part(k - 1)
        open_ = np.flatnonzero((low[part] < 0) & (high[part] > 0)) + part.start
        targets = np.concatenate([open_, open_])
        signs = np.repeat([1.0, -1.0], len(open_))
        slopes = (high[: part.start] > -low[: part.start]).astype(np.float64)
        held = np.concatenate([sizes.layer(j) for j in range(1, k + 1)])
        found = self._bound_rows(sizes, k, low, high, held, targets, signs, slopes, stop)
        low[open_] = np.maximum(low[open_], found[: len(open_)])
        high[open_] = np.minimum(high[open_], -found[len(open_) :])

    def neighbours(self, rows: Any) -> Any:
        """An order of neurons in which those that read the same columns come together."""
        indptr, indices = self.rows.matrix.indptr, self.rows.matrix.indices
        if not len(indices):
            return np.arange(len(rows))
        some = indptr[rows + 1] > indptr[rows]
        first = np.where(some, indices[np.minimum(indptr[rows], len(indices) - 1)], -1)
        return np.argsort(first, kind="stable")

    def _bound_rows(
        self, sizes: Sizes, k: int, low: Array, high: Array, held: Array, targets: Any, signs: Any,
        slopes: Any, stop: Stop,
    ) -> Array:  # fmt: skip
        """Rigorous bounds of ``signs`` times the neurons ``targets`` of layer ``k``, with the same
        ``slopes`` for all of them or (neurons, targets) of them; -inf where there was no time."""
        from qll.kernels.crown_graph import bound_rows
        from qll.kernels.dual_graph import reached
        from qll.kernels.lanes import WIDTH

        network = self.blocks.below(self.packed(np.float64), k - 1, int(self._ends[k - 1]))
        own_rows = self.plain
        starts, columns, *_ = own_rows
        ends = self._ends[:k]
        count = int(ends[-1])
        mid, rad = (sizes.lower + sizes.upper) / 2, (sizes.upper - sizes.lower) / 2
        alive, split = high[:count] > 0, np.zeros(count, dtype=bool)
        shared = np.repeat(slopes, WIDTH) if slopes.ndim == 1 else None
        found = np.full(len(targets), -np.inf)
        order = self.neighbours(targets)
        for start in range(0, len(targets), WIDTH):
            if stop():
                break
            some = order[start : start + WIDTH]
            rows = targets[some]
            top = np.concatenate([columns[starts[i] : starts[i + 1]] for i in rows])
            if shared is None:
                own = np.zeros((count, WIDTH))
                own[:, : len(some)] = np.clip(slopes[:, some], 0.0, 1.0)
                alpha = own.reshape(-1)
            else:
                alpha = shared
            found[some] = bound_rows(
                network, ends, mid, rad, low, high, alpha, held, sizes.unit, own_rows, rows,
                signs[some], reached(network, alive, split, top),
            )[: len(some)]  # fmt: skip
        return proved(found)

    def join(self, low: Array, high: Array, domains: Sequence[Subdomain]) -> int:
        """Joint hulls from now on for these ``domains``, which have these bounds, and for what they
        are split into. Returns how many multipliers more each of them has."""
        first = self.layout.part(0)
        self._hulls = Hulls.of(self.rows, np.flatnonzero((low[first] < 0) & (high[first] > 0)))
        for domain in domains:
            domain.delta = np.zeros(self._hulls.copies, dtype=np.float32)
            domain.scales = domain.scales[0], 0.0
        return self._hulls.copies

    def _hulls_of(self, domains: Sequence[Subdomain]) -> Hulls:
        """Those that the domains have multipliers of."""
        held = self._hulls
        if held is None or any(d.delta.size != held.copies for d in domains):
            return self._none_joined
        return held

    @cached_property
    def _none_joined(self) -> Hulls:
        return Hulls.of(self.rows, np.zeros(0, dtype=np.int64))

    def splittable(self, domain: Subdomain) -> NDArray[np.bool_]:
        return np.asarray((domain.low < 0) & (domain.high > 0))

    def split(self, domain: Subdomain, neuron: int) -> NeuronSplit:
        return SignSplit(neuron)

    def _slopes(self, low: Array, high: Array) -> Single:
        return np.asarray(high > -low, dtype=np.float32)

    @cached_property
    def rows(self) -> Rows:
        return Rows.of(self.form)

    @cached_property
    def _layers(self) -> list[tuple[Any, Any]]:
        """Each layer's rows over the columns before it, and their sizes."""
        parts = [self.layout.part(k) for k in range(self.layout.layers)]
        found = [self.rows.matrix[part, : self.rows.inputs + part.start] for part in parts]
        return [(matrix, abs(matrix)) for matrix in found]

    @cached_property
    def _ends(self) -> Any:
        return np.cumsum([0, *self.layout.counts]).astype(np.int64)

    @cached_property
    def _kept(self) -> dict[type, tuple[Any, ...]]:
        return {}

    @cached_property
    def blocks(self) -> Blocks:
        return Blocks.of(self.rows, [self.layout.part(k) for k in range(self.layout.layers)])

    def packed(self, kind: type) -> tuple[Any, ...]:
        if kind not in self._kept:
            limits.check()
            self._kept[kind] = self.blocks.packed(kind)
        return self._kept[kind]

    @cached_property
    def plain(self) -> tuple[Any, ...]:
        """Row by row, in float64."""
        matrix = self.rows.matrix
        starts, columns = (each.astype(np.int64) for each in (matrix.indptr, matrix.indices))
        return starts, columns, matrix.data.astype(np.float64), self.rows.bias

    def _objectives(self, domain: Subdomain) -> tuple[Any, Array, Array]:
        """The columns that are read, the objectives over them, and their constants. All domains of
        an obligation share them."""
        key = id(domain.objective), id(domain.offset)
        if key not in self._read:
            outputs, inputs = np.split(domain.objective, [self.form.output_size], axis=1)
            reads = inputs if inputs.shape[1] else None
            rows, constant = self.rows.objectives(self.form, outputs, domain.offset, reads)
            top = np.flatnonzero((rows != 0).any(axis=0))
            found = top, np.ascontiguousarray(rows[:, top]), constant
            if len(self._read) >= MOST_READ:
                self._read.clear()
            # With what it is of: a number is that of an object as long as there is the object.
            self._read[key] = (domain.objective, domain.offset), found
        return self._read[key][1]

    def ascend(
        self,
        domains: Sequence[Subdomain],
        sizes: Sizes,
        steps: int,
        *,
        target: float = np.inf,
        stop: Stop,
    ) -> None:
        from qll.kernels.simd import LANES

        with never_worse(domains):
            for start in range(0, len(domains), LANES):
                if stop():
                    break
                self._lanes(domains[start : start + LANES], sizes, steps, target, stop)

    def _lanes(
        self, some: Sequence[Subdomain], sizes: Sizes, steps: int, target: float, stop: Stop
    ) -> None:
        from qll.kernels.dual_graph import ascend, minimise, reached, relax
        from qll.kernels.simd import LANES

        network = self.packed(np.float32)
        inputs, _members, starts, *_ = network
        spare = [*some, *[some[0]] * (LANES - len(some))]
        most = max(len(d.offset) for d in some)

        def lanes(name: str) -> Single:
            values = [getattr(d, name) for d in spare]
            if all(value is values[0] for value in values):
                return np.repeat(values[0].astype(np.float32), LANES)
            return np.stack(values).astype(np.float32).T.reshape(-1)

        def padded(values: Sequence[Any]) -> Any:
            """Each with its first row repeated up to a common number."""
            rest = [np.repeat(v[:1], most - len(v), axis=0) for v in values]
            return np.stack([np.concatenate(pair) for pair in zip(values, rest, strict=True)], -1)

        asked = [self._objectives(d) for d in some]
        asked += [asked[0]] * (LANES - len(some))
        top = np.unique(np.concatenate([columns for columns, *_ in asked]))
        objective = np.zeros((most, len(top), LANES), dtype=np.float32)
        for lane, (own, coefficients, _) in enumerate(asked):
            rest = np.repeat(coefficients[:1], most - len(coefficients), axis=0)
            objective[:, np.searchsorted(top, own), lane] = np.concatenate([coefficients, rest])
        offset = padded([constant for *_, constant in asked]).astype(np.float32).reshape(-1)
        weight = padded([d.weight for d in spare]).astype(np.float32).reshape(-1)
        low, high, sign, alpha, beta = map(lanes, ("low", "high", "sign", "alpha", "beta"))
        alive, split = (v.reshape(-1, LANES).any(axis=1) for v in (high > 0, sign != 0))
        blocks, slots, rows, read = reached(network, alive, split, top)
        lines = tuple(np.zeros_like(low) for _ in range(3))
        moving = relax(rows, low, high, sign, alpha, beta, *lines)
        lines = (*lines, lines[1].copy())
        hulls = self._hulls_of(some)
        joint = hulls.packed(np.float32)
        delta = np.zeros(hulls.copies * LANES, np.float32)
        if hulls.copies:
            delta[:] = lanes("delta")
        room = tuple(
            np.zeros(n * LANES, np.float32)
            for n in (hulls.copies, hulls.widest, BLOCK, BLOCK, BLOCK)
        )
        alone = read[~hulls.joined[1][read]]
        reads = (top, objective.reshape(-1), offset, blocks, slots, rows, alone)
        mid, rad = (sizes.lower + sizes.upper) / 2, (sizes.upper - sizes.lower) / 2
        box = (np.repeat(mid.astype(np.float32), LANES), np.repeat(rad.astype(np.float32), LANES))
        coefficient, point = (np.zeros(self.rows.columns * LANES, np.float32) for _ in range(2))
        point[: inputs * LANES] = box[0]
        work = (
            coefficient, np.zeros(LANES, np.float32), point, np.zeros_like(low),
            np.zeros(BLOCK * LANES, np.float32),
        )  # fmt: skip
        varied = (alpha, beta, weight, delta)
        moments = tuple(np.zeros_like(v) for v in varied for _ in range(2))
        scales = np.array([d.scales for d in spare], dtype=np.float32).T.reshape(-1)
        best = np.full(LANES, -np.inf, np.float32)
        kept = tuple(v.copy() for v in varied)
        rates = rates_of(fresh=some[0].is_fresh)
        entries = BLOCK * int((starts[blocks + 1] - starts[blocks]).sum()) + len(rows) + len(read)
        entries += (1 << BLOCK) * hulls.copies
        piece, taken = max(1, PIECE_PRODUCTS // (2 * LANES * max(entries, 1))), 0
        while True:
            asked_for = min(piece, steps - taken)
            done = ascend(
                asked_for, taken, np.float32(target),
                (rates.alpha, rates.beta, rates.weight, rates.delta, rates.decay), network, box,
                reads, moving, lines, joint, sign, *varied, moments, scales, work, room, best, kept,
            )  # fmt: skip
            taken += int(done)
            if done < asked_for or taken >= steps or stop():
                break
        minimise(network, box, reads, lines, joint, sign, kept, work, room)
        self._tell(some, kept, best, scales, work)

    def _tell(
        self, some: Sequence[Subdomain], kept: tuple[Single, ...], best: Single, scales: Single,
        work: tuple[Single, ...],
    ) -> None:  # fmt: skip
        """What was found of each domain. A relaxation loses at the minimiser its coefficient times
        how far it is from the ReLU there."""
        alpha, beta, weight, delta, coefficient, values, rows = (
            v.reshape(-1, len(best))[:, : len(some)] for v in (*kept, work[0], work[2], work[3])
        )
        points, relaxed = np.split(values, [self.rows.inputs])
        pull = coefficient[self.rows.inputs :]
        scores = pull * (np.maximum(rows, 0) - relaxed)
        alphas, betas, deltas, starts, lost, pulls = (
            np.ascontiguousarray(v.T) for v in (alpha, beta, delta, points, scores, pull)
        )
        units = scales.reshape(2, -1)
        for lane, domain in enumerate(some):
            domain.alpha, domain.beta = alphas[lane], betas[lane]
            domain.weight = weight[: len(domain.offset), lane].copy()
            if deltas.size:
                domain.delta = deltas[lane]
            domain.bound, domain.scales = float(best[lane]), (*units[:, lane].tolist(),)
            domain.minimiser, domain.scores = starts[lane], lost[lane]
            domain.pull = pulls[lane]

    def evaluate(self, domains: Sequence[Subdomain], sizes: Sizes, *, stop: Stop) -> Array:
        from qll.kernels.dual_graph import bound_of

        mid, rad = (sizes.lower + sizes.upper) / 2, (sizes.upper - sizes.lower) / 2
        held = self.layout.sizes(sizes)
        network, ends = self.packed(np.float64), np.array([0, *self.blocks.ends])
        found = np.full(len(domains), -np.inf)
        for i, d in enumerate(domains):
            if stop():
                break
            hulls = self._hulls_of([d])
            found[i] = bound_of(
                network, ends, mid, rad, *self._objectives(d),
                d.low, d.high, d.sign, d.alpha, d.beta, d.weight, d.delta, held, sizes.inputs,
                d.size, sizes.unit, hulls.packed(np.float64), hulls.joined,
            )  # fmt: skip
        return proved(found)


class _Below(SparseGraphBounder):
    """Of the layers below a hidden one, whose pre-activations are its outputs: an objective is the
    number of one of them, and a sign. What is kept of a domain is its slopes."""

    batch = BATCH_BELOW

    def __init__(self, whole: SparseGraphBounder, layer: int) -> None:
        self.form, self.crown = whole.form, whole.crown
        self.layout = Layout.of(whole.form, layer)
        self._whole, self._first = whole, int(whole._ends[layer])
        self._none = np.zeros(self.layout.neurons, dtype=np.float32)
        self._below, self._hulls = {}, None

    @cached_property
    def rows(self) -> Rows:
        return self._whole.rows.below(self._first)

    def packed(self, kind: type) -> tuple[Any, ...]:
        whole = self._whole
        return whole.blocks.below(whole.packed(kind), self.layout.layers, self._first)

    def output(self, index: int, sign: int) -> tuple[Array, Array]:
        return np.array([[index, sign]], dtype=np.float64), np.zeros(1)

    def domain(
        self, low: Array, high: Array, objective: Array, offset: Array, size: Array
    ) -> Subdomain:
        return replace(super().domain(low, high, objective, offset, size), beta=self._none)

    def _objectives(self, domain: Subdomain) -> tuple[Any, Array, Array]:
        whole, (index, sign) = self._whole.rows, domain.objective[0]
        row = self._first + int(index)
        part = slice(*whole.matrix.indptr[row : row + 2])
        columns = whole.matrix.indices[part].astype(np.int64)
        constant = domain.offset + sign * whole.bias[row]
        return columns, sign * whole.matrix.data[part][None], constant

    def ascend(
        self,
        domains: Sequence[Subdomain],
        sizes: Sizes,
        steps: int,
        *,
        target: float = np.inf,
        stop: Stop,
    ) -> None:
        order = self._whole.neighbours(self._targets(domains))
        near = [domains[i] for i in order.tolist()]
        super().ascend(near, sizes, steps, target=target, stop=stop)

    def _tell(self, some: Sequence[Subdomain], *found: Any) -> None:
        super()._tell(some, *found)
        for domain in some:
            domain.beta, domain.minimiser = self._none, None
            domain.scores = domain.pull = None

    def _targets(self, domains: Sequence[Subdomain]) -> Any:
        return self._first + np.array([int(d.objective[0, 0]) for d in domains])

    def evaluate(self, domains: Sequence[Subdomain], sizes: Sizes, *, stop: Stop) -> Array:
        """All of one box, and without splits."""
        whole, layer, count = self._whole, self.layout.layers + 1, self.layout.neurons
        held = np.concatenate([sizes.layer(k) for k in range(1, layer + 1)])
        signs = np.array([d.objective[0, 1] for d in domains])
        slopes = np.stack([d.alpha for d in domains], axis=1)
        low, high = domains[0].low[:count], domains[0].high[:count]
        targets = self._targets(domains)
        return whole._bound_rows(sizes, layer, low, high, held, targets, signs, slopes, stop)


@cache
def load_kernels() -> None:
    """By bounds of a network of one input and two neurons."""
    one, half = np.ones((1, 1)), np.full(1, -0.5)
    layers = [FormLayer(half / 2**k, ((k, one),)) for k in range(3)]
    network: Any = SimpleNamespace(relu_form=ReluForm((1,), tuple(layers)))
    sizes = Sizes(Rounding(network), np.zeros(1), np.ones(1))
    bounder = SparseGraphBounder(network.relu_form)
    low, high = bounder.interval(sizes, lambda: False)
    domain = bounder.domain(low, high, np.ones((1, 1)), np.zeros(1), np.ones(1))
    bounder.ascend([domain], sizes, 1, stop=lambda: False)
    bounder.evaluate([domain], sizes, stop=lambda: False)
