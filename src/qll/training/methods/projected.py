"""A property made true by construction: the last layer is projected after every step.

The last linear layer reads activations ``a >= 0`` (they come out of a ReLU). A clause "some
f_k <= 0" of the property, with f_k affine in the outputs, holds for *every* input as soon as the
mean of its f_k, an affine function ``v . a + c`` of the activations, has ``v <= 0`` and ``c < 0``.
For not-both that is ``W_i + W_j <= 0`` and ``b_i + b_j < 0``. Each step ends in the projection onto
these half-spaces, so the trained network obeys the property everywhere, not only near the data;
reports say so.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from qll.errors import InputError, NetworkError, RunError
from qll.formula.hard import Affine, HardForm, Max, Min
from qll.property import Property
from qll.training.methods.attack import AttackMethod
from qll.training.methods.base import METHODS, Setup

# Half-spaces that share outputs are projected onto in turn; this many rounds settle what properties
# have, and `finish` checks that they did.
_ROUNDS = 200
# ``c < 0`` strictly, by enough that a verifier in float64 proves it at once; and a hair beyond
# ``v <= 0``, so that rounding ends on the right side.
GAP = 0.05
_HAIR = 1e-6


def clauses(form: HardForm) -> list[tuple[Affine, ...]] | None:
    """The form as a conjunction of disjunctions of affine functions; None if it nests deeper."""
    parts = _flat(form, Max)
    found: list[tuple[Affine, ...]] = []
    for part in parts:
        leaves = _flat(part, Min)
        if not leaves or not all(isinstance(leaf, Affine) for leaf in leaves):
            return None
        found.append(tuple(leaf for leaf in leaves if isinstance(leaf, Affine)))
    return found


def _flat(form: HardForm, kind: type[Max] | type[Min]) -> list[HardForm]:
    if not isinstance(form, kind):
        return [form]
    return [leaf for part in form.parts for leaf in _flat(part, kind)]


@METHODS.register("projected")
class ProjectedMethod(AttackMethod):
    """Which loss drives the rest is the run's choice: by default that of the labels themselves near
    the data point (``surrogate = "label-robustness"``), since the property holds already."""

    remark: ClassVar[str | None] = "the property holds by construction: the last layer is projected"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        outputs = _last_linear(setup.model)
        judged = setup.config.judged_property(outputs.out_features)
        self.last = outputs
        self.rows, self.offsets = self._chosen(*self._half_spaces(judged, outputs))
        self.after_step()
        if not self.holds():
            # exactly-one, say: two outputs whose sum is to be below 0 and above 0
            raise InputError(
                f"property '{judged.name}' cannot be had by construction",
                expected="conditions on the last layer that can all hold at once",
                found="some that exclude each other",
                fix="use --method partly-projected, attack, bound or small-box",
            )

    def _chosen(self, rows: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        """The conditions that are to hold by construction."""
        return rows, offsets

    def _half_spaces(self, judged: Property, last: nn.Linear) -> tuple[Tensor, Tensor]:
        found = None
        if judged.sources == {"y"} and not judged.uses_labels:
            found = clauses(judged.hard_form(outputs=last.out_features))
        if not found:
            raise InputError(
                f"property '{judged.name}' cannot be had by construction",
                expected="a conjunction of 'some output condition holds', without labels or inputs",
                found="another formula",
                fix="use --method attack, bound or small-box",
            )
        rows = torch.zeros(len(found), last.out_features, dtype=last.weight.dtype)
        offsets = torch.zeros(len(found), dtype=last.weight.dtype)
        for k, clause in enumerate(found):
            for leaf in clause:
                offsets[k] += leaf.constant / len(clause)
                for (_, i), coefficient in leaf.terms:
                    rows[k, i] += coefficient / len(clause)
        if bool((rows.abs().sum(1) == 0).any()):
            raise InputError(
                f"property '{judged.name}' cannot be had by construction",
                expected="clauses whose mean speaks of the outputs",
                found="conditions that cancel each other",
                fix="use --method attack, bound or small-box",
            )
        return rows.to(last.weight.device), offsets.to(last.weight.device)

    @torch.no_grad()
    def after_step(self) -> None:
        if self.last.bias is None:
            raise NetworkError(
                "the last layer has no bias to project",
                expected="a linear layer with a bias",
                found="one without",
                fix="build it with bias=True",
            )
        for _ in range(_ROUNDS):
            if self.holds():
                return
            for row, offset in zip(self.rows, self.offsets, strict=True):
                self._project(row, offset)

    def _project(self, row: Tensor, offset: Tensor, gap: float = GAP, hair: float = _HAIR) -> None:
        """The layer onto ``row @ weight <= 0`` and ``row @ bias + offset <= -gap``."""
        weight, bias = self.last.weight, self.last.bias
        scale = float(row @ row)
        v = row @ weight  # (hidden,)
        excess = torch.where(v > 0, v + hair, torch.zeros_like(v))
        weight.sub_(torch.outer(row, excess) / scale)
        bias.sub_(row * (torch.relu(row @ bias + offset + gap) / scale))

    def finish(self) -> None:
        if not self.holds():
            raise RunError(
                "the projection did not settle",
                expected="conditions that can all hold by construction",
                found=f"some that still fail after {_ROUNDS} rounds",
                fix="use --method attack, bound or small-box",
            )

    def holds(self) -> bool:
        """Whether the layer satisfies every half-space, in float64: sums of two or three float32
        numbers are exact there."""
        weight, bias = self.last.weight.double(), self.last.bias.double()
        rows, offsets = self.rows.double(), self.offsets.double()
        return bool((rows @ weight <= 0).all() and (rows @ bias + offsets < 0).all())


def _last_linear(model: nn.Module) -> nn.Linear:
    """The last layer, which must be linear and read a ReLU's output."""
    leaves = [m for m in model.modules() if not list(m.children())]
    if (
        len(leaves) < 2
        or not isinstance(leaves[-1], nn.Linear)
        or not isinstance(leaves[-2], nn.ReLU)
    ):
        raise NetworkError(
            "this network cannot be projected",
            expected="a ReLU followed by a last linear layer",
            found=", ".join(type(m).__name__ for m in leaves[-2:]) or "no layers",
            fix="end the network in nn.ReLU(), nn.Linear(...)",
        )
    return leaves[-1]
