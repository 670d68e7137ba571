"""``qll report``: tables and one page from the records of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qll.cli.answers import JsonFile, store


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of runs, or folders that hold several.")
    ],
    out: Annotated[Path, typer.Option(help="The folder to write to.")] = Path("report"),
    paper: Annotated[
        Path | None, typer.Option(help="Published results (JSON) to stand beside ours.")
    ] = None,
    title: Annotated[str, typer.Option(help="The heading of the page.")] = "qll report",
    json_path: JsonFile = None,
) -> None:
    """Write a page that opens offline, and the tables as Markdown, CSV and LaTeX.

    Example: qll report runs --out report --paper results.json
    """
    from qll.cli.record import printable
    from qll.reports.page import write_report
    from qll.reports.paper import read_paper
    from qll.reports.records import read_runs

    published = None if paper is None else read_paper(paper)
    records = read_runs(runs)
    for item in records.left_out:
        typer.echo(printable(f"left out: {item.path}: {item.reason}"), err=True)
    written = write_report(records, out, paper=published, title=title)
    for path in written:
        typer.echo(printable(str(path)))
    left = [{"path": str(item.path), "reason": item.reason} for item in records.left_out]
    store(json_path, {"files": [str(path) for path in written], "left_out": left})


def register(app: typer.Typer) -> None:
    app.command()(report)
