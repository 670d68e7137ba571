"""Bounds of the difference of two runs of one network over batches of boxes.

Second run less first, ``dz_k = sum_j W_kj da_j``: biases cancel, and what both runs share. Between
two points a ReLU has a slope in [0, 1], ``da = s dz``, which is 1 where both runs are active and 0
where neither is; otherwise ``da`` lies between 0 and dz, and the lines below and above that are
chords (Paulsen, Wang, Wang: ReluDiff, 2020; and their NeuroDiff). A row of differences is taken
back to the input with these lines, as in CROWN.

Another activation has, between two points, a slope between the least and the largest derivative on
what both runs reach. Sums of branches are exact; a maximum (of a pool, say) is ``a + relu(b - a)``,
and its difference that of the ReLU. Exact are differences where each activation is linear on what
both runs reach: a ReLU or a LeakyReLU on one side of 0, a clipped value within its ends.

All of it is homogeneous in the step: bounds for a *direction* of the step hold for its multiples,
so that a difference that is >= 0 for all directions is so for steps of any length.

Rounding is counted as in `qll.bounds.rounding`: a product of rows with a folded matrix errs by the
unit there times ``|row| |W| U``, where ``|W|`` is the product of absolute values before the fold.
Slopes of ReLUs are 0 and 1, which multiply exactly; those of others round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from qll.bounds.rounding import FACTOR, UNIT, Rounding
from qll.late import late
from qll.networks.activations import RELU, Activation
from qll.networks.fold import fold
from qll.networks.matrices import Array, absolute
from qll.networks.network import Network
from qll.networks.program import Activate, Program

if TYPE_CHECKING:
    import torch
else:
    torch = late("torch")

# What may underflow counts so much, and what differs at all is taken to be no smaller.
TINY, LEAST = 2.0**-500, 2.0**-400
MOST_ENTRIES = 1 << 22
ROOM = 1e-6  # for the rounding of errors themselves
ERROR = 2.0**-38  # of a derivative, far more than torch's functions lose: as much as the checker's


@dataclass(frozen=True, eq=False)
class Runs:
    """Ends (N, width) of the hidden neurons of each run, layer by layer."""

    low: list[Array]
    high: list[Array]
    low2: list[Array]
    high2: list[Array]


class Differences:
    def __init__(self, network: Network) -> None:
        self.form = network.relu_form
        # Sources, weights and what they are before the fold, of every layer; with their zeros.
        self.layers = [_dense(layer.terms) for layer in self.form.layers]
        self.sizes = [_dense(layer.terms) for layer in fold(_absolute(network.program)).layers]
        count = Rounding(network).longest + 8
        self.unit = 1.1 * FACTOR * count * UNIT

    def lower(
        self, runs: Runs, first: Array, last: Array, rows: Array, direct: Array
    ) -> tuple[Array, Array]:
        """(N, m) below ``rows . dy + direct . dx`` for dx in [first, last] (N, inputs); and
        (N, inputs) to which inputs what the slopes leave open is due."""
        reach = [_size(first, last)]
        known: list[Any] = [(first, last, None, None)]
        for k in range(len(self.form.layers) - 1):
            ends = runs.low[k], runs.high[k], runs.low2[k], runs.high2[k]
            least, most = _slopes(self.form.layers[k].activation, *ends)
            eye = np.eye(self.form.layers[k].width)
            zero = np.zeros((2 * len(eye), first.shape[1]))
            found = self._back(k + 1, np.concatenate([eye, -eye]), zero, known, reach)
            below, above = found[:, : len(eye)], -found[:, len(eye) :]
            known.append((below, above, least, most))
            reach.append(np.where((least == 0) & (most == 0), 0.0, _size(below, above)))
        found = self._back(len(self.form.layers), rows, direct, known, reach)
        blame = np.zeros_like(first)
        for k, influence in enumerate(self.influence, start=1):
            open_ = known[k][2] != known[k][3]
            weight = np.abs(rows).max(axis=0) @ self.onward[k - 1]
            blame = blame + (open_ * reach[k] * weight) @ influence
        return found, blame

    @cached_property
    def influence(self) -> list[Array]:
        """(width, inputs) how much an input can move each hidden neuron, at most."""
        found: list[Array] = [np.eye(self.form.input_size)]
        for layer in self.sizes[:-1]:
            found.append(sum(np.asarray(m @ found[source]) for source, m in layer))  # type: ignore[arg-type]
        return found[1:]

    @cached_property
    def onward(self) -> list[Array]:
        """(outputs, width) how much each hidden neuron can move the outputs, at most."""
        count = len(self.sizes)
        found: list[Any] = [0.0] * (count + 1)
        found[count] = np.eye(self.form.output_size)
        for k in range(count, 0, -1):
            for source, matrix in self.sizes[k - 1]:
                found[source] = found[source] + np.asarray(found[k] @ matrix)
        return found[1:count]

    def _back(
        self, layer: int, rows: Array, direct: Array, known: Sequence[Any], reach: Sequence[Array]
    ) -> Array:
        count = len(reach[0])
        c = np.broadcast_to(rows, (count, *rows.shape))
        value = np.zeros((count, len(rows)))
        slack = np.zeros((count, len(rows)))
        whole = np.broadcast_to(direct, (count, *direct.shape))
        flowing: dict[int, Any] = {0: (whole, self.unit * np.abs(whole))}  # and their errors
        for k in range(layer, 0, -1):
            carried = np.zeros_like(c)
            if k < layer:
                if k not in flowing:
                    continue
                a, error = flowing.pop(k)
                low, high, least, most = (t[:, None] for t in known[k])
                c, rest = _relaxed(a, low, high, least, most)
                # Of one sign with the difference beyond doubt: their product is not negative.
                zero = ((low >= 0) & (a > error)) | ((high <= 0) & (a < -error))
                # Passed on as it is, whatever it is exactly: so is its error.
                same = ((low >= 0) & (a < -error)) | ((high <= 0) & (a > error)) | (least == most)
                zero = zero & (c == 0) & (least >= 0) & (least != most)
                same = same & (c == a)
                charged, carried = np.where(zero | same, 0.0, error), np.where(same, error, 0.0)
                steep = np.maximum(np.abs(least), np.abs(most))
                if self.form.layers[k - 1].activation != RELU:  # products with slopes are rounded
                    charged = charged * np.maximum(steep, 1.0) + self.unit * np.abs(a) * steep
                value = value + rest.sum(axis=2)
                slack = slack + self.unit * np.abs(rest).sum(axis=2)
                slack = slack + (charged * reach[k][:, None]).sum(axis=2)
            weights = dict(self.layers[k - 1])  # a block may have folded to nothing
            for source, magnitude in self.sizes[k - 1]:
                weight = weights.get(source, np.zeros_like(magnitude))
                before = flowing.get(source, (0.0, 0.0))
                touched = (c != 0).astype(np.float64) @ (weight != 0)
                error = self.unit * (np.abs(c) @ magnitude) + TINY * touched
                error = error + carried @ magnitude * (1 + ROOM)
                flowing[source] = before[0] + c @ weight, before[1] + error
        (q, error), (first, last, _, _) = flowing[0], known[0]
        value = value + np.where(q > 0, q * first[:, None], q * last[:, None]).sum(axis=2)
        slack = slack + ((error + self.unit * np.abs(q)) * reach[0][:, None]).sum(axis=2)
        found = value - slack * (1 + ROOM)
        return np.where(np.isfinite(found), found, -np.inf)


def fits(network: Network) -> bool:
    """Whether the matrices are small enough to be held with their zeros, and all slopes known."""
    form = network.relu_form
    known = all(layer.activation.piecewise_linear or layer.activation.rising
                for layer in form.layers[:-1])  # fmt: skip
    return known and sum(a * b for a, b in pairwise(form.widths)) <= MOST_ENTRIES


def _slopes(
    activation: Activation, low: Array, high: Array, low2: Array, high2: Array
) -> tuple[Array, Array]:
    """Ends of the slopes between a value of the first run and one of the second."""
    if activation == RELU:
        both, none = (low >= 0) & (low2 >= 0), (high <= 0) & (high2 <= 0)
        return both.astype(np.float64), (~none).astype(np.float64)
    first, last = np.minimum(low, low2), np.maximum(high, high2)
    ends = (torch.from_numpy(np.ascontiguousarray(end)) for end in (first, last))
    least, most = (side.numpy() for side in activation.slopes(*ends))
    if activation.piecewise_linear:
        return least, most
    error = ERROR * (1.0 + np.maximum(np.abs(first), np.abs(last)) + np.abs(most))
    return np.maximum(least - error, 0.0), most + error  # they rise


def _dense(terms: Any) -> list[tuple[int, Array]]:
    return [(s, m if isinstance(m, np.ndarray) else np.asarray(m.toarray())) for s, m in terms]


def _size(low: Array, high: Array) -> Array:
    size = np.maximum(np.abs(low), np.abs(high))
    return np.where(size == 0, 0.0, np.maximum(size, LEAST))


def _relaxed(c: Array, low: Array, high: Array, least: Array, most: Array) -> tuple[Array, Array]:
    """``c da >= B dz + rest``: any B has such a rest, found at the corners."""
    low, high = np.minimum(low, high), np.maximum(low, high)
    mixed = (low < 0) & (high > 0)
    wide = np.where(mixed, high - low, 1.0)
    # Slopes of the lines below and above all ``s dz``, between the ends.
    below = np.where(mixed, (least * high - most * low) / wide, np.where(low >= 0, least, most))
    above = np.where(mixed, (most * high - least * low) / wide, np.where(low >= 0, most, least))
    fixed = least == most
    b = c * np.where(fixed, most, np.where(c > 0, below, above))
    corners = [(c * s - b) * end for s in (least, most) for end in (low, high)]
    return b, np.where(fixed, 0.0, np.minimum.reduce(corners))


def _absolute(program: Program) -> Program:
    steps = [
        step
        if isinstance(step, Activate)
        else replace(
            step,
            terms=tuple((source, absolute(matrix)) for source, matrix in step.terms),
            bias=np.abs(step.bias),
            divisor=None if step.divisor is None else np.abs(step.divisor),
        )
        for step in program.steps
    ]
    return Program(program.input_shape, program.widths, tuple(steps))
