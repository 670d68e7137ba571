"""The published recipe, plainly in eager torch: what the benchmarks of training compare with.

Losses are written out over the outputs, restarts run one after the other, and everything is
differentiated by autograd, as the published code does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from qll.logics import Logic

Loss = Callable[[Tensor, Tensor], Tensor]
LEARNING_RATE, WEIGHT_DECAY, ALPHA, MOST_LAMBDA = 1e-3, 1e-4, 0.5, 10.0
OPPOSITE = ((0, 5), (1, 4), (2, 3))


# --- the losses, written out ---------------------------------------------------------------------


def robustness(logic: Logic) -> Loss:
    def loss(y: Tensor, labels: Tensor) -> Tensor:
        own = y.gather(1, labels[:, None])[:, 0]
        parts = [logic.leq(y[:, i], own) for i in range(10)]
        return logic.loss(logic.conj(torch.stack(parts)))

    return loss


def strong_robustness(logic: Logic) -> Loss:
    threshold = torch.tensor(0.7).logit()

    def loss(y: Tensor, labels: Tensor) -> Tensor:
        own = y.gather(1, labels[:, None])[:, 0]
        return logic.loss(logic.leq(threshold.expand_as(own), own))

    return loss


def clothing_footwear(logic: Logic) -> Loss:
    clothing, footwear = (0, 2, 3, 4, 6), (5, 7, 9)

    def loss(y: Tensor, labels: Tensor) -> Tensor:
        own = y.gather(1, labels[:, None])[:, 0]
        parts = []
        for rivals, members in ((footwear, clothing), (clothing, footwear)):
            applies = torch.isin(labels, torch.tensor(members))
            for i in rivals:
                parts.append(logic.leq(torch.where(applies, y[:, i], own), own))
        return logic.loss(logic.conj(torch.stack(parts)))

    return loss


def not_both(logic: Logic) -> Loss:
    def loss(y: Tensor, labels: Tensor) -> Tensor:
        zero = torch.zeros_like(y[:, 0])
        pairs = [
            logic.disj(torch.stack([logic.leq(y[:, i], zero), logic.leq(y[:, j], zero)]))
            for i, j in OPPOSITE
        ]
        return logic.loss(logic.conj(torch.stack(pairs)))

    return loss


def exactly_one(logic: Logic) -> Loss:
    def loss(y: Tensor, labels: Tensor) -> Tensor:
        margin = torch.full_like(y[:, 0], 0.1)
        parts = []
        for i, j in OPPOSITE:
            off = [logic.leq(y[:, k], -margin) for k in (i, j)]
            on = [logic.leq(margin, y[:, k]) for k in (i, j)]
            parts += [logic.disj(torch.stack(off)), logic.disj(torch.stack(on))]
        return logic.loss(logic.conj(torch.stack(parts)))

    return loss


LOSSES: dict[str, Callable[[Logic], Loss]] = {
    "classification-robustness": robustness,
    "strong-classification-robustness": strong_robustness,
    "clothing-footwear": clothing_footwear,
    "not-both": not_both,
    "exactly-one": exactly_one,
}


# --- the published recipe, plainly ---------------------------------------------------------------


@dataclass
class PlainRecipe:
    """Attack with restarts in turn, balance by the gradient norms of the last layer, AdamW."""

    model: nn.Module
    loss: Loss
    epsilon: float
    steps: int
    restarts: int
    multi_label: bool
    floor: float | None

    def __post_init__(self) -> None:
        self.optimiser = torch.optim.AdamW(
            self.model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY
        )

    def step(self, x: Tensor, labels: Tensor) -> None:
        adversarial = self.attack(x, labels)
        prediction = self.prediction(self.model(x), labels)
        values = self.loss(self.model(adversarial), labels)
        violation = (values if self.floor is None else values.clamp(min=self.floor)).mean()
        last = list(self.model[-1].parameters())
        norms = []
        for part in (prediction, violation):
            grads = torch.autograd.grad(part, last, retain_graph=True)
            norms.append(torch.cat([g.reshape(-1) for g in grads]).norm())
        weight = (ALPHA * norms[0] / (norms[1] + 1e-8)).clamp(max=MOST_LAMBDA)
        self.optimiser.zero_grad()
        (prediction + weight.detach() * violation).backward()
        self.optimiser.step()

    def prediction(self, y: Tensor, labels: Tensor) -> Tensor:
        if self.multi_label:
            return functional.binary_cross_entropy_with_logits(y, labels.float())
        return functional.cross_entropy(y, labels)

    def attack(self, x: Tensor, labels: Tensor) -> Tensor:
        best, best_value = x.clone(), torch.full((len(x),), -torch.inf)
        for _ in range(self.restarts + 1):
            found, value = self.attack_once(x, labels)
            better = value > best_value
            best[better], best_value[better] = found[better], value[better]
        return best

    def value_and_gradient(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_()
        values = self.loss(self.model(x), labels)
        (gradient,) = torch.autograd.grad(values.sum(), x)
        return values.detach(), gradient

    def attack_once(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        low, high = x - self.epsilon, x + self.epsilon
        here = torch.clamp(low + torch.rand_like(x) * (high - low), 0.0, 1.0)
        value, gradient = self.value_and_gradient(here, labels)
        best, best_value, best_gradient = here.clone(), value.clone(), gradient.clone()
        step = torch.full((len(x), *(1,) * (x.dim() - 1)), 2 * self.epsilon)
        history = torch.zeros(max(self.steps, 1), len(x))
        before = here.clone()
        window = max(int(0.22 * self.steps), 1)
        for k in range(self.steps):
            with torch.no_grad():
                inertia = here - before
                before = here.clone()
                alpha = 0.75 if k > 0 else 1.0
                aim = here + step * torch.sign(gradient)
                aim = torch.clamp(torch.min(torch.max(aim, low), high), 0.0, 1.0)
                here = here + (aim - here) * alpha + inertia * (1 - alpha)
                here = torch.clamp(torch.min(torch.max(here, low), high), 0.0, 1.0)
            value, gradient = self.value_and_gradient(here, labels)
            with torch.no_grad():
                history[k] = value
                better = (value > best_value).nonzero().squeeze(1)
                best[better] = here[better].clone()
                best_gradient[better] = gradient[better].clone()
                best_value[better] = value[better].clone()
                if k + 1 == window:  # the published counter is never reset: one check
                    rises = torch.zeros(len(x))
                    for j in range(window):
                        rises += (history[k - j] > history[k - j - 1]).float()
                    stuck = (rises <= 0.75 * window).nonzero().squeeze(1)
                    step[stuck] /= 2
                    here[stuck] = best[stuck].clone()
                    gradient[stuck] = best_gradient[stuck].clone()
        return best, best_value
