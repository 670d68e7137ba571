"""A stage of a run at work, and the sums of an epoch."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from qll.data.base import DataSet
from qll.logics.base import Logic
from qll.property import Property
from qll.regions.clauses import turns
from qll.training.config import TrainConfig
from qll.training.loss import PropertyTerm, together
from qll.training.methods import METHODS, Method, Setup, Step
from qll.training.schedule import Ramp, cosine, rise
from qll.training.stages import Stage


class Totals(dict[str, float]):
    """Sums over an epoch."""

    def add(self, **values: float) -> None:
        for name, value in values.items():
            self[name] = self.get(name, 0.0) + value

    def mean(self, name: str, over: str) -> float | None:
        return self[name] / self[over] if name in self else None


class Part:
    """A stage at work: its method, its balance, and where its schedules stand."""

    def __init__(self, stage: Stage[TrainConfig], model: nn.Module, data: DataSet) -> None:
        self.stage, self.config = stage, stage.config
        self.trained = self.config.trained_property(data.fits)
        self.logic = self.config.record()
        self.balance = self.config.make_balance()
        self.method: Method | None = None
        if self.logic is not None:
            self.method = METHODS[self.config.method](Setup(self.config, model, data))

    def at(self, epoch: int) -> tuple[Property, Logic | None]:
        """The formula and the logic of an epoch of the run."""
        config, passed = self.config, epoch - self.stage.first
        logic = None if epoch < config.delay else self.logic
        prop = self.trained
        if config.hardness is not None and logic is not None:
            logic = logic.harden(config.hardness.ramp().at(passed))
        ramp = None if config.epsilon is None else config.epsilon.ramp()
        if ramp is None and config.warm_up and "epsilon" in prop.values:
            end = prop.value_of("epsilon")
            # The first epoch has a little of it already: at 0 a bound says nothing of the network.
            rise = max(round(config.warm_up * self.stage.length), 1)
            ramp = Ramp(end / (rise + 1), end, rise)
        if ramp is not None:
            prop = prop.with_parameters(epsilon=ramp.at(passed))
        return prop, logic

    def term(self, method: Method, step: Step) -> PropertyTerm:
        """The property at a batch: of several rules with regions of their own, each at its rows."""
        found = []
        for rule, rows in turns(step.prop, step.x, step.seed):
            if rule is step.prop:
                return method.term(step)
            if len(rows):
                x, labels, outputs = step.x[rows], step.labels[rows], step.outputs[rows]
                found.append(
                    method.term(replace(step, prop=rule, x=x, labels=labels, outputs=outputs))
                )
        return together(found, step.outputs)

    def rate(self, epoch: float) -> float:
        config, passed = self.config, epoch - self.stage.first
        rate = config.learning_rate * rise(passed, config.learning_rate_warm_up)
        if config.learning_rate_schedule == "constant":
            return rate
        return rate * cosine(passed, self.stage.length)
