"""The property's gradient beside one that is there already.

Who calls ``backward`` on a loss of their own cannot be handed another loss, but gradients add up:
the gradient of ``prediction + lambda * property`` is the one that is there plus lambda times the
property's.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qll.attacks.problem import run_model
from qll.errors import InputError
from qll.kernels.forward import training_forward
from qll.kernels.spans import folded_once
from qll.prediction import check_given
from qll.training.balance import Balance
from qll.training.loss import PropertyLoss, Seen


def add_gradients(property_loss: PropertyLoss, model: nn.Module, x: Tensor, labels: Tensor) -> Seen:
    """Add the property's part to the gradients that a backward pass of the prediction's loss on
    this batch has left in ``model``: then they are those of ``property_loss(model, x, labels)``.

    >>> from qll.properties import parse
    >>> model, x = nn.Linear(2, 2), torch.rand(4, 2)
    >>> labels = torch.tensor([0, 1, 0, 1])
    >>> nn.functional.cross_entropy(model(x), labels).backward()
    >>> rule = parse("forall x in ball(x0, 0.1): y[0] <= y[1] + 1", outputs=2)
    >>> seen = add_gradients(PropertyLoss(rule, attack="apgd:2,restarts=0"), model, x, labels)
    """
    check_given(labels)
    with folded_once():
        with torch.no_grad():
            y = run_model(training_forward(model, x), x)
            property_loss.take_scales(x, y, labels)
            prediction, share = property_loss.predicted(y, labels)
        term = property_loss.attacked(model, x, labels)
    property_loss.watch(term, y)
    loss = property_loss.reduce(term)
    trained = [p for p in model.parameters() if p.requires_grad]
    found: dict[nn.Parameter, Tensor] = {}
    if loss.requires_grad:
        grads = torch.autograd.grad(loss, trained, allow_unused=True)
        found = {p: g for p, g in zip(trained, grads, strict=True) if g is not None}
    weight = _weight(property_loss.balance, model, found) * share
    for parameter, gradient in found.items():
        added = weight * gradient
        parameter.grad = added if parameter.grad is None else parameter.grad + added
    satisfied = term.share
    property_loss.last = Seen(float(prediction), float(loss.detach()), weight, satisfied)
    return property_loss.last


def _weight(balance: Balance | float, model: nn.Module, found: dict[nn.Parameter, Tensor]) -> float:
    if not isinstance(balance, Balance):
        return float(balance)
    chosen = balance.chosen(model)
    there = [p.grad for p in chosen if p.grad is not None]
    return float(balance.quotient(_norm(there), _norm([found[p] for p in chosen if p in found])))


def _norm(gradients: list[Tensor]) -> Tensor:
    if not gradients:
        return torch.zeros(())
    return torch.stack([(g * g).sum() for g in gradients]).sum().sqrt()


def one_process(world: int) -> None:
    """Gradients that are added after the processes have exchanged theirs would differ in each."""
    if world > 1:
        raise InputError(
            "the property's gradient is added in one process",
            expected="a trainer of one process",
            found=f"{world} processes",
            fix="train with devices=1, or call qll.PropertyLoss in the training step itself",
        )
