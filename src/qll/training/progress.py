"""What a run tells while it goes: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.console import Console


class Reporter(Protocol):
    def start(self, title: str, epochs: int, steps: int, done: int) -> None: ...

    def step(self) -> None: ...

    def epoch(self, row: Mapping[str, Any]) -> None: ...

    def note(self, text: str) -> None: ...


class Silent:
    """Says nothing: the reporter of library calls."""

    def start(self, title: str, epochs: int, steps: int, done: int) -> None: ...

    def step(self) -> None: ...

    def epoch(self, row: Mapping[str, Any]) -> None: ...

    def note(self, text: str) -> None: ...


class PlainLines:
    """A line an epoch, for files and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._epochs = 0

    def start(self, title: str, epochs: int, steps: int, done: int) -> None:
        self._epochs = epochs
        self._console.print(title, highlight=False)

    def step(self) -> None: ...

    def epoch(self, row: Mapping[str, Any]) -> None:
        text = f"epoch {row['epoch']}/{self._epochs}  {describe(row)}  {row['seconds']:.1f} s"
        self._console.print(text, highlight=False)

    def note(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False)


class LiveBar:
    """One bar over all steps of all epochs, with the last epoch's figures."""

    def __init__(self, console: Console) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("epoch"),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            TextColumn("eta"),
            TimeRemainingColumn(),
            console=console,
            speed_estimate_period=120,
        )
        self._steps = 1
        self._done = 0.0

    def start(self, title: str, epochs: int, steps: int, done: int) -> None:
        self._steps, self._done = max(steps, 1), float(done)
        self._task = self.bars.add_task(title, total=epochs, completed=done, figures="")

    def step(self) -> None:
        self._done += 1 / self._steps
        self.bars.update(self._task, completed=self._done)

    def epoch(self, row: Mapping[str, Any]) -> None:
        self._done = float(row["epoch"])
        self.bars.update(self._task, completed=self._done, figures=describe(row))

    def note(self, text: str) -> None:
        self.bars.console.print(text, highlight=False, markup=False)


def describe(row: Mapping[str, Any]) -> str:
    """PAcc (test), CSec (attacked training batches) and lambda of an epoch."""
    parts = [] if row.get("pacc") is None else [f"PAcc {100 * row['pacc']:.1f}"]
    if row.get("train_csec") is not None:
        parts.append(f"CSec {100 * row['train_csec']:.1f}")
        parts.append(f"lambda {row['lambda']:.3g}")
    return "  ".join([*parts, f"loss {row['prediction_loss']:.4g}"])


@contextmanager
def console_reporter() -> Iterator[Reporter]:
    """The reporter of the command line, on standard error."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield PlainLines(console)
        return
    bar = LiveBar(console)
    with bar.bars:
        yield bar
