"""The training loop: prediction and property, balanced, epoch by epoch, into a run folder."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qll.attacks.problem import Points, run_model
from qll.data.base import DataSet, Progress
from qll.data.source import load as load_data
from qll.errors import InputError, RunError
from qll.kernels.forward import training_forward
from qll.kernels.spans import folded_once
from qll.logics.base import Logic
from qll.metrics import (
    Evaluation,
    Satisfaction,
    Watch,
    evaluate,
    prediction_accuracy,
    regression_errors,
    unwatched,
)
from qll.prediction import class_weights, correct_predictions, prediction_loss
from qll.property import Property
from qll.training.balance import Balance
from qll.training.checks import (
    check_device,
    check_network,
    check_same,
    check_views,
    split_rows,
)
from qll.training.config import TrainConfig, check_property
from qll.training.feedback import Feedback
from qll.training.initialise import initialise
from qll.training.loss import PropertyTerm, combine, joined, reduce_losses
from qll.training.methods import Method, Step
from qll.training.parts import Part, Totals
from qll.training.pictures import draw_samples
from qll.training.progress import Reporter, Silent
from qll.training.reach import warn_of_reach
from qll.training.run import RunFolder
from qll.training.stages import stages
from qll.training.still import Still
from qll.training.streams import generator, seeded, stream_seed


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """What a finished run gives."""

    model: nn.Module
    config: TrainConfig
    evaluation: Evaluation
    rows: list[dict[str, Any]]
    folder: RunFolder | None

    def _repr_html_(self) -> str:
        from qll.notebook import run_html

        return run_html(self)


def train(
    config: TrainConfig,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    data: DataSet | None = None,
    model: nn.Module | None = None,
    reporter: Reporter | None = None,
    download: Progress | None = None,
) -> TrainedRun:
    """Train as ``config`` says; with ``out``, into a run folder that can be resumed.

    ``model`` starts from a network of yours instead of a new one; ``data`` likewise. Ctrl-C ends
    the run after the last finished epoch, exported and resumable, and is raised again.
    """
    if out is not None and resume:
        check_same(RunFolder.open(out), config)
    elif out is not None:
        RunFolder(out).check_new()
    data = load_configured(config, progress=download) if data is None else data
    trainer = Trainer(config, data, model, None, reporter or Silent())
    if not (resume or config.is_baseline):
        warn_of_reach(trainer.judged, data.test.batch(slice(0, 1000))[0], reporter)
    if out is None:
        return trainer.run()
    # Everything that can be wrong with the request has been looked at: now the folder.
    trainer.folder = RunFolder.open(out) if resume else RunFolder.create(out, config)
    with trainer.folder.locked(), _threads(trainer.folder.threads()):
        return trainer.run()


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """A resumed run takes as many threads as it was started with, to give the same bits."""
    before = torch.get_num_threads()
    if count is not None and count != before:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def open_run(path: str | Path, *, data: DataSet | None = None) -> Trainer:
    """A run read back from its folder, at its last finished epoch: to evaluate or to look at."""
    folder = RunFolder.open(path)
    config = folder.config()
    trainer = Trainer(config, data or load_configured(config), None, folder, Silent())
    if not trainer.restore() and config.epochs:
        raise RunError(
            "this run has no finished epoch",
            where=str(folder.path),
            expected="a checkpoint",
            found="none",
            fix="go on with it: qll train --resume --out FOLDER",
        )
    return trainer


def load_configured(config: TrainConfig, progress: Progress | None = None) -> DataSet:
    return load_data(config.data, config.data_dir, progress=progress, **config.data_options)


def build_model(config: TrainConfig, data: DataSet) -> nn.Module:
    """The network of a run before its first step."""
    from qll.networks.models import create

    shape: dict[str, Any] = {"outputs": data.outputs, "mean": data.mean, "std": data.std}
    if data.schema is not None:
        shape["inputs"] = data.shape[0]
        if data.task == "regression":
            shape |= {"target_mean": data.target_mean, "target_std": data.target_std}
    else:
        shape |= dict(zip(("in_channels", "height", "width"), data.shape, strict=True))
    network = config.network
    if network == "auto":
        network = "paper-mnist" if data.schema is None else "mlp:64,32"
    with seeded(config.seed, "init"):
        model = create(network, **{**shape, **config.network_options})
        initialise(model, config)
    return model.to(config.device)


class _OutOfTime(Exception):
    pass


@dataclass(frozen=True, eq=False)
class _Batch:
    x: Tensor
    labels: Tensor
    part: Part
    prop: Property
    logic: Logic | None
    epoch: int
    index: int


class Trainer:
    """The state of a run in memory. Use ``train``; this is for those who add to the loop."""

    def __init__(
        self,
        config: TrainConfig,
        data: DataSet,
        model: nn.Module | None,
        folder: RunFolder | None,
        reporter: Reporter,
    ) -> None:
        self.config, self.data, self.folder, self.reporter = config, data, folder, reporter
        check_device(config.device)
        self.model = build_model(config, data) if model is None else model.to(config.device)
        check_property(config, data.fits, data.shape)
        check_network(self.model, data, config.device)
        check_views(config, data)
        self.judged = config.judged_property(data.fits)
        self.logic = config.record()
        self.parts = [Part(stage, self.model, data) for stage in stages(config)]
        self.optimiser = torch.optim.AdamW(
            self.model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
        )
        self.rows: list[dict[str, Any]] = []
        self.train_rows, self.validation_rows = split_rows(len(data.train), config.validation)
        self.feedback: Feedback | None = None
        self.still = Still()
        self._targets = self._prediction_units()

    def _prediction_units(self) -> dict[str, Tensor | None]:
        """The weights of classes and the units of numbers, for the loss of prediction."""
        weights, scale = None, None
        if self.config.class_weights == "balanced":
            labels = torch.from_numpy(self.data.train.labels)[self.train_rows]
            weights = class_weights(labels, self.data.task, self.data.outputs)
        if self.data.target_std:
            scale = torch.tensor(self.data.target_std)
        device = self.config.device
        held = {"weights": weights, "scale": scale}
        return {name: None if t is None else t.to(device) for name, t in held.items()}

    def run(self) -> TrainedRun:
        done = self.restore()
        config = self.config
        earlier = self.folder.evaluation() if self.folder is not None else None
        if done >= config.epochs and earlier is not None:
            return TrainedRun(self.model, config, earlier, self.rows, self.folder)
        try:
            self.run_epochs(done)
        except KeyboardInterrupt:
            if self.restore():
                self.export()
            raise
        if self.parts[-1].method is not None:
            self.parts[-1].method.finish()
        evaluation = self.evaluate()
        self.export()
        if self.folder is not None:
            self.folder.save_evaluation(evaluation)
            self._draw()
        return TrainedRun(self.model, config, evaluation, self.rows, self.folder)

    def run_epochs(self, done: int, *, until: float = math.inf) -> bool:
        """The epochs that are left, after ``done``. False if ``until`` (of ``time.monotonic``) came
        first: then the network is that of the last finished epoch."""
        config = self.config
        steps = math.ceil(len(self.train_rows) / config.batch_size)
        self.reporter.start(title(config), config.epochs, steps, done)
        try:
            for epoch in range(done, config.epochs):
                row = self._epoch(epoch, until)
                self.rows.append(row)
                if self.folder is not None:
                    self.folder.finish_epoch(epoch + 1, row, self.model, self.optimiser)
                self.reporter.epoch(row)
                if (said := self.still.see(row, self._trained_slack)) is not None:
                    self.reporter.note(said)
        except _OutOfTime:
            self.restore()
            return False
        return True

    def evaluate(
        self,
        split: str = "test",
        *,
        csat: Satisfaction | None = None,
        watch: Watch = unwatched,
    ) -> Evaluation:
        """All figures on the whole test set, or on the validation images. ``csat`` asks a verifier
        (``qll.metrics.constraint_satisfaction``)."""
        x, labels = self._images(split)
        config = self.config
        return evaluate(
            self.model,
            config.measured_property(self.data.fits),
            x,
            labels,
            attack=config.make_judging_attack(),
            logic=self.logic,
            oracle=config.oracle,
            attacked=config.attacked_property(self.data.fits),
            task=self.data.task,
            samples=config.samples,
            seed=stream_seed(config.seed, "evaluate"),
            engine=config.engine,
            csat=csat,
            watch=watch,
        )

    # --- one epoch ---

    def _epoch(self, epoch: int, until: float) -> dict[str, Any]:
        begun = time.perf_counter()
        part = next(p for p in self.parts if epoch < p.stage.last)
        config, rate = part.config, part.config.learning_rate
        rows = self.train_rows if self.feedback is None else self.feedback.order(self.train_rows)
        order = rows[torch.randperm(len(rows), generator=generator(config.seed, "shuffle", epoch))]
        chance = generator(config.seed, "augment", epoch)
        totals, views = Totals(), config.views.views()
        prop, logic = part.at(epoch)
        self.model.train()
        with seeded(config.seed, "network", epoch):
            for index, rows in enumerate(torch.split(order, config.batch_size)):
                rate = part.rate(epoch + index * config.batch_size / len(order))
                self._set_rate(rate)
                x, labels = self.data.train.batch(rows)
                if config.augment:
                    x = self.data.augment(x, chance)
                x = views(x, chance)
                x, labels = x.to(config.device), labels.to(config.device)
                self._step(_Batch(x, labels, part, prop, logic, epoch, index), totals)
                self.reporter.step()
                if time.monotonic() > until:
                    raise _OutOfTime
        row = self._summary(epoch, totals, prop, logic)
        row["learning_rate"] = rate
        if config.evaluate_every and (epoch + 1) % config.evaluate_every == 0:
            split = "validation" if len(self.validation_rows) else "test"
            row[split] = self.evaluate(split).to_json()
        row["seconds"] = time.perf_counter() - begun
        return row

    def _step(self, batch: _Batch, totals: Totals) -> None:
        part = batch.part
        with folded_once():
            y, prediction, total = self._losses(batch, totals)
        self.optimiser.zero_grad(set_to_none=True)
        total.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        if part.method is not None:
            part.method.after_step()
        totals.add(steps=1, samples=len(y), prediction=float(prediction.detach()) * len(y))
        if self.data.task != "regression":
            good, predicted = correct_predictions(y, batch.labels, self.data.task)
            totals.add(good=good, predicted=predicted)

    def _losses(self, batch: _Batch, totals: Totals) -> tuple[Tensor, Tensor, Tensor]:
        """The outputs, the loss of prediction, and the number to minimise."""
        y = run_model(training_forward(self.model, batch.x), batch.x)
        prediction = prediction_loss(
            y, batch.labels, self.data.task, distance=self.config.distance, **self._targets
        )
        self._check_finite(prediction, "prediction", batch)
        total = prediction
        part = batch.part
        if part.method is not None and batch.logic is not None:
            seed = stream_seed(self.config.seed, "attack", batch.epoch, batch.index)
            step = Step(batch.x, batch.labels, y, batch.prop, batch.logic, batch.epoch, seed)
            term = self._term(part.method, step, batch)
            if self.feedback is not None:
                term = joined(term, self._witness_term(batch))
            property_loss = self._reduce(term.losses, part)
            total, weight = combine(self.model, prediction, property_loss, part.balance)
            self._check_finite(total, "combined", batch, term.points)
            if isinstance(part.balance, Balance):
                totals.add(
                    prediction_norm=float(weight.prediction_norm),
                    property_norm=float(weight.property_norm),
                )
            totals.add(
                weight=float(weight.value),
                property=float(property_loss.detach()) * len(y),
                # a share: boxes and pairs are not as many as the rows of a batch
                satisfied=term.share * len(y),
            )
        return y.detach(), prediction, total

    def _term(self, method: Method, step: Step, batch: _Batch) -> PropertyTerm:
        try:
            term = batch.part.term(method, step)
            self._reduce(term.losses.detach(), batch.part)
        except (InputError, RunError) as error:
            if torch.isfinite(step.outputs).all() and self._finite_weights():
                raise
            raise self._stopped("property", error.found, batch) from error
        return term

    def _witness_term(self, batch: _Batch) -> PropertyTerm | None:
        if self.feedback is None or batch.logic is None:
            return None
        return self.feedback.term(
            self.model,
            self.judged,
            batch.logic,
            self.data,
            batch=len(batch.x),
            seed=self.config.seed,
            place=(batch.epoch, batch.index),
        )

    def _finite_weights(self) -> bool:
        return all(bool(torch.isfinite(p).all()) for p in self.model.parameters())

    def _check_finite(
        self, loss: Tensor, name: str, batch: _Batch, points: Points | None = None
    ) -> None:
        value = float(loss.detach())
        if not math.isfinite(value):
            raise self._stopped(name, str(value), batch, points)

    def _stopped(
        self, name: str, found: str, batch: _Batch, points: Points | None = None
    ) -> RunError:
        where = f"epoch {batch.epoch + 1}, step {batch.index + 1}"
        fix = f"lower learning_rate (now {self.config.learning_rate:g})"
        if self.folder is not None:
            path = self.folder.save_batch(batch.x, batch.labels, points or {})
            where = f"{self.folder.path}, {where}"
            fix += f"; the batch is in {path.name}, the epochs before are kept"
        return RunError(
            f"the {name} loss is not finite",
            where=where,
            expected="a finite number",
            found=found,
            fix=fix,
        )

    def _summary(
        self, epoch: int, totals: Totals, prop: Property, logic: Logic | None
    ) -> dict[str, Any]:
        x, labels = self._images("validation" if len(self.validation_rows) else "test")
        found: dict[str, Any]
        if self.data.task == "regression":
            rmse, r2 = regression_errors(self.model, x, labels)
            found = {"rmse": rmse, "r2": r2}
        else:
            right = prediction_accuracy(self.model, x, labels, task=self.data.task)
            found = {"train_pacc": totals.mean("good", "predicted"), "pacc": right.value}
        satisfied = totals.mean("satisfied", "samples")
        row: dict[str, Any] = {
            "epoch": epoch + 1,
            "prediction_loss": totals.mean("prediction", "samples"),
            "property_loss": totals.mean("property", "samples"),
            "lambda": totals.mean("weight", "steps"),
            "prediction_norm": totals.mean("prediction_norm", "steps"),
            "property_norm": totals.mean("property_norm", "steps"),
            "train_csec": satisfied,
            **found,
        }
        config = next(p for p in self.parts if epoch < p.stage.last).config
        if config.hardness is not None and logic is not None:
            row["hardness"] = logic.hardness
        if (config.epsilon is not None or config.warm_up) and "epsilon" in prop.values:
            row["epsilon"] = prop.value_of("epsilon")
        if len(self.parts) > 1:
            row["method"] = config.method
        return row

    # --- how ---

    def _reduce(self, losses: Tensor, part: Part) -> Tensor:
        floor = part.config.enough
        if floor is None and self.config.as_published:
            floor = self.config.floor
        return reduce_losses(losses, floor, part.config.batch_hardness)

    def _trained_slack(self, epoch: int) -> float:
        """How far the soft value of the rule may be from the hard one, in an epoch."""
        prop, logic = next(p for p in self.parts if epoch < p.stage.last).at(epoch)
        if logic is None:
            return 0.0
        several = self.data.task == "multi-label" and prop.uses_labels
        shaped = replace(prop, inputs=self.data.shape)
        return sum(shaped.slack(logic, outputs=self.data.outputs, multi_label=several))

    def _set_rate(self, rate: float) -> None:
        for group in self.optimiser.param_groups:
            group["lr"] = rate

    def _images(self, split: str) -> tuple[Tensor, Tensor]:
        if split == "validation":
            x, labels = self.data.train.batch(self.validation_rows)
        else:
            x = torch.from_numpy(self.data.test.inputs)
            labels = torch.from_numpy(self.data.test.labels)
        return x.to(self.config.device), labels.to(self.config.device)

    def restore(self) -> int:
        """Back to the last finished epoch; its number."""
        if self.folder is None:
            return len(self.rows)
        checkpoint = self.folder.latest()
        if checkpoint is None:
            return 0
        checkpoint.restore(self.model, self.optimiser)
        self.rows = self.folder.rows()
        return checkpoint.epoch

    def export(self) -> None:
        if self.folder is not None and not self.folder.save_onnx(self.model, self.data.shape):
            self.reporter.note("no model.onnx: pip install 'qll[onnx]' to export it")
        self.model.to(self.config.device)

    def _draw(self) -> None:
        if self.folder is None:
            return
        path = self.folder.path / "samples.png"
        if not draw_samples(path, self.model, self.config, self.data, self.judged):
            self.reporter.note("no samples.png: pip install 'qll[train]' to draw it")


def title(config: TrainConfig) -> str:
    how = config.logic if config.is_baseline else f"{config.logic}, {config.method}"
    rule = Path(config.property).name  # of a file, its name; of a shipped rule, all of it
    return f"{rule} on {config.data} ({how}, seed {config.seed})"
