"""A run in consecutive parts: attack first, then bounds over small boxes, say.

    stages = [{ share = 0.4, method = "attack", weight = 0.2 }, { method = "small-box" }]

Each part takes its ``share`` of the epochs (what is left, where it says none) and may set anything
of ``MAY_CHANGE``; network, data and optimiser go through. Schedules count from the part's start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from pydantic import ValidationError

from qll.errors import InputError
from qll.registry import suggest

MAY_CHANGE = (
    "alpha",
    "attack",
    "augment",
    "batch_hardness",
    "batch_size",
    "hardness",
    "learning_rate",
    "learning_rate_schedule",
    "learning_rate_warm_up",
    "logic",
    "method",
    "options",
    "reach",
    "restarts",
    "steps",
    "surrogate",
    "views",
    "warm_up",
    "weight",
)


class Staged(Protocol):
    """Settings of a run (`qll.training.config.TrainConfig`)."""

    @property
    def stages(self) -> tuple[dict[str, Any], ...]: ...

    @property
    def epochs(self) -> int: ...

    def model_dump(self) -> dict[str, Any]: ...


Settings = TypeVar("Settings", bound=Staged)


@dataclass(frozen=True)
class Stage(Generic[Settings]):
    """Epochs ``first`` to ``last`` (exclusive) and their settings."""

    config: Settings
    first: int
    last: int

    @property
    def length(self) -> int:
        return self.last - self.first


def stages(config: Settings) -> list[Stage[Settings]]:
    """The parts of a run; one, where it names none. However short the run is, the last ones come to
    pass: a method that makes the rule hold does so at the end.

    >>> from qll.training.config import TrainConfig
    >>> run = TrainConfig(property="p", data="d", epochs=10, stages=({"share": 0.4}, {"alpha": 1}))
    >>> [(part.first, part.last, part.config.alpha) for part in stages(run)]
    [(0, 4, 0.5), (4, 10, 1.0)]
    >>> short = run.model_copy(update={"epochs": 1})
    >>> [(part.first, part.last) for part in stages(short)]
    [(0, 0), (0, 1)]
    """
    if not config.stages:
        return [Stage(config, 0, config.epochs)]
    shares = _shares(config)
    found, begun, passed = [], 0, 0.0
    for number, (table, share) in enumerate(zip(config.stages, shares, strict=True), 1):
        passed += share
        to_come = len(shares) - number
        end = round(passed * config.epochs) if to_come else config.epochs
        end = max(begun, min(end, config.epochs - to_come))
        found.append(Stage(_settings(config, number, table), begun, end))
        begun = end
    return found


def _shares(config: Staged) -> list[float]:
    said = [table.get("share") for table in config.stages]
    good = all(s is None or (isinstance(s, int | float) and 0 < s <= 1) for s in said)
    rest = 1.0 - sum(s for s in said if s is not None) if good else 0.0
    silent = said.count(None)
    if not good or rest < -1e-9 or (silent and rest <= 0):
        raise InputError(
            "the shares of the stages do not fit",
            expected="numbers in (0, 1] that sum to 1 at most; the rest is for stages without one",
            found=", ".join(str(s) for s in said),
            fix="write stages = [{ share = 0.4, ... }, { ... }]",
        )
    return [rest / silent if s is None else float(s) for s in said]


def _settings(config: Settings, number: int, table: dict[str, Any]) -> Settings:
    changes = {key: value for key, value in table.items() if key != "share"}
    for key in changes:
        if key not in MAY_CHANGE:
            raise InputError(
                f"stage {number} cannot set '{key}'",
                expected=f"one of: {', '.join(MAY_CHANGE)}",
                found=f"'{key}'",
                fix=suggest(key, list(MAY_CHANGE)),
            )
    try:
        values = {**config.model_dump(), "stages": (), **changes}
        return type(config)(**values)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(
            f"stage {number} has a wrong value",
            expected=str(first["msg"]).lower(),
            found=f"{'.'.join(str(part) for part in first['loc'])} = {first['input']!r}",
            fix="correct that setting of the stage",
        ) from error
