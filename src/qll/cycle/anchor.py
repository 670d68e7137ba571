"""Your data as the anchor of a repair: what the network should keep predicting, and how well it
does before and after."""

from __future__ import annotations

import torch
from pydantic import BaseModel
from torch import Tensor, nn

from qll.data.base import DataSet
from qll.errors import DataError
from qll.metrics import constant_answer, outputs_of, regression_errors, score
from qll.networks import Network
from qll.prediction import prediction_loss


class Kept(BaseModel):
    """PAcc or R2 (``measure``) on the test data, RMSE of a regression beside it; ``constant`` is
    what the repaired network always answers there, if it does, and the original did not."""

    measure: str
    before: float
    after: float
    rmse_before: float | None = None
    rmse_after: float | None = None
    constant: str | None = None


class Anchor:
    """Imitates the original at the training data, and predicts their labels."""

    def __init__(self, data: DataSet, original: nn.Module, network: Network) -> None:
        self.data = data
        shape, outputs = tuple(network.input_shape), network.output_size
        if data.shape != shape or data.outputs != outputs:
            raise DataError(
                "the data do not fit the network",
                where=data.name,
                expected=f"inputs of shape {shape} and {outputs} outputs",
                found=f"{data.kind} of shape {data.shape} and {data.outputs} outputs: "
                f"{', '.join(data.classes[:6])}",
                fix="choose --features and --target in the network's order ('qll data' shows them)",
            )
        self.x = torch.from_numpy(data.train.inputs)
        self.labels = torch.from_numpy(data.train.labels)
        with torch.no_grad():
            self.outputs: Tensor = original(self.x)
        self.scale = self.outputs.std(0).clamp(min=1e-6)
        self.units = torch.tensor(data.target_std) if data.target_std else None
        self._before = self._figures(original)
        self._was_constant = self._constant(original) is not None

    def loss(self, model: nn.Module, count: int, draw: torch.Generator, learn: float) -> Tensor:
        """At some of the rows, in units of the outputs' spread."""
        rows = torch.randint(len(self.x), (count,), generator=draw)
        y = model(self.x[rows])
        change: Tensor = (((y - self.outputs[rows]) / self.scale) ** 2).mean()
        if not learn:
            return change
        return change + learn * prediction_loss(
            y, self.labels[rows], self.data.task, scale=self.units
        )

    def kept(self, model: nn.Module) -> Kept:
        (before, rmse_before), (after, rmse_after) = self._before, self._figures(model)
        return Kept(
            measure=self.data.measure,
            before=before,
            after=after,
            rmse_before=rmse_before,
            rmse_after=rmse_after,
            constant=None if self._was_constant else self._constant(model),
        )

    def _figures(self, model: nn.Module) -> tuple[float, float | None]:
        x, labels = self._test()
        if self.data.task == "regression":
            rmse, r2 = regression_errors(model, x, labels)
            return r2, rmse
        return score(model, x, labels, task=self.data.task), None

    def _constant(self, model: nn.Module) -> str | None:
        return constant_answer(outputs_of(model, self._test()[0]), task=self.data.task)

    def _test(self) -> tuple[Tensor, Tensor]:
        test = self.data.test
        return torch.from_numpy(test.inputs), torch.from_numpy(test.labels)
