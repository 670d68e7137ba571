"""The property as a loss for any PyTorch training loop.

property_loss = qll.PropertyLoss(qll.load("classification-robustness"), logic="qll:5")
for x, labels in loader:
    loss = property_loss(model, x, labels)      # prediction + lambda * property, attacked
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from qll.attacks.base import Attack
from qll.attacks.base import attack as read_attack
from qll.attacks.problem import Engine, Points, other_points, run_model
from qll.errors import InputError, RunError
from qll.kernels.forward import training_forward
from qll.kernels.spans import folded_once
from qll.logics.base import Logic
from qll.logics.base import logic as read_logic
from qll.property import Property
from qll.training.balance import Balance, Weight
from qll.training.prediction import prediction_loss

if TYPE_CHECKING:
    from qll.regions import Region


PredictionLoss = Callable[[Tensor, Tensor], Tensor]
"""``loss(outputs, labels)``, the batch's mean, such as ``torch.nn.CrossEntropyLoss()``."""


@dataclass(frozen=True, eq=False)
class PropertyTerm:
    """The property at points: ``losses`` (batch,) with their graph, ``margins`` without."""

    losses: Tensor
    margins: Tensor
    points: Points

    @property
    def satisfied(self) -> Tensor:
        return self.margins >= 0


def property_term(
    model: nn.Module,
    prop: Property,
    points: Points,
    *,
    x0: Tensor,
    labels: Tensor | None,
    logic: Logic | str,
) -> PropertyTerm:
    """Loss and margin of the property at points, in one pass of the network."""
    forward = training_forward(model, x0)
    y = run_model(forward, points["x"])
    y0 = run_model(forward, x0) if "y0" in prop.sources else None
    others = other_points(model, prop, points, x0=x0, y0=y0)
    losses = prop.loss(y, labels=labels, logic=logic, **others)
    with torch.no_grad():
        held = {name: t.detach() for name, t in others.items()}
        margins = prop.margin(y.detach(), labels=labels, **held)
    return PropertyTerm(losses, margins, points)


class PropertyLoss:
    """Prediction loss plus the balanced, attacked property, for your own loop.

    ``attack`` is a text (``apgd:20,restarts=2``) or a record; ``balance`` says how lambda is found
    (a number is a fixed lambda); ``task`` names the prediction loss, or is one. ``floor`` clips
    each sample's property loss from below (0.0: no reward beyond satisfaction). After each call
    ``last`` holds what was seen: lambda, both losses, the share of attacked points that satisfy.
    """

    def __init__(
        self,
        prop: Property,
        *,
        logic: Logic | str = "qll:5",
        attack: Attack | str = "apgd:20,restarts=2",
        balance: Balance | float | None = None,
        task: str | PredictionLoss = "single-label",
        floor: float | None = None,
        seed: int = 0,
        engine: Engine = "auto",
    ) -> None:
        if not isinstance(prop, Property):
            raise InputError(
                "this is not a property",
                expected="a property, as qll.load or qll.parse gives it",
                found=type(prop).__name__,
                fix="pass qll.load('classification-robustness')",
            )
        self.prop = prop
        self.logic = read_logic(logic)
        self.attack = read_attack(attack)
        self.balance = Balance() if balance is None else balance
        self.task = task
        self.floor = floor
        self.seed = seed
        self.engine: Engine = engine
        self.calls = 0
        self.last: Seen | None = None

    def __call__(self, model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
        """The number to minimise for this batch: call ``backward`` on it."""
        with folded_once():
            y = run_model(training_forward(model, x), x)
            if isinstance(self.task, str):
                prediction = prediction_loss(y, labels, self.task)
            else:
                prediction = self.task(y, labels)
            term = self.attacked(model, x, labels)
        property_loss = self.reduce(term.losses)
        total, weight = combine(model, prediction, property_loss, self.balance)
        self.last = Seen(
            float(prediction.detach()),
            float(property_loss.detach()),
            float(weight.value),
            float(term.satisfied.float().mean()),
        )
        return total

    def attacked(
        self, model: nn.Module, x: Tensor, labels: Tensor | None, *, region: Region | None = None
    ) -> PropertyTerm:
        """The property at the worst points that the attack finds around ``x``."""
        points = self.attack.find(
            model,
            self.prop,
            x,
            labels,
            logic=self.logic,
            region=region,
            seed=self.seed + self.calls,
            engine=self.engine,
        )
        self.calls += 1
        return property_term(model, self.prop, points, x0=x, labels=labels, logic=self.logic)

    def reduce(self, losses: Tensor) -> Tensor:
        return reduce_losses(losses, self.floor)

    def __repr__(self) -> str:
        return (
            f"PropertyLoss({self.prop.name!r}, logic={self.logic.spec()!r}, "
            f"attack={self.attack.spec()!r}, balance={self.balance!r})"
        )


@dataclass(frozen=True)
class Seen:
    """What one call of a ``PropertyLoss`` saw."""

    prediction: float
    property: float
    weight: float
    satisfied: float


def reduce_losses(losses: Tensor, floor: float | None, hardness: float | None = None) -> Tensor:
    """The batch's mean, each sample clipped from below; no batch, no loss.

    With a hardness, "for all data" is read as the soft quantifier ``log(mean(exp(h loss))) / h``:
    the mean as h goes to 0, the worst sample as it grows.
    """
    clipped = losses if floor is None else losses.clamp(min=floor)
    if not len(clipped):
        mean = clipped.sum()
    elif hardness is None:
        mean = clipped.mean()
    else:
        mean = (torch.logsumexp(hardness * clipped, 0) - math.log(len(clipped))) / hardness
    if not bool(torch.isfinite(mean.detach())):
        raise RunError(
            "the property's loss is not finite",
            expected="a finite number for every sample",
            found=f"{int((~torch.isfinite(losses)).sum())} of {len(losses)} samples that are not",
            fix="lower the learning rate, or look at the batch",
        )
    return mean


def combine(
    model: nn.Module, prediction: Tensor, property_loss: Tensor, balance: Balance | float
) -> tuple[Tensor, Weight]:
    """``prediction + lambda * property`` and the lambda."""
    if isinstance(balance, Balance):
        weight = balance.weigh(prediction, property_loss, balance.chosen(model))
    else:
        nothing = prediction.new_tensor(float("nan"))
        weight = Weight(prediction.new_tensor(float(balance)), nothing, nothing)
    return prediction + weight.value * property_loss, weight
