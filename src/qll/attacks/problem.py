"""What a search is given: a network held still, a formula, a logic, a region and a seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor, nn

from qll.errors import InputError
from qll.formula.nodes import Ball, Box
from qll.formula.question import Parts
from qll.formula.rewrite import Grounder, Shape
from qll.logics.base import Logic
from qll.property import Property
from qll.regions import Region
from qll.regions.sides import least_radius, radius_of

Engine = Literal["auto", "compiled", "autograd"]
ENGINES: tuple[Engine, ...] = ("auto", "compiled", "autograd")
Points = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class AttackBatch:
    """One batch to attack. ``y0`` are the outputs at ``x0`` where the formula speaks of them."""

    model: nn.Module
    prop: Property
    logic: Logic
    region: Region
    labels: Tensor | None
    y0: Tensor | None
    seed: int
    engine: Engine
    own_region: bool = True

    @cached_property
    def box(self) -> SearchBox:
        return search_box(self.prop, self.region, own=self.own_region)

    @property
    def samples(self) -> int:
        return len(self.region.x0)

    def loss(self, points: Mapping[str, Tensor], *, repeats: int = 1) -> Tensor:
        """The loss of each point, ``(repeats * samples,)``; restarts lie one after the other."""
        return property_loss(
            self.model,
            self.prop,
            points,
            logic=self.logic,
            x0=_repeat(self.region.x0, repeats),
            labels=_repeat(self.labels, repeats),
            y0=_repeat(self.y0, repeats),
        )


def _repeat(t: Tensor | None, repeats: int) -> Tensor | None:
    return t if t is None or repeats == 1 else t.repeat(repeats, *(1,) * (t.dim() - 1))


def property_loss(
    model: nn.Module,
    prop: Property,
    points: Mapping[str, Tensor],
    *,
    logic: Logic | str,
    x0: Tensor | None,
    labels: Tensor | None,
    y0: Tensor | None,
) -> Tensor:
    """The formula's loss at points, ``(batch,)``, differentiable in the points and the weights."""
    return prop.loss(
        run_model(model, points["x"]),
        labels=labels,
        logic=logic,
        **other_points(model, prop, points, x0=x0, y0=y0),
    )


def other_points(
    model: nn.Module,
    prop: Property,
    points: Mapping[str, Tensor],
    *,
    x0: Tensor | None,
    y0: Tensor | None,
) -> dict[str, Tensor]:
    """What else the formula speaks of, beside ``y``: inputs, and outputs at other points."""
    given: dict[str, Tensor | None] = {"x0": x0, "y0": y0, **points}
    if "y2" in prop.sources:
        given["y2"] = run_model(model, points["x2"])
    return {name: t for name, t in given.items() if name in prop.sources and t is not None}


def run_model(model: Callable[[Tensor], object], x: Tensor) -> Tensor:
    """Outputs (batch, outputs); a network that gives something else is named here."""
    y = model(x)
    if not isinstance(y, Tensor) or y.dim() != 2 or len(y) != len(x):
        found = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
        raise InputError(
            "the network's outputs have the wrong shape",
            expected=f"one row of outputs for each of {len(x)} inputs",
            found=str(found),
            fix="end the network with nn.Flatten, or wrap it so that it returns (batch, outputs)",
        )
    return y


@contextmanager
def held_still(model: nn.Module) -> Iterator[None]:
    """Evaluation mode and no gradients for the weights; every module's own mode comes back."""
    modes = [(module, module.training) for module in model.modules()]
    weights = [p for p in model.parameters() if p.requires_grad]
    try:
        for module, _ in modes:
            module.training = False
        for weight in weights:
            weight.requires_grad_(False)
        yield
    finally:
        for weight in weights:
            weight.requires_grad_(True)
        for module, training in modes:
            module.training = training


@dataclass(frozen=True, eq=False)
class SearchBox:
    """The box in which a search starts and which sets its step, before the valid range of the data
    cuts it: an epsilon ball has steps of 2 epsilon also for a pixel that is 0."""

    lower: Tensor
    upper: Tensor
    valid: tuple[float, float]
    step: float | None = None  # the width, where it is the same for all inputs

    @property
    def ends(self) -> tuple[Tensor, Tensor]:
        return self.lower, self.upper

    @property
    def width(self) -> Tensor:
        if self.step is not None:
            return torch.full_like(self.lower, self.step)
        return self.upper - self.lower


def search_box(prop: Property, region: Region, *, own: bool) -> SearchBox:
    """The box of ``x``; ``own``: the region is the property's own around ``x0``, not a part of it.
    The valid range is kept apart where it is a pair of numbers around a ball."""
    whole = SearchBox(region.lower, region.upper, (-math.inf, math.inf))
    if not own or region.folded or region.is_image:
        return whole
    shape = tuple(region.x0.shape[1:])
    grounder = Grounder(prop.specification, prop.values, Shape(1, shape))
    parts = Parts(grounder, math.prod(shape))
    radius: float | Tensor = math.inf
    low, high = -math.inf, math.inf
    for part in prop.binders[0].parts:
        match part:
            case Ball("x0"):
                radius = least_radius(radius, radius_of(parts, part, region.x0))
            case Box((least,), (most,), "range"):
                low, high = max(low, grounder.number(least)), min(high, grounder.number(most))
            case Box():
                return whole
    if not isinstance(radius, Tensor) and math.isinf(radius):
        return whole
    step = None if isinstance(radius, Tensor) else 2.0 * radius
    return SearchBox(region.x0 - radius, region.x0 + radius, (low, high), step)
