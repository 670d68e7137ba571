"""Branch and bound on neurons for any graph, condition and device, on the torch reference bounds.

The same search as `qll.verify.prover`, which it extends; slower, and without its limits: residual
and skip connections, conditions that speak of the input, machines without numba.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from qll.bounds.chain import Chain, Node
from qll.bounds.crown import Crown
from qll.bounds.dual import Domains, Multipliers, Rates
from qll.bounds.groups import Groups
from qll.bounds.rounding import Sizes, proved
from qll.networks.activations import RELU, Activation
from qll.networks.relu_form import ReluForm
from qll.verify.condition import Array
from qll.verify.proof import Effort, Outcome
from qll.verify.prover import WARM, ChainProver, _Run
from qll.verify.query import Query
from qll.verify.root import Root

BATCH = 32
# A curved activation is not split again on less than this share of its pre-activation's size.
LEAST_WIDTH = 1e-7


@dataclass(frozen=True, eq=False)
class Layout:
    """Hidden neurons of a graph, flat: what a `Chain` is to the compiled kernel."""

    form: ReluForm
    crown: Crown

    @property
    def layers(self) -> int:
        return len(self.form.layers) - 1

    @cached_property
    def widths(self) -> NDArray[np.int64]:
        return np.array([layer.width for layer in self.form.layers[:-1]], dtype=np.int64)

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum(self.widths)]).astype(np.int64)

    @property
    def neurons(self) -> int:
        return int(self.starts[-1])

    def part(self, layer: int) -> slice:
        return slice(int(self.starts[layer]), int(self.starts[layer + 1]))

    def spread(self, layer: int, values: Any, fill: float = 0.0) -> Array:
        return np.asarray(values, dtype=np.float64)

    def interval(self, sizes: Sizes, stop: Callable[[], bool] | None = None) -> tuple[Array, Array]:
        """CROWN at once: there is no cheaper stage on this path."""
        with torch.no_grad():
            boxes = self.crown.root(sizes, stop)
        if not boxes.low:
            return np.zeros(0), np.zeros(0)
        return torch.cat(boxes.low, 1)[0].cpu().numpy(), torch.cat(boxes.high, 1)[0].cpu().numpy()

    def sizes(self, sizes: Sizes) -> Array:
        return np.concatenate([*sizes.hidden(), np.zeros(0)])

    def node(
        self,
        low: Array,
        high: Array,
        objective: Array,
        offset: Array,
        size: Array,
        label: int = 0,
    ) -> Node:
        return Node(
            low=low,
            high=high,
            sign=np.zeros(self.neurons, dtype=np.int8),
            objective=objective,
            offset=offset,
            alpha=self._start(low, high),
            beta=np.zeros(self.neurons, dtype=np.float32),
            weight=np.ones(len(offset), dtype=np.float32),
            delta=np.zeros(self.crown.copies, dtype=np.float32),
            size=size,
            point=None if self.form.is_relu else np.zeros(self.neurons),
            label=label,
        )

    def _start(self, low: Array, high: Array) -> NDArray[np.float32]:
        parts = [np.zeros(0)]
        for k, activation in enumerate(self.crown.activations):
            ends = (torch.from_numpy(side[self.part(k)]) for side in (low, high))
            parts.append(activation.start(*ends).numpy())
        return np.concatenate(parts).astype(np.float32)

    def splittable(self, node: Node) -> NDArray[np.bool_]:
        """Where the activation is not linear; a kink once, a curve as long as it has a width."""
        parts = [np.zeros(0, dtype=bool)]
        for k, activation in enumerate(self.crown.activations):
            low, high = node.low[self.part(k)], node.high[self.part(k)]
            linear = activation.is_linear(torch.from_numpy(low), torch.from_numpy(high)).numpy()
            wide = high - low > LEAST_WIDTH * (1.0 + np.abs(low) + np.abs(high))
            parts.append(~linear & (wide if not activation.piecewise_linear else True))
        return np.concatenate(parts)

    def order(self, layer: int) -> NDArray[np.int64]:
        return np.arange(int(self.widths[layer]))

    @property
    def groups(self) -> Groups | None:
        return self.crown.groups

    def _activation(self, neuron: int) -> Activation:
        layer = int(np.searchsorted(self.starts, neuron, side="right")) - 1
        return self.crown.activations[layer]

    def split_point(self, node: Node, neuron: int) -> float:
        ends = node.low[neuron : neuron + 1], node.high[neuron : neuron + 1]
        return float(self._activation(neuron).split_point(*ends)[0])

    def told_point(self, node: Node, neuron: int) -> float | None:
        activation = self._activation(neuron)
        return None if activation == RELU else self.split_point(node, neuron)


class GraphProver(ChainProver):
    def __init__(
        self, form: ReluForm, effort: Effort | None = None, *, device: str = "cpu"
    ) -> None:
        self.form = form
        self.effort = Effort() if effort is None else effort
        self.lanes = BATCH
        self.hidden = len(form.layers) - 1
        self.bounds = Crown(form, device=device)
        self.layout = Layout(form, self.bounds)
        self.run_type = _GraphRun
        self.rates = Rates()
        self.warm = WARM
        self.keeps = False

    @property
    def chain(self) -> Any:
        return self.layout

    @property
    def copies(self) -> int:
        return self.bounds.copies

    def prepare(self) -> None:
        """Nothing is compiled here."""

    def tell(self, writer: Any, query: Query, outcome: Outcome) -> None:
        writer.open()
        writer.follow(query, outcome)

    def objectives(self, query: Query) -> tuple[Array, Array]:
        condition = query.search
        rows = -condition.outputs
        if condition.inputs is not None:
            rows = np.hstack([rows, -condition.inputs])
        return rows, -condition.constant

    def _batch(self, nodes: Sequence[Node], query: Query) -> tuple[Domains, Multipliers]:
        tensor, layout = self.bounds.tensor, self.layout
        most = max(len(n.offset) for n in nodes)

        def stack(name: str) -> list[torch.Tensor]:
            flat = tensor(np.stack([getattr(n, name) for n in nodes]))
            return [flat[:, layout.part(k)] for k in range(layout.layers)]

        def padded(values: Any) -> Any:
            missing = most - len(values)
            return np.concatenate([values, np.repeat(values[:1], missing, axis=0)])

        rows = tensor(np.stack([padded(n.objective) for n in nodes]))
        outputs = self.form.output_size
        size = len(nodes)
        domains = Domains(
            tensor(query.lower)[None].expand(size, -1),
            tensor(query.upper)[None].expand(size, -1),
            stack("low"),
            stack("high"),
            stack("sign"),
            rows[..., :outputs],
            tensor(np.stack([padded(n.offset) for n in nodes])),
            rows[..., outputs:] if rows.shape[-1] > outputs else None,
            tensor(np.stack([padded(n.size) for n in nodes])),
            None if nodes[0].point is None else stack("point"),
        )
        multipliers = Multipliers(
            stack("alpha"),
            stack("beta"),
            tensor(np.stack([padded(n.weight) for n in nodes])),
            tensor(np.stack([n.delta for n in nodes])),
        )
        return domains, multipliers

    def ascend(
        self,
        run: Root,
        nodes: Sequence[Node],
        steps: int,
        *,
        chain: Chain | None = None,
        target: float = np.inf,
    ) -> None:
        for start in range(0, len(nodes), BATCH):
            if run.out_of_time():
                break
            part = nodes[start : start + BATCH]
            domains, multipliers = self._batch(part, run.query)
            fresh = part[0].scales == (0.0, 0.0)
            bound, best = self.bounds.ascend(
                domains, multipliers, steps, rates=self.rates if fresh else self.warm,
                target=target, stop=run.out_of_time,
            )  # fmt: skip
            with torch.no_grad():
                coefficients, _ = self.bounds.coefficients(domains, best)
                gaps = [
                    c.abs() * _loss(activation, lo, hi)
                    for activation, c, lo, hi in zip(
                        self.bounds.activations, coefficients, domains.low, domains.high,
                        strict=True,
                    )
                ]  # fmt: skip
            values = bound.value.cpu().numpy()
            for row, node in enumerate(part):
                old = (node.bound, node.alpha, node.beta, node.weight, node.delta)
                node.bound = float(values[row])
                node.alpha, node.beta = _flat(best.alpha, row), _flat(best.beta, row)
                node.weight = best.weight[row, : len(node.offset)].cpu().numpy().astype(np.float32)
                node.delta = best.delta[row].cpu().numpy().astype(np.float32)
                node.minimiser = bound.minimiser[row].cpu().numpy().astype(np.float32)
                node.gap = _flat(gaps, row)
                node.scales = (1.0, 1.0)
                if node.bound < old[0]:
                    node.bound, node.alpha, node.beta, node.weight, node.delta = old

    def evaluate(self, run: Root, nodes: Sequence[Node], *, chain: Chain | None = None) -> Array:
        values: list[Array] = []
        with torch.no_grad():
            allowance = self.bounds.allowance(run.sizes)
            for start in range(0, len(nodes), BATCH):
                if run.out_of_time():  # a bound that is not known is none
                    values.append(np.full(len(nodes) - start, -np.inf))
                    break
                domains, multipliers = self._batch(nodes[start : start + BATCH], run.query)
                allowed = self.bounds.project(multipliers, domains)
                found = self.bounds(domains, allowed, allowance=allowance)
                values.append(found.value.cpu().numpy())
        return proved(np.concatenate(values))


def _loss(activation: Activation, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """How far the relaxation is open, about in its middle: what a split would win back."""
    if activation == RELU:
        return (-low * high).clamp(min=0) / (high - low).clamp(min=1e-30)
    alpha = activation.start(low, high)
    (a, b), (c, d) = (
        line(low, high, alpha) for line in (activation.lower_line, activation.upper_line)
    )
    return ((c - a) * (low + high) / 2 + d - b).clamp(min=0)


def _flat(parts: list[torch.Tensor], row: int) -> NDArray[np.float32]:
    if not parts:
        return np.zeros(0, dtype=np.float32)
    return np.concatenate([p[row].cpu().numpy() for p in parts]).astype(np.float32)


class _GraphRun(_Run):
    """CROWN's pre-activation bounds stay as they are."""

    def first_bounds(self) -> tuple[Array, Array]:
        layout: Layout = self.prover.chain  # type: ignore[assignment]
        return layout.interval(self.sizes, self.out_of_time)

    def tighten_root(self, steps: int) -> None:
        return None

    def retighten(self, node: Node) -> None:
        return None
