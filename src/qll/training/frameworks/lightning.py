"""A callback that lets a LightningModule, as it is, learn a property.

trainer = Trainer(callbacks=[PropertyCallback(qll.PropertyLoss(prop))])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from qll.errors import MissingExtra
from qll.training.frameworks.added import add_gradients, one_process
from qll.training.loss import PropertyLoss

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise MissingExtra.of("lightning", "lightning", "the callback for Lightning") from error

Split = Callable[[Any], tuple[Tensor, Tensor]]


class PropertyCallback(Callback):
    """Adds the property's gradient before every step of the optimiser, and logs ``qll/weight``,
    ``qll/property_loss`` and ``qll/satisfied``.

    ``network`` says which part of the module maps raw inputs to outputs (by default the module
    itself, by its ``forward``), ``split`` what of a batch are inputs and labels (by default its
    first two parts). With accumulated gradients the property is asked on all batches of a step.
    """

    def __init__(
        self,
        property_loss: PropertyLoss,
        *,
        network: Callable[[LightningModule], nn.Module] = lambda module: module,
        split: Split = lambda batch: (batch[0], batch[1]),
    ) -> None:
        self.property_loss = property_loss
        self.network = network
        self.split = split
        self._held: list[tuple[Tensor, Tensor]] = []

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        one_process(trainer.world_size)
        self._held.clear()

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._held.append(self.split(batch))

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Any
    ) -> None:
        x, labels = (torch.cat(parts) for parts in zip(*self._held, strict=True))
        self._held.clear()
        # Lightning calls this while the closure of the optimiser runs, with gradients or without.
        with torch.enable_grad():
            seen = add_gradients(self.property_loss, self.network(pl_module), x, labels)
        pl_module.log_dict(
            {
                "qll/weight": seen.weight,
                "qll/property_loss": seen.property,
                "qll/satisfied": seen.satisfied,
            }
        )
