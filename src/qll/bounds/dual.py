"""The dual bound of a network over a box, for any graph: the reference, in torch.

For objectives ``g_m = c_m . z_L + d_m . x + e_m`` and any multipliers, a lower bound of
``min_x max_m g_m(x)`` over the box and the splits of a domain:

* ``weight`` >= 0, normalised to sum 1: ``max_m g_m >= sum_m weight_m g_m``.
* ``alpha`` in [0, 1]: where an activation has a coefficient A >= 0, A times a line below it on its
  pre-activation bounds [l, u], where A < 0 a line above it; the activation's record says which
  lines, alpha is the slope's parameter. For ReLU: ``A relu(z) >= A alpha z`` (alpha is 1 for a
  neuron that is on, 0 for one that is off) and the chord ``relu(z) <= u (z - l) / (u - l)``.
* ``beta`` >= 0 for a neuron split at ``point``, known to satisfy ``sign (z - point) >= 0``:
  subtract ``beta sign (z - point)``.
* ``delta``: copies of the inputs. What remains is ``sum_G f_G(x_G)`` over groups of first-layer
  neurons (see `qll.bounds.groups`) that read the inputs G. Each group is minimised over its own
  copy of the inputs; multipliers that sum to 0 over the copies of an input keep the sum a lower
  bound. With the total coefficient ``c_p`` of input p under the chords, group G takes the share
  ``c_p / copies_p + delta_{G,p}`` in place of its own ``c_{G,p}``, so that ``delta = 0`` with
  chords gives exactly the CROWN bound and any hull improves on it. Within a group of at most 4
  neurons the terms with A < 0 need no chord: ``sum_k A_k relu(z_k) = min_S sum_{k in S} A_k z_k``
  over subsets S, so the box minimum is the least of 2^4 closed forms (the *joint hull*).

``alpha`` ascended as a multiplier is alpha-CROWN (Xu et al. 2021, *Fast and complete*), ``beta``
for the splits beta-CROWN (Wang et al. 2021). Copies of inputs tied by ``delta`` are a Lagrangian
decomposition (Guignard and Kim 1987; for networks Bunel et al. 2020, *Lagrangian decomposition for
neural network verification*); a relaxation of several neurons at once is that of kPoly (Singh et
al. 2019, *Beyond the single neuron convex barrier*), here exact for a group over its own box.

Every choice of multipliers gives a valid bound; ascent by gradients only makes it better. Where
``Domains.sizes`` are given, what rounding may have added is taken off: see `qll.bounds.rounding`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from qll import limits
from qll.bounds.groups import Groups, group_neurons
from qll.bounds.rounding import Sizes
from qll.bounds.sparse import csr_tensor
from qll.late import late
from qll.networks.activations import RELU
from qll.networks.relu_form import ReluForm

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = late("torch")

# Above this many entries a sparse matrix stays sparse in torch.
DENSE_ENTRIES = 1 << 22
# More groups than these are not told apart: their hulls take seconds for each step of an ascent.
MOST_GROUPS = 2048
# Adam's decay rates; the second is short because ascents are.
ADAM = (0.9, 0.99)


@dataclass(frozen=True)
class Rates:
    """Step sizes of the ascent, in units of each multiplier's own scale, and their decay a step."""

    alpha: float = 0.1
    beta: float = 0.2
    weight: float = 0.1
    delta: float = 0.2
    decay: float = 0.98


# Smaller steps for multipliers that were ascended before: Adam's first steps are of full size.
WARM = Rates(alpha=0.05, beta=0.1, weight=0.05, delta=0.1)
# After a split they begin near the best ones: where the last step of an ascent is what is kept,
# larger ones end below where they began (of one query 12,331 nodes by `WARM`, 70 by these).
INHERITED = Rates(alpha=0.02, beta=0.04, weight=0.02, delta=0.04)


def rates_of(*, fresh: bool, split: bool = False) -> Rates:
    """For domains that were never ascended, or have splits."""
    return Rates() if fresh else INHERITED if split else WARM


