"""Dual bounds of a chain of ReLU layers by the compiled kernel, a lane-full of domains at a time.

`DualLanes` ascends in float32, which is fast and need not be trusted; `evaluate` recomputes the
bound of given multipliers in float64, less what rounding may have added to it
(`qll.bounds.rounding`), and only that number is used as a bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qll import limits
from qll.bounds.bounder import Start, Stop
from qll.bounds.chain import Chain
from qll.bounds.domain import Single, Subdomain, never_worse
from qll.bounds.dual import Rates, rates_of
from qll.bounds.groups import Array, Groups
from qll.bounds.rounding import Rounding, Sizes, proved
from qll.bounds.splits import SignSplit
from qll.errors import InputError
from qll.networks.relu_form import FormLayer, ReluForm

# Multiplications of an ascent between two looks at the clock, some hundredths of a second, and the
# fewest steps: each piece computes one bound more than it takes steps.
PIECE_PRODUCTS = 200_000_000
LEAST_PIECE = 4
# Entries of the matrices that the kernels read densely, zeros and all: with more of them a handful
# of steps takes seconds, and the matrices gigabytes.
MOST_DENSE = 1 << 24


class DualLanes:
    """Buffers for one lane-full of domains of a chain, and calls of the kernel."""

    def __init__(self, chain: Chain, objectives: int) -> None:
        from qll.kernels.dual_types import Scratch, Variables
        from qll.kernels.simd import LANES, aligned_floats

        self.chain = chain
        self.lanes = LANES
        self.objectives = objectives
        n, g = chain.layout.neurons, chain.groups
        copies, inputs = max(g.copies, 1), chain.form.input_size
        width = int(chain.layout.widths[-1])
        most_copies = int(np.diff(g.copy_starts).max(initial=1))
        most_neurons = int(np.diff(g.neuron_starts).max(initial=1))

        copied = 20 * n + objectives * (width + 4) + 6 * copies + 2 * inputs
        limits.need(4 * LANES * copied, "the multipliers of a proof")

        def floats(entries: int) -> Single:
            return aligned_floats(max(entries, 1) * LANES)

        sizes = (n, n, objectives, copies)
        self.low, self.high, self.sign = floats(n), floats(n), floats(n)
        self.objective, self.offset = floats(objectives * width), floats(objectives)
        self.variables = Variables(*(floats(s) for s in sizes))
        self.first = Variables(*(floats(s) for s in sizes))
        self.second = Variables(*(floats(s) for s in sizes))
        self.scratch = Scratch(
            slope=floats(n), rise=floats(n), alpha_low=floats(n), alpha_high=floats(n),
            coefficient=floats(n), back=floats(n), activation=floats(n),
            copy_coefficient=floats(copies), pixel_coefficient=floats(inputs),
            copy_point=floats(copies), residual=floats(most_copies), member=floats(most_neurons),
            hull_gain=floats(n), hull_active=np.zeros(n, dtype=np.bool_),
            reached=floats(objectives),
        )  # fmt: skip
        # Steps between two looks at the clock.
        read = copies * most_neurons + sum(w.size for w in chain.upper)
        self.piece = max(LEAST_PIECE, PIECE_PRODUCTS // (2 * LANES * read))
        self.scales = floats(2)
        self.bound, self.minimiser, self.scores = floats(1), floats(inputs), floats(n)

    def _put(self, buffer: Single, columns: Sequence[Any]) -> None:
        view = buffer.reshape(-1, self.lanes)
        stacked = np.stack(columns, axis=1)
        view[: stacked.shape[0], : len(columns)] = stacked
        view[: stacked.shape[0], len(columns) :] = stacked[:, :1]

    def run(
        self,
        domains: Sequence[Subdomain],
        box: tuple[Single, Single],
        steps: int,
        *,
        rates: Rates,
        hull: bool,
        target: float,
        stop: Callable[[], bool] | None = None,
    ) -> int:
        """Ascend up to ``LANES`` domains in place: multipliers, float32 bound, minimiser, scores.
        Spare lanes repeat the first one. Returns the steps that were taken: fewer than ``steps``
        if every lane reached ``target`` or ``stop``, asked now and then, said so."""
        from qll.kernels.dual import ascend
        from qll.kernels.dual_types import Lanes

        for buffer, name in ((self.low, "low"), (self.high, "high"), (self.sign, "sign")):
            self._put(buffer, [getattr(d, name) for d in domains])
        self._put(self.objective, [_padded(d.objective, self.objectives) for d in domains])
        self._put(self.offset, [_padded(d.offset, self.objectives) for d in domains])
        for buffer, name in zip(self.variables, ("alpha", "beta", "weight", "delta"), strict=True):
            if name == "weight":
                self._put(buffer, [_padded(d.weight, self.objectives) for d in domains])
            elif buffer.size and getattr(domains[0], name).size:
                self._put(buffer, [getattr(d, name) for d in domains])
        self._put(self.scales, [np.array(d.scales, dtype=np.float32) for d in domains])
        for buffer in (*self.first, *self.second):
            buffer.fill(0)
        given = Lanes(self.low, self.high, self.sign, self.objective, self.offset, self.objectives)
        taken = 0
        while True:
            piece = min(steps - taken, self.piece)
            done = ascend(
                piece, taken, hull, target,
                (rates.alpha, rates.beta, rates.weight, rates.delta, rates.decay),
                self.chain.packed32, box,
                given,
                self.variables, self.first, self.second, self.scratch, self.scales,
                self.bound, self.minimiser, self.scores,
            )  # fmt: skip
            taken += int(done)
            if done < piece or taken >= steps or (stop is not None and stop()):
                break
        values = [v.reshape(-1, self.lanes) for v in self.variables]
        minimiser = self.minimiser.reshape(-1, self.lanes)
        scores = self.scores.reshape(-1, self.lanes)
        count = len(domains)
        alphas, betas, deltas = (
            np.ascontiguousarray(v[:, :count].T) for v in (values[0], values[1], values[3])
        )
        pull = self.scratch.coefficient.reshape(-1, self.lanes)
        points, lost, pulls = (
            np.ascontiguousarray(v[:, :count].T) for v in (minimiser, scores, pull)
        )
        for lane, domain in enumerate(domains):
            domain.alpha, domain.beta = alphas[lane], betas[lane]
            domain.weight = values[2][: len(domain.offset), lane].copy()
            domain.delta = deltas[lane][: domain.delta.size]
            domain.bound = float(self.bound[lane])
            domain.scales = (float(self.scales[lane]), float(self.scales[self.lanes + lane]))
            domain.minimiser, domain.scores, domain.pull = points[lane], lost[lane], pulls[lane]
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
    domains: Sequence[Subdomain],
    sizes: Sizes,
    *,
    hull: bool = True,
    stop: Callable[[], bool] | None = None,
) -> Array:
    """Rigorous bounds by the domains' multipliers over the box of ``sizes``; domains that ``stop``
    leaves no time for have none."""
    from qll.kernels.dual_check import bound_of

    lower, upper = sizes.lower, sizes.upper
    mid, rad = (lower + upper) / 2, (upper - lower) / 2
    held = chain.layout.sizes(sizes)
    found = np.full(len(domains), -np.inf)
    for i, d in enumerate(domains):
        if stop is not None and stop():
            break
        found[i] = bound_of(
            chain.packed64, mid, rad, d.low, d.high, d.sign, d.objective, d.offset,
            d.alpha, d.beta, d.weight, d.delta, hull, held, sizes.inputs, d.size, sizes.unit,
        )  # fmt: skip
    return proved(found)


class ChainBounder:
    """The `Bounder` of chains of ReLU layers, for conditions on their outputs alone."""

    start = Start.INTERVAL

    def __init__(self, form: ReluForm, chain: Chain | None = None) -> None:
        from qll.kernels.simd import LANES, TILE

        self.form = form
        self.batch = LANES
        self.chain = Chain.of(form, TILE) if chain is None else chain
        self.layout = self.chain.layout
        self._buffers: dict[int, DualLanes] = {}
        self._below: dict[int, ChainBounder] = {}

    @staticmethod
    def fits(form: ReluForm) -> bool:
        dense = form.is_relu_chain and len(form.layers) > 1
        return dense and Chain.dense_entries(form) <= MOST_DENSE

    @property
    def groups(self) -> Groups:
        return self.chain.groups

    def prepare(self) -> None:
        load_kernels()

    def interval(self, sizes: Sizes, stop: Stop) -> tuple[Array, Array]:
        found = sizes.interval()[: self.layout.layers]
        low, high = (
            np.concatenate(
                [self.layout.spread(k, pair[side], -1.0) for k, pair in enumerate(found)]
            )
            for side in (0, 1)
        )
        return low, high

    def below(self, layer: int) -> ChainBounder:
        if layer not in self._below:
            self._below[layer] = ChainBounder(self.form, self.chain.below(layer))
        return self._below[layer]

    def objectives(
        self, outputs: Array, constant: Array, inputs: Array | None = None
    ) -> tuple[Array, Array]:
        """Over the activations of the last hidden layer."""
        if inputs is not None:
            raise InputError(
                "the compiled bounds were given a condition on the input",
                expected="a condition on the outputs alone",
                found="a condition that speaks of x",
                fix="use GraphBounder",
            )
        last = self.form.layers[-1]
        rows = outputs @ last.terms[0][1]
        return self.layout.spread(self.layout.layers - 1, rows), outputs @ last.bias + constant

    def output(self, index: int, sign: int) -> tuple[Array, Array]:
        row, bias = self.chain.output(index)
        return sign * row[None], np.array([sign * bias])

    def domain(
        self, low: Array, high: Array, objective: Array, offset: Array, size: Array
    ) -> Subdomain:
        neurons = self.layout.neurons
        return Subdomain(
            low=low,
            high=high,
            sign=np.zeros(neurons, dtype=np.int8),
            objective=objective,
            offset=offset,
            size=size,
            alpha=(high > -low).astype(np.float32),
            beta=np.zeros(neurons, dtype=np.float32),
            weight=np.ones(len(offset), dtype=np.float32),
            delta=np.zeros(self.groups.copies, dtype=np.float32),
        )

    def within(self, domain: Subdomain, neuron: int, sign: int, size: Array) -> Subdomain:
        """A neuron taken as active has ``relu(z) = z``: the bound of z itself is that of its
        activation, with every other split still in force."""
        part = self.layout.part(self.layout.layers - 1)
        low, high = domain.low.copy(), domain.high.copy()
        low[neuron], high[neuron] = 0.0, 1.0
        objective = np.zeros((1, part.stop - part.start))
        objective[0, neuron - part.start] = sign
        return replace(
            domain, low=low, high=high, objective=objective, offset=np.zeros(1), size=size,
            beta=np.zeros_like(domain.beta), weight=np.ones(1, dtype=np.float32),
            delta=np.zeros_like(domain.delta), scales=(0.0, 0.0), bound=-np.inf, pull=None,
        )  # fmt: skip

    def join(self, low: Array, high: Array, domains: Sequence[Subdomain]) -> int:
        """Groups of all neurons of the first layer are there already."""
        return 0

    def splittable(self, domain: Subdomain) -> NDArray[np.bool_]:
        return np.asarray((domain.low < 0) & (domain.high > 0) & (domain.sign == 0))

    def split(self, domain: Subdomain, neuron: int) -> SignSplit:
        return SignSplit(neuron)

    def ascend(
        self,
        domains: Sequence[Subdomain],
        sizes: Sizes,
        steps: int,
        *,
        target: float = np.inf,
        stop: Stop,
    ) -> None:
        objectives = max(len(domain.offset) for domain in domains)
        if objectives not in self._buffers:
            self._buffers[objectives] = DualLanes(self.chain, objectives)
        buffer = self._buffers[objectives]
        mid, rad = (sizes.lower + sizes.upper) / 2, (sizes.upper - sizes.lower) / 2
        box = (mid.astype(np.float32), rad.astype(np.float32))
        with never_worse(domains):
            for start in range(0, len(domains), self.batch):
                if stop():
                    break
                some = domains[start : start + self.batch]
                rates = rates_of(fresh=some[0].is_fresh, split=some[0].is_split)
                buffer.run(some, box, steps, rates=rates, hull=True, target=target, stop=stop)

    def evaluate(self, domains: Sequence[Subdomain], sizes: Sizes, *, stop: Stop) -> Array:
        return evaluate(self.chain, domains, sizes, stop=stop)


def smallest_sizes() -> Sizes:
    """Of a network of one input, one neuron and one output: what is compiled for its bounds is
    what is compiled for all, because that depends on types alone."""
    one = np.ones((1, 1))
    form = ReluForm((1,), (FormLayer(np.ones(1), ((0, one),)), FormLayer(np.ones(1), ((1, one),))))
    network: Any = SimpleNamespace(relu_form=form)
    sizes = Sizes(Rounding(network), np.zeros(1), np.ones(1))
    sizes.interval()
    return sizes


@cache
def load_kernels() -> None:
    """By a bound of the smallest network."""
    sizes = smallest_sizes()
    bounder = ChainBounder(sizes.form)
    low, high = bounder.interval(sizes, lambda: False)
    objective, offset = bounder.output(0, 1)
    domain = bounder.domain(low, high, objective, offset, np.ones(1))
    bounder.ascend([domain], sizes, 0, stop=lambda: False)
    bounder.evaluate([domain], sizes, stop=lambda: False)
