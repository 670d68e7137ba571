"""Train, verify, feed back what was not proved, repeat: until the target, or the budget is spent.

out/
  cycle.json           what was asked, every finished round, how it ended
  plain/               the same network without the rule: what accuracy is to be kept
  round-01/            a run folder; asked.json, regions.json: verdicts; certificates/
  model.onnx           the network of the best round
  verdicts.json        its verdict for every region asked
  curve.png            PAcc and CSat by round

The target is met by a round that is as accurate as ``qll.cycle.accuracy`` says, and by no other.
The regions that it speaks of lie around test images and are never trained on; what is fed back
(witnesses, open regions) comes from regions around training images.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from qll.cycle.accuracy import Accuracy, accuracy, measure
from qll.cycle.budget import Budget, decide_within, share
from qll.cycle.records import CycleResult, Ending, Round, Saving, best_round, digest, is_enough
from qll.data.base import DataSet
from qll.errors import RunError
from qll.files import owned, read_json, write_json
from qll.formula.normal import substitute
from qll.metrics import constant_answer, outputs_of, proved_share, tally, vacuous_labels
from qll.property import Property
from qll.training.config import TrainConfig
from qll.training.feedback import Feedback
from qll.training.loop import Trainer, load_configured
from qll.training.progress import Reporter, Silent
from qll.training.reach import warn_of_reach
from qll.training.run import RunFolder
from qll.training.stages import stages
from qll.training.streams import generator
from qll.verify.api import Problem
from qll.verify.possible import possible

_MOST_WITNESSES = 2_000  # that are kept from round to round; the newest
_GUESS = 0.1  # at the seconds that a region takes, until a round has measured it


class CycleConfig(BaseModel):
    """``train`` is the first round; later ones go on from its network for ``more_epochs`` each, at
    ``more_rate`` of its learning rate, the property weighing ``more_weight`` times as much from
    round to round, as long as the target is not met, and that much less after a round that is not
    accurate enough. ``asked`` regions decide, ``feedback`` regions teach. ``accuracy`` is the least
    PAcc; None: a few points below the same network without the rule."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    train: TrainConfig
    target: float = Field(default=0.95, gt=0, le=1)
    accuracy: float | None = Field(default=None, ge=0, le=1)
    budget: float = Field(default=1800.0, gt=0)
    asked: int = Field(default=200, ge=1)
    feedback: int = Field(default=400, ge=0)
    more_epochs: int = Field(default=5, ge=1)
    more_rate: float = Field(default=0.4, gt=0)
    more_weight: float = Field(default=1.5, ge=1)
    timeout: float = Field(default=5.0, gt=0)
    most_rounds: int = Field(default=50, ge=1)
    patience: int = Field(default=4, ge=1)
    jobs: int = Field(default=1, ge=1)


def cycle(
    config: CycleConfig,
    out: str | Path,
    *,
    resume: bool = False,
    data: DataSet | None = None,
    start: nn.Module | None = None,
    reporter: Reporter | None = None,
    on_round: Callable[[Round], None] | None = None,
) -> CycleResult:
    """Go round until the target is met, the budget spent, or nothing moves any more. ``start`` is a
    network to begin from; the rounds then report how far they agree with its decisions."""
    folder = Path(out)
    data = load_configured(config.train) if data is None else data
    work = _Cycle(config, folder, data, start, reporter or Silent(), on_round)
    work.check_possible()
    if not resume:
        warn_of_reach(work.judged, work.asked[0], reporter)
    work.open(resume)
    with owned(folder):
        return work.run()


