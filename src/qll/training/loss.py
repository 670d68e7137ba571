"""The property as a loss for any PyTorch training loop.

property_loss = qll.PropertyLoss(qll.load("classification-robustness"), logic="qll:5")
for x, labels in loader:
    loss = property_loss(model, x, labels)      # prediction + lambda * property, attacked

Two things keep that loop from losing its accuracy, whatever the optimiser; bench/safe_defaults.py
shows what happens without them.

*No reward beyond satisfaction* (``floor``). QLL's loss falls for ever as the margin grows, and
lambda keeps its gradient at half of the prediction's. Without a floor the logits grow, a wrong
prediction costs as much as they have grown, and a network of 90 % ends at chance.

*Prediction first* (``learned``). For a network that knows nothing yet, outputs that are all 0 are
often the least violation there is, and the property's gradient does not fade there: it holds the
network where it began. So the property enters as prediction gets better than a guess.

The paper's own runs (``qll train``, ``qll reproduce``) have neither, as published.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from qll.attacks.base import Attack, check_engine
from qll.attacks.base import attack as read_attack
from qll.attacks.problem import Engine, Points, other_points, run_model
from qll.errors import InputError, RunError
from qll.kernels.forward import training_forward
from qll.kernels.spans import folded_once
from qll.logics.base import Logic
from qll.logics.base import logic as read_logic
from qll.points import check_inputs
from qll.prediction import check_given, check_task, guess_loss, prediction_loss
from qll.property import Property, check_property
from qll.regions.clauses import turns
from qll.training.balance import Balance, Weight
from qll.training.reach import warn_of_reach
from qll.training.still import StillSteps

if TYPE_CHECKING:
    from qll.regions import Region


PredictionLoss = Callable[[Tensor, Tensor], Tensor]
"""``loss(outputs, labels)``, the batch's mean, such as ``torch.nn.CrossEntropyLoss()``."""

Floor = float | Literal["satisfied"] | None
"""Where a sample's property loss stops to fall: see ``PropertyLoss``."""


@dataclass(frozen=True, eq=False)
class PropertyTerm:
    """The property at points: ``losses`` (batch,) with their graph, ``margins`` without."""

    losses: Tensor
    margins: Tensor
    points: Points

    @property
    def satisfied(self) -> Tensor:
        return self.margins >= 0

    @property
    def share(self) -> float:
        """Of the points, those that satisfy; all, where there are none."""
        return float(self.satisfied.double().mean()) if len(self.margins) else 1.0


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


def together(terms: Sequence[PropertyTerm], like: Tensor) -> PropertyTerm:
    """Terms of several rules as one; none, where nothing is said of the batch."""
    if not terms:
        return PropertyTerm(like.new_zeros(0), like.new_zeros(0), {})
    points = {name: torch.cat([t.points[name] for t in terms]) for name in terms[0].points}
    losses, margins = (
        torch.cat(parts) for parts in zip(*((t.losses, t.margins) for t in terms), strict=True)
    )
    return PropertyTerm(losses, margins, points)


def joined(first: PropertyTerm, more: PropertyTerm | None) -> PropertyTerm:
    """Losses of both; the figures and points stay those of the first."""
    if more is None:
        return first
    return PropertyTerm(torch.cat((first.losses, more.losses)), first.margins, first.points)