@dataclass(frozen=True, eq=False)
class Domains:
    """A batch of B domains; ``low``, ``high`` and ``sign`` are per hidden layer (B, n_k).

    ``low`` and ``high`` already take the splits into account. ``sign`` is +1 for a neuron split to
    z >= point, -1 for z <= point and 0 for one that is not split.
    """

    lower: Tensor  # (B, inputs)
    upper: Tensor
    low: list[Tensor]
    high: list[Tensor]
    sign: list[Tensor]
    outputs: Tensor  # (B, M, outputs)
    constant: Tensor  # (B, M)
    inputs: Tensor | None = None  # (B, M, inputs)
    size: Tensor | None = None  # (B, M) of the objectives
    point: list[Tensor] | None = None  # of the splits; 0 if there are none


@dataclass(frozen=True, eq=False)
class Allowance:
    """`qll.bounds.rounding.Sizes` as tensors: what the rounding of a bound is measured in."""

    hidden: list[Tensor]  # per hidden layer (n_k,)
    inputs: Tensor  # (inputs,)
    unit: float


@dataclass(frozen=True, eq=False)
class Multipliers:
    alpha: list[Tensor]  # per hidden layer (B, n_k)
    beta: list[Tensor]
    weight: Tensor  # (B, M)
    delta: Tensor  # (B, copies)

    def tensors(self) -> list[Tensor]:
        return [*self.alpha, *self.beta, self.weight, self.delta]


@dataclass(frozen=True, eq=False)
class Bound:
    value: Tensor  # (B,)
    minimiser: Tensor  # (B, inputs): of the relaxed problem, in the box


