"""When two runs are the same experiment, and what a run is called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qll.training.config import TrainConfig

# What does not make another experiment: the machine, and what is looked at on the way.
_MACHINE = {"seed", "data_dir", "device", "engine", "evaluate_every"}


def experiment(config: TrainConfig) -> dict[str, Any]:
    """The settings that the seeds of one row share."""
    return config.model_dump(mode="json", exclude=_MACHINE)


def difference(ours: TrainConfig, theirs: TrainConfig) -> tuple[str, Any, Any] | None:
    """The first setting in which two runs differ other than in the machine, with both values."""
    mine = {**experiment(ours), "seed": ours.seed}
    other = {**experiment(theirs), "seed": theirs.seed}
    return next(((k, v, other[k]) for k, v in mine.items() if v != other[k]), None)


def run_name(config: TrainConfig, label: str = "") -> str:
    """The folder of a run.

    >>> run_name(TrainConfig(property="not-both", data="dice", logic="qll:5", seed=3))
    'not-both-dice-qll5-3'
    """
    logic = config.logic.replace(":", "").replace(",", "-").replace("=", "")
    parts = [Path(config.property).stem, config.data, logic, label, str(config.seed)]
    return "-".join(part for part in parts if part)
