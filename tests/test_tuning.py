"""The search for the front of accuracy and proved share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qll.errors import InputError, RunError
from qll.training.config import build
from qll.tuning import Point, TuneConfig, tune
from qll.tuning.picture import draw_front
from qll.tuning.space import METHODS, suggest_settings
from qll.tuning.study import _better


def config(**changes: Any) -> TuneConfig:
    options = {
        "epochs": 1,
        "validation": 12,
        "data_options": {"count_train": 40, "count_test": 8},
    }
    values: dict[str, Any] = {
        "property": "not-both",
        "data": "dice-rendered",
        "options": options,
        "settings": ("epsilon=0.002",),
        "trials": 2,
        "regions": 4,
        "timeout": 1.0,
    }
    return TuneConfig(**{**values, **changes})


def test_a_study_keeps_its_front_and_goes_on(tmp_path: Path) -> None:
    said: list[Point] = []
    points = tune(config(), tmp_path, on_trial=said.append)
    assert [p.trial for p in points] == [0, 1] == [p.trial for p in said]
    front = json.loads((tmp_path / "front.json").read_text())["front"]
    assert {p["trial"] for p in front} == {p.trial for p in points if p.on_front}
    for point in points:
        assert 0 <= point.pacc <= 1 and 0 <= point.csat <= 1
        assert (tmp_path / f"trial-{point.trial:04d}" / "model.onnx").is_file() is point.on_front
    assert (tmp_path / "front.png").stat().st_size > 1000
    # three in all: one more, and the earlier ones are not repeated
    more = tune(config(trials=3), tmp_path)
    assert [p.trial for p in more] == [0, 1, 2]
    assert [(p.pacc, p.csat) for p in more[:2]] == [(p.pacc, p.csat) for p in points]
    with pytest.raises(RunError, match="another 'regions'"):
        tune(config(regions=5), tmp_path)


def test_trials_are_judged_on_validation_images_only() -> None:
    with pytest.raises(InputError, match="no validation images"):
        tune(config(options={"validation": 0}), "unused")


def test_the_first_trials_are_the_methods_as_they_come(tmp_path: Path) -> None:
    points = tune(config(methods=("bound", "projected"), trials=3), tmp_path)
    assert [p.settings["method"] for p in points[:2]] == ["bound", "projected"]
    for point in points[:2]:
        usual = config().base(point.settings["method"])
        assert (point.settings["learning_rate"], point.settings["reach"]) == (
            usual.learning_rate,
            usual.reach,
        )
    assert points[1].csat == 1.0, "it holds by construction"
    assert "alpha" not in points[0].settings and "alpha" in points[2].settings


@pytest.mark.parametrize("initialisation", ["default", "ramp"])
@pytest.mark.parametrize("method", [*METHODS, "projected"])
def test_every_choice_of_the_space_is_a_configuration(method: str, initialisation: str) -> None:
    class Trial:
        def suggest_categorical(self, name: str, options: list[str]) -> str:
            assert method in options
            return method

        def suggest_float(self, name: str, low: float, high: float, log: bool = False) -> float:
            return (low + high) / 2

    base = config(settings=(f"initialisation={initialisation}",)).base
    settings = suggest_settings(Trial(), [method], base)
    found = build({**base(method).model_dump(), **settings})
    assert found.method == method
    if initialisation == "ramp":
        assert found.ramp.low is not None and found.ramp.high is not None
        assert found.parameters["epsilon"] <= found.ramp.low < found.ramp.high < 1
    assert (found.reach > 1.5) is (method == "projected")


def test_the_front_is_what_nothing_beats_in_both() -> None:
    def point(trial: int, pacc: float, csat: float) -> Point:
        return Point(trial=trial, pacc=pacc, csat=csat, settings={"method": "bound"})

    low, high = point(0, 0.9, 0.5), point(1, 0.8, 0.9)
    worse, twin = point(2, 0.8, 0.5), point(3, 0.9, 0.5)
    assert not _better(low, high) and not _better(high, low)
    assert _better(low, worse) and _better(high, worse) and not _better(worse, low)
    assert _better(low, twin) and not _better(twin, low)


def test_a_front_of_one_is_drawn(tmp_path: Path) -> None:
    one = Point(trial=0, pacc=0.5, csat=0.5, settings={}, on_front=True)
    assert draw_front(tmp_path / "front.png", [one])
