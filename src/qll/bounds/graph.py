"""Dual bounds of any graph, activation and condition, on any device: torch code, the reference.

Slower than `qll.bounds.lanes` and without its limits: residual and skip connections, conditions
that speak of the input, machines without numba.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qll.bounds.bounder import Start, Stop
from qll.bounds.crown import Crown
from qll.bounds.domain import Single, Subdomain, never_worse
from qll.bounds.dual import Domains, Multipliers, rates_of
from qll.bounds.groups import Array, Groups
from qll.bounds.layout import Layout
from qll.bounds.rounding import Sizes, proved
from qll.bounds.splits import NeuronSplit, PointSplit, SignSplit
from qll.late import late
from qll.networks.activations import RELU, Activation
from qll.networks.relu_form import ReluForm

if TYPE_CHECKING:
    import torch
else:
    torch = late("torch")

BATCH = 32
# A curved activation is not split again on less than this share of its pre-activation's size.
LEAST_WIDTH = 1e-7


class GraphBounder:
    """The `Bounder` of any graph; objectives are rows over outputs, then inputs."""

    batch = BATCH
    start = Start.CROWN

    def __init__(self, form: ReluForm, *, device: str = "cpu", crown: Crown | None = None) -> None:
        self.form = form
        self.crown = Crown(form, device=device) if crown is None else crown
        self.layout = Layout.of(form)

    @property
    def groups(self) -> Groups | None:
        return self.crown.groups

    @property
    def copies(self) -> int:
        return 0 if self.groups is None else self.groups.copies

    def prepare(self) -> None:
        """Nothing is compiled here."""

    def interval(self, sizes: Sizes, stop: Stop) -> tuple[Array, Array]:
        """CROWN at once: there is no cheaper stage on this path."""
        with torch.no_grad():
            boxes = self.crown.root(sizes, stop)
        if not boxes.low:
            return np.zeros(0), np.zeros(0)
        return torch.cat(boxes.low, 1)[0].cpu().numpy(), torch.cat(boxes.high, 1)[0].cpu().numpy()

    def below(self, layer: int) -> GraphBounder | None:
        return None

    def within(self, domain: Subdomain, neuron: int, sign: int, size: Array) -> None:
        return None

    def objectives(
        self, outputs: Array, constant: Array, inputs: Array | None = None
    ) -> tuple[Array, Array]:
        return outputs if inputs is None else np.hstack([outputs, inputs]), constant

    def output(self, index: int, sign: int) -> tuple[Array, Array]:
        row = np.zeros((1, self.form.output_size))
        row[0, index] = sign
        return row, np.zeros(1)

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
            alpha=self._slopes(low, high),
            beta=np.zeros(neurons, dtype=np.float32),
            weight=np.ones(len(offset), dtype=np.float32),
            delta=np.zeros(self.copies, dtype=np.float32),
            point=None if self.form.is_relu else np.zeros(neurons),
        )

    def _slopes(self, low: Array, high: Array) -> Single:
        parts = [np.zeros(0)]
        for k, activation in enumerate(self.crown.activations):
            ends = (torch.from_numpy(side[self.layout.part(k)]) for side in (low, high))
            parts.append(activation.start(*ends).numpy())
        return np.concatenate(parts).astype(np.float32)

    def join(self, low: Array, high: Array, domains: Sequence[Subdomain]) -> int:
        """Groups of all neurons of the first layer are there already."""
        return 0

    def splittable(self, domain: Subdomain) -> NDArray[np.bool_]:
        """Where the activation is not linear; a kink once, a curve as long as it has a width."""
        parts = [np.zeros(0, dtype=bool)]
        for k, activation in enumerate(self.crown.activations):
            low, high = domain.low[self.layout.part(k)], domain.high[self.layout.part(k)]
            linear = activation.is_linear(torch.from_numpy(low), torch.from_numpy(high)).numpy()
            wide = high - low > LEAST_WIDTH * (1.0 + np.abs(low) + np.abs(high))
            parts.append(~linear & (wide if not activation.piecewise_linear else True))
        return np.concatenate(parts)

    def split(self, domain: Subdomain, neuron: int) -> NeuronSplit:
        activation = self.crown.activations[self.layout.layer_of(neuron)]
        if activation == RELU:
            return SignSplit(neuron)
        ends = domain.low[neuron : neuron + 1], domain.high[neuron : neuron + 1]
        return PointSplit(neuron, float(activation.split_point(*ends)[0]))

    def _batch(self, some: Sequence[Subdomain], sizes: Sizes) -> tuple[Domains, Multipliers]:
        tensor, layout = self.crown.tensor, self.layout
        most = max(len(d.offset) for d in some)

        def stack(name: str) -> list[torch.Tensor]:
            flat = tensor(np.stack([getattr(d, name) for d in some]))
            return [flat[:, layout.part(k)] for k in range(layout.layers)]

        def padded(values: Any) -> Any:
            missing = most - len(values)
            return np.concatenate([values, np.repeat(values[:1], missing, axis=0)])

        rows = tensor(np.stack([padded(d.objective) for d in some]))
        outputs = self.form.output_size
        count = len(some)
        domains = Domains(
            tensor(sizes.lower)[None].expand(count, -1),
            tensor(sizes.upper)[None].expand(count, -1),
            stack("low"),
            stack("high"),
            stack("sign"),
            rows[..., :outputs],
            tensor(np.stack([padded(d.offset) for d in some])),
            rows[..., outputs:] if rows.shape[-1] > outputs else None,
            tensor(np.stack([padded(d.size) for d in some])),
            None if some[0].point is None else stack("point"),
        )
        multipliers = Multipliers(
            stack("alpha"),
            stack("beta"),
            tensor(np.stack([padded(d.weight) for d in some])),
            tensor(np.stack([d.delta for d in some])),
        )
        return domains, multipliers

    def ascend(
        self,
        domains: Sequence[Subdomain],
        sizes: Sizes,
        steps: int,
        *,
        target: float = np.inf,
        stop: Stop,
    ) -> None:
        with never_worse(domains):
            for start in range(0, len(domains), BATCH):
                if stop():
                    break
                self._ascend(domains[start : start + BATCH], sizes, steps, target, stop)

    def _ascend(
        self, some: Sequence[Subdomain], sizes: Sizes, steps: int, target: float, stop: Stop
    ) -> None:
        batch, multipliers = self._batch(some, sizes)
        bound, best = self.crown.ascend(
            batch,
            multipliers,
            steps,
            rates=rates_of(fresh=some[0].is_fresh),
            target=target,
            stop=stop,
        )
        with torch.no_grad():
            coefficients, _ = self.crown.coefficients(batch, best)
            scores = [
                c.abs() * _loss(activation, low, high)
                for activation, c, low, high in zip(
                    self.crown.activations, coefficients, batch.low, batch.high, strict=True
                )
            ]
        values = bound.value.cpu().numpy()
        for row, domain in enumerate(some):
            domain.bound = float(values[row])
            domain.alpha, domain.beta = _flat(best.alpha, row), _flat(best.beta, row)
            domain.weight = best.weight[row, : len(domain.offset)].cpu().numpy().astype(np.float32)
            domain.delta = best.delta[row].cpu().numpy().astype(np.float32)
            domain.minimiser = bound.minimiser[row].cpu().numpy().astype(np.float32)
            domain.scores = _flat(scores, row)
            domain.scales = (1.0, 1.0)

    def evaluate(self, domains: Sequence[Subdomain], sizes: Sizes, *, stop: Stop) -> Array:
        values: list[Array] = []
        with torch.no_grad():
            allowance = self.crown.allowance(sizes)
            for start in range(0, len(domains), BATCH):
                if stop():
                    values.append(np.full(len(domains) - start, -np.inf))
                    break
                batch, multipliers = self._batch(domains[start : start + BATCH], sizes)
                allowed = self.crown.project(multipliers, batch)
                found = self.crown(batch, allowed, allowance=allowance)
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


def _flat(parts: list[torch.Tensor], row: int) -> Single:
    if not parts:
        return np.zeros(0, dtype=np.float32)
    return np.concatenate([p[row].cpu().numpy() for p in parts]).astype(np.float32)