class PropertyLoss:
    """Prediction loss plus the balanced, attacked property, for your own loop.

    ``attack`` is a text (``apgd:20,restarts=2``) or a record; ``balance`` says how lambda is found
    (a number is a fixed lambda); ``task`` names the prediction loss, or is one. After each call
    ``last`` holds what was seen: lambda, both losses, the share of attacked points that satisfy.

    ``floor`` says how far a sample's property loss may fall:

    - ``"satisfied"``: a sample whose attacked point satisfies the property, and whose loss is not
      above 0, counts 0. Nothing is gained beyond satisfaction, and nothing violated is let go (a
      soft "or" can be below 0 while both of its sides are violated).
    - a number: each loss is clipped from below there. -1.0 asks for a margin of about 1.
    - ``None``: margin is rewarded without limit, as in the paper. Only for optimisers and learning
      rates that bear it (the paper: AdamW, 1e-3); others lose the network's accuracy.

    ``learned`` is the share by which the prediction's loss must be below that of a constant guess
    for the property to have its full weight; in between, the weight grows with it. 0.0: full weight
    from the first step. It is not used where ``task`` is a loss of yours.

    A rule without scales (``prop.with_scales``) takes them from the first batch, where its labels
    are numbers to predict: comparisons are softened in units of their deviation. A rule whose soft
    value cannot move all the same is warned of.
    """

    def __init__(
        self,
        prop: Property,
        *,
        logic: Logic | str = "qll:5",
        attack: Attack | str = "apgd:20,restarts=2",
        balance: Balance | float | None = None,
        task: str | PredictionLoss = "single-label",
        floor: Floor = "satisfied",
        learned: float = 0.1,
        seed: int = 0,
        engine: Engine = "auto",
    ) -> None:
        check_property(prop)
        self.prop = prop
        self.logic = read_logic(logic)
        self.attack = read_attack(attack)
        self.balance = Balance() if balance is None else _checked_balance(balance)
        self.task = task if callable(task) else check_task(task)
        self.floor = _checked_floor(floor)
        self.learned = _checked_share(learned)
        self.seed = seed
        self.engine: Engine = check_engine(engine)
        self.calls = 0
        self.last: Seen | None = None
        self._still = StillSteps()

    def __call__(self, model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
        """The number to minimise for this batch: call ``backward`` on it."""
        check_inputs(x)
        check_given(labels)
        if not self.calls:
            warn_of_reach(self.prop, x)
        with folded_once():
            y = run_model(training_forward(model, x), x)
            self.take_scales(x, y, labels)
            prediction, share = self.predicted(y, labels)
            term = self.attacked(model, x, labels)
        self.watch(term, y)
        property_loss = self.reduce(term)
        weight = weigh(model, prediction, property_loss, self.balance).value * share
        self.last = Seen(
            float(prediction.detach()),
            float(property_loss.detach()),
            float(weight),
            term.share,
        )
        return prediction + weight * property_loss

    def take_scales(self, x: Tensor, y: Tensor, labels: Tensor) -> None:
        """Units for a rule that has none, from the first batch whose labels are numbers to predict:
        what is predicted spreads as they do. Classes and logits are on a scale of their own."""
        wanted = self.task == "regression" or not isinstance(self.task, str)
        numbers = labels.is_floating_point() and labels.numel() == y.numel()
        if self.prop.scales or not (wanted and numbers and len(y) > 1):
            return
        self.prop = self.prop.with_scales(y=_spread(labels.reshape(y.shape)), x=_spread(x))

    def watch(self, term: PropertyTerm, y: Tensor) -> None:
        """Warns, once, of a rule whose soft value cannot move."""
        if not len(term.losses):
            return

        def slack() -> float:
            several = self.task == "multi-label" and self.prop.uses_labels
            shaped = replace(self.prop, inputs=tuple(term.points["x"].shape[1:]))
            return sum(shaped.slack(self.logic, outputs=y.shape[1], multi_label=several))

        loss = float(term.losses.detach().mean())
        if (said := self._still.see(loss, term.share, slack)) is not None:
            warnings.warn(said, stacklevel=3)

    def predicted(self, y: Tensor, labels: Tensor) -> tuple[Tensor, float]:
        """The loss of prediction, and how much of its weight the property has by now."""
        if not isinstance(self.task, str):
            return _one_number(self.task(y, labels)), 1.0
        loss = prediction_loss(y, labels, self.task)
        guess = guess_loss(y, labels, self.task)
        if self.learned <= 0 or guess <= 0:
            return loss, 1.0
        better = 1.0 - float(loss.detach()) / guess
        return loss, min(max(better / self.learned, 0.0), 1.0)

    def attacked(
        self, model: nn.Module, x: Tensor, labels: Tensor | None, *, region: Region | None = None
    ) -> PropertyTerm:
        """The property at the worst points that the attack finds around ``x``."""
        seed = self.seed + self.calls
        self.calls += 1
        if region is not None:
            return self._term(model, self.prop, x, labels, region, seed)
        found = [
            self._term(model, rule, x[rows], None if labels is None else labels[rows], None, seed)
            for rule, rows in turns(self.prop, x, seed)
            if len(rows) or rule is self.prop
        ]
        return together(found, x)

    def _term(
        self,
        model: nn.Module,
        prop: Property,
        x: Tensor,
        labels: Tensor | None,
        region: Region | None,
        seed: int,
    ) -> PropertyTerm:
        points = self.attack.find(
            model,
            prop,
            x,
            labels,
            logic=self.logic,
            region=region,
            seed=seed,
            engine=self.engine,
        )
        return property_term(model, prop, points, x0=x, labels=labels, logic=self.logic)

    def reduce(self, term: PropertyTerm) -> Tensor:
        """The batch's mean, each sample as far as ``floor`` says."""
        if self.floor != "satisfied":
            return reduce_losses(term.losses, self.floor)
        open_ones = (term.losses.detach() > 0) | ~term.satisfied
        return reduce_losses(
            torch.where(open_ones, term.losses, torch.zeros_like(term.losses)), None
        )

    def __repr__(self) -> str:
        return (
            f"PropertyLoss({self.prop.name!r}, logic={self.logic.spec()!r}, "
            f"attack={self.attack.spec()!r}, balance={self.balance!r}, floor={self.floor!r}, "
            f"learned={self.learned!r})"
        )


def _spread(values: Tensor) -> list[float]:
    """The deviation of each entry; 1 of one that does not move."""
    found = values.detach().flatten(1).double().std(0)
    return [float(s) if math.isfinite(s) and s > 0 else 1.0 for s in found]


def _one_number(loss: object) -> Tensor:
    """What a loss of one's own gives for a batch."""
    if isinstance(loss, Tensor) and loss.numel() == 1 and loss.is_floating_point():
        return loss.reshape(())
    shape = f" of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else ""
    kind = str(loss.dtype) if isinstance(loss, Tensor) else type(loss).__name__
    raise InputError(
        "the prediction loss is not one number",
        where="task",
        expected="a tensor with the batch's mean, as torch.nn.CrossEntropyLoss() gives it",
        found=f"{kind}{shape}",
        fix="build the loss with reduction='mean', or pass task=lambda y, t: loss(y, t).mean()",
    )


def _checked_balance(balance: Balance | float) -> Balance | float:
    if isinstance(balance, Balance):
        return balance
    number = isinstance(balance, int | float) and not isinstance(balance, bool)
    if not number or not (math.isfinite(balance) and balance >= 0):
        raise InputError(
            "the balance of the losses is neither a rule nor a weight",
            expected="qll.training.Balance(...), or a finite number >= 0 as a fixed lambda",
            found=repr(balance),
            fix="pass balance=Balance(alpha=0.5), or balance=0.5",
        )
    return balance


def _checked_share(learned: float) -> float:
    number = isinstance(learned, int | float) and not isinstance(learned, bool)
    if not number or not 0 <= learned < 1:
        raise InputError(
            "'learned' is no share of the prediction's loss",
            expected="a number from 0 to below 1",
            found=repr(learned),
            fix="leave it out, or pass learned=0.0 for the property's full weight at once",
        )
    return float(learned)


def _checked_floor(floor: Floor) -> Floor:
    if floor is None or floor == "satisfied":
        return floor
    number = isinstance(floor, int | float) and not isinstance(floor, bool)
    if not number or not math.isfinite(floor):
        raise InputError(
            "the floor of the property's loss is out of range",
            expected="'satisfied', a finite number, or None for no floor",
            found=repr(floor),
            fix="leave it out: floor='satisfied'",
        )
    return float(floor)


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
    weight = weigh(model, prediction, property_loss, balance)
    return prediction + weight.value * property_loss, weight


def weigh(
    model: nn.Module, prediction: Tensor, property_loss: Tensor, balance: Balance | float
) -> Weight:
    """Lambda, by the balance or as it is given."""
    if isinstance(balance, Balance):
        return balance.weigh(prediction, property_loss, balance.chosen(model))
    nothing = prediction.new_tensor(float("nan"))
    return Weight(prediction.new_tensor(float(balance)), nothing, nothing)
