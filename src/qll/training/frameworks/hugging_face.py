"""A callback that lets Hugging Face's Trainer teach a property.

trainer = Trainer(model, args, train_dataset=data, callbacks=[PropertyCallback(property_loss)])
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from qll.errors import InputError, MissingExtra
from qll.training.frameworks.added import add_gradients, one_process
from qll.training.loss import PropertyLoss

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise MissingExtra.of("transformers", "transformers", "the callback for its Trainer") from error


class PropertyCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Adds the property's gradient before every step of the optimiser, of all batches that the step
    is made of.

    ``inputs`` and ``labels`` name what the model's ``forward`` is called with: raw inputs, a tensor
    of floats, and their labels. Of what it returns, ``logits`` are the outputs that the property
    speaks of (or the whole, if it is a tensor). The Trainer clips gradients before that: its own
    ones only.
    """

    def __init__(
        self, property_loss: PropertyLoss, *, inputs: str = "pixel_values", labels: str = "labels"
    ) -> None:
        self.property_loss = property_loss
        self.inputs, self.labels = inputs, labels
        self._held: list[tuple[Tensor, Tensor]] = []
        self._hook: Any = None
        self._asked = True  # not our own passes

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        one_process(max(args.world_size, args.n_gpu))
        self._held.clear()
        self._asked = True
        self._hook = kwargs["model"].register_forward_pre_hook(self._see, with_kwargs=True)

    def _see(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not (self._asked and model.training):
            return
        for name in (self.inputs, self.labels):
            if name not in kwargs:
                raise InputError(
                    f"the model is not called with '{name}'",
                    expected=f"the arguments {self.inputs} and {self.labels}",
                    found=", ".join(sorted(kwargs)) or "positional arguments",
                    fix="pass PropertyCallback(..., inputs=NAME, labels=NAME)",
                )
        self._held.append((kwargs[self.inputs], kwargs[self.labels]))

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        x, labels = (torch.cat(parts) for parts in zip(*self._held, strict=True))
        self._held.clear()
        self._asked = False
        try:
            add_gradients(self.property_loss, _Outputs(kwargs["model"], self.inputs), x, labels)
        finally:
            self._asked = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None


class _Outputs(nn.Module):
    """The model as a function of its inputs alone, by the same parameters."""

    def __init__(self, model: nn.Module, inputs: str) -> None:
        super().__init__()
        self.model, self.inputs = model, inputs

    def forward(self, x: Tensor) -> Tensor:
        found = self.model(**{self.inputs: x})
        if isinstance(found, Tensor):
            return found
        logits: Tensor = found["logits"]
        return logits
