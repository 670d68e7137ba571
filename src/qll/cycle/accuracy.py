"""The accuracy that a cycle must keep: a network that predicts nothing can obey almost any rule."""

from __future__ import annotations

import torch
from pydantic import BaseModel
from torch import Tensor, nn

from qll.cycle.budget import Budget
from qll.data.base import DataSet
from qll.metrics import chance_accuracy, score
from qll.training.config import BASELINE, TrainConfig
from qll.training.loop import Trainer
from qll.training.progress import Reporter
from qll.training.run import RunFolder

# Points of PAcc that a proof may cost, unless the user says how many.
ALLOWANCE = 0.05
# The most of the budget that goes into the network without the rule. It has no attack and no
# bound, so that its epochs take a small part of the others' time.
_SHARE = 0.2


class Accuracy(BaseModel):
    """``least``: the PAcc below which a round is not accepted. ``plain`` is that of the same
    network without the rule, after ``epochs`` (0: the network that the cycle began from); None
    where the user said ``least``, or no epoch was done in time. ``chance`` is that of the best
    constant answer. Of a regression all of them are R2, as ``measure`` says."""

    least: float
    chance: float
    plain: float | None = None
    epochs: int | None = None
    measure: str = "PAcc"

    @classmethod
    def given(cls, least: float, data: DataSet) -> Accuracy:
        return cls(least=least, chance=_chance(data), measure=data.measure)

    @classmethod
    def measured(cls, plain: float, epochs: int, data: DataSet) -> Accuracy:
        return cls(
            least=max(plain - ALLOWANCE, 0.0),
            chance=_chance(data),
            plain=plain,
            epochs=epochs,
            measure=data.measure,
        )

    def __str__(self) -> str:
        text = f"least {self.measure} {100 * self.least:.1f} %"
        if self.plain is not None:
            epochs = f"{self.epochs} epochs" if self.epochs != 1 else "1 epoch"
            how = f"after {epochs} without the rule" if self.epochs else "of the network given"
            text += f" ({100 * ALLOWANCE:g} points below the {100 * self.plain:.1f} % {how})"
        return f"{text}; chance is {100 * self.chance:.1f} %"


def plain_settings(train: TrainConfig) -> TrainConfig:
    """The same network and optimiser, without the rule and what was chosen for its sake."""
    return train.model_copy(
        update={"logic": BASELINE, "stages": (), "initialisation": "default", "options": {}}
    )


def measure(
    train: TrainConfig,
    data: DataSet,
    start: nn.Module | None,
    folder: RunFolder,
    budget: Budget,
    reporter: Reporter,
) -> Accuracy:
    """Of the network that is there, or of one trained without the rule in ``folder``; killed, it
    goes on from its last epoch."""
    if start is not None:
        return Accuracy.measured(accuracy(start.eval(), data), 0, data)
    config = plain_settings(train)
    trainer = Trainer(config, data, None, None, reporter)
    if not folder.config_path.exists():
        folder = RunFolder.create(folder.path, config)
    trainer.folder = folder
    with folder.locked():
        trainer.run_epochs(trainer.restore(), until=budget.until((1 - _SHARE) * budget.seconds))
    if not trainer.rows:
        return Accuracy.given(min(_chance(data) + ALLOWANCE, 1.0), data)
    return Accuracy.measured(accuracy(trainer.model.eval(), data), len(trainer.rows), data)


def accuracy(model: nn.Module, data: DataSet) -> float:
    """PAcc, or R2, on all test data."""
    return score(model, *_test(data), task=data.task)


def _chance(data: DataSet) -> float:
    if data.task == "regression":
        return 0.0
    return chance_accuracy(_test(data)[1], task=data.task).value


def _test(data: DataSet) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(data.test.inputs), torch.from_numpy(data.test.labels)
