"""A run's folder: what was asked, where it ran, what it gave.

config.json        the resolved configuration
environment.json   versions and machine
metrics.jsonl      one line an epoch
checkpoints/       the last two epochs, safetensors
model.onnx         the network after the last finished epoch; takes raw input
evaluation.json    PAcc, CAcc, CSec (and CSat) on the whole test set
samples.png        clean, attacked, difference
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qll.errors import MissingExtra, QllError, RunError
from qll.files import (
    append_line,
    owned,
    read_json,
    read_lines,
    write_atomically,
    write_error,
    write_json,
)
from qll.metrics import Evaluation
from qll.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from qll.training.config import TrainConfig, build

_KEPT = 2  # checkpoints: the last one, and the one before in case a disk damages the last
_PACKAGES = ("qll", "torch", "numpy", "numba", "scipy", "onnx", "safetensors")


class RunFolder:
    """One run. ``create`` makes it, ``open`` reads it; writers hold ``locked``."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    # --- making and opening ---

    @classmethod
    def create(cls, path: str | Path, config: TrainConfig) -> RunFolder:
        """A new run; a folder that holds one already is refused."""
        run = cls(path)
        run.check_new()
        try:
            run.checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_error(run.path, error) from error
        write_json(run.path / "environment.json", environment())
        # Last: a folder with a config.json is a run.
        write_json(run.config_path, json.loads(config.model_dump_json()))
        return run

    def check_new(self) -> None:
        if self.config_path.exists():
            raise RunError(
                "this folder holds a run already",
                where=str(self.path),
                expected="a new folder, or --resume",
                found="config.json",
                fix="pass --resume to go on with it, or choose another folder with --out",
            )

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        run = cls(path)
        if not run.config_path.is_file():
            raise RunError(
                "this is not the folder of a run",
                where=str(run.path),
                expected="a folder with config.json, as 'qll train --out' makes it",
                found="an empty or other folder" if run.path.is_dir() else "no such folder",
                fix="check the path; --resume is for a run that was started before",
            )
        return run

    @property
    def config_path(self) -> Path:
        return self.path / "config.json"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def onnx_path(self) -> Path:
        return self.path / "model.onnx"

    def config(self) -> TrainConfig:
        values = read_json(self.config_path, "configuration")
        try:
            return build(values)
        except QllError as error:
            raise error.at(str(self.config_path)) from error

    def threads(self) -> int | None:
        """Of torch when the run was started: sums depend on it in their last bit."""
        path = self.path / "environment.json"
        held = read_json(path, "environment").get("threads") if path.is_file() else None
        return held if isinstance(held, int) and 0 < held <= 4096 else None

    @contextmanager
    def locked(self) -> Iterator[None]:
        with owned(self.path):
            yield

    # --- what training writes ---

    def finish_epoch(
        self,
        epoch: int,
        row: dict[str, Any],
        model: nn.Module,
        optimiser: torch.optim.Optimizer,
    ) -> None:
        """Metrics first, checkpoint second: a kill between the two repeats the epoch, and its row
        is dropped on resuming; none is lost and none counted twice."""
        append_line(self.path / "metrics.jsonl", row)
        save_checkpoint(self._checkpoint(epoch), Checkpoint.of(epoch, model, optimiser))
        for old in self.epochs()[:-_KEPT]:
            self._checkpoint(old).unlink(missing_ok=True)

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint that is whole; later rows of the metrics are dropped."""
        damaged: RunError | None = None
        for epoch in reversed(self.epochs()):
            try:
                checkpoint = load_checkpoint(self._checkpoint(epoch))
            except RunError as error:
                damaged = damaged or error
                continue
            self._keep_rows(epoch)
            return checkpoint
        if damaged is not None:
            raise damaged
        self._keep_rows(0)
        return None

    def rows(self) -> list[dict[str, Any]]:
        return read_lines(self.path / "metrics.jsonl")

    def save_evaluation(self, evaluation: Evaluation) -> None:
        write_json(self.path / "evaluation.json", evaluation.to_json())

    def evaluation(self) -> Evaluation | None:
        path = self.path / "evaluation.json"
        if not path.is_file():
            return None
        try:
            return Evaluation.from_json(read_json(path, "evaluation"))
        except QllError as error:
            raise error.at(str(path)) from error

    def save_onnx(self, model: nn.Module, shape: tuple[int, ...]) -> bool:
        """False without the onnx package: the weights are in the checkpoint all the same."""
        from qll.networks.onnx_writer import onnx_bytes

        try:
            write_atomically(self.onnx_path, onnx_bytes(model.cpu().eval(), input_shape=shape))
        except MissingExtra:
            return False
        return True

    def save_batch(self, x: Tensor, labels: Tensor, points: dict[str, Tensor]) -> Path:
        """The batch at which training stopped, for a closer look."""
        import safetensors.torch

        tensors = {"x": x, "labels": labels, **{f"attacked.{k}": t for k, t in points.items()}}
        path = self.path / "failed-batch.safetensors"
        held = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
        write_atomically(path, safetensors.torch.save(held))
        return path

    # --- how ---

    def _checkpoint(self, epoch: int) -> Path:
        return self.checkpoints / f"epoch-{epoch:06d}.safetensors"

    def epochs(self) -> list[int]:
        """Those that have a checkpoint, in order."""
        names = (path.stem.removeprefix("epoch-") for path in self.checkpoints.glob("epoch-*"))
        return sorted(int(name) for name in names if name.isdigit())

    def _keep_rows(self, epoch: int) -> None:
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return
        kept = [row for row in self.rows() if int(row.get("epoch", 0)) <= epoch]
        text = "".join(json.dumps(row) + "\n" for row in kept).encode()
        if text != path.read_bytes():
            write_atomically(path, text)


def environment() -> dict[str, Any]:
    """Versions and machine: what a figure may depend on beside the configuration."""
    versions: dict[str, str | None] = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "packages": versions,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor()
