"""What a proof by splits of neurons asks of bounds, whatever computes them.

Two stand behind it: `qll.bounds.lanes.ChainBounder`, compiled for chains of ReLU layers, and
`qll.bounds.graph.GraphBounder`, torch code for any graph, activation, condition and device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Protocol

from qll.bounds.domain import Subdomain
from qll.bounds.groups import Array, Groups
from qll.bounds.layout import Layout
from qll.bounds.rounding import Sizes
from qll.bounds.splits import NeuronSplit
from qll.networks.relu_form import ReluForm


class Start(Enum):
    """Where the bounds of the hidden neurons begin, which a proof has to say."""

    INTERVAL = "interval arithmetic"
    CROWN = "linear bounds of every neuron"


Stop = Callable[[], bool]


class Bounder(Protocol):
    form: ReluForm
    layout: Layout
    batch: int  # domains that are bounded at once
    start: Start

    @property
    def groups(self) -> Groups | None:
        """Of the neurons of the first layer, whose copies of inputs delta ties."""

    def prepare(self) -> None:
        """Load kernels, or compile them: seconds, once on a machine, and no query's time."""

    def interval(self, sizes: Sizes, stop: Stop) -> tuple[Array, Array]:
        """Bounds of the hidden neurons over the box of ``sizes``, as ``start`` says."""

    def below(self, layer: int) -> Bounder | None:
        """Of the layers below a hidden one, whose pre-activations are its outputs; None if the
        bounds that `interval` gave them stay."""

    def objectives(
        self, outputs: Array, constant: Array, inputs: Array | None = None
    ) -> tuple[Array, Array]:
        """Rows ``outputs . y + inputs . x + constant`` as objectives and offsets of a domain."""

    def output(self, index: int, sign: int) -> tuple[Array, Array]:
        """The objective ``sign * y[index]``."""

    def domain(
        self, low: Array, high: Array, objective: Array, offset: Array, size: Array
    ) -> Subdomain:
        """A domain without splits, with the slopes that CROWN has."""

    def within(self, domain: Subdomain, neuron: int, sign: int, size: Array) -> Subdomain | None:
        """``sign`` times a pre-activation of the last hidden layer as the objective on the same
        domain; None if there is no better bound of it."""

    def join(self, low: Array, high: Array, domains: Sequence[Subdomain]) -> int:
        """Better bounds of these domains, which have these bounds of the neurons, and of what they
        are split into, by joint hulls that no certificate can name. Returns how many multipliers
        more each of them has."""

    def splittable(self, domain: Subdomain) -> Any:
        """(neurons,) bool: of which a split gives two better relaxations."""

    def split(self, domain: Subdomain, neuron: int) -> NeuronSplit:
        """Where the neuron is split best."""

    def ascend(
        self,
        domains: Sequence[Subdomain],
        sizes: Sizes,
        steps: int,
        *,
        target: float = ...,
        stop: Stop,
    ) -> None:
        """Raise the bounds of the domains in place, as far as time allows; those above ``target``
        are left alone. Not rigorous: see `evaluate`."""

    def evaluate(self, domains: Sequence[Subdomain], sizes: Sizes, *, stop: Stop) -> Array:
        """The rigorous bounds that the domains' multipliers give; -inf where there was no time."""