class _Cycle:
    def __init__(
        self,
        config: CycleConfig,
        folder: Path,
        data: DataSet,
        start: nn.Module | None,
        reporter: Reporter,
        on_round: Callable[[Round], None] | None,
    ) -> None:
        self.config, self.folder, self.data, self.start = config, folder, data, start
        self.reporter, self.on_round = Saving(reporter, lambda: self._save(None)), on_round
        self.origin = None if start is None else digest(start)
        self.rounds: list[Round] = []
        self.spent = 0.0
        self.accuracy: Accuracy | None = None
        # One check of everything that can be wrong with the training part, before any work.
        trainer = Trainer(config.train, data, deepcopy(start), None, Silent())
        self.judged: Property = trainer.judged
        self.train_rows = trainer.train_rows
        # A rule that depends on no data point is one question.
        count = 1 if self.judged.is_closed else min(config.asked, len(data.test))
        self.asked = data.test.batch(slice(0, count))
        # What the verifier does not take is said now, not after a round of training.
        problem = self._problem(trainer.model.eval(), *self.asked, None)
        self.counted = [i for i in range(count) if not problem.query(i).vacuous]
        silent = vacuous_labels(
            self.judged, torch.from_numpy(data.train.labels), data.outputs, data.shape
        )
        self.teaching = self.train_rows[~silent[self.train_rows]]

    # --- before the first round ---

    def check_possible(self) -> None:
        """A property that no network can satisfy is named, instead of being trained for ever; and
        one that says nothing of the data, instead of being "proved"."""
        x, labels = self.asked
        if not self.counted:
            raise RunError(
                "this property says nothing of the data points asked",
                where=self.judged.name,
                expected="some at which its premise holds",
                found=f"a premise that is false at all {len(x)} of them",
                fix="raise --count, or look at the premise with 'qll show'",
            )
        if self.judged.sources & {"x2", "y2"}:  # two runs: no outputs of one decide it
            return
        hopeless = 0
        known: dict[Any, bool] = {}
        for index in self.counted:
            key = self._pattern(labels, index)
            uses_input = bool(self.judged.sources & {"x", "x0"})
            memo = (key, index) if uses_input else key
            if memo not in known:
                known[memo] = self._possible_at(x[index], key)
            hopeless += not known[memo]
        count = len(self.counted)
        if share(count - hopeless, count) >= self.config.target:
            return
        everywhere = hopeless == count
        raise RunError(
            "this property cannot be met",
            where=self.judged.name,
            expected=f"{100 * self.config.target:g} % of the regions to be within reach",
            found="a contradiction: no outputs satisfy it"
            if everywhere
            else f"{hopeless} of {count} data points that violate it whatever the outputs are",
            fix="look at the formula with 'qll show', or lower --target",
        )

    def _pattern(self, labels: Tensor, index: int) -> tuple[int, ...] | None:
        if not self.judged.uses_labels:
            return None
        own = labels[index]
        return (int(own),) if own.dim() == 0 else tuple(int(c) for c in own.nonzero().flatten())

    def _possible_at(self, x: Tensor, pattern: tuple[int, ...] | None) -> bool:
        outputs = self.data.outputs
        form = self.judged.hard_form(pattern, outputs=outputs, inputs=tuple(x.shape))
        point = x.double().flatten().numpy()
        return possible(substitute(form, {"x": point, "x0": point}), outputs)

    def open(self, resume: bool) -> None:
        path = self.folder / "cycle.json"
        asked = self.config.model_dump(mode="json")
        if path.exists():
            held = read_json(path, "record of a cycle")
            if not resume:
                raise RunError(
                    "this folder holds a cycle already",
                    where=str(self.folder),
                    expected="a new folder, or --resume",
                    found="cycle.json",
                    fix="pass --resume to go on with it, or choose another folder with --out",
                )
            # The budget and the target may be raised; what has been trained may not be another.
            free = ("budget", "target", "accuracy", "jobs", "most_rounds", "patience")
            for key, value in held.get("asked", {}).items():
                if key not in free and value != asked.get(key):
                    raise RunError(
                        f"the cycle in this folder has another '{key}'",
                        where=str(path),
                        expected=str(value),
                        found=str(asked.get(key)),
                        fix="resume without changing it, or start a new cycle with another --out",
                    )
            if resume and held.get("network") != self.origin:
                raise RunError(
                    "the cycle in this folder began from another network",
                    where=str(path),
                    expected="the network that it began from",
                    found="another one" if self.origin else "none",
                    fix="pass the same --network, or start a new cycle with another --out",
                )
            self.rounds = [Round.model_validate(row) for row in held.get("rounds", [])]
            self.spent = float(held.get("spent", 0.0))
            if held.get("accuracy") is not None:
                self.accuracy = Accuracy.model_validate(held["accuracy"])
        else:
            self.folder.mkdir(parents=True, exist_ok=True)

    # --- the rounds ---

    def run(self) -> CycleResult:
        self.budget = Budget(self.config.budget, self.spent)
        self._save(None)
        least = self._least()
        ending = self._ending(least)
        while ending is None:
            found = self._round(len(self.rounds) + 1, least)
            if found is None:
                ending = "out of budget"
                break
            self.rounds.append(found)
            if self.on_round is not None:
                self.on_round(found)
            ending = self._ending(least)
            self._save(ending)
        if not self.rounds:
            raise RunError(
                "the budget ended before the first round",
                where=str(self.folder),
                expected="time for at least one epoch and its proofs",
                found=f"{self.config.budget:g} s",
                fix="raise --budget and resume, or begin in another --out with fewer --epochs",
            )
        return self._finish(ending, least)

    def _least(self) -> Accuracy:
        """Said by the user, measured before, or measured now: once in a cycle."""
        given = self.config.accuracy
        if given is not None:
            self.accuracy = Accuracy.given(given, self.data)
        elif self.accuracy is None or self.accuracy.plain is None:
            self.accuracy = measure(
                self.config.train,
                self.data,
                self.start,
                RunFolder(self.folder / "plain"),
                self.budget,
                self.reporter,
            )
            self.reporter.note(str(self.accuracy))
        self._save(None)
        return self.accuracy

    def _ending(self, least: Accuracy) -> Ending | None:
        if not self.rounds:
            return None
        best = best_round(self.rounds, least)
        if best.csat >= self.config.target and is_enough(best, least):
            return "met"
        if self.budget.left <= 0:
            return "out of budget"
        if len(self.rounds) - best.number >= self.config.patience:
            return "stalled"
        return "rounds" if len(self.rounds) >= self.config.most_rounds else None

    def _round(self, number: int, least: Accuracy) -> Round | None:
        """Train and verify; None if the budget left no time for a single epoch."""
        begun = time.monotonic()
        trainer, folder = self._trainer(number, self._settings(number, least))
        with folder.locked():
            done = trainer.restore()
            # What proofs took last time, and some: a round without verdicts is worth nothing.
            reserve = 1.2 * self._proof_seconds()
            reserve = min(reserve, 0.5 * self.budget.left)
            trainer.run_epochs(done, until=self.budget.until(reserve))
            if not trainer.rows:
                return None
            trainer.export()
        model = trainer.model.eval()
        x, labels = self.asked
        problem = self._problem(model, x, labels, folder.path / "certificates")
        asked = decide_within(
            problem,
            folder.path / "asked.json",
            self.budget,
            jobs=self.config.jobs,
            on_slab=lambda: self._save(None),
        )
        open_rows, witnesses = self._learn(number, model, folder.path)
        counts, proved = tally(asked.values()), proved_share(asked.values())
        return Round(
            number=number,
            epochs=len(trainer.rows),
            pacc=accuracy(model, self.data),
            csat=proved.value,
            limit=share(self._satisfied(model), len(self.counted)),
            **{**counts, "verified": proved.good},
            open_training=open_rows,
            witnesses=witnesses,
            agreement=self._agreement(model),
            constant=constant_answer(
                outputs_of(model, torch.from_numpy(self.data.test.inputs)), task=self.data.task
            ),
            seconds=time.monotonic() - begun,
        )

    def _settings(self, number: int, least: Accuracy) -> TrainConfig:
        first = self.config.train
        if number == 1:
            return first
        last = stages(first)[-1].config
        earlier = self.rounds[: number - 1]
        steps = sum(1 if is_enough(found, least) else -1 for found in earlier)
        heavier = self.config.more_weight**steps
        return last.model_copy(
            update={
                "alpha": last.alpha * heavier,
                "weight": None if last.weight is None else last.weight * heavier,
                "epochs": self.config.more_epochs,
                "learning_rate": last.learning_rate * self.config.more_rate,
                "warm_up": 0.0,
                "delay": 0,
                "epsilon": None,
                "hardness": None,
                "stages": (),
                "seed": (first.seed + number - 1) % 2**32,
            }
        )

    def _trainer(self, number: int, config: TrainConfig) -> tuple[Trainer, RunFolder]:
        folder = RunFolder(self._path(number))
        if folder.config_path.exists():  # as it was begun, whatever least accuracy is asked now
            config = folder.config()
        trainer = Trainer(config, self.data, self._start(number), None, self.reporter)
        if number > 1:
            trainer.feedback = self._feedback(number - 1)
        if not folder.config_path.exists():
            folder = RunFolder.create(folder.path, config)
        trainer.folder = folder
        return trainer, folder

    def _start(self, number: int) -> nn.Module | None:
        """The network that a round begins with: that of the round before."""
        if number == 1:
            return deepcopy(self.start)
        folder = RunFolder(self._path(number - 1))
        earlier = Trainer(folder.config(), self.data, deepcopy(self.start), folder, Silent())
        earlier.restore()
        return earlier.model

    def _path(self, number: int) -> Path:
        return self.folder / f"round-{number:02d}"

    # --- proofs ---

    def _problem(
        self, model: nn.Module, x: Tensor, labels: Tensor, certificates: Path | None
    ) -> Problem:
        return Problem.of(
            self.judged,
            model,
            x,
            labels,
            timeout=self.config.timeout,
            certified=True,
            certificates=certificates,
        )

    def _proof_seconds(self) -> float:
        regions = self.config.asked + self.config.feedback
        return self._measured * regions if self._measured else _GUESS * regions

    _measured = 0.0

    def _learn(self, number: int, model: nn.Module, path: Path) -> tuple[int, int]:
        """Ask about regions around training images; keep what the next round should see."""
        rows = self._taught_rows(number)
        if not len(rows):
            two = len(self.judged.binders) > 1
            none = self._points([])
            Feedback(rows, none, rows, none if two else None).save(path)
            return 0, 0
        x, labels = self.data.train.batch(rows)
        begun = time.monotonic()
        found = decide_within(
            self._problem(model, x, labels, None),
            path / "regions.json",
            self.budget,
            jobs=self.config.jobs,
            on_slab=lambda: self._save(None),
        )
        self._measured = max((time.monotonic() - begun) / len(rows), self._measured)
        open_rows = [i for i in range(len(rows)) if found[i]["status"] != "verified"]
        shown = [i for i in open_rows if found[i].get("witness") is not None]
        points = self._points([found[i]["witness"] for i in shown])
        seconds: Tensor | None = None
        if len(self.judged.binders) > 1:
            seconds = self._points([found[i]["witness2"] for i in shown])
        earlier = Feedback.load(self._path(number - 1)) if number > 1 else None
        sources = rows[torch.tensor(shown, dtype=torch.long)]
        if earlier is not None:
            points = torch.cat((points, earlier.witnesses))[:_MOST_WITNESSES]
            sources = torch.cat((sources, earlier.sources))[:_MOST_WITNESSES]
            if seconds is not None and earlier.seconds is not None:
                seconds = torch.cat((seconds, earlier.seconds))[:_MOST_WITNESSES]
        open_ones = rows[torch.tensor(open_rows, dtype=torch.long)]
        kept = Feedback(open_ones, points, sources, seconds)
        kept.save(path)
        return len(open_rows), len(points)

    def _taught_rows(self, number: int) -> Tensor:
        """Half of them what was open last time, the rest new ones."""
        wanted = min(self.config.feedback, len(self.teaching))
        wanted = min(wanted, 1) if self.judged.is_closed else wanted
        earlier = Feedback.load(self._path(number - 1)) if number > 1 else None
        old = self.train_rows[:0] if earlier is None else earlier.rows[: wanted // 2]
        draw = generator(self.config.train.seed, "regions", number)
        fresh = self.teaching[torch.randperm(len(self.teaching), generator=draw)]
        fresh = fresh[~torch.isin(fresh, old)]
        return torch.cat((old, fresh))[:wanted]

    def _feedback(self, number: int) -> Feedback | None:
        found = Feedback.load(self._path(number))
        if found is None or (not len(found.rows) and not len(found.witnesses)):
            return None
        return found

    def _points(self, witnesses: list[Any]) -> Tensor:
        found = torch.tensor(np.array(witnesses, dtype=np.float32))
        return found.reshape(-1, *self.data.shape)

    @torch.no_grad()
    def _satisfied(self, model: nn.Module) -> int:
        """Data points that count at which the network satisfies the property itself."""
        x, labels = (part[self.counted] for part in self.asked)
        y = model(x)
        values: dict[str, Tensor] = {}
        for name in self.judged.sources - {"y"}:
            values[name] = y if name in ("y0", "y2") else x
        own = labels if self.judged.uses_labels else None
        return int(self.judged.holds(y, labels=own, **values).sum())

    @torch.no_grad()
    def _agreement(self, model: nn.Module) -> float | None:
        """Test images on which the decisions are those of the network that the cycle began from."""
        if self.start is None:
            return None
        x = torch.from_numpy(self.data.test.inputs)
        ours, theirs = model(x), self.start.eval()(x)
        if self.data.task == "regression":
            return None
        if self.data.task == "multi-label":
            return float(((ours > 0) == (theirs > 0)).float().mean())
        return float((ours.argmax(1) == theirs.argmax(1)).float().mean())

    # --- records ---

    def _save(self, ending: Ending | None) -> None:
        write_json(
            self.folder / "cycle.json",
            {
                "asked": self.config.model_dump(mode="json"),
                "network": self.origin,
                "accuracy": None if self.accuracy is None else self.accuracy.model_dump(),
                "rounds": [r.model_dump() for r in self.rounds],
                "spent": self.budget.used,
                "ending": ending,
            },
        )

    def _finish(self, ending: Ending, least: Accuracy) -> CycleResult:
        from qll.cycle.picture import draw_curve

        best = best_round(self.rounds, least)
        path = self._path(best.number)
        for name, target in (("model.onnx", "model.onnx"), ("asked.json", "verdicts.json")):
            if (path / name).is_file():
                shutil.copyfile(path / name, self.folder / target)
        draw_curve(self.folder / "curve.png", self.rounds, self.config.target, least)
        self._save(ending)
        return CycleResult(
            ending=ending,
            rounds=tuple(self.rounds),
            best=best.number,
            accuracy=least,
            seconds=self.budget.used,
        )
