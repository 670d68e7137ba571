"""What a trial may choose: the method and its dials. One table, so that a dial is added here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from qll.training.config import TrainConfig

METHODS = ("attack", "bound", "small-box", "mixed")


def suggest_settings(
    trial: Any, methods: Sequence[str], base: Callable[[str], TrainConfig]
) -> dict[str, Any]:
    """Settings of a training run, drawn by an optuna trial. What is not drawn is the method's own
    default for this property and data (``base``)."""
    method = trial.suggest_categorical("method", list(methods))
    usual = base(method)
    settings: dict[str, Any] = {
        "method": method,
        "logic": f"qll:{trial.suggest_float('hardness', 1.0, 20.0, log=True):.3g}",
        "learning_rate": trial.suggest_float("learning_rate", 5e-4, 1e-2, log=True),
        "learning_rate_schedule": "cosine",
    }
    if usual.weight is None:
        settings["alpha"] = trial.suggest_float("alpha", 0.05, 2.0, log=True)
    else:  # its defaults fix lambda
        settings["weight"] = trial.suggest_float("weight", 0.05, 2.0, log=True)
    if usual.surrogate is None:
        settings["reach"] = usual.reach * trial.suggest_float("reach", 1.0, 1.15)
    else:  # another property is trained, whose best epsilon is not known
        settings["reach"] = trial.suggest_float("surrogate_reach", 1.0, 5.0)
    if usual.initialisation == "ramp":  # where pixels count as dark and as bright
        low = (usual.own_epsilon() or 0.0) * trial.suggest_float("ramp_low", 1.0, 1.4)
        high = low + (1 - low) * trial.suggest_float("ramp_rise", 0.2, 0.9)
        settings["ramp"] = {"low": round(low, 4), "high": round(high, 4)}
    if method == "attack":
        # Short attacks: the schedule follows Croce and Hein, which makes them as strong.
        settings["attack"] = "apgd:8,restarts=0"
    if method in ("bound", "mixed"):
        settings["warm_up"] = trial.suggest_float("warm_up", 0.0, 0.6)
    if method == "small-box":
        settings["options"] = {"size": trial.suggest_float("size", 0.02, 1.0, log=True)}
        first = trial.suggest_float("attack_first", 0.0, 0.6)
        settings["stages"] = []
        if first > 0.05:  # two stages: attack, then boxes
            settings["stages"] = [
                {
                    "share": round(first, 3),
                    "method": "attack",
                    "attack": "apgd:8,restarts=0",
                    "options": {},
                },
                {},
            ]
    if method == "mixed":
        settings["options"] = {"share": trial.suggest_float("share", 0.01, 1.0, log=True)}
    return settings
