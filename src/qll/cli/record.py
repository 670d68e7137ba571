"""``qll record``: finished runs as small files that stay in a repository."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qll.cli.answers import JsonFile, store

EXIT_DIFFERS = 1
EXIT_REFUSED = 2


def record(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of runs, or folders that hold several.")
    ],
    out: Annotated[Path, typer.Option(help="The folder of the records.")],
    replace: Annotated[
        bool, typer.Option(help="Replace records from which a run differs; else they are kept.")
    ] = False,
    json_path: JsonFile = None,
) -> None:
    """Keep the compact record of every finished run: configuration, figures by epoch, evaluation,
    every verdict with its time; a few kB each, read by qll report. A run that has a record is
    compared with it instead.

    Exit code 1: a run differs from its record. 2: a run cannot be recorded; the others are.

    Example: qll record runs/paper --out results/paper
    """
    from qll.reports.recording import record_runs

    counts: dict[str, int] = {}
    found = []
    for item in record_runs(runs, out, replace=replace):
        counts[item.state] = counts.get(item.state, 0) + 1
        if item.state != "same" or item.remarks:
            typer.echo(f"{printable(item.name)}: {item.state}")
        for line in (*item.differences, *item.remarks):
            typer.echo(f"  {printable(line)}")
        found.append(
            {
                "run": printable(item.name),
                "state": item.state,
                "differences": list(item.differences),
                "remarks": list(item.remarks),
            }
        )
    typer.echo(", ".join(f"{count} {state}" for state, count in sorted(counts.items())))
    store(json_path, {"counts": counts, "runs": found})
    if counts.get("refused"):
        raise typer.Exit(EXIT_REFUSED)
    if counts.get("differs"):
        raise typer.Exit(EXIT_DIFFERS)


def printable(text: str) -> str:
    """Of the name of a folder, which need not be UTF-8."""
    return text.encode(errors="backslashreplace").decode()


def register(app: typer.Typer) -> None:
    app.command()(record)
