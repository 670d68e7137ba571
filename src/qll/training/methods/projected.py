"""A property made true by construction: the last layer is projected after every step.

The last linear layer reads activations ``a >= 0`` (they come out of a ReLU). A clause "some
f_k <= 0" of the property, with f_k affine in the outputs, holds for *every* input as soon as the
mean of its f_k, an affine function ``v . a + c`` of the activations, has ``v <= 0`` and ``c < 0``.
For not-both that is ``W_i + W_j <= 0`` and ``b_i + b_j < 0``. Two such clauses with opposite means
(exactly-one) leave equality: ``W_j = -W_i`` and ``b_j = -b_i``, and one of the two outputs is at
least 0 and the other at most 0 wherever one looks. Each step ends in the projection, so the trained
network obeys the property everywhere, not only near the data; reports say so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from qll.errors import InputError, NetworkError, RunError
from qll.formula.hard import Affine, HardForm, Max, Min
from qll.properties import load
from qll.property import Property
from qll.training.methods.attack import AttackMethod
from qll.training.methods.base import METHODS, Setup

# Half-spaces that share outputs are projected onto in turn; this many rounds settle what properties
# have, and `finish` checks that they did.
_ROUNDS = 200
# ``c < 0`` strictly, by enough that a verifier in float64 proves it at once; and a hair beyond
# ``v <= 0``, so that rounding ends on the right side.
_GAP = 0.05
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
    the data point (``surrogate = "label-robustness"``), since the property holds already. ``rule``
    names another property to project onto, one that implies the judged one and that the data obey:
    a die shows one of two opposite faces, which is more than not both."""

    options: ClassVar[Mapping[str, bool | int | float | str]] = {"rule": ""}
    remark: ClassVar[str | None] = "the property holds by construction: the last layer is projected"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        outputs = _last_linear(setup.model)
        judged = setup.config.judged_property(setup.data.fits)
        self.last, rule = outputs, str(self.chosen["rule"])
        asked = rows, offsets = self._half_spaces(judged, outputs)
        if rule:
            held = load(rule, outputs=outputs.out_features)
            rows, offsets = self._half_spaces(held, outputs)
        self.ties = _ties(rows, offsets)
        free = [k for k in range(len(rows)) if not any(k in (a, b) for a, b, _, _ in self.ties)]
        self.rows, self.offsets = rows[free], offsets[free]
        self.after_step()
        if not self.holds():
            # two outputs whose sum is to be below -1 and above 1, say
            raise InputError(
                f"property '{judged.name}' cannot be had by construction",
                expected="conditions on the last layer that can all hold at once",
                found="some that exclude each other",
                fix="use --method attack, bound or small-box",
            )
        if rule and not self._implies(*asked):
            raise InputError(
                f"the rule '{rule}' does not imply the property '{judged.name}'",
                expected="a property that is stricter than the judged one",
                found="one under which the last layer may violate it",
                fix="leave --set options.rule out, or name another property",
            )

    def _implies(self, rows: Tensor, offsets: Tensor) -> bool:
        """Whether these conditions hold at every activation as the layer is now."""
        weight, bias = self.last.weight.double(), self.last.bias.double()
        held = rows.double() @ weight, rows.double() @ bias + offsets.double()
        return all(bool((part <= 0).all()) for part in held)

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
                terms, constant = leaf.floats
                offsets[k] += constant / len(clause)
                for (_, i), coefficient in terms:
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
        weight, bias = self.last.weight, self.last.bias
        for _ in range(_ROUNDS):
            for _, _, i, j in self.ties:
                for part in (weight, bias):
                    part[i] = (part[i] - part[j]) / 2
                    part[j] = -part[i]
            if self.holds():
                return
            for row, offset in zip(self.rows, self.offsets, strict=True):
                scale = float(row @ row)
                v = row @ weight  # (hidden,)
                excess = torch.where(v > 0, v + _HAIR, torch.zeros_like(v))
                weight.sub_(torch.outer(row, excess) / scale)
                bias.sub_(row * (torch.relu(row @ bias + offset + _GAP) / scale))

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
        tied = all(
            bool((weight[i] == -weight[j]).all()) and bool(bias[i] == -bias[j])
            for _, _, i, j in self.ties
        )
        return tied and bool((rows @ weight <= 0).all() and (rows @ bias + offsets < 0).all())


def _ties(rows: Tensor, offsets: Tensor) -> list[tuple[int, int, int, int]]:
    """Pairs of conditions that hold together only with equality, each with the two outputs that
    must then be each other's negative (exactly-one: never both above 0, never both below)."""
    found: list[tuple[int, int, int, int]] = []
    for a in range(len(rows)):
        for b in range(a):
            outputs = torch.nonzero(rows[a]).flatten().tolist()
            if len(outputs) != 2 or bool(offsets[a] != 0) or bool(offsets[b] != 0):
                continue
            i, j = outputs
            if bool((rows[a] == -rows[b]).all()) and bool(rows[a, i] == rows[a, j]):
                found.append((b, a, i, j))
    return found


def _last_linear(model: nn.Module) -> nn.Linear:
    """The last layer, which must be linear and read a ReLU's output."""
    every = [m for _, m in model.named_modules(remove_duplicate=False)]
    leaves = [m for m in every if not list(m.children())]
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
