"""The weight of the property against the prediction: ``lambda = alpha |grad pred| / |grad phi|``.

The paper's equation (grad_norm). As published: norms over the last linear layer only, lambda at
most 10, no gradient through it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from qll.errors import InputError, NetworkError

# Keeps the quotient finite where the property's gradient vanishes; the value of the published runs.
_TINY = 1e-8
PARAMETERS = ("last-linear", "all")


@dataclass(frozen=True)
class Balance:
    """How lambda is found. ``alpha`` is the dial; ``parameters`` chooses the norms' parameters."""

    alpha: float = 0.5
    parameters: str = "last-linear"
    most: float = 10.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.alpha) and self.alpha >= 0 and self.most > 0):
            raise InputError(
                "the balance of the losses is out of range",
                expected="alpha >= 0 and most > 0",
                found=f"alpha={self.alpha}, most={self.most}",
                fix="pass alpha=0.5, the paper's value",
            )
        if self.parameters not in PARAMETERS:
            raise InputError(
                f"unknown choice of parameters '{self.parameters}' for the balance",
                expected=" or ".join(PARAMETERS),
                found=f"'{self.parameters}'",
                fix="pass parameters='last-linear', as published",
            )

    def chosen(self, model: nn.Module) -> list[nn.Parameter]:
        """The parameters whose gradients are compared."""
        if self.parameters == "all":
            chosen = list(model.parameters())
        else:
            layers = [m for m in model.modules() if isinstance(m, nn.Linear)]
            chosen = list(layers[-1].parameters()) if layers else []
        chosen = [p for p in chosen if p.requires_grad]
        if not chosen:
            raise NetworkError(
                "the network has no parameters to balance the losses by",
                expected="a linear layer with trainable weights",
                found=f"none in {type(model).__name__}",
                fix="pass Balance(parameters='all')",
            )
        return chosen

    def weigh(
        self, prediction: Tensor, property_loss: Tensor, parameters: Iterable[nn.Parameter]
    ) -> Weight:
        """Lambda and both norms; the graph of both losses is kept for the step itself."""
        chosen = list(parameters)
        wanted = gradient_norm(prediction, chosen)
        found = gradient_norm(property_loss, chosen)
        return Weight(self.quotient(wanted, found), wanted, found)

    def quotient(self, wanted: Tensor, found: Tensor) -> Tensor:
        """Lambda, from the norms of the prediction's gradient and the property's."""
        return torch.clamp(self.alpha * wanted / (found + _TINY), max=self.most)


@dataclass(frozen=True, eq=False)
class Weight:
    """Lambda, and the two gradient norms it came from; detached."""

    value: Tensor
    prediction_norm: Tensor
    property_norm: Tensor


def gradient_norm(loss: Tensor, parameters: list[nn.Parameter]) -> Tensor:
    """Euclidean norm of the loss's gradient; 0 where the loss does not depend on them."""
    if not loss.requires_grad:
        return loss.new_zeros(())
    found = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    squares = [(g * g).sum() for g in found if g is not None]
    return torch.stack(squares).sum().sqrt() if squares else loss.new_zeros(())
