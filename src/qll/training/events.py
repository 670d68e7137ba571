"""TensorBoard event files beside the other records of a run, where that extra is installed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qll.training.progress import Reporter

FOLDER = "events"


@contextmanager
def with_events(reporter: Reporter, run: Path) -> Iterator[Reporter]:
    """A reporter that also writes the figures of every epoch to ``run/events``; the same reporter
    where tensorboard is not installed."""
    from importlib.util import find_spec

    if find_spec("tensorboard") is None:
        yield reporter
        return
    events = _Events(reporter, run / FOLDER)
    try:
        yield events
    finally:
        events.close()


class _Events:
    def __init__(self, reporter: Reporter, folder: Path) -> None:
        self._reporter, self._folder = reporter, folder
        self._writer: Any = None

    def start(self, title: str, epochs: int, steps: int, done: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._reporter.start(title, epochs, steps, done)
        # An epoch that was written and then lost with its process is shown once.
        self._writer = SummaryWriter(str(self._folder), purge_step=done + 1)  # type: ignore[no-untyped-call, unused-ignore]

    def step(self) -> None:
        self._reporter.step()

    def epoch(self, row: Mapping[str, Any]) -> None:
        self._reporter.epoch(row)
        if self._writer is None:
            return
        try:
            for name, value in row.items():
                if name != "epoch" and isinstance(value, int | float):
                    self._writer.add_scalar(name, value, int(row["epoch"]))
            self._writer.flush()
        except OSError as error:  # the run's own records decide whether it can go on
            self._writer = None
            self.note(f"no more event files: {error.strerror or error}")

    def note(self, text: str) -> None:
        self._reporter.note(text)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
