"""One run, as far as its records go, and its figures as every table counts them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from qll.logics.base import Logic
from qll.metrics import Evaluation, Share
from qll.reports.compact import SUFFIX
from qll.reports.numbers import read_epsilon, same_epsilon
from qll.reports.verdicts import Verification
from qll.training.config import TrainConfig

METRICS = (
    "PAcc",
    "CAcc",
    "CSec_self",
    "CSec_qll",
    "CSat_half",
    "unknown_half",
    "CSat",
    "unknown",
)
# Of regressions, in place of PAcc: the share of the variance that is explained, in percent, and the
# root of the mean squared error in the units of the target.
REGRESSION = ("R2", "RMSE")


@dataclass(frozen=True, eq=False)
class Run:
    """One run, as far as its records go."""

    path: Path
    config: TrainConfig
    epochs: tuple[Mapping[str, Any], ...]
    evaluation: Evaluation | None
    verifications: tuple[Verification, ...]
    environment: Mapping[str, Any]
    failure: str | None
    network: str | None = None
    """The SHA-256 of its file."""

    @property
    def name(self) -> str:
        return self.path.name.removesuffix(SUFFIX)

    @property
    def logic(self) -> Logic | None:
        return self.config.record()

    @property
    def epsilon(self) -> float | None:
        """What it is judged at."""
        judged = self.config.parameters if self.config.judged is None else self.config.judged
        return judged.get("epsilon")

    @property
    def state(self) -> str:
        if self.failure is not None:
            return "failed"
        # 'qll evaluate' writes figures of an interrupted run too: they are not the run's.
        whole = self.evaluation is not None and len(self.epochs) >= self.config.epochs
        return "finished" if whole else "unfinished"

    @property
    def seconds(self) -> float:
        """Training time: the sum over the epochs."""
        return sum(float(row.get("seconds") or 0.0) for row in self.epochs)

    @cached_property
    def shares(self) -> Mapping[str, Share | None]:
        """The metrics as they are recorded; None where there is no record."""
        found: dict[str, Share | None] = dict.fromkeys(METRICS)
        if self.evaluation is not None:
            held = self.evaluation
            found["PAcc"] = held.pacc
            found["CAcc"] = held.cacc
            found["CSec_self"] = held.csec_self
            found["CSec_qll"] = held.csec_qll
        half = None if self.epsilon is None else self.epsilon / 2
        for suffix, epsilon in (("", self.epsilon), ("_half", half)):
            if not suffix or epsilon is not None:
                found[f"CSat{suffix}"], found[f"unknown{suffix}"] = self._proved(epsilon)
        return found

    @cached_property
    def figures(self) -> Mapping[str, float | None]:
        """The metrics in percent, of the data points of which the property says something; of a
        regression R2 in percent and RMSE."""
        found = {metric: _percent(share) for metric, share in self.shares.items()}
        held = self.evaluation
        r2, rmse = (None, None) if held is None else (held.r2, held.rmse)
        return {**found, "R2": None if r2 is None else 100 * r2, "RMSE": rmse}

    @cached_property
    def published(self) -> Mapping[str, float | None]:
        """The same as the paper counts: what holds vacuously is satisfied."""
        found = {}
        for metric, share in self.shares.items():
            whole = None if share is None else share.with_vacuous
            if whole is not None and metric.startswith("unknown"):
                proved = self.shares[metric.replace("unknown", "CSat")]
                more = 0 if proved is None else proved.vacuous
                whole = Share(whole.good, whole.total + more)
            found[metric] = _percent(whole)
        return found

    @property
    def chance(self) -> float | None:
        """PAcc of the best constant answer, in percent; None in old records."""
        return None if self.evaluation is None else _percent(self.evaluation.chance)

    def _proved(self, epsilon: float | None) -> tuple[Share | None, Share | None]:
        for verification in self.verifications:
            if same_epsilon(verification.epsilon, epsilon):
                return verification.share("verified"), verification.share("unknown")
        if self.evaluation is not None and epsilon is not None:
            for text, share in self.evaluation.csat.items():
                if same_epsilon(read_epsilon(text), epsilon):
                    return share, None
        return None, None


def _percent(share: Share | None) -> float | None:
    return None if share is None or not share.total else 100 * share.value
