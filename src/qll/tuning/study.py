"""``tune``: the Pareto front of PAcc and CSat on validation images.

out/
  study.db         the study (SQLite): several processes may work on one
  trial-0007/      the run folder of every trial on the front; the others are removed
  front.json, front.png

Accuracy and proved share conflict, so a search for one best number would hide the choice that the
user has to make.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field

from qll.errors import InputError, MissingExtra, QllError, RunError
from qll.files import write_json
from qll.metrics import proved_share, score
from qll.training.config import TrainConfig, build, default_logic, parse_settings, resolve
from qll.training.loop import Trainer, load_configured
from qll.training.progress import Silent
from qll.training.run import RunFolder
from qll.tuning.space import METHODS, suggest_settings
from qll.verify.api import verify

_NAME = "qll"


class TuneConfig(BaseModel):
    """``options`` and ``settings`` (``key=value``) are what every trial shares, beside the defaults
    of its method; ``trials`` counts finished ones, in all sessions."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    property: str
    data: str
    options: dict[str, Any] = {}
    settings: tuple[str, ...] = ()
    trials: int = Field(default=50, ge=1)
    regions: int = Field(default=200, ge=1)
    timeout: float = Field(default=2.0, gt=0)
    methods: tuple[str, ...] = METHODS
    jobs: int = Field(default=1, ge=1)

    def base(self, method: str) -> TrainConfig:
        """What a trial of this method starts from."""
        usual = default_logic(self.property, self.data, method)
        options = {"logic": usual, **self.options, "method": method}
        return resolve(self.property, self.data, options=options, settings=self.settings)

    def fixed(self) -> set[str]:
        """Settings that the user chose for all trials: not drawn."""
        return {*self.options, *parse_settings(self.settings)[0]}


class Point(BaseModel):
    """One trial: its number, figures on validation data (``pacc`` is R2 of a regression), and
    settings."""

    trial: int
    pacc: float
    csat: float
    settings: dict[str, Any]
    on_front: bool = False
    measure: str = "PAcc"


def tune(
    config: TuneConfig,
    out: str | Path,
    *,
    on_trial: Callable[[Point], None] | None = None,
    on_failure: Callable[[int, str], None] | None = None,
) -> list[Point]:
    """Search until the study has its trials; every finished one, the front marked. A trial that
    fails is told to ``on_failure``; if all do, the last reason is raised."""
    optuna = _optuna()
    bases = {method: config.base(method) for method in config.methods}
    first = bases[config.methods[0]]
    if not first.validation:
        raise InputError(
            "there are no validation images to judge trials by",
            expected="validation above 0",
            found="0",
            fix="pass --set validation=5000",
        )
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    _check_same(config, folder)
    data = load_configured(first)
    for base in bases.values():
        Trainer(base, data, None, None, Silent())  # what is wrong with all trials is said at once
    study = optuna.create_study(
        study_name=_NAME,
        storage=f"sqlite:///{(folder / 'study.db').resolve()}",
        directions=["maximize", "maximize"],
        sampler=optuna.samplers.TPESampler(),
        load_if_exists=True,
    )

    def objective(trial: Any) -> tuple[float, float]:
        try:
            return _run(config, bases, data, trial, folder)
        except QllError as error:
            # A choice that diverges is a finding of the search, not its end.
            trial.set_user_attr("failure", str(error))
            raise optuna.TrialPruned from error

    def finished(study: Any, trial: Any) -> None:
        points = _points(study)
        _keep_front(points, folder)
        found = next((p for p in points if p.trial == trial.number), None)
        if found is None:
            shutil.rmtree(folder / f"trial-{trial.number:04d}", ignore_errors=True)
            if on_failure is not None:
                on_failure(trial.number, str(trial.user_attrs.get("failure", "")))
        elif on_trial is not None:
            on_trial(found)
        ended = [t for t in study.trials if t.state.is_finished()]
        if len(ended) >= config.trials:
            study.stop()

    left = config.trials - sum(t.state.is_finished() for t in study.trials)
    if left > 0:
        study.optimize(objective, n_trials=left, callbacks=[finished])
    points = _points(study)
    if not points:
        raise RunError(
            "no trial of this study has a result",
            where=str(folder),
            expected="at least one network that trains",
            found=str(study.trials[-1].user_attrs.get("failure", "trials without a reason")),
            fix="mend what the last trial says, and choose another folder with --out",
        )
    _write(points, config, folder)
    return points


