"""The command that trains a network as a run did."""

from __future__ import annotations

import json
import shlex
from typing import Any

from qll.errors import InputError
from qll.training.config import TrainConfig, resolve

_OPTIONS = ("logic", "network", "epochs")
# Of the machine, or said otherwise.
_ELSEWHERE = {"property", "data", "method", "seed", "data_dir", "data_options", "device"}


def recipe_of(config: TrainConfig) -> str:
    """``qll train`` with all that differs from what property, data and method have by default.

    >>> recipe_of(resolve("not-both", "dice", options={"method": "projected", "epochs": 3}))
    'qll train not-both --data dice --method projected --epochs 3 --seed 0'
    """
    words = ["qll", "train", config.property, "--data", config.data]
    words += [f"--{key}={value}" for key, value in config.data_options.items()]
    words += ["--method", config.method]
    options: dict[str, Any] = {"method": config.method, "seed": config.seed}
    usual = resolve(config.property, config.data, options=options)
    for key in _OPTIONS:
        if getattr(config, key) != getattr(usual, key):
            options[key] = getattr(config, key)
            words += [f"--{key}", str(options[key])]
    words += ["--seed", str(config.seed)]
    judged = config.parameters if config.judged is None else config.judged
    settings = [
        f"{key}={_toml(value)}"
        for key, value in config.parameters.items()
        if value == judged.get(key) and value != usual.parameters.get(key)
    ]
    usual = resolve(config.property, config.data, options=options, settings=settings)
    held = usual.model_dump(mode="json")
    settings += [
        f"{key}={_toml(value)}"
        for key, value in config.model_dump(mode="json").items()
        if key not in (*_ELSEWHERE, *_OPTIONS) and value != held[key]
    ]
    for setting in settings:
        words += ["--set", setting]
    left_out = {name: getattr(config, name) for name in ("data_dir", "data_options", "device")}
    try:
        again = resolve(config.property, config.data, options=options, settings=settings)
    except InputError:  # a setting that is unset has no text
        again = usual
    if again.model_copy(update=left_out) != config:
        raise InputError(
            "one command does not say how this run was trained",
            expected="settings that can be written as options of qll train",
            found=shlex.join(words),
            fix="pass the commands that trained it with --recipe, each in quotes",
        )
    return shlex.join(words)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(held)}" for key, held in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)
