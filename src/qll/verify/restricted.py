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
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qll.bounds.rounding import Rounding, Sizes
from qll.formula.hard import Affine, HardForm, affine
from qll.networks.matrices import compact, entries
from qll.networks.relu_form import FormLayer, ReluForm
from qll.verify.condition import Array
from qll.verify.proof import Outcome, Search
from qll.verify.query import Query

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


def restrict(query: Query, rounding: Rounding | None = None) -> Restricted | None:
    """None where little would be gained, or where more is asked than boxes and outputs;
    ``rounding`` is that of the network, which several queries may share."""
    form = query.form
    many = sum(entries(w).size for layer in form.layers for _, w in layer.terms)
    plain = form.is_relu and query.search.inputs is None and not query.constraints
    plain = plain and not query.rounds
    if many < LEAST_ENTRIES or not plain or query.integers is not None or query.in_float32:
        return None
    if query.choices != ((),) or len(form.layers) < 2:
        return None
    rounding = Rounding(query.network, form) if rounding is None else rounding
    sizes = Sizes(rounding, query.lower, query.upper, leaves=query.search.leaves)
    smaller = _Smaller(form, sizes, query.lower, query.upper)
    left = sum(entries(w).size for layer in smaller.layers for _, w in layer.terms)
    if not np.isfinite(smaller.error).all() or left > SHARE * many:
        return None
    network: Any = SimpleNamespace(relu_form=ReluForm((len(smaller.free),), smaller.layers))
    small = Query(
        network,
        query.lower[smaller.free],
        query.upper[smaller.free],
        raised(query.condition, smaller.error),
        tie_violates=query.tie_violates,
        name=query.name,
    )
    if small.search.tree != query.search.tree:  # the leaves have other numbers
        return None
    return Restricted(small, smaller.free, query.lower)


class _Smaller:
    def __init__(self, form: ReluForm, sizes: Sizes, lower: Array, upper: Array) -> None:
        moves = upper > lower
        if not moves.any():
            moves[0] = True  # a network has inputs
        self.free = np.flatnonzero(moves)
        kept = [self.free]
        # Of what is not kept: the middle and the radius, 0 for what is.
        middle, radius = np.where(moves, 0.0, lower), np.zeros(lower.size)
        middles, radii, errors = [middle], [radius], [np.zeros(self.free.size)]
        layers = []
        unit = sizes.unit
        for k, (layer, (low, high)) in enumerate(zip(form.layers, sizes.interval(), strict=True)):
            last = k == len(form.layers) - 1
            moves = np.zeros(layer.width, dtype=bool)
            for source, weight in layer.terms:
                reads = np.zeros(weight.shape[1])
                reads[kept[source]] = 1.0
                moves |= np.asarray(abs(weight) @ reads) > 0
            mine = np.ones(layer.width, dtype=bool) if last else moves & (high > 0)
            if not mine.any():
                mine[int(high.argmax())] = True  # a layer has neurons
            rows = np.flatnonzero(mine)
            bias, terms = layer.bias[rows], []
            error = 2.0 * unit * sizes.layer(k + 1)[rows]
            for source, weight in layer.terms:
                some = weight[rows]
                bias = bias + some @ middles[source]
                part = compact(some[:, kept[source]])
                error = error + abs(some) @ radii[source] + abs(part) @ errors[source]
                terms.append((source, part))
            least, most = layer.activation.enclose(low, high)
            middles.append(np.where(mine, 0.0, (least + most) / 2))
            # what is off is 0 exactly: both ends are
            radii.append(np.where(mine, 0.0, (most - least) / 2 * ROOM))
            errors.append(np.asarray(error) * ROOM)
            kept.append(rows)
            layers.append(FormLayer(np.asarray(bias), tuple(terms), layer.activation))
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