class DualBound:
    """The bound for one network on one device; see the module's docstring."""

    def __init__(
        self,
        form: ReluForm,
        *,
        device: str | torch.device = "cpu",
        dtype: torch.dtype | None = None,
    ) -> None:
        """The matrices are made when they are first read: compiled kernels may never need them."""
        self.form = form
        self._given = device, dtype
        self.activations = [layer.activation for layer in form.layers[:-1]]

    @cached_property
    def device(self) -> torch.device:
        return torch.device(self._given[0])

    @cached_property
    def dtype(self) -> torch.dtype:
        return self._given[1] or torch.float64

    @cached_property
    def biases(self) -> list[Tensor]:
        return [self.tensor(layer.bias) for layer in self.form.layers]

    @cached_property
    def terms(self) -> list[list[tuple[int, Tensor]]]:
        return [
            [(source, self._matrix(weight)) for source, weight in layer.terms]
            for layer in self.form.layers
        ]

    def tensor(self, values: Any) -> Tensor:
        return torch.as_tensor(np.asarray(values), dtype=self.dtype, device=self.device)

    def _matrix(self, weight: Any) -> Tensor:
        limits.check()
        if isinstance(weight, np.ndarray):
            return self.tensor(weight)
        limits.need(32 * weight.nnz, "a matrix of the bounds")
        if weight.shape[0] * weight.shape[1] <= DENSE_ENTRIES:
            return self.tensor(weight.toarray())
        transposed = weight.T.tocsr()  # stored so that rows @ W is (W.T @ rows.T).T
        return csr_tensor(transposed, self.dtype).to(self.device)

    @staticmethod
    def pull(rows: Tensor, matrix: Tensor) -> Tensor:
        """``rows @ W`` over the last axis."""
        if matrix.layout == torch.strided:
            return rows @ matrix
        flat = rows.reshape(-1, rows.shape[-1])
        return (matrix @ flat.T).T.reshape(*rows.shape[:-1], matrix.shape[0])

    @cached_property
    def groups(self) -> Groups | None:
        """Groups of layer 1, if it is a hidden ReLU layer that reads the input alone and they are
        not too many."""
        first = self.form.layers[0]
        plain = first.activation == RELU and [s for s, _ in first.terms] == [0]
        if len(self.form.layers) < 2 or not plain:
            return None
        found = group_neurons(first.terms[0][1], self.form.input_size)
        return found if found.count <= MOST_GROUPS else None

    @property
    def copies(self) -> int:
        return 0 if self.groups is None else self.groups.copies

    def start(self, domains: Domains) -> Multipliers:
        """The slopes that each activation begins with."""
        alpha = [
            activation.start(low, high)
            for activation, low, high in zip(
                self.activations, domains.low, domains.high, strict=True
            )
        ]
        return Multipliers(
            alpha,
            [torch.zeros_like(low) for low in domains.low],
            torch.ones_like(domains.constant),
            torch.zeros(len(domains.constant), self.copies, dtype=self.dtype, device=self.device),
        )

    def project(self, m: Multipliers, domains: Domains) -> Multipliers:
        """The nearest multipliers that are allowed: what makes any numbers give a valid bound."""
        delta = m.delta
        if self.copies:
            home = torch.as_tensor(self.groups.copy_home, device=self.device)  # type: ignore[union-attr]
            others = home != torch.arange(home.numel(), device=self.device)
            free = torch.where(others, delta, torch.zeros_like(delta))
            delta = free - torch.zeros_like(free).index_add(1, home, free)
        return Multipliers(
            [a.clamp(0, 1) for a in m.alpha],
            [
                torch.where(sign != 0, b.clamp(min=0), torch.zeros_like(b))
                for b, sign in zip(m.beta, domains.sign, strict=True)
            ],
            m.weight.clamp(1e-4, 1),
            delta,
        )

    def allowance(self, sizes: Sizes) -> Allowance:
        hidden = [self.tensor(size) for size in sizes.hidden()]
        return Allowance(hidden, self.tensor(sizes.inputs), sizes.unit)

    def __call__(
        self,
        domains: Domains,
        m: Multipliers,
        *,
        hull: bool = True,
        allowance: Allowance | None = None,
    ) -> Bound:
        """The bound; with an ``allowance`` (and ``domains.size``) less what rounding may add."""
        found = self._bound(domains, m, hull)
        if allowance is None or domains.size is None:
            return found
        size = self._size(domains, m, hull, allowance, domains.size)
        return replace(found, value=found.value - allowance.unit * size)

    def _size(
        self,
        domains: Domains,
        m: Multipliers,
        hull: bool,
        allowance: Allowance,
        objectives: Tensor,
    ) -> Tensor:
        """(B,) what the rounding of `_bound` is measured in."""
        weight = m.weight / m.weight.sum(dim=1, keepdim=True)
        size = (weight * objectives).sum(dim=1)
        coefficients, _ = self.coefficients(domains, m)
        for k, coefficient in enumerate(coefficients):
            low, high = domains.low[k], domains.high[k]
            negative = coefficient.clamp(max=0)
            slope, _ = self.activations[k].lower_line(low, high, m.alpha[k])
            chord, _ = self.activations[k].upper_line(low, high, m.alpha[k])
            split = m.beta[k] * domains.sign[k]
            back = (coefficient - negative) * slope + negative * chord - split
            size = size + (back.abs() + split.abs()) @ allowance.hidden[k]
            loss = self.activations[k].line_error(low, high)
            size = size + (coefficient.abs() * loss).sum(dim=1)
            if k == 0 and hull and self.groups is not None:
                loose = torch.where((low < 0) & (high > 0), negative, torch.zeros_like(negative))
                size = size - 2 * (loose @ allowance.hidden[0])
        if self.groups is not None and hull:
            inputs = torch.as_tensor(self.groups.copy_input, device=self.device)
            size = size + 2 * (m.delta.abs() @ allowance.inputs[inputs])
        return size

    def _bound(self, domains: Domains, m: Multipliers, hull: bool) -> Bound:
        weight = m.weight / m.weight.sum(dim=1, keepdim=True)
        value = (weight * domains.constant).sum(dim=1)
        layers = len(self.biases)
        flowing: dict[int, Tensor] = {}
        pixel = torch.zeros_like(domains.lower)
        if domains.inputs is not None:
            pixel = torch.einsum("bm,bmp->bp", weight, domains.inputs)
        back = torch.einsum("bm,bmo->bo", weight, domains.outputs)
        use_hull = hull and self.groups is not None
        for k in range(layers, 0, -1):
            if k < layers:
                coefficient = flowing.pop(k, torch.zeros_like(domains.low[k - 1]))
                low, high, alpha = domains.low[k - 1], domains.high[k - 1], m.alpha[k - 1]
                negative = coefficient.clamp(max=0)
                positive = coefficient - negative
                slope, base = self.activations[k - 1].lower_line(low, high, alpha)
                chord, rise = self.activations[k - 1].upper_line(low, high, alpha)
                split = m.beta[k - 1] * domains.sign[k - 1]
                back = positive * slope + negative * chord - split
                if k == 1 and use_hull:
                    return self._groups(domains, m, value, pixel, back, negative, chord, rise)
                value = value + (negative * rise + positive * base).sum(dim=1)
                if domains.point is not None:
                    value = value + (split * domains.point[k - 1]).sum(dim=1)
            value = value + back @ self.biases[k - 1]
            for source, matrix in self.terms[k - 1]:
                part = self.pull(back, matrix)
                if source == 0:
                    pixel = pixel + part
                else:
                    flowing[source] = flowing[source] + part if source in flowing else part
        least, minimiser = self.least(pixel, domains.lower, domains.upper)
        return Bound(value + least, minimiser)

    def least(self, q: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """What ``q . x`` is at least (B,), and where (B, inputs); differentiable in q."""
        minimiser = torch.where(q < 0, upper, lower)
        return (q * minimiser).sum(dim=1), minimiser

    def _groups(
        self,
        domains: Domains,
        m: Multipliers,
        value: Tensor,
        pixel: Tensor,
        back: Tensor,
        negative: Tensor,
        chord: Tensor,
        rise: Tensor,
    ) -> Bound:
        groups = self.groups
        if groups is None:
            raise TypeError("this chain has no groups of neurons that share inputs")
        bias = self.biases[0]
        unstable = (chord > 0) & (chord < 1)
        own = torch.zeros(len(back), groups.copies, dtype=self.dtype, device=self.device)
        pieces = []
        for g, block in enumerate(groups.blocks):
            rows = groups.order[groups.neuron_starts[g] : groups.neuron_starts[g + 1]]
            limits.check()
            copies = slice(int(groups.copy_starts[g]), int(groups.copy_starts[g + 1]))
            weights = self.tensor(block)
            own[:, copies] = back[:, rows] @ weights
            pieces.append((rows, copies, weights))
        inputs = torch.as_tensor(groups.copy_input, device=self.device)
        pixel = pixel.index_add(1, inputs, own)
        share = self.tensor(groups.share)
        shared = (pixel * share)[:, inputs] + m.delta
        lower, upper = domains.lower[:, inputs], domains.upper[:, inputs]
        points = torch.zeros_like(shared)
        for g, (rows, copies, weights) in enumerate(pieces):
            limits.check()
            free = torch.where(
                unstable[:, rows], negative[:, rows], torch.zeros_like(negative[:, rows])
            )
            if not groups.hull[g]:
                free = torch.zeros_like(free)
            kept = back[:, rows] - free * chord[:, rows]
            value = value + kept @ bias[rows]
            value = value + ((negative[:, rows] - free) * rise[:, rows]).sum(dim=1)
            base = shared[:, copies] - (free * chord[:, rows]) @ weights
            count = len(rows) if groups.hull[g] else 0
            candidates, coefficients = [], []
            for chosen in itertools.product((0.0, 1.0), repeat=count):
                inside = free[:, :count] * self.tensor(chosen)
                q = base + inside @ weights[:count]
                best = torch.where(q < 0, upper[:, copies], lower[:, copies])
                candidates.append((q * best).sum(dim=1) + inside @ bias[rows][:count])
                coefficients.append(best)
            stacked = torch.stack(candidates)
            least = stacked.argmin(dim=0)
            value = value + stacked.gather(0, least[None])[0]
            points[:, copies] = torch.stack(coefficients)[least, torch.arange(len(least))]
        mean = torch.zeros_like(pixel).index_add(1, inputs, points.detach()) * share
        loose = share == 0
        edge = torch.where(pixel < 0, domains.upper, domains.lower)
        value = value + (pixel * edge)[:, loose].sum(dim=1)
        return Bound(value, torch.where(loose, edge, mean))

    def ascend(
        self,
        domains: Domains,
        m: Multipliers,
        steps: int,
        *,
        rates: Rates | None = None,
        hull: bool = True,
        target: float = float("inf"),
        stop: Callable[[], bool] | None = None,
    ) -> tuple[Bound, Multipliers]:
        """``steps`` of Adam on every multiplier, fewer if ``stop`` says so; domains above
        ``target`` stop moving."""
        rates = Rates() if rates is None else rates
        m = self.project(m, domains)
        moments = [(torch.zeros_like(t), torch.zeros_like(t)) for t in m.tensors()]
        hidden = len(m.alpha)
        scales: list[Tensor] | None = None
        for step in range(steps + 1):
            leaves = [t.detach().requires_grad_() for t in m.tensors()]
            here = _from_tensors(leaves, hidden)
            bound = self(domains, here, hull=hull)
            going = bound.value <= target
            if step == steps or not bool(going.any()) or (stop is not None and stop()):
                return Bound(bound.value.detach(), bound.minimiser.detach()), m
            if scales is None:
                scales = self.units(domains, here)
            raw = torch.autograd.grad(bound.value.sum(), leaves, allow_unused=True)
            gradients = self._tie(raw)
            speed = rates.decay**step * going.to(self.dtype)[:, None]
            unit = [rates.alpha] * hidden + [rates.beta] * hidden + [rates.weight, rates.delta]
            moved = []
            for i, (leaf, gradient) in enumerate(zip(leaves, gradients, strict=True)):
                g = torch.zeros_like(leaf) if gradient is None else gradient
                first, second = moments[i]
                first.mul_(ADAM[0]).add_(g, alpha=1 - ADAM[0])
                second.mul_(ADAM[1]).addcmul_(g, g, value=1 - ADAM[1])
                top = first / (1 - ADAM[0] ** (step + 1))
                bottom = (second / (1 - ADAM[1] ** (step + 1))).sqrt() + 1e-20
                scale = scales[1] if i == len(leaves) - 1 else scales[0] if i >= hidden else None
                rate = speed * unit[i] * (1 if scale is None or i == len(leaves) - 2 else scale)
                moved.append(leaf.detach() + rate * top / bottom)
            m = self.project(_from_tensors(moved, hidden), domains)
        raise AssertionError("unreachable")

    def _tie(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The home copy of an input holds minus the sum of the others."""
        result = list(gradients)
        delta = result[-1]
        if delta is not None and self.copies:
            home = torch.as_tensor(self.groups.copy_home, device=self.device)  # type: ignore[union-attr]
            result[-1] = delta - delta[:, home]
        return result

    def units(self, domains: Domains, m: Multipliers) -> list[Tensor]:
        """Mean size of the coefficients of activations and inputs, for beta and delta."""
        with torch.no_grad():
            coefficients, pixel = self.coefficients(domains, m)
            flat = torch.cat(coefficients, dim=1) if coefficients else pixel
            return [
                flat.abs().mean(dim=1, keepdim=True) + 1e-30,
                pixel.abs().mean(dim=1, keepdim=True) + 1e-30,
            ]

    def coefficients(self, domains: Domains, m: Multipliers) -> tuple[list[Tensor], Tensor]:
        """Coefficients of the hidden activations, and of the input under the chords."""
        weight = m.weight / m.weight.sum(dim=1, keepdim=True)
        layers = len(self.biases)
        flowing: dict[int, Tensor] = {}
        pixel = torch.zeros_like(domains.lower)
        if domains.inputs is not None:
            pixel = torch.einsum("bm,bmp->bp", weight, domains.inputs)
        back = torch.einsum("bm,bmo->bo", weight, domains.outputs)
        found = []
        for k in range(layers, 0, -1):
            if k < layers:
                coefficient = flowing.pop(k, torch.zeros_like(domains.low[k - 1]))
                found.append(coefficient)
                low, high, alpha = domains.low[k - 1], domains.high[k - 1], m.alpha[k - 1]
                negative = coefficient.clamp(max=0)
                slope, _ = self.activations[k - 1].lower_line(low, high, alpha)
                chord, _ = self.activations[k - 1].upper_line(low, high, alpha)
                split = m.beta[k - 1] * domains.sign[k - 1]
                back = (coefficient - negative) * slope + negative * chord - split
            for source, matrix in self.terms[k - 1]:
                part = self.pull(back, matrix)
                if source == 0:
                    pixel = pixel + part
                else:
                    flowing[source] = flowing[source] + part if source in flowing else part
        return found[::-1], pixel


def _from_tensors(tensors: list[Tensor], hidden: int) -> Multipliers:
    return Multipliers(
        tensors[:hidden], tensors[hidden : 2 * hidden], tensors[2 * hidden], tensors[-1]
    )


def take(domains: Domains, rows: Any) -> Domains:
    """The domains ``rows`` of a batch."""
    return replace(
        domains,
        lower=domains.lower[rows],
        upper=domains.upper[rows],
        low=[t[rows] for t in domains.low],
        high=[t[rows] for t in domains.high],
        sign=[t[rows] for t in domains.sign],
        outputs=domains.outputs[rows],
        constant=domains.constant[rows],
        inputs=None if domains.inputs is None else domains.inputs[rows],
        size=None if domains.size is None else domains.size[rows],
        point=None if domains.point is None else [t[rows] for t in domains.point],
    )
