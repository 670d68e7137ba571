"""A query to a large network as one to a smaller network: what can move on its box.

Inputs whose ends coincide, neurons that read nothing else, and ReLUs that are off on the whole box
are constants there. Of a convolutional network of which two pixels move, one neuron in a hundred is
left.

The smaller network R is not the stored one, N: its biases are sums in float64 of enclosures. Let
``e_k`` bound ``|z_k(N) - z_k(R)|`` of the neurons that are left, at any point of the box. With the
sizes ``S_k`` and the unit of `qll.bounds.rounding`, and constants known up to a radius,

    e_k = |W_kept| e + |W_constant| radius + 2 unit S_k,

since ReLU enlarges no difference, what folding may have cost is at most ``unit S_k``, and so is
what the new bias has lost. A leaf of the condition is raised by ``|coefficients| e`` of the
outputs: where R does not violate the raised one, N does not violate the query.

Which ReLUs are off interval arithmetic says at once. CROWN says more, and two of three neurons of a
convolutional network are off then; its bounds, wider by ``e_k``, are also those of R.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qll import limits
from qll.bounds.rounding import Rounding, Sizes
from qll.bounds.sparse_graph import SparseGraphBounder
from qll.formula.hard import Affine, HardForm, affine, sources
from qll.networks.matrices import compact, entries
from qll.networks.relu_form import FormLayer, ReluForm
from qll.verify.condition import Array
from qll.verify.proof import Outcome, Search
from qll.verify.query import Query

Known: TypeAlias = tuple[list[Array], list[Array]]  # lower and upper ends, by layer

# Below this many weights a network is small enough as it is.
LEAST_ENTRIES = 100_000
# What is left must be this much less: another network is another prover.
SHARE = 0.5
# Against the rounding of the errors themselves: sums of fewer than 2^30 terms that are not negative
ROOM = 1.0 + 2.0**-20


@dataclass(frozen=True, eq=False)
class Restricted:
    """``query`` is about the inputs ``free`` of the other one; the rest stay at ``base``."""

    query: Query
    free: NDArray[np.int64]
    base: Array
    known: Known | None = None  # bounds of the hidden layers, no worse than CROWN's

    def expand(self, points: Array) -> Array:
        """(..., inputs) of the network from those that move."""
        whole = np.broadcast_to(self.base, (*points.shape[:-1], self.base.size)).copy()
        whole[..., self.free] = points
        return whole

    def seeking(self, search: Search) -> Search:
        """A search for violations, asked with points of the smaller network."""

        def seek(points: Array, leaves: Any, programmes: bool) -> Array | None:
            found = search(self.expand(points), leaves, programmes)
            return None if found is None else found[self.free]

        return seek

    def told(self, outcome: Outcome) -> Outcome:
        if outcome.candidate is None:
            return outcome
        return replace(outcome, candidate=self.expand(outcome.candidate))

    def closer(self, stop: Callable[[], bool]) -> Restricted:
        """Restricted once more, by CROWN."""
        found = restrict_by_crown(self.query, stop)
        if found is None:
            return self
        return replace(found, free=self.free[found.free], base=self.base)


def is_plain(query: Query) -> bool:
    """Of boxes and outputs of a large ReLU network, and nothing else."""
    form = query.form
    plain = form.is_relu and "x" not in sources(query.folded) and not query.constraints
    plain = plain and query.search.inputs is None
    plain = plain and not query.rounds and query.integers is None and not query.in_float32
    plain = plain and query.choices == ((),) and len(form.layers) > 1
    return plain and _entries(form.layers) >= LEAST_ENTRIES


def _entries(layers: Sequence[FormLayer]) -> int:
    return sum(entries(w).size for layer in layers for _, w in layer.terms)


def restrict(query: Query, rounding: Rounding | None = None) -> Restricted | None:
    """None where little would be gained, or where more is asked than boxes and outputs;
    ``rounding`` is that of the network, which several queries may share."""
    if not is_plain(query):
        return None
    rounding = Rounding(query.network, query.form) if rounding is None else rounding
    sizes = Sizes(rounding, query.lower, query.upper, leaves=query.search.leaves)
    smaller = _Smaller(query.form, sizes, sizes.interval()[:-1], query.lower, query.upper)
    return _restricted(query, smaller)


def restrict_by_crown(
    query: Query,
    stop: Callable[[], bool],
    bounder: SparseGraphBounder | None = None,
    rounding: Rounding | None = None,
) -> Restricted | None:
    """The same by CROWN's bounds, which are ``known`` then: of the query itself where little else
    is gained. ``bounder`` and ``rounding`` are those of the network."""
    form = query.form
    if not is_plain(query) or not SparseGraphBounder.fits(form):
        return None
    bounder = SparseGraphBounder(form) if bounder is None else bounder
    rounding = Rounding(query.network, form) if rounding is None else rounding
    sizes = Sizes(rounding, query.lower, query.upper, leaves=query.search.leaves)
    low, high = bounder.interval(sizes, stop)
    parts = [bounder.layout.part(k) for k in range(bounder.layout.layers)]
    bounds = [(low[part], high[part]) for part in parts]
    smaller = _Smaller(form, sizes, bounds, query.lower, query.upper)
    found = _restricted(query, smaller)
    if found is not None:
        return replace(found, known=smaller.known)
    every: NDArray[np.int64] = np.arange(query.lower.size)
    return Restricted(query, every, query.lower, ([b[0] for b in bounds], [b[1] for b in bounds]))


def _restricted(query: Query, smaller: _Smaller) -> Restricted | None:
    left, many = _entries(smaller.layers), _entries(query.form.layers)
    if not np.isfinite(smaller.error).all() or left > SHARE * many:
        return None
    network: Any = SimpleNamespace(relu_form=ReluForm((len(smaller.free),), smaller.layers))
    small = Query(
        network,
        query.lower[smaller.free],
        query.upper[smaller.free],
        # Premises on inputs are in the box already: there they have other numbers.
        raised(query.folded, smaller.error),
        tie_violates=query.tie_violates,
        name=query.name,
    )
    if small.search.tree != query.search.tree:  # the leaves have other numbers
        return None
    return Restricted(small, smaller.free, query.lower)


class _Smaller:
    """By bounds of the hidden layers of the network."""

    def __init__(
        self,
        form: ReluForm,
        sizes: Sizes,
        bounds: Sequence[tuple[Array, Array]],
        lower: Array,
        upper: Array,
    ) -> None:
        moves = upper > lower
        if not moves.any():
            moves[0] = True  # a network has inputs
        self.free = np.flatnonzero(moves)
        kept = [self.free]
        # Of what is not kept: the middle and the radius, 0 for what is.
        middle, radius = np.where(moves, 0.0, lower), np.zeros(lower.size)
        middles, radii, errors = [middle], [radius], [np.zeros(self.free.size)]
        layers = []
        self.known: Known = ([], [])
        unit = sizes.unit
        for k, layer in enumerate(form.layers):
            limits.check()
            last = k == len(form.layers) - 1
            moves = np.zeros(layer.width, dtype=bool)
            for source, weight in layer.terms:
                reads = np.zeros(weight.shape[1])
                reads[kept[source]] = 1.0
                moves |= np.asarray(abs(weight) @ reads) > 0
            mine = np.ones(layer.width, dtype=bool) if last else moves & (bounds[k][1] > 0)
            if not mine.any():
                mine[int(bounds[k][1].argmax())] = True  # a layer has neurons
            rows = np.flatnonzero(mine)
            bias, terms = layer.bias[rows], []
            error = 2.0 * unit * sizes.layer(k + 1)[rows]
            for source, weight in layer.terms:
                some = weight[rows]
                bias = bias + some @ middles[source]
                part = compact(some[:, kept[source]])
                error = error + abs(some) @ radii[source] + abs(part) @ errors[source]
                terms.append((source, part))
            errors.append(np.asarray(error) * ROOM)
            kept.append(rows)
            layers.append(FormLayer(np.asarray(bias), tuple(terms), layer.activation))
            if last:
                break
            low, high = bounds[k]
            least, most = layer.activation.enclose(low, high)
            middles.append(np.where(mine, 0.0, (least + most) / 2))
            # what is off is 0 exactly: both ends are
            radii.append(np.where(mine, 0.0, (most - least) / 2 * ROOM))
            self.known[0].append(np.nextafter(low[rows] - errors[-1], -np.inf))
            self.known[1].append(np.nextafter(high[rows] + errors[-1], np.inf))
        self.layers = tuple(layers)
        self.error: Array = errors[-1]


def raised(form: HardForm, error: Array) -> HardForm:
    """The form where every output may be off by its ``error``: no less than it is then."""
    if not isinstance(form, Affine):
        return type(form)(tuple(raised(part, error) for part in form.parts))
    if not isinstance(form.constant, Fraction):
        return form
    lost = sum(
        (
            abs(Fraction(c)) * Fraction(float(error[k]))
            for (source, k), c in form.terms
            if source == "y"
        ),
        Fraction(0),
    )
    if not lost:
        return form
    # up to a float, so that constants stay short
    return affine(form.terms, form.constant + Fraction(math.nextafter(float(lost), math.inf)))
