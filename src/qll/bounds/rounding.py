"""How far a bound that was computed in float64 may be off: a rigorous term for every proof.

Everything that decides is a sum of products of floats. One of n products, in any order, fused or
not, errs by at most ``gamma_n = n u / (1 - n u)`` times the sum of the sizes of its terms, with
``u = 2^-53`` (Higham, *Accuracy and Stability of Numerical Algorithms*, 2002, section 3.1). The
sizes are what counts: ``relu(x + 2^53) - 2^53`` sums numbers of 2^53, whatever is left of them.

**Sizes.** Let ``U_j`` bound ``|a_j|`` over the box (``U_0`` from its ends, ``U_j`` from bounds of
``z_j``). The *size* of ``z_k`` is what its unfolded sums amount to,

    S_k = |A_m| ( ... (|A_1| U + |c_1|) ... ) + |c_m|,

for the affine steps ``A_1, c_1, ..., A_m, c_m`` of the stored network between the activations and
``z_k``. It is at least ``|b_k| + sum_j |W_kj| U_j``, and the fold, a product of matrices in
floats, moves ``z_k`` by at most ``gamma_F S_k`` at any point of the box, where F counts the
operations on the longest path (ibid., section 3.5; a quotient adds two).

**A backward bound** substitutes ``z_k = b_k + W_k a`` in ``f = B_k . z_k + ...`` from the last
layer to the first, and relaxes: ``A relu(z) >= B z + r``. Rounding of ``B_k . b_k`` and of the
coefficients ``B_k W_k``, charged at the largest size of what they multiply, is at most
``gamma |B_k| . S_k`` each; the fold adds as much. For the relaxation itself:

* A >= 0: any B in [0, A] is valid, and fl(A alpha) is one for alpha in [0, 1].
* A < 0: with the chord ``c = fl(h / (h - l))`` and ``r = fl(A fl(-c l))`` the inequality holds up
  to ``8 u |A| h``, because ``c h <= h`` and ``c |l| <= h`` up to rounding; B = fl(A c) moves
  ``B z`` by ``u |A| h`` more.
* Another activation: its record's lines hold up to `Activation.line_error`, which covers fl(A s)
  and the intercept as well; a split at a point p adds ``beta s p``.
* a split: subtracting ``beta s z`` with beta >= 0; rounding is monotone, so that fl(B - beta s)
  differs from B by some other admissible multiplier.

What reaches the input, ``q . x``, is at most ``|q| . U_0 <= sum_k |B_k| . S_k`` in size. Groups
with copies of the inputs (see `qll.bounds.dual`): own coefficients, totals, shares, what is
subtracted for the chords and the sums over subsets each err by gamma times
``sum_i (|B_i| + 2 |A_i|) S_i + sum_c |delta_c| U_c``. Altogether fewer than 12 such terms; we take

    16 gamma (sum_k |B_k| . S_k + sum over chords |A| h + hulls 2 |A| . S_1 + |delta| . U
              + sum_m w_m S(g_m)),

where ``S(g_m) = |coefficients| . S_L + |constant| (+ |d| . U_0)`` is the size of an objective. The
weights w_m of objectives are taken as they are: whether they sum to 1 does not change the sign.

Sizes are sums of non-negative terms; they are inflated against their own rounding. A product that
underflows loses at most 2^-1022 (denormals flushed), times numbers below ``MOST``, fewer than 2^60
of them: ``TINY``, and ``LEAST`` in each step of the fold. Sizes beyond ``MOST``, infinities and NaN
prove nothing. The analysis is the checker's (`qll.audit.bounds`), which shares no code with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from qll import limits
from qll.networks.matrices import Array, Matrix, absolute, entries, longest_row
from qll.networks.program import Activate, AffineMap, Program, Step
from qll.networks.relu_form import ReluForm

UNIT = 2.0**-53
FACTOR = 16.0
TINY = 2.0**-700
LEAST = 2.0**-500
MOST = 2.0**200
# Operations besides the sums themselves: conversions, quotients, the last additions.
FEW = 8
# Absolute values of matrices are kept up to this many entries together.
KEPT_ENTRIES = 1 << 23


class HasForm(Protocol):
    @property
    def relu_form(self) -> ReluForm: ...


class Rounding:
    """Of one network, folded to ``form``: its unfolded steps, and how long its sums are."""

    def __init__(self, network: HasForm, form: ReluForm | None = None) -> None:
        self.network = network
        self.form = network.relu_form if form is None else form
        program: Program | None = getattr(network, "program", None)
        # A network that is given by its form alone is what the form says: nothing was folded.
        self.steps = _steps_of(self.form) if program is None else program.steps
        bent = [i for i, s in enumerate(self.steps) if isinstance(s, Activate)]
        # Value i + 1 is that of step i.
        self.places = [0, *(i + 1 for i in bent)]
        self.sources = [*(_source(self.steps[i]) for i in bent), len(self.steps)]

    @cached_property
    def longest(self) -> int:
        """Operations on the way to any number that a bound is made of, leaves not counted."""
        form = self.form
        reads = [0] * len(form.widths)
        into = [0] * len(form.widths)
        for k, layer in enumerate(form.layers, start=1):
            for source, _ in layer.terms:
                reads[source] += layer.width
                into[k] += form.widths[source]
        depth = [0]
        for step in self.steps:
            if isinstance(step, Activate):
                depth.append(0)
                continue
            own = sum(longest_row(matrix) + 4 for _, matrix in step.terms)
            depth.append(own + max((depth[source] for source, _ in step.terms), default=0))
        most = max(max(form.widths), max(reads), max(into))
        return most + max(depth) + len(form.layers) + FEW

    @cached_property
    def _absolute(self) -> dict[tuple[int, int], Matrix]:
        return {}

    def _size_of(self, index: int, sizes: Sequence[Array]) -> Array:
        limits.check()
        step = self.steps[index]
        if isinstance(step, Activate):
            raise TypeError("the reach of an activation is a bound, not a sum")
        total = np.abs(step.bias)
        for number, (source, matrix) in enumerate(step.terms):
            total = total + self._magnitude(index, number, matrix) @ sizes[source]
        if step.divisor is not None:
            total = total / np.abs(step.divisor)
        return np.asarray(total * (1.0 + FACTOR * self.longest * UNIT) + LEAST)

    def _magnitude(self, index: int, number: int, matrix: Matrix) -> Matrix:
        key = (index, number)
        if key not in self._absolute:
            held = sum(entries(kept).size for kept in self._absolute.values())
            if held + entries(matrix).size > KEPT_ENTRIES:
                return absolute(matrix)
            self._absolute[key] = absolute(matrix)
        return self._absolute[key]


class Sizes:
    """Of the numbers that are summed over one box, layer by layer as bounds become known."""

    def __init__(self, rounding: Rounding, lower: Array, upper: Array, leaves: int = 1) -> None:
        self.rounding = rounding
        self.form = rounding.form
        self.lower, self.upper = lower, upper
        self.reach: list[Array | None] = [None] * len(self.form.widths)
        self._values: list[Array] = [np.maximum(np.abs(lower), np.abs(upper))]
        count = rounding.longest + leaves
        # 1.1 covers 1 / (1 - n u) and the rounding of the sizes.
        self.unit = 1.1 * FACTOR * count * UNIT if count < 1 << 40 else np.inf

    @property
    def inputs(self) -> Array:
        """``U_0``."""
        return self._values[0]

    def layer(self, k: int) -> Array:
        """``S_k`` for k from 1; needs bounds of the layers before."""
        source = self.rounding.sources[k - 1]
        while len(self._values) <= source:
            index = len(self._values) - 1
            step = self.rounding.steps[index]
            if isinstance(step, Activate):
                reach = self.reach[self.rounding.places.index(index + 1)]
                if reach is None:
                    raise ValueError(f"layer {k} is asked for before the layers below are bounded")
                self._values.append(reach)
            else:
                self._values.append(self.rounding._size_of(index, self._values))
        size = self._values[source]
        return size if float(size.max(initial=0.0)) < MOST else np.full_like(size, np.inf)

    def bound(self, k: int, low: Array, high: Array) -> None:
        """``low <= z_k <= high`` over the box: what later layers read is no larger."""
        with np.errstate(invalid="ignore", over="ignore"):
            least, most = self.form.layers[k - 1].activation.enclose(low, high)
        reach = np.maximum(np.abs(least), np.abs(most))
        self.reach[k] = np.where(np.isnan(reach), np.inf, reach)
        del self._values[self.rounding.places[k] :]

    def hidden(self) -> list[Array]:
        """``S_k`` of all hidden layers."""
        return [self.layer(k) for k in range(1, len(self.form.layers))]

    def objectives(self, outputs: Array, constant: Array, inputs: Array | None = None) -> Array:
        """``S(g_m)`` of rows ``outputs . z_L + inputs . x + constant``."""
        with np.errstate(invalid="ignore"):
            size = np.abs(outputs) @ self.layer(len(self.form.layers)) + np.abs(constant)
        if inputs is not None:
            size = size + np.abs(inputs) @ self.inputs
        return np.nan_to_num(np.asarray(size), nan=np.inf) + LEAST

    def interval(self) -> list[tuple[Array, Array]]:
        """Bounds of every ``z_k``, the output last, by interval arithmetic, rounding included."""
        sides = [((self.lower + self.upper) / 2, (self.upper - self.lower) / 2)]
        found = []
        with np.errstate(invalid="ignore", over="ignore"):
            for k, layer in enumerate(self.form.layers, start=1):
                centre, spread = layer.bias, self.unit * self.layer(k)
                for source, weight in layer.terms:
                    centre = centre + weight @ sides[source][0]
                    spread = spread + abs(weight) @ sides[source][1]
                low = np.nan_to_num(centre - spread, nan=-np.inf, neginf=-np.inf, posinf=-np.inf)
                high = np.nan_to_num(centre + spread, nan=np.inf, neginf=np.inf, posinf=np.inf)
                found.append((low, high))
                if k < len(self.form.layers):
                    self.bound(k, low, high)
                    least, most = layer.activation.enclose(low, high)
                    sides.append(((least + most) / 2, (most - least) / 2))
        return found


def proved(bounds: Array) -> Array:
    """Bounds less what underflow may have cost; what is not a number is no bound."""
    return np.where(np.isfinite(bounds), bounds - TINY, -np.inf)


def _steps_of(form: ReluForm) -> tuple[Step, ...]:
    steps: list[Step] = []
    for k, layer in enumerate(form.layers):
        if k:
            steps.append(Activate(2 * k - 1, form.layers[k - 1].activation))
        # z_k is value 2 k - 1, a_k value 2 k
        steps.append(AffineMap(tuple((2 * source, w) for source, w in layer.terms), layer.bias))
    return tuple(steps)


def _source(step: Any) -> int:
    return int(step.source)