def _run(
    config: TuneConfig, bases: dict[str, TrainConfig], data: Any, trial: Any, folder: Path
) -> tuple[float, float]:
    if trial.number < len(config.methods):
        # First, each method as it comes: the search should not end below its defaults.
        usual = bases[config.methods[trial.number]]
        settings = {k: getattr(usual, k) for k in ("method", "logic", "learning_rate", "reach")}
    else:
        drawn = suggest_settings(trial, config.methods, bases.__getitem__)
        settings = {k: v for k, v in drawn.items() if k not in config.fixed()}
    trial.set_user_attr("settings", settings)
    trial.set_user_attr("measure", data.measure)
    values = {**bases[settings["method"]].model_dump(), **settings, "seed": trial.number}
    run_config = build(values)
    path = folder / f"trial-{trial.number:04d}"
    run = RunFolder.create(path, run_config)
    trainer = Trainer(run_config, data, None, run, Silent())
    with run.locked():
        trainer.run_epochs(0)
        trainer.export()
    model = trainer.model.eval()
    x, labels = data.train.batch(trainer.validation_rows)
    pacc = score(model, x, labels, task=data.task)
    count = min(config.regions, len(x))
    with torch.no_grad():
        verdicts = verify(
            trainer.judged, model, x[:count], labels[:count], timeout=config.timeout,
            jobs=config.jobs, fast=True,
        )  # fmt: skip
    proved = proved_share(verdict.as_json() for verdict in verdicts)
    if not proved.total:
        raise InputError(
            "the property says nothing of the data points that are verified",
            where=config.property,
            expected="some of whose labels it speaks",
            found=f"a premise that is false at all {count}",
            fix="raise --regions and --validation, or look at the premise with 'qll show'",
        )
    return pacc, proved.value


def _points(study: Any) -> list[Point]:
    done = [t for t in study.trials if t.state.name == "COMPLETE"]
    points = [
        Point(
            trial=t.number,
            pacc=t.values[0],
            csat=t.values[1],
            settings=t.user_attrs.get("settings", {}),
            measure=t.user_attrs.get("measure", "PAcc"),
        )
        for t in done
    ]
    for point in points:
        point.on_front = not any(_better(other, point) for other in points)
    return points


def _better(other: Point, point: Point) -> bool:
    """Better in both, or in one and equal in the other; of equals, the earlier."""
    if (other.pacc, other.csat) == (point.pacc, point.csat):
        return other.trial < point.trial
    return other.pacc >= point.pacc and other.csat >= point.csat


def _keep_front(points: list[Point], folder: Path) -> None:
    for point in points:
        if not point.on_front:
            shutil.rmtree(folder / f"trial-{point.trial:04d}", ignore_errors=True)


def _write(points: list[Point], config: TuneConfig, folder: Path) -> None:
    from qll.tuning.picture import draw_front

    front = sorted((p for p in points if p.on_front), key=lambda p: p.pacc)
    write_json(
        folder / "front.json",
        {
            "property": config.property,
            "data": config.data,
            "validation": config.base(config.methods[0]).validation,
            "regions": config.regions,
            "front": [p.model_dump() for p in front],
            "trials": [p.model_dump() for p in points],
        },
    )
    if points:
        draw_front(folder / "front.png", points)


def _check_same(config: TuneConfig, folder: Path) -> None:
    """A study has one question; trials of another would make its front meaningless."""
    path = folder / "tune.json"
    asked = json.loads(config.model_dump_json(exclude={"trials", "jobs"}))
    if not path.exists():
        write_json(path, asked)
        return
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise RunError(
            "the record of this study is damaged",
            where=str(path),
            expected="the settings that it was started with",
            found=str(error),
            fix="choose another folder with --out",
        ) from error
    if held != asked:
        key = next(k for k in asked if held.get(k) != asked[k])
        raise RunError(
            f"the study in this folder has another '{key}'",
            where=str(path),
            expected=str(held.get(key)),
            found=str(asked[key]),
            fix="go on with the same settings, or choose another folder with --out",
        )


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise MissingExtra.of("optuna", "tune", "searching for the front") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
