"""What a training method is given and what it gives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from qll.data.base import DataSet
from qll.errors import InputError
from qll.logics.base import Logic
from qll.property import Property
from qll.registry import Registry, suggest
from qll.training.config import TrainConfig
from qll.training.loss import PropertyTerm

METHODS: Registry[type[Method]] = Registry("method", "qll.training.methods")


@dataclass(frozen=True, eq=False)
class Setup:
    """Fixed over a run."""

    config: TrainConfig
    model: nn.Module
    data: DataSet


@dataclass(frozen=True, eq=False)
class Step:
    """One batch. ``prop`` and ``logic`` follow the schedules; ``outputs`` are the network's at
    ``x``, with their graph."""

    x: Tensor
    labels: Tensor
    outputs: Tensor
    prop: Property
    logic: Logic
    epoch: int
    seed: int


class Method(ABC):
    """A way to turn the property into a loss. ``options`` names its own settings' defaults;
    ``remark`` is what every report has to say of a network that was trained so."""

    options: ClassVar[Mapping[str, bool | int | float | str]] = {}
    remark: ClassVar[str | None] = None

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        given = setup.config.options
        for name in given:
            if name not in self.options:
                raise InputError(
                    f"method '{setup.config.method}' has no option '{name}'",
                    expected=f"one of: {', '.join(self.options)}" if self.options else "no options",
                    found=f"'{name}'",
                    fix=suggest(name, sorted(self.options)) if self.options else "leave it out",
                )
        self.chosen = {**self.options, **given}

    @abstractmethod
    def term(self, step: Step) -> PropertyTerm:
        """The property's losses of the batch, with their graph."""

    def after_step(self) -> None:  # noqa: B027 - most methods have nothing to do here
        """Called when the optimiser has stepped."""

    def finish(self) -> None:  # noqa: B027
        """Called when the last epoch is done, before the network is judged and exported."""
