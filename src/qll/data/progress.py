"""Download progress on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from qll.data.base import Progress


@contextmanager
def terminal_progress() -> Iterator[Progress | None]:
    """A progress callback that draws a bar a file on standard error, or None when that is no
    terminal.

    >>> with terminal_progress() as progress:  # doctest: +SKIP
    ...     load("mnist", progress=progress)
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    tasks: dict[str, TaskID] = {}
    with Bars(*columns, console=console) as bars:

        def show(name: str, done: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total)
            bars.update(tasks[name], completed=done, total=total)

        yield show
