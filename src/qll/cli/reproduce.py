"""``qll reproduce``: the paper's grid of runs, or one of your own."""

from __future__ import annotations

import math
import shlex
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qll.cli.answers import JsonFile, store

if TYPE_CHECKING:
    from qll.grid.plan import Grid, Planned
    from qll.grid.task import Outcome, Task
    from qll.workers import Workers

EXIT_FAILED = 12
EXIT_ELSEWHERE = 13


def reproduce(
    rows: Annotated[
        list[str] | None,
        typer.Option(help="Rows whose name has this text or regular expression; repeatable."),
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="0,1 or 0-4; default: the grid's.")] = None,
    grid: Annotated[
        Path | None, typer.Option(help="A TOML file with rows of your own; default: the paper's.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder for all runs; default: runs/ and the grid.")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Shorter (or longer) runs; tables say that they are.")
    ] = None,
    count: Annotated[
        int, typer.Option(help="Regions to verify in each run for CSat; 0 for none.")
    ] = 100,
    timeout: Annotated[float, typer.Option(help="Seconds for each of them.")] = 30.0,
    jobs: Annotated[int, typer.Option(min=0, help="Runs at a time; 0 for one on each core.")] = 0,
    engine: Annotated[str, typer.Option(help="local (processes), dask or ray.")] = "local",
    scheduler: Annotated[
        str | None, typer.Option(help="The cluster's address: tcp://HOST:8786 for dask.")
    ] = None,
    data_dir: Annotated[
        str | None, typer.Option(help="Where the data files are; else they are downloaded.")
    ] = None,
    show: Annotated[
        bool, typer.Option("--list", help="Show the rows and how far they are; run nothing.")
    ] = False,
    json_path: JsonFile = None,
) -> None:
    """Train, evaluate and prove every run of a grid. What is finished is not repeated, what was
    killed goes on, what fails is recorded and does not stop the rest: call it again any time.

    Exit code 0: all finished, 12: some failed, 13: none failed but some are being run elsewhere.

    Example: qll reproduce --rows dice --seeds 0,1 --jobs 2 --out runs/paper
    """
    from qll.grid.plan import paper_grid, read_grid
    from qll.workers import Workers

    workers = Workers(engine, jobs, scheduler)
    chosen = (paper_grid() if grid is None else read_grid(grid)).choose(rows or [])
    planned = chosen.runs(
        None if seeds is None else parse_seeds(seeds), epochs=epochs, data_dir=data_dir
    )
    folder = (out or Path("runs") / chosen.name).resolve()
    tasks = _tasks(planned, folder, count, timeout)
    if show:
        found = _list(chosen, planned, tasks)
        store(json_path, _as_json(chosen, planned, found, folder))
        return
    outcomes = _run(tasks, workers)
    _summary(outcomes, folder)
    store(json_path, _as_json(chosen, planned, outcomes, folder))
    states = {outcome.state.name for outcome in outcomes}
    if states & {"FAILED", "OTHER"}:
        raise typer.Exit(EXIT_FAILED)
    if "ELSEWHERE" in states:
        raise typer.Exit(EXIT_ELSEWHERE)


def parse_seeds(text: str) -> list[int]:
    """``0,1`` or ``0-4``.

    >>> parse_seeds("0-2,7")
    [0, 1, 2, 7]
    """
    from qll.errors import InputError

    found: list[int] = []
    try:
        for part in text.split(","):
            first, sign, last = part.strip().partition("-")
            found += range(int(first), int(last) + 1) if sign else [int(first)]
        if not found or max(found) >= 2**32:
            raise ValueError
    except ValueError:
        raise InputError(
            "--seeds names no seeds",
            expected="numbers with commas, or a range",
            found=f"'{text}'",
            fix="write --seeds 0,1 or --seeds 0-4",
        ) from None
    return list(dict.fromkeys(found))


def _tasks(planned: list[Planned], folder: Path, count: int, timeout: float) -> list[Task]:
    from qll.errors import InputError
    from qll.grid.task import Task

    if count < 0 or not 0 < timeout < math.inf:
        raise InputError(
            "this many regions cannot be verified" if count < 0 else "the time-out is not positive",
            expected="--count of 0 or more and --timeout above 0",
            found=f"--count {count} --timeout {timeout:g}",
            fix="write --count 100 --timeout 30",
        )
    return [Task(run.name, run.config, folder / run.name, count, timeout) for run in planned]


def _as_json(
    grid: Grid, planned: list[Planned], outcomes: list[Outcome], folder: Path
) -> dict[str, Any]:
    rows = [
        {
            "name": outcome.name,
            "row": run.row.name,
            "seed": run.config.seed,
            "epochs": run.config.epochs,
            "state": str(outcome.state),
            "seconds": outcome.seconds,
            "reason": outcome.reason,
        }
        for run, outcome in zip(planned, outcomes, strict=True)
    ]
    return {"grid": grid.name, "out": str(folder), "runs": rows}


