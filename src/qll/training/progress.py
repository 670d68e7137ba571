"""What a run tells while it goes: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from qll.notebook import Line, in_notebook, live

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
        self._console.print(title, highlight=False, soft_wrap=True)

    def step(self) -> None: ...

    def epoch(self, row: Mapping[str, Any]) -> None:
        text = f"epoch {row['epoch']}/{self._epochs}  {describe(row)}  {row['seconds']:.1f} s"
        self._console.print(text, highlight=False, soft_wrap=True)

    def note(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


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
        self.note(title)  # above the bar, which has no room for it on 80 columns
        self._task = self.bars.add_task("", total=epochs, completed=done, figures="")

    def step(self) -> None:
        self._done += 1 / self._steps
        self.bars.update(self._task, completed=self._done)

    def epoch(self, row: Mapping[str, Any]) -> None:
        self._done = float(row["epoch"])
        self.bars.update(self._task, completed=self._done, figures=describe(row, 2))

    def note(self, text: str) -> None:
        self.bars.console.print(text, highlight=False, markup=False)


# Before these, a rate says nothing: one verdict of 43 foretold 978 seconds.
_SURE_DONE, _SURE_SECONDS = 5, 3.0


def time_left(done: int, total: int, seconds: float) -> float | None:
    """Seconds that the rest will take at the rate so far; None while that is a guess.

    >>> time_left(1, 43, 23.0), time_left(10, 43, 20.0)
    (None, 66.0)
    """
    if done >= total:
        return 0.0
    if done < _SURE_DONE or seconds < _SURE_SECONDS:
        return None
    return (total - done) * seconds / done


class Watched:
    """Figures that are worked on one after the other: a live bar on a terminal, elsewhere a line
    for each figure and one now and then within it. Use as a context; call it as a ``Watch``."""

    _EVERY = 10.0  # seconds between plain lines

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._bars: Any = None
        self._figure, self._began, self._said = "", clock(), clock()

    def __enter__(self) -> Watched:
        if self._console.is_terminal:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            left = TextColumn("{task.fields[left]}")
            columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), left
            self._bars = Progress(*columns, console=self._console, transient=True)
            self._bars.start()
        return self

    def __call__(self, figure: str, done: int, total: int) -> None:
        now = self._clock()
        fresh = figure != self._figure
        if fresh:
            self._figure, self._began, self._said = figure, now, now
        left = time_left(done, total, now - self._began)
        text = "" if left is None else f"about {left:.0f} s left"
        if self._bars is not None:
            if fresh:
                self._task = self._bars.add_task(figure, total=total, left="")
            self._bars.update(self._task, completed=done, left=text)
        elif fresh:
            self.tell(f"{figure}: {total} regions")
        elif now - self._said >= self._EVERY and done < total:
            self._said = now
            self.tell(f"{figure}: {done} of {total}" + (f", {text}" if text else ""))

    def tell(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False)

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()


def describe(row: Mapping[str, Any], most: int | None = None) -> str:
    """PAcc or R2 (test), CSec (attacked training batches) and lambda of an epoch; at ``most`` so
    many of them."""
    parts = [] if row.get("pacc") is None else [f"PAcc {100 * row['pacc']:.1f}"]
    if row.get("r2") is not None:
        parts += [f"R2 {row['r2']:.3f}", f"RMSE {row['rmse']:.4g}"]
    if row.get("train_csec") is not None:
        parts.append(f"CSec {100 * row['train_csec']:.1f}")
        parts.append(f"lambda {row['lambda']:.3g}")
    return "  ".join([*parts, f"loss {row['prediction_loss']:.4g}"][:most])


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


class NotebookLine:
    """One line in a notebook over all steps of all epochs."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._title, self._epochs, self._steps, self._done, self._figures = "", 1, 1, 0.0, ""

    def start(self, title: str, epochs: int, steps: int, done: int) -> None:
        self._title, self._epochs = title, max(epochs, 1)
        self._steps, self._done, self._figures = max(steps, 1), float(done), ""

    def step(self) -> None:
        self._done += 1 / self._steps
        self._tell()

    def epoch(self, row: Mapping[str, Any]) -> None:
        self._done, self._figures = float(row["epoch"]), describe(row)
        self._tell()

    def note(self, text: str) -> None:
        self._line.tell(text, self._done / self._epochs)

    def _tell(self) -> None:
        said = f"{self._title}: epoch {int(self._done)} of {self._epochs}  {self._figures}"
        self._line.tell(said, self._done / self._epochs)


@contextmanager
def shown(given: Reporter | None) -> Iterator[Reporter | None]:
    """The reporter of a call in Python: the caller's; at a prompt or in a notebook, a bar; in a
    program none."""
    if given is None and in_notebook():
        with live() as line:
            yield None if line is None else NotebookLine(line)
    elif given is None and hasattr(sys, "ps1"):
        with console_reporter() as reporter:
            yield reporter
    else:
        yield given
