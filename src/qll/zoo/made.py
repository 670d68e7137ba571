"""How a network was made: from the folder of a run, or of a cycle."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qll.errors import InputError
from qll.files import read_json
from qll.reports.compact import folder_pieces
from qll.training.config import TrainConfig, build
from qll.zoo.recipe import recipe_of


@dataclass(frozen=True, eq=False)
class Made:
    """``network`` is the ONNX file; one of ``accuracy`` and ``r2`` is there."""

    network: bytes
    config: TrainConfig
    accuracy: float | None
    r2: float | None
    machine: str
    recipe: str


def made(folder: Path, recipe: str) -> Made:
    """``recipe`` is what the user says; a run knows its own, a cycle, which may have begun from a
    network of elsewhere, does not."""
    if (folder / "cycle.json").is_file():
        return _by_cycle(folder, recipe)
    pieces = folder_pieces(folder)
    if pieces.evaluation is None:
        raise InputError(
            "the run is not finished",
            where=str(folder),
            expected="evaluation.json",
            found="none",
            fix="go on with it: qll train --resume",
        )
    config, share = build(dict(pieces.config)), pieces.evaluation["pacc"]
    return Made(
        (folder / "model.onnx").read_bytes(),
        config,
        None if share is None else float(share["share"]),
        None if share is not None else float(pieces.evaluation["r2"]),
        str(pieces.environment.get("processor", "")),
        recipe or recipe_of(config),
    )


def _by_cycle(folder: Path, recipe: str) -> Made:
    if not recipe:
        raise InputError(
            "it is not said how this cycle was run",
            where=str(folder),
            expected="the commands, beginning with the one that made its first network",
            found="none",
            fix="pass --recipe 'qll cycle ...', once for each command",
        )
    held = read_json(folder / "cycle.json", "record of a cycle")
    if held["ending"] is None:
        raise InputError(
            "the cycle is not finished",
            where=str(folder),
            expected="a cycle that has ended",
            found="one that was stopped",
            fix="go on with it: qll cycle --resume",
        )
    network = (folder / "model.onnx").read_bytes()
    figure, machine = _of_round(folder, held["rounds"], network)
    regression = held["accuracy"]["measure"] == "R2"
    return Made(
        network,
        build(held["asked"]["train"]),
        None if regression else figure,
        figure if regression else None,
        machine,
        recipe,
    )


def _of_round(folder: Path, rounds: list[dict[str, Any]], network: bytes) -> tuple[float, str]:
    """What was measured of this network, and where."""
    for found in rounds:
        place = folder / f"round-{found['number']:02d}"
        if (place / "model.onnx").read_bytes() == network:
            environment = read_json(place / "environment.json", "environment")
            return float(found["pacc"]), str(environment.get("processor", ""))
    raise InputError(
        "the network of this cycle is of none of its rounds",
        where=str(folder / "model.onnx"),
        expected="model.onnx of the best round",
        found="another network",
        fix="run the cycle again in a new folder",
    )