def _list(grid: Grid, planned: list[Planned], tasks: list[Task]) -> list[Outcome]:
    """A line a row, then what stands in the way of those that failed."""
    from qll.grid.task import inspect

    outcomes = [inspect(task) for task in tasks]
    width = max(len(row.name) for row in grid.rows)
    for row in grid.rows:
        mine = [k for k, run in enumerate(planned) if run.row is row]
        states = Counter(str(outcomes[k].state) for k in mine)
        text = ", ".join(f"{number} {state}" for state, number in states.items())
        epochs = tasks[mine[0]].config.epochs
        typer.echo(f"{row.name:{width}}  {epochs:4d} epochs  {text}")
    seeds = len(tasks) // len(grid.rows)
    typer.echo(f"{len(grid.rows)} rows x {seeds} seeds = {len(tasks)} runs")
    _problems(outcomes)
    return outcomes


def _run(tasks: list[Task], workers: Workers) -> list[Outcome]:
    from qll.grid.task import State, fail, inspect, load_images, perform
    from qll.workers import Lost

    outcomes = {k: inspect(task) for k, task in enumerate(tasks)}
    waiting = [k for k, outcome in outcomes.items() if outcome.state is not State.FINISHED]
    done = len(tasks) - len(waiting)
    typer.echo(f"{len(tasks)} runs: {done} finished before, {len(waiting)} to do")
    if workers.is_local:
        # Here, so that no two workers download one file, and what is missing is said at once.
        configs = [tasks[k].config for k in waiting]
        for config in {(c.data, c.data_dir, str(c.data_options)): c for c in configs}.values():
            load_images(config)
    beat = _Heartbeat([tasks[k] for k in waiting])
    try:
        work = workers.run(perform, [tasks[k] for k in waiting])
        for number, (place, result) in enumerate(work, start=1):
            k = waiting[place]
            outcome = fail(tasks[k], result.reason) if isinstance(result, Lost) else result
            outcomes[k] = outcome
            beat.left.discard(place)
            typer.echo(f"[{number}/{len(waiting)}] {_line(outcome)}")
    except KeyboardInterrupt:
        typer.echo("Stopped. The same command goes on: every finished epoch is there.", err=True)
        raise
    finally:
        beat.stop()
    return [outcomes[k] for k in range(len(tasks))]


class _Heartbeat:
    """Now and then, how far the runs are that are under way, from their own records."""

    _EVERY = 60.0  # seconds

    def __init__(self, tasks: list[Task]) -> None:
        self.left = set(range(len(tasks)))
        self._tasks, self._seen = tasks, [self._size(task) for task in tasks]
        self._end = threading.Event()
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        while not self._end.wait(self._EVERY):
            under_way = []
            for place in sorted(self.left):
                size, task = self._size(self._tasks[place]), self._tasks[place]
                if size != self._seen[place]:
                    self._seen[place] = size
                    under_way.append(f"{task.name} {size[0]} of {task.config.epochs} epochs")
            if under_way:
                typer.echo(f"  {len(self.left)} left; {'; '.join(under_way)}", err=True)

    @staticmethod
    def _size(task: Task) -> tuple[int, int]:
        """Epochs and verdicts so far."""
        counts = []
        for name in ("metrics.jsonl", "verdicts.json.partial"):
            path = task.folder / name
            counts.append(path.read_bytes().count(b"\n") if path.is_file() else 0)
        return counts[0], counts[1]

    def stop(self) -> None:
        self._end.set()


def _line(outcome: Outcome) -> str:
    text = f"{outcome.name}: {outcome.state}"
    if outcome.seconds:
        text += f" after {outcome.seconds:.0f} s"
    return text + (f": {outcome.reason.splitlines()[0]}" if outcome.reason else "")


def _summary(outcomes: list[Outcome], folder: Path) -> None:
    states = Counter(str(outcome.state) for outcome in outcomes)
    typer.echo(", ".join(f"{number} {state}" for state, number in states.items()))
    _problems(outcomes)
    typer.echo(f"tables and pictures: qll report {shlex.quote(str(folder))}")


def _problems(outcomes: list[Outcome]) -> None:
    for outcome in outcomes:
        if outcome.state.name in ("FAILED", "OTHER", "ELSEWHERE"):
            typer.echo(f"{outcome.name}: {outcome.state}", err=True)
            for line in outcome.reason.splitlines():
                typer.echo(f"  {line}", err=True)


def register(app: typer.Typer) -> None:
    app.command()(reproduce)
